"""Reads Spark's plan of a statement, without executing the statement.

Comes in: Spark SQL, of a query or a command. Goes out: the physical plan as a tree of
``EnginePlan``, with the files that each scan of a Delta table reads. Spark finds these files by
their statistics while it optimizes the query, so a plan has them before anything runs.

Nodes that only carry rows from one form to another are left out. A command that Delta plans itself
(UPDATE, DELETE, MERGE) is one node.

Sources: Spark 4.1 QueryExecution, FileSourceScanExec; Delta's PreparedDeltaFileIndex.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_CARRIERS: Final = frozenset(
    {
        "AdaptiveSparkPlanExec",
        "ColumnarToRowExec",
        "InputAdapter",
        "RowToColumnarExec",
        "WholeStageCodegenExec",
    }
)

_MOST_FIELDS: Final = 25
"""Most items of a list in a node's arguments. Spark's own limit in its plans."""

_IDS: Final = re.compile(r"#\d+L?\b")
"""Matches the number that Spark gives to each column of a plan."""


@dataclass(frozen=True, slots=True)
class ScannedFiles:
    """The files that a scan of a Delta table reads."""

    location: str
    """The table's location, as Spark writes it: a URL."""
    files: int
    listed: int | None
    """Files of the version; None if Delta has not counted them."""
    size: int
    """Bytes of the files that are read."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One step of Spark's plan."""

    name: str
    arguments: str
    """Spark's description, without the name; the filters of a scan of files."""
    children: tuple[EnginePlan, ...]
    scan: ScannedFiles | None = None


def read_plan(java_plan: Any) -> EnginePlan:
    """Return a physical plan (``SparkPlan``) as a tree."""
    while java_plan.getClass().getSimpleName() in _CARRIERS:
        java_plan = next(_inputs(java_plan))
    children = tuple(map(read_plan, (*_inputs(java_plan), *_subqueries(java_plan))))
    name = str(java_plan.nodeName()).strip()
    if java_plan.getClass().getSimpleName() == "FileSourceScanExec":
        scan = _scan(java_plan.relation().location())
        filters = [_IDS.sub("", str(f.sql())) for f in _items(java_plan.dataFilters())]
        return EnginePlan("Scan", " AND ".join(filters), children, scan)
    described = str(java_plan.simpleString(_MOST_FIELDS)).strip()
    arguments = _IDS.sub("", described.removeprefix(name).strip())
    return EnginePlan(name, arguments, children)


def _inputs(java_plan: Any) -> Iterator[Any]:
    if java_plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        yield java_plan.executedPlan()
        return
    yield from _items(java_plan.children())


def _subqueries(java_plan: Any) -> Iterator[Any]:
    yield from _items(java_plan.subqueries())


def _items(sequence: Any) -> Iterator[Any]:
    for i in range(sequence.length()):
        yield sequence.apply(i)


def _scan(location: Any) -> ScannedFiles | None:
    if location.getClass().getSimpleName() != "PreparedDeltaFileIndex":
        return None
    prepared = location.preparedScan()
    files = list(_items(prepared.files()))
    listed = prepared.total().files()
    return ScannedFiles(
        str(location.path().toString()),
        len(files),
        int(listed.get()) if listed.isDefined() else None,
        sum(int(file.size()) for file in files),
    )
