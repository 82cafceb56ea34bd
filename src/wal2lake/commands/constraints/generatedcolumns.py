"""Generated columns of CREATE TABLE and ALTER TABLE.

Takes clauses and their table; returns columns as the catalog keeps them, or raises PostgreSQL's
error. Expressions are typed like row filters (``publication.filters``) and evaluated by the same
functions. An expression that those don't compute is 0A000 with its text.

Source: cookDefault() and check_nested_generated() in heap.c; scanNSItemForColumn() in
parse_relation.c; build_generation_expression() in rewriteHandler.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from wal2lake.apply.local.altering import computed_in
from wal2lake.catalog import (
    AddColumn,
    ColumnChange,
    ColumnDef,
    ColumnPlan,
    DropColumn,
    SetGeneration,
    TableDef,
    local_writer,
    plan_changes,
)
from wal2lake.commands.constraints.expressionerrors import named_for
from wal2lake.commands.publication.filters import analyse_generation
from wal2lake.commands.publication.operations import Mutable, unsupported
from wal2lake.errors import UsageError
from wal2lake.lake.spark import Branch, RowRefused, generate
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasBranches
from wal2lake.model import Generation
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.expressions import (
    Computation,
    Expression,
    assignable,
    decode,
    encode,
)
from wal2lake.pgtypes.expressions.operators import MOMENTS, TEXTS
from wal2lake.pgtypes.expressions.values import JSON, JSONB, SUPPORTED
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.altering.alterstatements import ExpressionClause
from wal2lake.sql.grammar.constraints import GeneratedClause

NOT_YET: Final = Generation("", ())
"""Marks a generated column whose expression is not analysed yet, so that no other generated column
reads it."""


def with_generations(
    table: TableDef, clauses: Mapping[str, GeneratedClause], zone: str
) -> TableDef:
    """Return the table with the columns of ``clauses`` generated."""
    if not clauses:
        return table
    marked = replace(
        table,
        columns=tuple(
            replace(c, generated=NOT_YET) if c.name in clauses else c
            for c in table.columns
        ),
    )
    columns = [
        replace(c, generated=generation(marked, c, clauses[c.name], zone))
        if c.name in clauses
        else c
        for c in table.columns
    ]
    return replace(table, columns=tuple(columns))


def generation(
    table: TableDef, column: ColumnDef, clause: GeneratedClause, zone: str
) -> Generation:
    """Analyse the expression of a generated column.

    ``table`` tells which of its columns are generated."""
    shown = f"GENERATED ALWAYS AS ({clause.text})"
    with named_for("column generation expressions", shown):
        try:
            if column.type_oid not in (*SUPPORTED, JSON, JSONB):
                raise unsupported(f"type {format_type(column.type_oid)}")
            tree, columns = analyse_generation(
                clause.expression, table, zone, column.type_oid
            )
            _check_assignment(column, tree)
        except Mutable:
            raise UsageError(
                "generation expression is not immutable", sqlstate="42P17"
            ) from None
    result = Generation(encode(tree), columns)
    if not columns:
        # A constant expression gives each row the same result, or fails for each row.
        for _, error in computation(result, column).texts([], 1)[1]:
            raise error
    return result


def computation(generation: Generation, column: ColumnDef) -> Computation:
    """Return the evaluator of a generated column's expression."""
    tree = decode(generation.expression)
    return Computation(tree, generation.columns, column.type_oid, column.typmod)


def _check_assignment(column: ColumnDef, tree: Expression) -> None:
    source, target = tree.type_oid, column.type_oid
    if assignable(source, target):
        return
    if target in TEXTS or (source in MOMENTS and target in MOMENTS):
        raise unsupported(f"a cast from {format_type(source)} to {format_type(target)}")
    raise not_assignable(column, source)


def not_assignable(column: ColumnDef, source: int) -> UsageError:
    """Return the error 42804 for an expression of another type."""
    return UsageError(
        f'column "{column.name}" is of type {format_type(column.type_oid)} but default'
        f" expression is of type {format_type(source)}",
        sqlstate="42804",
        hint="You will need to rewrite or cast the expression.",
    )


# ---- ALTER TABLE -------------------------------------------------------------------------


def added_generated(
    table: TableDef,
    changes: Sequence[ColumnChange],
    column: ColumnDef,
    clause: GeneratedClause,
    zone: str,
) -> ColumnDef:
    """Return the column of ADD COLUMN, which follows ``changes``."""
    marked = AddColumn(replace(column, generated=NOT_YET))
    after = plan_changes(table, [*changes, marked]).after
    return replace(column, generated=generation(after, column, clause, zone))


def set_expression(
    caller: Caller, table: TableDef, action: ExpressionClause
) -> list[ColumnChange]:
    """SET and DROP EXPRESSION."""
    column, clause = table.column(action.name), action.generated
    generated = column is not None and column.generated is not None
    if clause is None and action.if_exists and column is not None and not generated:
        text = (
            f'column "{action.name}" of relation "{table.name}" is not a generated'
            " column, skipping"
        )
        caller.notice(Notice(text))
        return []
    if clause is None or column is None or not generated:
        # Planning the change refuses SET EXPRESSION of a column that is not generated.
        return [SetGeneration(action.name, None)]
    result = generation(table, column, clause, caller.zone)
    return [SetGeneration(action.name, result)]


def check_retyped(before: ColumnDef | None, kind: ColumnDef, *, using: bool) -> None:
    """Raise if a generated column cannot take the new type, or the clause has USING."""
    if before is None or before.generated is None:
        return
    if using:
        raise UsageError(
            "cannot specify USING when altering type of generated column",
            sqlstate="42611",
            detail=f'Column "{before.name}" is a generated column.',
        )
    tree = decode(before.generated.expression)
    for source in (before.type_oid, tree.type_oid):
        if not assignable(source, kind.type_oid):
            raise UsageError(
                f'column "{before.name}" cannot be cast automatically to type'
                f" {format_type(kind.type_oid)}",
                sqlstate="42804",
            )


def dropped_columns(
    table: TableDef, changes: Sequence[ColumnChange]
) -> list[tuple[str, list[str]]]:
    """Return the dropped columns, each with the generated columns that are computed from it."""
    dropped = []
    for index, change in enumerate(changes):
        if isinstance(change, DropColumn):
            now = plan_changes(table, changes[:index]).after
            names = [
                n
                for n, expression in now.generated
                if change.name in expression.columns
            ]
            dropped.append((change.name, names))
    return dropped


def compute_in(node: HasBranches, plan: ColumnPlan, branch: Branch) -> None:
    """Compute the generated columns of all rows of a branch, which has at most one commit."""
    generated = computed_in(plan)
    state = node.branches.state(branch)
    if not generated or not state.version:
        return
    (commit,) = node.tables.actions(branch.location, 1, state.version)
    try:
        generate(
            node.branches,
            node.tables,
            branch,
            0,
            local_writer(node.catalog.system_identifier),
            [action["add"] for action in commit if "add" in action],
            generated,
            frozenset(),
            plan.before.name,
        )
    except RowRefused as error:
        raise UsageError(error.why.message, sqlstate=error.why.sqlstate) from None
