"""The state of a node: facts at one moment, and the problems that follow from them.

Takes: the catalog, mapped positions, log directories, files of the supervisor and the engine.
Gives: ``NodeFacts``, ``Problem``. Never: blocks a worker, writes, loads Spark, NumPy or Arrow.

    facts                        the facts as values
    reading                      ``FactReader``: files -> NodeFacts; start here
    tables, lag, surroundings    parts of that
    problems                     the problems as values
"""

from wal2lake.health.facts import (
    CopyFacts,
    DiskFacts,
    NodeFacts,
    PreparedTransactionFacts,
    ProcessFacts,
    SlotFacts,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.health.problems import Concern, Problem, Severity
from wal2lake.health.reading import FactReader

__all__ = [
    "Concern",
    "CopyFacts",
    "DiskFacts",
    "FactReader",
    "NodeFacts",
    "PreparedTransactionFacts",
    "Problem",
    "ProcessFacts",
    "Severity",
    "SlotFacts",
    "SourceFacts",
    "StageLag",
    "SubscriptionFacts",
    "TableFacts",
    "WalsenderFacts",
]
