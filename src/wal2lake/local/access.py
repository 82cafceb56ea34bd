"""May the caller do this? Asked before anything is done, in memory and before Spark.

In: the caller and an object. Out: nothing, or 42501 in PostgreSQL's words. A superuser is let
through without a look at the catalog.

Source: aclcheck_error() in aclchk.c; its callers in tablecmds.c, schemacmds.c, execMain.c
(ExecCheckPermissions) and namespace.c.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal2lake.catalog import DATABASE_OWNER, Authority, Catalog, Role, TableDef
from wal2lake.errors import UsageError
from wal2lake.local.node import (
    PERMISSION_DENIED,
    Caller,
    EngineParts,
    need_schema,
)
from wal2lake.model import DATABASE, Acl, ObjectKind, Oid


def denied_for(word: str, name: str) -> UsageError:
    """``permission denied for table t``."""
    return UsageError(
        f"permission denied for {word} {name}", sqlstate=PERMISSION_DENIED
    )


def check_tables(
    catalog: Catalog, caller: Caller, wanted: Mapping[Oid, tuple[TableDef, str]]
) -> None:
    """The first table on which the caller lacks one of the letters is named."""
    if caller.role.superuser:
        return
    authority = catalog.authority()
    for table, letters in wanted.values():
        allowed = authority.letters(
            caller.role.oid, ObjectKind.TABLE, table.owner, table.acl
        )
        if not set(letters) <= set(allowed):
            raise denied_for("table", table.name)


def check_schema(node: EngineParts, caller: Caller, name: str, letters: str) -> None:
    """USAGE or CREATE on a schema that exists."""
    if not caller.role.superuser:
        check_schema_for(node, caller.role, name, letters)


def check_schema_for(node: EngineParts, role: Role, name: str, letters: str) -> None:
    """The same of another role."""
    schema = need_schema(node.catalog, name)
    allowed = node.catalog.authority().letters(
        role.oid, ObjectKind.SCHEMA, schema.owner, schema.acl
    )
    if not set(letters) <= set(allowed):
        raise denied_for("schema", name)


def database_access(node: EngineParts) -> tuple[Oid, Acl | None]:
    """Owner and acl of the one database."""
    return DATABASE_OWNER, node.catalog.database_acl()


def check_database_create(node: EngineParts, caller: Caller) -> None:
    """CREATE on the database."""
    check_database_create_for(node, caller.role)


def check_database_create_for(node: EngineParts, role: Role) -> None:
    """The same of another role."""
    if role.superuser:
        return
    owner, acl = database_access(node)
    authority = node.catalog.authority()
    letters = authority.letters(role.oid, ObjectKind.DATABASE, owner, acl)
    if "C" not in letters:
        raise denied_for("database", DATABASE)


def may_connect(catalog: Catalog, role: Role) -> bool:
    """CONNECT on the database."""
    if role.superuser:
        return True
    acl = catalog.database_acl()
    if acl is None:
        return True
    letters = catalog.authority().letters(
        role.oid, ObjectKind.DATABASE, DATABASE_OWNER, acl
    )
    return "c" in letters


def is_member(catalog: Catalog, user: str, role: str) -> bool:
    """Membership alone, also of superusers, as pg_hba.conf's ``+role`` has it; of names that
    nobody has, none."""
    authority = catalog.authority()
    member, group = authority.by_name.get(user), authority.by_name.get(role)
    return (
        member is not None
        and group is not None
        and authority.is_member_nosuper(member.oid, group.oid)
    )


def check_owner(
    node: EngineParts, caller: Caller, word: str, name: str, owner: Oid
) -> None:
    """Only an owner, or who has his privileges, may alter or drop it."""
    if not owns(node.catalog, caller, owner):
        raise UsageError(f"must be owner of {word} {name}", sqlstate=PERMISSION_DENIED)


def owns(catalog: Catalog, caller: Caller, *owners: Oid) -> bool:
    """Whether the caller has the privileges of one of them."""
    if caller.role.superuser or caller.role.oid in owners:
        return True
    authority: Authority = catalog.authority()
    return any(authority.owns(caller.role.oid, owner) for owner in owners)
