"""EXPLAIN: checks the options, runs the statement for ANALYZE, and returns the plan as rows.

Takes the parsed statement, and functions that analyse, plan and run the statement in it. Called by
``lakebackend``. The plan is made before the statement runs, because a write changes the table.

A node measures the statement as a whole: its engines return rows and no times of their steps. So
only the plan's first node has actual times and rows.

Source: ExplainQuery(), ExplainOnePlan() and ExplainResultDesc() in explain.c.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from wal2lake.engine.session.analysedstatements import AnalysedStatement
from wal2lake.engine.session.explain.planner import StatementPlanner
from wal2lake.engine.session.explain.rendering import PlanNode, PlanProperty, rendered
from wal2lake.engine.session.filledtables import is_there, places_in_query
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.backend import Outcome, ResultBatch
from wal2lake.sql.grammar.explaining import (
    Explain,
    ExplainFormat,
    ExplainOptions,
    explain_options,
)
from wal2lake.sql.grammar.tableas import CreateTableAs
from wal2lake.sql.query.translate import BoundParameter
from wal2lake.wire.frontback import FieldDescription

_TEXT, _JSON, _XML = 25, 114, 142

_TYPES: Final = {ExplainFormat.JSON: _JSON, ExplainFormat.XML: _XML}


def plan_fields(statement: Explain) -> tuple[FieldDescription, ...]:
    """Return the column of the answer."""
    oid = _TYPES.get(statement.format, _TEXT)
    return (FieldDescription("QUERY PLAN", oid),)


def prepared_query(
    statement: Explain, prepare: Callable[[str], AnalysedStatement]
) -> AnalysedStatement:
    """Analyse the statement that is explained.

    Raises 0A000 for GENERIC_PLAN with parameters: a node plans each execution, with its values."""
    with places_in_query(statement):
        query = prepare(statement.query)
    if statement.is_generic and query.param_oids:
        raise FeatureNotSupportedError(
            "EXPLAIN (GENERIC_PLAN) of a statement with parameters is not supported",
            hint="Write values in the place of the parameters.",
        )
    return query


def explained(
    statement: Explain,
    planner: StatementPlanner,
    bound: tuple[BoundParameter, ...],
    prepare: Callable[[str], AnalysedStatement],
    run: Callable[[AnalysedStatement], Outcome],
) -> Outcome:
    """Return the answer. ``run``: executes a statement, with its effects."""
    with places_in_query(statement):
        return _explained(statement, planner, bound, prepare, run)


def _explained(
    statement: Explain,
    planner: StatementPlanner,
    bound: tuple[BoundParameter, ...],
    prepare: Callable[[str], AnalysedStatement],
    run: Callable[[AnalysedStatement], Outcome],
) -> Outcome:
    query = planned = prepare(statement.query)
    if isinstance(query.statement, CreateTableAs):
        is_there(planner.node, planner.caller, query.statement)
        planned = prepare(query.statement.query)
    try:
        options = explain_options(statement.options)
    except UsageError:
        # As in PostgreSQL, errors of the statement come first.
        planner.plan(planned, bound, ExplainOptions())
        raise
    started = time.perf_counter()
    tree = planner.plan(planned, bound, options)
    summary = []
    if options.summary:
        summary.append(PlanProperty("Planning Time", _milliseconds(started)))
    if options.analyze:
        started = time.perf_counter()
        measured = _measured(run(query))
        tree = _with_actual(tree, measured, options)
        if options.summary:
            summary.append(PlanProperty("Execution Time", _milliseconds(started)))
    rows = [row.encode() for row in rendered(tree, summary, options.format)]
    batch = ResultBatch(len(rows), (rows,))
    return Outcome("EXPLAIN", plan_fields(statement), iter((batch,)))


@dataclass(frozen=True, slots=True)
class _Measured:
    """Rows and times of a statement that has run."""

    rows: int
    """The rows that it returned, or that its query has given to a new table."""
    changed: int | None
    """The rows that it wrote; None if it is a query."""
    first: Decimal
    """Milliseconds until it returned its first rows."""
    total: Decimal


def _measured(outcome: Outcome) -> _Measured:
    started = time.perf_counter()
    rows, first = 0, None
    try:
        for batch in outcome.batches:
            first = first or _milliseconds(started)
            rows += batch.rows
    finally:
        outcome.close()
    total = _milliseconds(started)
    verb, _, count = outcome.tag.rpartition(" ")
    number = int(count) if verb and count.isdigit() else None
    if verb == "SELECT" and number is not None:
        # CREATE TABLE AS: the rows of the query.
        rows, number = number, None
    return _Measured(rows, number, first or total, total)


def _with_actual(
    node: PlanNode, measured: _Measured, options: ExplainOptions
) -> PlanNode:
    rows = Decimal(measured.rows).quantize(Decimal("0.01"))
    actual = []
    times = ""
    if options.timing:
        times = f"time={measured.first}..{measured.total} "
        actual += [
            PlanProperty("Actual Startup Time", measured.first, in_text=False),
            PlanProperty("Actual Total Time", measured.total, in_text=False),
        ]
    actual += [
        PlanProperty("Actual Rows", rows, in_text=False),
        PlanProperty("Actual Loops", 1, in_text=False),
    ]
    if measured.changed is not None:
        actual.append(PlanProperty("Changed Rows", measured.changed))
    return replace(
        node,
        title=f"{node.title} (actual {times}rows={rows} loops=1)",
        properties=(*node.properties, *actual),
    )


def _milliseconds(started: float) -> Decimal:
    elapsed = 1000 * (time.perf_counter() - started)
    return Decimal(elapsed).quantize(Decimal("0.001"))
