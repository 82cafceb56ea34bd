"""Finds the objects and grants that keep a role from being dropped.

Takes the node and roles; raises 2BP01 with all such objects and grants.

Source: checkSharedDependencies() and storeObjectDescription() in pg_shdepend.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from wal2lake.catalog import FIRST_FREE_OID, Authority, Role
from wal2lake.errors import UsageError
from wal2lake.local.node import Caller, described
from wal2lake.local.ports import HasCatalog
from wal2lake.model import DATABASE, DATABASE_OID, Acl

_DEPENDENT: Final = "2BP01"


def check_dropped(
    node: HasCatalog,
    caller: Caller,
    authority: Authority,
    role: Role,
    dropped: Sequence[Role],
) -> None:
    """Raise if something depends on the role, except for memberships of ``dropped`` roles."""
    if role.oid < FIRST_FREE_OID:
        raise UsageError(
            f"cannot drop role {role.name} because it is required by the database system",
            sqlstate=_DEPENDENT,
        )
    dependents = sorted(_dependents(node, caller, authority, role, dropped))
    if dependents:
        raise UsageError(
            f'role "{role.name}" cannot be dropped because some objects depend on it',
            sqlstate=_DEPENDENT,
            detail="\n".join(text for _, text in dependents),
        )


def _dependents(
    node: HasCatalog,
    caller: Caller,
    authority: Authority,
    role: Role,
    dropped: Sequence[Role],
) -> Iterator[tuple[int, str]]:
    """Yield object OIDs and descriptions, which sorted give PostgreSQL's order."""

    def of(
        oid: int, owner: int, acl: Acl | None, described_as: str
    ) -> Iterator[tuple[int, str]]:
        if owner == role.oid:
            yield oid, f"owner of {described_as}"
        elif acl is not None and role.oid in acl.roles:
            yield oid, f"privileges for {described_as}"

    catalog = node.catalog
    yield from of(DATABASE_OID, 0, catalog.database_acl(), f"database {DATABASE}")
    for schema in catalog.namespaces():
        yield from of(schema.oid, schema.owner, schema.acl, f"schema {schema.name}")
    for table in catalog.tables():
        shown = described(table, caller.search_path)
        yield from of(table.oid, table.owner, table.acl, f"table {shown}")
    for sub in catalog.subscriptions():
        yield from of(sub.oid, sub.owner, None, f"subscription {sub.name}")
    for pub in catalog.publications():
        yield from of(pub.oid, pub.owner, None, f"publication {pub.name}")
    dropped_oids = {dropped_role.oid for dropped_role in dropped}
    for row in authority.members:
        if row.grantor == role.oid and not {row.roleid, row.member} & dropped_oids:
            yield (
                int(row.oid),
                f"privileges for membership of role {authority.name(row.member)} in role"
                f" {authority.name(row.roleid)}",
            )
