"""Parses ALTER TABLE.

Comes in: a cursor behind ALTER TABLE. Goes out: a statement value. For an action that a node does
not execute, the value is an ``OtherStatement`` whose command names the action.

Source: gram.y, AlterTableStmt, RenameStmt, AlterObjectSchemaStmt, alter_table_cmd.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.model import ReplicaIdentity
from wal2lake.sql.grammar.access.rolestatements import AlterOwner, GrantTarget
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
from wal2lake.sql.grammar.constraints import generation
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind
from wal2lake.sql.grammar.options import altered_parameters
from wal2lake.sql.grammar.statements import (
    CommandKind,
    OtherStatement,
    QualifiedName,
)
from wal2lake.sql.grammar.table import (
    TableClauses,
    collation,
    column_clause,
    column_type,
    default_text,
    table_constraint,
)

_UNSUPPORTED_ACTIONS: Final = (
    "attach partition",
    "detach partition",
    "enable",
    "disable",
    "cluster on",
    "set without cluster",
    "set without oids",
    "set logged",
    "set unlogged",
    "set tablespace",
    "set access method",
    "inherit",
    "no inherit",
    "of",
    "not of",
    "force row level security",
    "no force row level security",
    "validate constraint",
    "options",
    "rename constraint",
    "alter constraint",
    "add unique",
    "add foreign key",
    "add exclude",
    "add not null",
)
"""Actions that are not supported. If one begins another, then the longer one comes first."""

_UNSUPPORTED_COLUMN_ACTIONS: Final = (
    "set statistics",
    "set storage",
    "set compression",
    "set generated",
    "set",
    "reset",
    "add generated",
    "drop identity",
    "restart",
)


class _UnsupportedAction(Exception):
    """Raised at an action that a node does not execute, with the action's name."""


def alter_table(
    cursor: TokenCursor,
) -> AlterTableStatement | AlterOwner | OtherStatement:
    """Parse a whole ALTER TABLE."""
    if_exists = cursor.if_exists()
    only = cursor.take("only")
    in_parentheses = only and cursor.take_mark("(")
    table = cursor.qualified_name()
    if in_parentheses:
        cursor.expect_mark(")")
    cursor.take_mark("*")
    try:
        return _action(cursor, table, if_exists, only)
    except _UnsupportedAction as refused:
        command = f"ALTER TABLE ... {refused}"
        return OtherStatement(CommandKind.UNSUPPORTED, cursor.text, command)


def _action(
    cursor: TokenCursor, table: QualifiedName, if_exists: bool, only: bool
) -> AlterTableStatement | AlterOwner:
    statement: AlterTableStatement | AlterOwner
    if cursor.take("owner", "to"):
        statement = AlterOwner(GrantTarget.TABLE, table, cursor.role(), if_exists)
        if cursor.token.is_mark(","):
            raise _UnsupportedAction("OWNER TO")
    elif cursor.take("set", "schema"):
        statement = SetTableSchema(table, cursor.name(), if_exists)
    elif cursor.at_words("rename"):
        _refuse_actions(cursor, _UNSUPPORTED_ACTIONS)
        cursor.expect("rename")
        if cursor.take("to"):
            statement = RenameTable(table, cursor.name(), if_exists)
        else:
            cursor.take("column")
            name = cursor.name()
            cursor.expect("to")
            statement = RenameTableColumn(table, name, cursor.name(), if_exists, only)
    else:
        actions = cursor.commas(lambda: _alteration(cursor, table))
        statement = AlterTable(table, actions, if_exists, only)
    cursor.expect_end()
    return statement


