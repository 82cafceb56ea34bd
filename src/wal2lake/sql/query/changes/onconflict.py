"""Translates ON CONFLICT of INSERT. Pure.

Comes in: the clause, and the table. Goes out: an ``OnConflict``. Called by ``inserts``.

The only unique constraint of a table is its primary key, so the clause names the key or nothing.
The values of DO UPDATE are computed from pairs of rows: the row that is there has the columns
``o0``.. in the relation of ``returning``, and the row that could not be inserted has ``e0``...

Source: PostgreSQL manual, INSERT, "ON CONFLICT Clause"; transformOnConflictClause in analyze.c,
transformOnConflictArbiter in parse_clause.c, infer_arbiter_indexes in plancat.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.catalog import TableDef
from wal2lake.errors import (
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.sql.query.analysis.scopes import FromItem
from wal2lake.sql.query.analysis.writes import merged_values
from wal2lake.sql.query.changes.returning import values_of_rows
from wal2lake.sql.query.changes.stored import OnConflict
from wal2lake.sql.query.changes.updates import assignments
from wal2lake.sql.query.qualified import cut_schemas
from wal2lake.sql.query.translate import Resolver, place_tables, settle
from wal2lake.sql.query.values import types as t

_OLD: Final = "wal2lake old"
_EXCLUDED: Final = "wal2lake excluded"


def conflict_of(tree: exp.Expression) -> exp.OnConflict | None:
    """Take the clause off a statement's tree. Raises 42601 for another system's clause."""
    clause = tree.args.get("conflict")
    tree.set("conflict", None)
    if clause is None:
        return None
    if clause.args.get("duplicate"):
        raise SqlSyntaxError('syntax error at or near "duplicate"')
    assert isinstance(clause, exp.OnConflict)
    return clause


def is_update(clause: exp.OnConflict) -> bool:
    """Whether the clause is DO UPDATE."""
    return str(clause.args["action"].name).upper() == "DO UPDATE"


def refuse_excluded(clause: exp.OnConflict, returning: exp.Returning) -> None:
    """Raise 42P01 if RETURNING names the row that DO UPDATE has as ``excluded``."""
    names = {column.table for column in returning.find_all(exp.Column)}
    if is_update(clause) and "excluded" in names:
        raise UndefinedObjectError(
            'invalid reference to FROM-clause entry for table "excluded"',
            sqlstate="42P01",
            detail='There is an entry for table "excluded", but it cannot be referenced'
            " from this part of the query.",
        )


def conflict_privileges(clause: exp.OnConflict) -> str:
    """The privileges that the clause requires, beside INSERT."""
    names_key = clause.args.get("conflict_keys") or clause.args.get("constraint")
    reads = names_key or clause.find(exp.Column)
    return f"{'w' if is_update(clause) else ''}{'r' if reads else ''}"


def translate_conflict(
    clause: exp.OnConflict,
    table: TableDef,
    target: exp.Table,
    resolve: Resolver,
    zone: str,
) -> OnConflict | None:
    """Translate the clause; None if no row can be in conflict. ``target`` is the table's node."""
    has_arbiter = _find_arbiter(clause, table)
    if not is_update(clause):
        return OnConflict() if has_arbiter else None
    alias = target.alias or table.name
    # Its SET is that of an UPDATE of the table.
    update = exp.Update(
        this=target.copy(), expressions=[item.copy() for item in clause.expressions]
    )
    sets = assignments(update, table)
    where = clause.args.get("where")
    items = [value.copy() for _, value in sets]
    if where is not None:
        items.append(where.this.copy())
    select = exp.Select(expressions=items)
    schema = table.namespace if alias == table.name else None
    cut_schemas(select, {alias: {schema}})
    place_tables(select, resolve)
    columns = [(c.name, t.of_column(c)) for c in table.columns]
    sources = [
        FromItem(alias, list(columns), _OLD),
        FromItem("excluded", list(columns), _EXCLUDED),
    ]
    subqueries = merged_values(select, [column for column, _ in sets], sources, zone)
    for tree in (select, *subqueries):
        settle(tree)
    places = {}
    for n, column in enumerate(table.columns):
        places[_OLD, column.name] = f"o{n}"
        places[_EXCLUDED, column.name] = f"e{n}"
    return OnConflict(
        tuple(column.name for column, _ in sets),
        values_of_rows(select, places, subqueries),
        where is not None,
    )


def _find_arbiter(clause: exp.OnConflict, table: TableDef) -> bool:
    """Whether the table has a unique constraint that the clause means; raises if it names none."""
    constraint = clause.args.get("constraint")
    keys = clause.args.get("conflict_keys")
    if constraint is None and not keys:
        if is_update(clause):
            raise SqlSyntaxError(
                "ON CONFLICT DO UPDATE requires inference specification or constraint"
                " name",
                hint="For example, ON CONFLICT (column_name).",
            )
        _refuse_deferrable(table)
        return bool(table.key)
    if constraint is not None:
        if not table.key or constraint.name != table.index_name:
            raise UndefinedObjectError(
                f'constraint "{constraint.name}" for table "{table.name}" does not exist'
            )
        _refuse_deferrable(table)
        return True
    names = [_key_column(key, table) for key in keys]
    if set(names) != set(table.key):
        raise UsageError(
            "there is no unique or exclusion constraint matching the ON CONFLICT"
            " specification",
            sqlstate="42P10",
        )
    _refuse_deferrable(table)
    return True


def _refuse_deferrable(table: TableDef) -> None:
    if table.key and table.key_deferral.deferrable:
        raise UsageError(
            "ON CONFLICT does not support deferrable unique constraints/exclusion"
            " constraints as arbiters",
            sqlstate="55000",
        )


def _key_column(key: exp.Expression, table: TableDef) -> str:
    """The column that an item of the conflict target names; empty for an expression."""
    if isinstance(key, exp.Ordered):
        if key.args.get("desc"):
            raise UsageError(
                "ASC/DESC is not allowed in ON CONFLICT clause", sqlstate="42P10"
            )
        key = key.this
    if isinstance(key, exp.Collate):
        raise FeatureNotSupportedError("COLLATE is not supported in ON CONFLICT")
    if not isinstance(key, (exp.Column, exp.Identifier)):
        return ""
    if table.column(key.name) is None:
        raise UndefinedObjectError(
            f'column "{key.name}" does not exist', sqlstate="42703"
        )
    return str(key.name)
