"""Parses CREATE, ALTER and DROP ROLE | USER | GROUP.

Comes in: a cursor behind the two words. Goes out: a statement value. ALTER ROLE ... SET gives an
``OtherStatement``, because a node has no settings of roles.

Source: gram.y, CreateRoleStmt, AlterRoleStmt, AlterRoleSetStmt, DropRoleStmt, RenameStmt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.grammar.access.rolestatements import (
    AlterRole,
    CreateRole,
    DropRole,
    RenameRole,
    RoleOption,
    RoleValue,
)
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind, syntax_error
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement

RESERVED_NAME: Final = "42939"

_FLAGS: Final = (
    "superuser",
    "createrole",
    "replication",
    "createdb",
    "login",
    "bypassrls",
    "inherit",
)


def create_role(word: str) -> Callable[[TokenCursor], CreateRole]:
    """CREATE ``word`` name [WITH] options."""

    def parse(cursor: TokenCursor) -> CreateRole:
        name = role_id(cursor)
        cursor.take("with")
        options = _options(cursor, new=True)
        return CreateRole(word, name, options)

    return parse


def alter_role(
    word: str,
) -> Callable[[TokenCursor], AlterRole | RenameRole | OtherStatement]:
    """ALTER ``word`` name [WITH] options | RENAME TO | ADD | DROP USER | SET | RESET."""

    def parse(cursor: TokenCursor) -> AlterRole | RenameRole | OtherStatement:
        if cursor.take("all"):
            return OtherStatement(CommandKind.UNSUPPORTED, cursor.text, "ALTER ROLE")
        start = cursor.token
        role = cursor.role()
        if cursor.take("rename"):
            cursor.expect("to")
            new = role_id(cursor)
            cursor.expect_end()
            if role.keyword or role.name == "public":
                raise cursor.unexpected(start)
            return RenameRole(role.name, new)
        if word == "GROUP":
            adds = cursor.take("add")
            if not adds:
                cursor.expect("drop")
            cursor.expect("user")
            members = cursor.commas(cursor.role)
            cursor.expect_end()
            if adds:
                return AlterRole(role, (RoleOption("role", members),))
            return AlterRole(role, dropped=members)
        if cursor.token.is_word("set", "reset", "in"):
            if cursor.token.is_word("in") and not cursor.ahead(1).is_word("database"):
                raise cursor.unexpected(cursor.ahead(1))
            return OtherStatement(
                CommandKind.UNSUPPORTED, cursor.text, f"ALTER {word} ... SET"
            )
        cursor.take("with")
        return AlterRole(role, _options(cursor, new=False))

    return parse


def drop_role(cursor: TokenCursor) -> DropRole:
    """DROP ROLE [IF EXISTS] names."""
    if_exists = cursor.if_exists()
    roles = cursor.commas(cursor.role)
    cursor.expect_end()
    return DropRole(roles, if_exists)


def role_id(cursor: TokenCursor) -> str:
    """RoleId: the name of a role to be created; raises 42939 for a reserved name."""
    token = cursor.token
    role = cursor.role()
    if role.keyword:
        raise syntax_error(
            f"{role.name.upper()} cannot be used as a role name here",
            token.start,
            sqlstate=RESERVED_NAME,
        )
    if role.name == "public":
        raise syntax_error(
            'role name "public" is reserved', token.start, sqlstate=RESERVED_NAME
        )
    return role.name


def _options(cursor: TokenCursor, *, new: bool) -> tuple[RoleOption, ...]:
    options: list[RoleOption] = []
    while cursor.token.kind is not TokenKind.END:
        position = cursor.token.start + 1
        name, value = _option(cursor, new=new)
        if name == "sysid":
            # PostgreSQL ignores SYSID with a notice. Here it is ignored without one.
            continue
        if any(o.name == name for o in options):
            raise syntax_error("conflicting or redundant options", position - 1)
        options.append(RoleOption(name, value, position))
    return tuple(options)


def _option(cursor: TokenCursor, *, new: bool) -> tuple[str, RoleValue]:
    if cursor.take("password"):
        if cursor.take("null"):
            return "password", None
        return "password", cursor.string()
    if cursor.take("encrypted", "password"):
        return "password", cursor.string()
    if cursor.take("unencrypted", "password"):
        cursor.string()
        raise FeatureNotSupportedError(
            "UNENCRYPTED PASSWORD is no longer supported",
            hint="Remove UNENCRYPTED to store the password in encrypted form instead.",
        )
    if cursor.take("connection", "limit"):
        return "connection limit", _limit(cursor)
    if cursor.take("valid", "until"):
        return "valid until", cursor.string()
    if cursor.take("user"):
        return "role", cursor.commas(cursor.role)
    if new:
        if cursor.take("sysid"):
            return "sysid", _limit(cursor)
        if cursor.take("admin"):
            return "admin", cursor.commas(cursor.role)
        if cursor.take("role"):
            return "role", cursor.commas(cursor.role)
        if cursor.take("in", "role") or cursor.take("in", "group"):
            return "in role", cursor.commas(cursor.role)
    token = cursor.token
    if token.kind is not TokenKind.WORD or token.is_word(
        "role", "admin", "in", "sysid"
    ):
        raise cursor.unexpected()
    word = cursor.next().value
    for flag in _FLAGS:
        if word in (flag, "no" + flag):
            return flag, word == flag
    raise syntax_error(f'unrecognized role option "{word}"', token.start)


def _limit(cursor: TokenCursor) -> int:
    sign = -1 if cursor.take_mark("-") else 1
    if sign == 1:
        cursor.take_mark("+")
    if cursor.token.kind is not TokenKind.INTEGER:
        raise cursor.unexpected()
    number = sign * int(cursor.next().value.replace("_", ""), 0)
    if not -(2**31) <= number < 2**31:
        raise UsageError(f'value "{number}" is out of range for type integer')
    return number
