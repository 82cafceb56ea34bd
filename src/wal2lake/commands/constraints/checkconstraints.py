"""CHECK constraints of CREATE TABLE and ALTER TABLE: names, types, and checks of existing rows.

Takes clauses and their table; returns constraints as the catalog keeps them, or raises PostgreSQL's
error. Expressions are typed like row filters (``publication.filters``) and evaluated by the same
functions. An expression that those don't compute is 0A000 with its text.
Source: heap.c (AddRelationNewConstraints), pg_constraint.c (ChooseConstraintName), tablecmds.c
(ATExecAddConstraint, ATRewriteTable).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import pyarrow as pa

from wal2lake.apply.local.altering import computed_in, field_spec
from wal2lake.catalog import Catalog, ColumnPlan, PlannedColumn, TableDef
from wal2lake.commands.constraints.expressionerrors import named_for
from wal2lake.commands.publication.filters import analyse
from wal2lake.errors import (
    About,
    DuplicateObjectError,
    FeatureNotSupportedError,
    UsageError,
)
from wal2lake.lake import TableState
from wal2lake.lake.branch import rows_of
from wal2lake.lake.staging import (
    CHECK_VIOLATION,
    computed,
    inputs_of,
    mapping_of,
    violating,
)
from wal2lake.local.ports import HasTables
from wal2lake.model import CheckConstraint
from wal2lake.pgtypes.columnnames import derived_name
from wal2lake.pgtypes.expressions import encode
from wal2lake.sql.grammar.constraints import CheckClause


def added_checks(
    catalog: Catalog, table: TableDef, clauses: Sequence[CheckClause], zone: str
) -> list[CheckConstraint]:
    """Return the clauses' constraints; ``table`` has the columns and the earlier constraints."""
    checks: list[CheckConstraint] = []
    for clause in clauses:
        tree, columns = _analysed(table, clause, zone)
        mine = {check.name for check in (*table.checks, *checks)}
        if clause.name is None:
            name = _free_name(catalog, table, columns, mine)
        elif clause.name not in mine | _others(table):
            name = clause.name
        elif clause.name in {check.name for check in checks}:
            raise DuplicateObjectError(
                f'check constraint "{clause.name}" already exists', sqlstate="42710"
            )
        else:
            raise DuplicateObjectError(
                f'constraint "{clause.name}" for relation "{table.name}" already exists',
                sqlstate="42710",
            )
        checks.append(CheckConstraint(name, tree, columns))
    return checks


def _analysed(
    table: TableDef, clause: CheckClause, zone: str
) -> tuple[str, tuple[str, ...]]:
    with named_for("check constraints", f"CHECK ({clause.text})"):
        tree, columns = analyse(clause.expression, table, zone, "CHECK")
    return encode(tree), columns


def _others(table: TableDef) -> set[str]:
    """Return the names of the table's constraints that are not CHECKs."""
    names = {f"{table.name}_{c.name}_not_null" for c in table.columns if c.not_null}
    return names | ({table.index_name} if table.key else set())


def _free_name(
    catalog: Catalog,
    table: TableDef,
    columns: Sequence[str],
    taken: Collection[str],
) -> str:
    """Choose a name like ChooseConstraintName().

    The name contains the column if the expression reads one only. It is numbered if a table of
    the schema has a constraint of that name."""
    names = {*taken, *_others(table)}
    for sibling in catalog.tables():
        if sibling.namespace == table.namespace and sibling.oid != table.oid:
            names |= {check.name for check in sibling.checks} | _others(sibling)
    column = columns[0] if len(columns) == 1 else None
    for number in itertools.count():
        name = derived_name(table.name, column, f"check{number or ''}")
        if name not in names:
            return name
    raise AssertionError


