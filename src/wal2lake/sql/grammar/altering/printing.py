"""Prints ALTER TABLE as text that parses to the same value.

Comes in: a statement value of ``altering.alterstatements``. Goes out: SQL. Called by
``grammar.printing``. Source: gram.y, with the same rules as ``parsing``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.keywords import quote_identifier, quote_literal
from wal2lake.sql.grammar.altering.alterstatements import (
    AddCheckClause,
    AddColumnClause,
    AddKeyClause,
    AlterAction,
    AlterTable,
    AlterTableStatement,
    DefaultClause,
    DropColumnClause,
    DropConstraintClause,
    ExpressionClause,
    NotNullClause,
    ParametersClause,
    RenameTable,
    RenameTableColumn,
    ReplicaIdentityClause,
    SetTableSchema,
    TypeClause,
)
from wal2lake.sql.grammar.constraints import CheckClause
from wal2lake.sql.grammar.statements import ColumnClause, QualifiedName


def alter_table_sql(
    statement: AlterTableStatement, column: Callable[[ColumnClause], str]
) -> str:
    """The statement's text; ``column`` prints a column's definition."""
    table = _table(statement.table)
    if_exists = "IF EXISTS " if statement.if_exists else ""
    only = ""
    match statement:
        case AlterTable():
            only = "ONLY " if statement.only else ""
            actions = ", ".join(_action(action, column) for action in statement.actions)
        case RenameTableColumn():
            only = "ONLY " if statement.only else ""
            name = quote_identifier(statement.name)
            actions = f"RENAME COLUMN {name} TO {quote_identifier(statement.new_name)}"
        case RenameTable():
            actions = f"RENAME TO {quote_identifier(statement.new_name)}"
        case SetTableSchema():
            actions = f"SET SCHEMA {quote_identifier(statement.schema)}"
        case _:
            assert_never(statement)
    return f"ALTER TABLE {if_exists}{only}{table} {actions}"


def _action(action: AlterAction, column: Callable[[ColumnClause], str]) -> str:
    match action:
        case AddColumnClause():
            existence = "IF NOT EXISTS " if action.if_not_exists else ""
            checks = "".join(f" {check_sql(check)}" for check in action.checks)
            return f"ADD COLUMN {existence}{column(action.column)}{checks}"
        case AddCheckClause():
            return f"ADD {check_sql(action.check)}"
        case AddKeyClause():
            name = ""
            if action.name is not None:
                name = f"CONSTRAINT {quote_identifier(action.name)} "
            columns = ", ".join(map(quote_identifier, action.columns))
            return f"ADD {name}PRIMARY KEY ({columns}){action.deferral.clause}"
        case DropConstraintClause():
            existence = "IF EXISTS " if action.if_exists else ""
            cascade = " CASCADE" if action.cascade else ""
            return (
                f"DROP CONSTRAINT {existence}{quote_identifier(action.name)}{cascade}"
            )
        case DropColumnClause():
            existence = "IF EXISTS " if action.if_exists else ""
            cascade = " CASCADE" if action.cascade else ""
            return f"DROP COLUMN {existence}{quote_identifier(action.name)}{cascade}"
        case ReplicaIdentityClause():
            if action.index is not None:
                index = quote_identifier(action.index)
                return f"REPLICA IDENTITY USING INDEX {index}"
            return f"REPLICA IDENTITY {action.identity.name}"
        case ParametersClause():
            return _parameters(action)
        case NotNullClause():
            verb = "SET" if action.not_null else "DROP"
            return f"ALTER COLUMN {quote_identifier(action.name)} {verb} NOT NULL"
        case DefaultClause():
            verb = "DROP DEFAULT"
            if action.default is not None:
                verb = f"SET DEFAULT {action.default}"
            return f"ALTER COLUMN {quote_identifier(action.name)} {verb}"
        case ExpressionClause():
            verb = f"DROP EXPRESSION{' IF EXISTS' if action.if_exists else ''}"
            if action.generated is not None:
                verb = f"SET EXPRESSION AS ({action.generated.text})"
            return f"ALTER COLUMN {quote_identifier(action.name)} {verb}"
        case TypeClause():
            kind = format_type(action.type_oid, action.typmod)
            using = "" if action.using is None else f" USING {action.using}"
            return f"ALTER COLUMN {quote_identifier(action.name)} TYPE {kind}{using}"
        case _:
            assert_never(action)


def _parameters(action: ParametersClause) -> str:
    kept = [(name, value) for name, value in action.parameters if value is not None]
    if kept:
        items = (f"{name} = {quote_literal(value)}" for name, value in kept)
        return f"SET ({', '.join(items)})"
    return f"RESET ({', '.join(name for name, _ in action.parameters)})"


def check_sql(check: CheckClause) -> str:
    """The text of a CHECK constraint, with its name if it has one."""
    name = ""
    if check.name is not None:
        name = f"CONSTRAINT {quote_identifier(check.name)} "
    return f"{name}CHECK ({check.text})"


def _table(name: QualifiedName) -> str:
    schema = "" if name.schema is None else f"{quote_identifier(name.schema)}."
    return schema + quote_identifier(name.name)
