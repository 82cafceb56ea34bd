"""Privilege checks, before a command has effects; in memory, without Spark.

Takes the caller and an object; raises 42501 with PostgreSQL's message. A superuser passes without a
look at the catalog.

Source: aclcheck_error() in aclchk.c; its callers in tablecmds.c, schemacmds.c, execMain.c
(ExecCheckPermissions) and namespace.c.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal2lake.catalog import (
    DATABASE_OWNER,
    Authority,
    Catalog,
    Role,
    TableDef,
    is_history,
)
from wal2lake.errors import UsageError
from wal2lake.local.node import (
    PERMISSION_DENIED,
    Caller,
    need_schema,
)
from wal2lake.local.ports import HasCatalog
from wal2lake.model import DATABASE, Acl, ObjectKind, Oid


def denied_for(word: str, name: str) -> UsageError:
    """Return the error ``permission denied for table t``."""
    return UsageError(
        f"permission denied for {word} {name}", sqlstate=PERMISSION_DENIED
    )


def check_tables(
    catalog: Catalog, caller: Caller, needed: Mapping[Oid, tuple[TableDef, str]]
) -> None:
    """Check privileges on tables; the error names the first table that lacks a letter."""
    if caller.role.superuser:
        return
    authority = catalog.authority()
    for table, letters in needed.values():
        allowed = authority.letters(
            caller.role.oid, ObjectKind.TABLE, table.owner, table.acl
        )
        if not set(letters) <= set(allowed):
            raise denied_for("table", table.name)


def check_schema(node: HasCatalog, caller: Caller, name: str, letters: str) -> None:
    """Check USAGE or CREATE on a schema that exists."""
    if not caller.role.superuser:
        check_schema_for(node, caller.role, name, letters)


def check_schema_for(node: HasCatalog, role: Role, name: str, letters: str) -> None:
    """Check USAGE or CREATE on a schema for another role."""
    schema = need_schema(node.catalog, name)
    allowed = node.catalog.authority().letters(
        role.oid, ObjectKind.SCHEMA, schema.owner, schema.acl
    )
    if not set(letters) <= set(allowed):
        raise denied_for("schema", name)


def database_access(node: HasCatalog) -> tuple[Oid, Acl | None]:
    """Return owner and ACL of the one database."""
    return DATABASE_OWNER, node.catalog.database_acl()


def check_database_create(node: HasCatalog, caller: Caller) -> None:
    """Check CREATE on the database."""
    check_database_create_for(node, caller.role)


def check_database_create_for(node: HasCatalog, role: Role) -> None:
    """Check CREATE on the database for another role."""
    if role.superuser:
        return
    owner, acl = database_access(node)
    authority = node.catalog.authority()
    letters = authority.letters(role.oid, ObjectKind.DATABASE, owner, acl)
    if "C" not in letters:
        raise denied_for("database", DATABASE)


def may_connect(catalog: Catalog, role: Role) -> bool:
    """True if the role has CONNECT on the database."""
    if role.superuser:
        return True
    acl = catalog.database_acl()
    if acl is None:
        return True
    letters = catalog.authority().letters(
        role.oid, ObjectKind.DATABASE, DATABASE_OWNER, acl
    )
    return "c" in letters


def refuse_fed(catalog: Catalog, table: TableDef, action: str) -> None:
    """Raise 55000 if a subscription feeds a history table; ``action``: what cannot be done."""
    if not is_history(table):
        return
    feed = catalog.histories().get(table.oid)
    subscription = None if feed is None else catalog.subscription(feed.subid)
    if subscription is None:
        return
    raise UsageError(
        f"cannot {action} because it is the history of a subscription's table",
        sqlstate="55000",
        detail=f'Subscription "{subscription.name}" records changes in it.',
        hint="ALTER SUBSCRIPTION ... SET (history = NONE) ends that; the history stays as"
        " a table like others.",
    )


def is_member(catalog: Catalog, user: str, role: str) -> bool:
    """True if the user is a member of the role, for pg_hba.conf's ``+role``.

    Only memberships count, for superusers, too. An unknown name has none."""
    authority = catalog.authority()
    member, group = authority.by_name.get(user), authority.by_name.get(role)
    return (
        member is not None
        and group is not None
        and authority.is_member_nosuper(member.oid, group.oid)
    )


def check_owner(
    node: HasCatalog, caller: Caller, word: str, name: str, owner: Oid
) -> None:
    """Check that the caller has the owner's privileges, to alter or drop an object."""
    if not owns(node.catalog, caller, owner):
        raise UsageError(f"must be owner of {word} {name}", sqlstate=PERMISSION_DENIED)


def owns(catalog: Catalog, caller: Caller, *owners: Oid) -> bool:
    """True if the caller has the privileges of one of the owners."""
    if caller.role.superuser or caller.role.oid in owners:
        return True
    authority: Authority = catalog.authority()
    return any(authority.owns(caller.role.oid, owner) for owner in owners)
