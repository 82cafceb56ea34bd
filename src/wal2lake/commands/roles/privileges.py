"""GRANT and REVOKE of privileges on tables, schemas and the database.

In: a statement. Out: the command tag, warnings. Each object's acl is changed in the name of its
owner, or of whoever of the caller's roles has the grant options that are needed.

Source: ExecuteGrantStmt(), ExecGrant_Relation(), ExecGrant_common(), restrict_and_check_grant() in
aclchk.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import Authority
from wal2lake.commands.roles.names import grantee_oid, need_role
from wal2lake.errors import (
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.access import database_access
from wal2lake.local.node import PERMISSION_DENIED, Caller, EngineParts, need_table
from wal2lake.model import (
    DATABASE,
    NAMES,
    PUBLIC,
    Acl,
    ObjectKind,
    Oid,
)
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.access.statements import GrantPrivileges, GrantTarget

_INVALID_GRANT: Final = "0LP01"

_LETTERS: Final = {
    **{name.lower(): letter for letter, name in NAMES.items()},
    "temp": "T",
}
_ELSEWHERE: Final = {"execute": "X", "set": "s", "alter system": "A"}
"""Privileges that PostgreSQL knows and no object here has."""

_KINDS: Final = {
    GrantTarget.TABLE: ObjectKind.TABLE,
    GrantTarget.TABLES_IN_SCHEMA: ObjectKind.TABLE,
    GrantTarget.SCHEMA: ObjectKind.SCHEMA,
    GrantTarget.DATABASE: ObjectKind.DATABASE,
}


@dataclass(frozen=True, slots=True)
class _Object:
    """An object with an acl."""

    kind: ObjectKind
    oid: Oid
    name: str
    owner: Oid
    acl: Acl | None


def grant_privileges(
    node: EngineParts, caller: Caller, statement: GrantPrivileges
) -> str:
    """GRANT and REVOKE ... ON."""
    tag = "REVOKE" if statement.revoke else "GRANT"
    with node.ddl_lock:
        authority = node.catalog.authority()
        by = statement.granted_by
        if by is not None and need_role(authority, caller, by).oid != caller.role.oid:
            raise FeatureNotSupportedError("grantor must be current user")
        found = list(_objects(node, caller, authority, statement))
        grantees = [grantee_oid(authority, caller, name) for name in statement.grantees]
        kind = _KINDS[statement.target]
        letters = _letters(statement, kind)
        changed = [
            (one, _change(authority, caller, statement, one, grantees, letters))
            for one in found
        ]
        node.catalog.set_access(
            tables=_of(changed, ObjectKind.TABLE),
            namespaces=_of(changed, ObjectKind.SCHEMA),
            database=next(
                (acl for one, acl in changed if one.kind is ObjectKind.DATABASE), None
            ),
        )
    return tag


def _of(
    changed: Sequence[tuple[_Object, Acl]], kind: ObjectKind
) -> dict[Oid, tuple[Oid, Acl | None]]:
    return {one.oid: (one.owner, acl) for one, acl in changed if one.kind is kind}


def _objects(
    node: EngineParts, caller: Caller, authority: Authority, statement: GrantPrivileges
) -> Iterator[_Object]:
    match statement.target:
        case GrantTarget.TABLE:
            for name in statement.objects:
                t = need_table(node.catalog, caller, name.schema, name.name)
                yield _Object(ObjectKind.TABLE, t.oid, t.name, t.owner, t.acl)
        case GrantTarget.TABLES_IN_SCHEMA:
            for name in statement.objects:
                _schema(node, name.name)
                for t in node.catalog.tables():
                    if t.namespace == name.name:
                        yield _Object(ObjectKind.TABLE, t.oid, t.name, t.owner, t.acl)
        case GrantTarget.SCHEMA:
            for name in statement.objects:
                yield _schema(node, name.name)
        case GrantTarget.DATABASE:
            for name in statement.objects:
                if name.name != DATABASE:
                    raise UndefinedObjectError(
                        f'database "{name.name}" does not exist', sqlstate="3D000"
                    )
                owner, acl = database_access(node)
                yield _Object(ObjectKind.DATABASE, Oid(0), DATABASE, owner, acl)


def _schema(node: EngineParts, name: str) -> _Object:
    for schema in node.catalog.namespaces():
        if schema.name == name:
            return _Object(
                ObjectKind.SCHEMA, schema.oid, name, schema.owner, schema.acl
            )
    raise UndefinedObjectError(f'schema "{name}" does not exist', sqlstate="3F000")


def _letters(statement: GrantPrivileges, kind: ObjectKind) -> str:
    """Return the granted privileges; ALL is every privilege of the object."""
    if not statement.privileges:
        return kind.all
    found = ""
    for one in statement.privileges:
        letter = _LETTERS.get(one.name) or _ELSEWHERE.get(one.name)
        if letter is None:
            raise SqlSyntaxError(f'unrecognized privilege type "{one.name}"')
        if letter not in kind.all:
            # A relation might be a sequence, until it is looked at.
            relation = kind is ObjectKind.TABLE and letter != "U"
            raise UsageError(
                f"invalid privilege type {one.name.upper()} for"
                f" {'relation' if relation else kind.word}",
                sqlstate=_INVALID_GRANT,
            )
        if one.columns:
            raise FeatureNotSupportedError(
                "privileges on single columns are not supported",
                hint="Grant them on the whole table.",
            )
        found += letter
    return found


def _change(
    authority: Authority,
    caller: Caller,
    statement: GrantPrivileges,
    one: _Object,
    grantees: Sequence[Oid],
    letters: str,
) -> Acl:
    """The object's acl after the statement; 42501 if the caller has no privilege on it."""
    role = caller.role.oid
    grantor, able = authority.best_grantor(role, letters, one.kind, one.owner, one.acl)
    if not able and not (
        authority.letters(grantor, one.kind, one.owner, one.acl)
        or authority.grantable(grantor, one.kind, one.owner, one.acl)
    ):
        raise UsageError(
            f"permission denied for {one.kind.word} {one.name}",
            sqlstate=PERMISSION_DENIED,
        )
    _warn(caller, statement, one.name, able, letters)
    acl = one.acl or Acl.default(one.kind, one.owner)
    for grantee in grantees:
        if statement.revoke:
            acl = acl.revoke(
                grantor,
                grantee,
                able,
                option_only=statement.grant_option,
                cascade=statement.cascade,
                owner=one.owner,
            )
            continue
        if grantee == PUBLIC and statement.grant_option:
            raise UsageError(
                "grant options can only be granted to roles", sqlstate=_INVALID_GRANT
            )
        # The owner has every grant option already: aclitems of his never say so.
        option = statement.grant_option and grantee != one.owner
        acl = acl.grant(grantor, grantee, able, grantable=option)
    return acl


def _warn(
    caller: Caller,
    statement: GrantPrivileges,
    name: str,
    able: str,
    letters: str,
) -> None:
    done = "could be revoked" if statement.revoke else "were granted"
    if not able:
        text = f'no privileges {done} for "{name}"'
    elif statement.privileges and set(able) != set(letters):
        text = f'not all privileges {done} for "{name}"'
    else:
        return
    caller.notice(
        Notice(
            text,
            severity="WARNING",
            sqlstate="01006" if statement.revoke else "01007",
        )
    )
