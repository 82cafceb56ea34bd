"""Parses GRANT and REVOKE, of roles and of privileges on objects, and ALTER ... OWNER TO.

Comes in: a cursor behind the first words. Goes out: a statement value. As in PostgreSQL, the
command and not the grammar checks which privileges an object can have.

Source: gram.y, GrantStmt, RevokeStmt, GrantRoleStmt, RevokeRoleStmt, AlterOwnerStmt.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.grammar.access.rolestatements import (
    AlterOwner,
    GrantPrivileges,
    GrantRole,
    GrantTarget,
    PrivilegeClause,
)
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import syntax_error
from wal2lake.sql.grammar.statements import (
    CommandKind,
    OtherStatement,
    QualifiedName,
    RoleName,
)

_INVALID_GRANT: Final = "0LP01"

_OTHER_TARGETS: Final = (
    "sequence",
    "foreign",
    "function",
    "procedure",
    "routine",
    "domain",
    "language",
    "large",
    "parameter",
    "tablespace",
    "type",
)
"""Words that begin the kinds of objects that a node does not have."""


def grant(cursor: TokenCursor) -> GrantPrivileges | GrantRole:
    """GRANT of privileges on objects, or of roles."""
    privileges = _privileges(cursor)
    if cursor.take("on"):
        target, objects = _target(cursor)
        cursor.expect("to")
        grantees = cursor.commas(lambda: _grantee(cursor))
        option = cursor.take("with", "grant", "option")
        by = _granted_by(cursor)
        cursor.expect_end()
        return GrantPrivileges(
            privileges, target, objects, grantees, option, granted_by=by
        )
    cursor.expect("to")
    grantees = cursor.commas(cursor.role)
    options: tuple[tuple[str, bool], ...] = ()
    if cursor.take("with"):
        options = cursor.commas(lambda: _role_option(cursor))
    by = _granted_by(cursor)
    cursor.expect_end()
    return GrantRole(_roles(privileges), grantees, options, granted_by=by)


def revoke(cursor: TokenCursor) -> GrantPrivileges | GrantRole:
    """REVOKE of privileges on objects, or of roles."""
    option_of_privileges = cursor.take("grant", "option", "for")
    only: tuple[tuple[str, bool], ...] = ()
    if not option_of_privileges and cursor.ahead(1).is_word("option"):
        name = _option_name(cursor)
        cursor.expect("option", "for")
        only = ((name, False),)
    privileges = _privileges(cursor)
    if not only and cursor.take("on"):
        target, objects = _target(cursor)
        cursor.expect("from")
        grantees = cursor.commas(lambda: _grantee(cursor))
        by = _granted_by(cursor)
        cascade = cursor.cascade()
        cursor.expect_end()
        return GrantPrivileges(
            privileges,
            target,
            objects,
            grantees,
            option_of_privileges,
            revoke=True,
            granted_by=by,
            cascade=cascade,
        )
    if option_of_privileges:
        cursor.expect("on")
    cursor.expect("from")
    grantees = cursor.commas(cursor.role)
    by = _granted_by(cursor)
    cascade = cursor.cascade()
    cursor.expect_end()
    return GrantRole(
        _roles(privileges),
        grantees,
        only,
        revoke=True,
        granted_by=by,
        cascade=cascade,
    )


def alter_owner(cursor: TokenCursor) -> AlterOwner | OtherStatement:
    """ALTER SCHEMA name OWNER TO role; any other action gives an ``OtherStatement``."""
    name = QualifiedName(None, cursor.name())
    if not cursor.at_words("owner", "to"):
        return OtherStatement(
            CommandKind.UNSUPPORTED, cursor.text, f"ALTER {GrantTarget.SCHEMA.value}"
        )
    cursor.expect("owner", "to")
    owner = cursor.role()
    if cursor.take_mark(","):
        return OtherStatement(
            CommandKind.UNSUPPORTED, cursor.text, f"ALTER {GrantTarget.SCHEMA.value}"
        )
    cursor.expect_end()
    return AlterOwner(GrantTarget.SCHEMA, name, owner)


# ---- parts ---------------------------------------------------------------------------


def _privileges(cursor: TokenCursor) -> tuple[PrivilegeClause, ...]:
    """Privileges or names of roles; what follows them decides. ALL gives an empty tuple."""
    if cursor.take("all"):
        cursor.take("privileges")
        if cursor.token.is_mark("("):
            _columns(cursor)
            raise _unsupported_columns()
        return ()
    return cursor.commas(lambda: _privilege(cursor))


def _privilege(cursor: TokenCursor) -> PrivilegeClause:
    for word in ("select", "references", "create"):
        if cursor.take(word):
            name = word
            break
    else:
        name = cursor.name()
    return PrivilegeClause(name, _columns(cursor))


def _columns(cursor: TokenCursor) -> tuple[str, ...]:
    if not cursor.take_mark("("):
        return ()
    columns = cursor.commas(cursor.name)
    cursor.expect_mark(")")
    return columns


def _unsupported_columns() -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        "privileges on single columns are not supported",
        hint="Grant them on the whole table.",
    )


def _roles(privileges: tuple[PrivilegeClause, ...]) -> tuple[str, ...]:
    for privilege in privileges:
        if privilege.columns:
            raise UsageError(
                "column names cannot be included in GRANT/REVOKE ROLE",
                sqlstate=_INVALID_GRANT,
            )
    return tuple(privilege.name for privilege in privileges)


def _target(cursor: TokenCursor) -> tuple[GrantTarget, tuple[QualifiedName, ...]]:
    if cursor.take("schema"):
        return GrantTarget.SCHEMA, _qualified_names(cursor)
    if cursor.take("database"):
        return GrantTarget.DATABASE, _qualified_names(cursor)
    if cursor.take("all", "tables", "in", "schema"):
        return GrantTarget.TABLES_IN_SCHEMA, _qualified_names(cursor)
    if cursor.at_words("all") or (
        cursor.token.is_word(*_OTHER_TARGETS)
        and not cursor.ahead(1).is_word("to", "from")
        and not cursor.ahead(1).is_mark(",")
        and not cursor.ahead(1).is_mark(".")
    ):
        word = cursor.token.value.upper()
        raise FeatureNotSupportedError(
            f"privileges on {word} objects are not supported by this version"
        )
    cursor.take("table")
    return GrantTarget.TABLE, cursor.commas(cursor.qualified_name)


def _qualified_names(cursor: TokenCursor) -> tuple[QualifiedName, ...]:
    return tuple(QualifiedName(None, name) for name in cursor.commas(cursor.name))


def _grantee(cursor: TokenCursor) -> RoleName:
    if cursor.at_words("group") and not cursor.ahead(1).is_mark(","):
        cursor.next()
    return cursor.role()


def _granted_by(cursor: TokenCursor) -> RoleName | None:
    return cursor.role() if cursor.take("granted", "by") else None


def _option_name(cursor: TokenCursor) -> str:
    token = cursor.token
    name = cursor.label()
    if name not in ("admin", "inherit", "set"):
        raise syntax_error(f'unrecognized role option "{name}"', token.start)
    return name


def _role_option(cursor: TokenCursor) -> tuple[str, bool]:
    name = _option_name(cursor)
    if cursor.take("option") or cursor.take("true"):
        return name, True
    if cursor.take("false"):
        return name, False
    raise cursor.unexpected()
