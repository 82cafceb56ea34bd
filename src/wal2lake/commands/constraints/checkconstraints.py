"""CHECK constraints of CREATE TABLE and ALTER TABLE: names, types, and the rows that are there.

Comes in: clauses, and the table that they are of. Goes out: constraints as the catalog keeps them,
or PostgreSQL's error. The expression is typed as a row filter is (``publication.filters``), and
evaluated by the same functions; what they do not compute is 0A000 with the expression.

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
from wal2lake.lake.branch.checks import rows_of
from wal2lake.lake.staging.checks import CHECK_VIOLATION, violating
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.staging.generated import computed, inputs_of
from wal2lake.local.node import EngineParts
from wal2lake.model import CheckConstraint
from wal2lake.pgtypes.columnnames import derived_name
from wal2lake.pgtypes.expressions import encode
from wal2lake.sql.grammar.constraints import CheckClause


def added_checks(
    catalog: Catalog, table: TableDef, clauses: Sequence[CheckClause], zone: str
) -> list[CheckConstraint]:
    """The constraints of clauses; ``table`` has the columns and the constraints of before."""
    found: list[CheckConstraint] = []
    for clause in clauses:
        tree, columns = _analysed(table, clause, zone)
        mine = {one.name for one in (*table.checks, *found)}
        if clause.name is None:
            name = _free_name(catalog, table, columns, mine)
        elif clause.name not in mine | _others(table):
            name = clause.name
        elif clause.name in {one.name for one in found}:
            raise DuplicateObjectError(
                f'check constraint "{clause.name}" already exists', sqlstate="42710"
            )
        else:
            raise DuplicateObjectError(
                f'constraint "{clause.name}" for relation "{table.name}" already exists',
                sqlstate="42710",
            )
        found.append(CheckConstraint(name, tree, columns))
    return found


def _analysed(
    table: TableDef, clause: CheckClause, zone: str
) -> tuple[str, tuple[str, ...]]:
    with named_for("check constraints", f"CHECK ({clause.text})"):
        tree, columns = analyse(clause.expression, table, zone, "CHECK")
    return encode(tree), columns


def _others(table: TableDef) -> set[str]:
    """Names of the table's other constraints."""
    names = {f"{table.name}_{c.name}_not_null" for c in table.columns if c.not_null}
    return names | ({table.index_name} if table.key else set())


def _free_name(
    catalog: Catalog,
    table: TableDef,
    columns: Sequence[str],
    taken: Collection[str],
) -> str:
    """ChooseConstraintName(): of the only column that the expression reads, numbered if a table of
    the schema has one of that name."""
    names = {*taken, *_others(table)}
    for other in catalog.tables():
        if other.namespace == table.namespace and other.oid != table.oid:
            names |= {one.name for one in other.checks} | _others(other)
    column = columns[0] if len(columns) == 1 else None
    for number in itertools.count():
        name = derived_name(table.name, column, f"check{number or ''}")
        if name not in names:
            return name
    raise AssertionError


def check_rows(node: EngineParts, plan: ColumnPlan, state: TableState) -> None:
    """Raise for rows of which a generated column cannot be computed anew, and 23514 for those that
    violate a constraint that is new, or that reads such a column. What reads a column that becomes
    of another type waits for ``check_written``."""
    waits = _of_written(plan)
    generated = tuple(one for one in computed_in(plan) if one[0] not in waits)
    computes = {name for name, _ in generated}
    new = [one for one in _new_checks(plan) if not waits.intersection(one.columns)]
    if not new and not generated:
        return
    if node.tables.files(state) is None:
        raise FeatureNotSupportedError(
            "CHECK constraints and generated columns of relation"
            f' "{plan.before.name}" are not supported',
            detail="Its rows are not stored as this node writes them.",
        )
    planned = {one.column.name: one for one in plan.columns}
    read = {name for check in new for name in check.columns} | inputs_of(generated)
    wanted = sorted(read | computes)
    stored = [
        s
        for name in wanted
        if name not in computes and (s := planned[name].source) is not None
    ]
    fields = [field_spec(planned[name].column) for name in wanted]
    for rows in rows_of(node.tables, state, stored):
        if not rows.num_rows:
            continue
        columns = [
            _values(plan, planned[name], rows, is_computed=name in computes)
            for name in wanted
        ]
        table = pa.table(columns, names=wanted) if wanted else rows
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


def check_written(node: EngineParts, plan: ColumnPlan, written: TableState) -> None:
    """The same of what reads columns that have another type in ``written``, which has all rows."""
    waits = _of_written(plan)
    new = [one for one in _new_checks(plan) if waits.intersection(one.columns)]
    if new:
        wanted = sorted({name for check in new for name in check.columns})
        for rows in rows_of(node.tables, written, wanted):
            _check(plan, new, rows)


def _new_checks(plan: ColumnPlan) -> list[CheckConstraint]:
    """Return the constraints that no row is known to satisfy yet."""
    computes = {name for name, _ in computed_in(plan)}
    before = {one.name for one in plan.before.checks}
    return [
        one
        for one in plan.after.checks
        if one.name not in before or computes.intersection(one.columns)
    ]


def _of_written(plan: ColumnPlan) -> set[str]:
    """Columns whose values are there when rows have been written anew."""
    retyped = {one.column.name for one in plan.columns if one.retyped}
    reading = {n for n, one in computed_in(plan) if retyped.intersection(one.columns)}
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
    plan: ColumnPlan, one: PlannedColumn, rows: pa.Table, *, is_computed: bool
) -> pa.ChunkedArray:
    """A column of the next table; nothing of one that is to be computed."""
    if one.source is not None and not is_computed:
        return rows.column(one.source)
    if one.default is not None:
        raise FeatureNotSupportedError(
            "check constraint or generated column that reads the new column"
            f' "{one.column.name}" of relation "{plan.before.name}", which has rows, is'
            " not supported",
            hint="Add the column first, and then what reads it.",
        )
    kind = mapping_of(field_spec(one.column)).arrow_type
    return pa.chunked_array([pa.nulls(rows.num_rows, kind)])
