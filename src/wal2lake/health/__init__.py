"""The state of a node: facts at one moment, and the problems that follow from them.

Takes: the catalog, mapped positions, log directories, files of the supervisor and the engine.
Gives: ``NodeFacts``, ``Problem``. Never: blocks a worker, writes, loads Spark, NumPy or Arrow.
"""

from wal2lake.health.facts import (
    CopyFacts,
    DiskFacts,
    NodeFacts,
    ProcessFacts,
    SlotFacts,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.health.problems import Concern, Problem, Severity

__all__ = [
    "Concern",
    "CopyFacts",
    "DiskFacts",
    "NodeFacts",
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
