"""GRANT and REVOKE of privileges on tables, schemas and the database.

Takes a statement; returns the command tag and warnings. The grantor in an object's ACL is its
owner, or the one of the caller's roles that has the needed grant options.

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
from wal2lake.local.node import PERMISSION_DENIED, Caller, need_table
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.model import (
    DATABASE,
    NAMES,
    PUBLIC,
    Acl,
    ObjectKind,
    Oid,
)
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.access.rolestatements import GrantPrivileges, GrantTarget

_INVALID_GRANT: Final = "0LP01"

_LETTERS: Final = {
    **{name.lower(): letter for letter, name in NAMES.items()},
    "temp": "T",
}
_ELSEWHERE: Final = {"execute": "X", "set": "s", "alter system": "A"}
"""Privileges of PostgreSQL that no object here has."""

_KINDS: Final = {
    GrantTarget.TABLE: ObjectKind.TABLE,
    GrantTarget.TABLES_IN_SCHEMA: ObjectKind.TABLE,
    GrantTarget.SCHEMA: ObjectKind.SCHEMA,
    GrantTarget.DATABASE: ObjectKind.DATABASE,
}


@dataclass(frozen=True, slots=True)
class _Object:
    """An object with an ACL."""

    kind: ObjectKind
    oid: Oid
    name: str
    owner: Oid
    acl: Acl | None


def grant_privileges(
    node: Definitions, caller: Caller, statement: GrantPrivileges
) -> str:
    """GRANT and REVOKE ... ON."""
    tag = "REVOKE" if statement.revoke else "GRANT"
    with node.ddl_lock:
        authority = node.catalog.authority()
        granted_by = statement.granted_by
        if (
            granted_by is not None
            and need_role(authority, caller, granted_by).oid != caller.role.oid
        ):
            raise FeatureNotSupportedError("grantor must be current user")
        objects = list(_objects(node, caller, authority, statement))
        grantees = [grantee_oid(authority, caller, name) for name in statement.grantees]
        kind = _KINDS[statement.target]
        letters = _letters(statement, kind)
        changed = [
            (target, _change(authority, caller, statement, target, grantees, letters))
            for target in objects
        ]
        node.catalog.set_access(
            tables=_access_by_kind(changed, ObjectKind.TABLE),
            namespaces=_access_by_kind(changed, ObjectKind.SCHEMA),
            database=next(
                (acl for target, acl in changed if target.kind is ObjectKind.DATABASE),
                None,
            ),
        )
    return tag


def _access_by_kind(
    changed: Sequence[tuple[_Object, Acl]], kind: ObjectKind
) -> dict[Oid, tuple[Oid, Acl | None]]:
    return {
        target.oid: (target.owner, acl)
        for target, acl in changed
        if target.kind is kind
    }


def _objects(
    node: HasCatalog, caller: Caller, authority: Authority, statement: GrantPrivileges
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


def _schema(node: HasCatalog, name: str) -> _Object:
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
    letters = ""
    for privilege in statement.privileges:
        letter = _LETTERS.get(privilege.name) or _ELSEWHERE.get(privilege.name)
        if letter is None:
            raise SqlSyntaxError(f'unrecognized privilege type "{privilege.name}"')
        if letter not in kind.all:
            # Until the relation is looked up, it might be a sequence.
            relation = kind is ObjectKind.TABLE and letter != "U"
            raise UsageError(
                f"invalid privilege type {privilege.name.upper()} for"
                f" {'relation' if relation else kind.word}",
                sqlstate=_INVALID_GRANT,
            )
        if privilege.columns:
            raise FeatureNotSupportedError(
                "privileges on single columns are not supported",
                hint="Grant them on the whole table.",
            )
        letters += letter
    return letters


def _change(
    authority: Authority,
    caller: Caller,
    statement: GrantPrivileges,
    target: _Object,
    grantees: Sequence[Oid],
    letters: str,
) -> Acl:
    """Return the object's new ACL; 42501 if the caller has no privilege on the object."""
    role = caller.role.oid
    grantor, able = authority.best_grantor(
        role, letters, target.kind, target.owner, target.acl
    )
    if not able and not (
        authority.letters(grantor, target.kind, target.owner, target.acl)
        or authority.grantable(grantor, target.kind, target.owner, target.acl)
    ):
        raise UsageError(
            f"permission denied for {target.kind.word} {target.name}",
            sqlstate=PERMISSION_DENIED,
        )
    _warn(caller, statement, target.name, able, letters)
    acl = target.acl or Acl.default(target.kind, target.owner)
    for grantee in grantees:
        if statement.revoke:
            acl = acl.revoke(
                grantor,
                grantee,
                able,
                option_only=statement.grant_option,
                cascade=statement.cascade,
                owner=target.owner,
            )
            continue
        if grantee == PUBLIC and statement.grant_option:
            raise UsageError(
                "grant options can only be granted to roles", sqlstate=_INVALID_GRANT
            )
        # The owner has every grant option. The owner's ACL items never record it.
        option = statement.grant_option and grantee != target.owner
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