def _alteration(cursor: TokenCursor, table: QualifiedName) -> AlterAction:
    if cursor.at_words("owner", "to"):
        raise _UnsupportedAction("OWNER TO")
    _refuse_actions(cursor, _UNSUPPORTED_ACTIONS)
    if cursor.token.is_word("set", "reset") and cursor.ahead(1).is_mark("("):
        return ParametersClause(altered_parameters(cursor))
    if cursor.at_words("add", "constraint") or (
        cursor.token.is_word("add") and cursor.ahead(1).is_word("primary", "check")
    ):
        return _added_constraint(cursor, table)
    if cursor.take("drop", "constraint"):
        missing_ok = cursor.if_exists()
        return DropConstraintClause(cursor.name(), missing_ok, cursor.cascade())
    if cursor.take("add"):
        cursor.take("column")
        if_not_exists = cursor.take("if", "not", "exists")
        clauses = TableClauses(table)
        column_clause(cursor, clauses)
        if clauses.key:
            raise FeatureNotSupportedError(
                "PRIMARY KEY is not supported in ALTER TABLE ... ADD COLUMN"
            )
        if clauses.columns[0].sequence is not None:
            raise FeatureNotSupportedError(
                "serial and identity columns are not supported in ALTER TABLE ... ADD COLUMN"
            )
        return AddColumnClause(clauses.columns[0], if_not_exists, tuple(clauses.checks))
    if cursor.take("drop"):
        cursor.take("column")
        missing_ok = cursor.if_exists()
        name = cursor.name()
        return DropColumnClause(name, missing_ok, cursor.cascade())
    if cursor.take("replica", "identity"):
        return _replica_identity(cursor)
    cursor.expect("alter")
    cursor.take("column")
    if cursor.token.kind is TokenKind.INTEGER:
        raise _UnsupportedAction("ALTER COLUMN ... SET STATISTICS")
    return _column_action(cursor, cursor.name())


def _added_constraint(
    cursor: TokenCursor, table: QualifiedName
) -> AddKeyClause | AddCheckClause:
    """ADD a table constraint: a primary key or a CHECK."""
    cursor.expect("add")
    name = cursor.name() if cursor.take("constraint") else None
    if not cursor.token.is_word("primary", "check"):
        raise _UnsupportedAction("ADD CONSTRAINT")
    clauses = TableClauses(table)
    table_constraint(cursor, clauses, name)
    if clauses.checks:
        return AddCheckClause(clauses.checks[0])
    return AddKeyClause(clauses.key or (), name, clauses.key_deferral)


def _replica_identity(cursor: TokenCursor) -> ReplicaIdentityClause:
    if cursor.take("using"):
        cursor.expect("index")
        return ReplicaIdentityClause(ReplicaIdentity.INDEX, cursor.name())
    for identity in (
        ReplicaIdentity.DEFAULT,
        ReplicaIdentity.FULL,
        ReplicaIdentity.NOTHING,
    ):
        if cursor.take(identity.name.lower()):
            return ReplicaIdentityClause(identity)
    raise cursor.unexpected()


def _column_action(cursor: TokenCursor, name: str) -> AlterAction:
    for word, not_null in (("set", True), ("drop", False)):
        if cursor.take(word, "not", "null"):
            return NotNullClause(name, not_null)
    if cursor.take("set", "default"):
        return DefaultClause(name, default_text(cursor))
    if cursor.take("drop", "default"):
        return DefaultClause(name, None)
    if cursor.take("set", "expression"):
        cursor.expect("as")
        return ExpressionClause(name, generation(cursor))
    if cursor.take("drop", "expression"):
        return ExpressionClause(name, None, cursor.if_exists())
    if cursor.take("set", "data", "type") or cursor.take("type"):
        oid, typmod = column_type(cursor, name)
        if cursor.take("collate"):
            collation(cursor)
        using = None
        if cursor.take("using"):
            using = default_text(cursor, whole=True) or "NULL"
        return TypeClause(name, oid, typmod, using)
    _refuse_actions(cursor, _UNSUPPORTED_COLUMN_ACTIONS, "ALTER COLUMN ... ")
    raise cursor.unexpected()


def _refuse_actions(
    cursor: TokenCursor, names: tuple[str, ...], before: str = ""
) -> None:
    for name in names:
        words = name.split()
        if cursor.at_words(*words):
            if name in ("set", "reset") and not cursor.ahead(1).is_mark("("):
                continue
            raise _UnsupportedAction(before + name.upper())