def check_rows(node: HasTables, plan: ColumnPlan, state: TableState) -> None:
    """Check existing rows against the plan.

    Raises an error for rows whose generated columns cannot be recomputed, and 23514 for rows that
    violate a constraint that is new or reads a recomputed column. Whatever reads a column of a
    new type is left to ``check_written``, after the rewrite."""
    waits = _of_written(plan)
    generated = tuple(pair for pair in computed_in(plan) if pair[0] not in waits)
    computes = {name for name, _ in generated}
    new = [
        check for check in _new_checks(plan) if not waits.intersection(check.columns)
    ]
    if not new and not generated:
        return
    if node.tables.files(state) is None:
        raise FeatureNotSupportedError(
            "CHECK constraints and generated columns of relation"
            f' "{plan.before.name}" are not supported',
            detail="Its rows are not stored as this node writes them.",
        )
    planned = {column.column.name: column for column in plan.columns}
    read = {name for check in new for name in check.columns} | inputs_of(generated)
    names = sorted(read | computes)
    stored = [
        s
        for name in names
        if name not in computes and (s := planned[name].source) is not None
    ]
    fields = [field_spec(planned[name].column) for name in names]
    for rows in rows_of(node.tables, state, stored):
        if not rows.num_rows:
            continue
        columns = [
            _values(plan, planned[name], rows, is_computed=name in computes)
            for name in names
        ]
        table = pa.table(columns, names=names) if names else rows
        table, failed = computed(generated, fields, table)
        if failed:
            raise UsageError(failed[0].message, sqlstate=failed[0].sqlstate)
        for name in computes:
            if planned[name].column.not_null and table.column(name).null_count:
                raise UsageError(
                    f'column "{name}" of relation "{plan.before.name}" contains null'
                    " values",
                    sqlstate="23502",
                    about=About(plan.before.namespace, plan.before.name, column=name),
                )
        _check(plan, new, table)


def check_written(node: HasTables, plan: ColumnPlan, written: TableState) -> None:
    """Check rewritten rows against the constraints that read columns of new types."""
    waits = _of_written(plan)
    new = [check for check in _new_checks(plan) if waits.intersection(check.columns)]
    if new:
        names = sorted({name for check in new for name in check.columns})
        for rows in rows_of(node.tables, written, names):
            _check(plan, new, rows)


def _new_checks(plan: ColumnPlan) -> list[CheckConstraint]:
    """Return the constraints that no row is known to satisfy yet."""
    computes = {name for name, _ in computed_in(plan)}
    before = {check.name for check in plan.before.checks}
    return [
        check
        for check in plan.after.checks
        if check.name not in before or computes.intersection(check.columns)
    ]


def _of_written(plan: ColumnPlan) -> set[str]:
    """Return the columns whose values are known only after the rewrite."""
    retyped = {column.column.name for column in plan.columns if column.retyped}
    reading = {
        n
        for n, generation in computed_in(plan)
        if retyped.intersection(generation.columns)
    }
    return retyped | reading


def _check(plan: ColumnPlan, checks: Sequence[CheckConstraint], rows: pa.Table) -> None:
    for check in checks:
        if violating([check], rows).any():
            raise UsageError(
                f'check constraint "{check.name}" of relation'
                f' "{plan.before.name}" is violated by some row',
                sqlstate=CHECK_VIOLATION,
                about=About(
                    plan.before.namespace, plan.before.name, constraint=check.name
                ),
            )


def _values(
    plan: ColumnPlan, column: PlannedColumn, rows: pa.Table, *, is_computed: bool
) -> pa.ChunkedArray:
    """Return the column's values in the next table; NULLs for a column yet to be computed."""
    if column.source is not None and not is_computed:
        return rows.column(column.source)
    if column.default is not None:
        raise FeatureNotSupportedError(
            "check constraint or generated column that reads the new column"
            f' "{column.column.name}" of relation "{plan.before.name}", which has rows, is'
            " not supported",
            hint="Add the column first, and then the constraint or generated column.",
        )
    kind = mapping_of(field_spec(column.column)).arrow_type
    return pa.chunked_array([pa.nulls(rows.num_rows, kind)])
