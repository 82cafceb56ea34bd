"""The state of a node: facts at one moment, and the problems that follow from them.

Takes: the catalog, mapped positions, log directories, files of the supervisor and the engine.
Gives: ``NodeFacts``, ``Problem``. Never: blocks a worker, writes, loads Spark, NumPy or Arrow.

    facts         the facts as values
    reading       ``FactReader``: files -> NodeFacts; start here
    collecting/   parts of that
    problem       a problem as a value; the closed list of kinds
    problems      NodeFacts -> Problems: pure
    rules/        parts of that
    since         when each problem began
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
from wal2lake.health.problem import (
    Concern,
    Problem,
    ProblemKey,
    ProblemKind,
    Severity,
)
from wal2lake.health.problems import problems
from wal2lake.health.reading import FactReader
from wal2lake.health.since import ProblemClock, load_seen, save_seen

__all__ = [
    "Concern",
    "CopyFacts",
    "DiskFacts",
    "FactReader",
    "NodeFacts",
    "PreparedTransactionFacts",
    "Problem",
    "ProblemClock",
    "ProblemKey",
    "ProblemKind",
    "ProcessFacts",
    "Severity",
    "SlotFacts",
    "SourceFacts",
    "StageLag",
    "SubscriptionFacts",
    "TableFacts",
    "WalsenderFacts",
    "load_seen",
    "problems",
    "save_seen",
]
