"""``Catalog``'s methods about roles, schemas, tables and comments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wal2lake.catalog.access import roles
from wal2lake.catalog.access.authority import Authority
from wal2lake.catalog.access.targets import TargetRights
from wal2lake.catalog.database import take_oid
from wal2lake.catalog.definitions import history, publications
from wal2lake.catalog.objects import (
    comments,
    indexes,
    namespaces,
    pendingdeletes,
    sequences,
    tables,
)
from wal2lake.catalog.objects.ownedsequence import OwnedSequence
from wal2lake.catalog.objects.tableindex import TableIndex
from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.records import (
    Altered,
    Comment,
    Namespace,
    Role,
    RoleMember,
    Subscription,
    TableDef,
)
from wal2lake.catalog.replication import copies
from wal2lake.model import Acl, Oid, ReplicaIdentity


class Objects(CatalogPart):
    """The part of the catalog about objects and their owners."""

    _authority: tuple[int, Authority] | None
    """Cached value, and the change counter before it was read."""

    def roles(self) -> list[Role]:
        """Return all roles."""
        with self._database.reading() as connection:
            return roles.all_roles(connection)

    def role(self, name: str) -> Role | None:
        """Return a role by name."""
        with self._database.reading() as connection:
            return roles.role_named(connection, name)

    def role_by_oid(self, oid: Oid) -> Role | None:
        """Return a role by OID."""
        with self._database.reading() as connection:
            return roles.role_by_oid(connection, oid)

    def role_members(self) -> list[RoleMember]:
        """Return all memberships."""
        with self._database.reading() as connection:
            return roles.all_members(connection)

    def authority(self) -> Authority:
        """Return the present roles and memberships."""
        change, cached = self.change_counter, self._authority
        if cached is not None and cached[0] == change:
            return cached[1]
        with self._database.reading() as connection:
            authority = Authority(
                tuple(roles.all_roles(connection)), tuple(roles.all_members(connection))
            )
        # If a later change was read, the counter differs and the value is read again.
        self._authority = change, authority
        return authority

    def create_role(self, role: Role, members: Sequence[RoleMember] = ()) -> None:
        """Create a role with its first memberships. Raises 42710 if the name is taken."""
        with self._database.transaction() as transaction:
            roles.create_role(transaction, role)
            for member in members:
                roles.put_member(transaction, member)

    def update_role(self, oid: Oid, **changes: Any) -> None:
        """Set fields of a role. Raises 42710 if a new name is taken."""
        with self._database.transaction() as transaction:
            roles.update_role(transaction, oid, changes)

    def drop_roles(self, oids: Sequence[Oid]) -> None:
        """Drop roles with their memberships. The caller has checked that nothing depends on
        them."""
        with self._database.transaction() as transaction:
            for oid in oids:
                roles.drop_role(transaction, oid)

    def set_members(
        self, put: Sequence[RoleMember] = (), removed: Sequence[RoleMember] = ()
    ) -> None:
        """Grant and revoke roles, in one transaction."""
        with self._database.transaction() as transaction:
            roles.remove_members(transaction, removed)
            for member in put:
                roles.put_member(transaction, member)

    def set_access(
        self,
        *,
        tables: Mapping[Oid, tuple[Oid, Acl | None]] | None = None,
        namespaces: Mapping[Oid, tuple[Oid, Acl | None]] | None = None,
        database: Acl | None = None,
    ) -> None:
        """Set owners and acls of objects, in one transaction."""
        with self._database.transaction() as transaction:
            for oid, (owner, acl) in (tables or {}).items():
                roles.set_relation_access(transaction, oid, owner, acl)
            for oid, (owner, acl) in (namespaces or {}).items():
                roles.set_namespace_access(transaction, oid, owner, acl)
            if database is not None:
                roles.set_database_acl(transaction, database)

    def database_acl(self) -> Acl | None:
        """Return the database's acl; None for the defaults."""
        with self._database.reading() as connection:
            return roles.database_acl(connection)

    def target_rights(self, subscription: Subscription) -> TargetRights:
        """Return the subscription's present privileges on its tables."""
        owner = self.role_by_oid(subscription.owner)
        return TargetRights(
            subscription,
            superuser=owner is not None and owner.superuser,
            authority=self.authority,
        )

    def must_use_password(self, subscription: Subscription) -> bool:
        """Whether connections must be authenticated by the password in the connection string, so
        that a subscription's owner cannot use the privileges of the node's OS user."""
        if not subscription.password_required:
            return False
        owner = self.role_by_oid(subscription.owner)
        return owner is None or not owner.superuser

    def namespaces(self) -> list[Namespace]:
        """Return all schemas of lake tables."""
        with self._database.reading() as connection:
            return namespaces.all_namespaces(connection)

    @change
    def create_namespace(self, name: str, owner: Oid) -> Namespace:
        """Create a schema. Raises 42P06 if it exists."""
        with self._database.transaction() as transaction:
            return namespaces.create_namespace(transaction, name, owner)

    def drop_namespace(self, name: str) -> None:
        """Drop an empty schema. Raises 3F000 if it does not exist."""
        with self._database.transaction() as transaction:
            publications.forget_schema(transaction, name)
            namespaces.drop_namespace(transaction, name)

    def tables(self) -> list[TableDef]:
        """Return all lake tables, by OID."""
        with self._database.reading() as connection:
            return tables.all_tables(connection)

    def table(self, namespace: str, name: str) -> TableDef | None:
        """Return a table by its exact names."""
        with self._database.reading() as connection:
            return tables.table_named(connection, namespace, name)

    def sharing(self, table: TableDef) -> tuple[Oid, ...]:
        """Return the OIDs of all tables with the table's location: the table, its partition, or its
        partitioned table."""
        if table.partition_key is None and table.partition_of is None:
            return (table.oid,)
        with self._database.reading() as connection:
            return tables.sharing(connection, table.storage)

    def table_by_oid(self, oid: Oid) -> TableDef | None:
        """Return a table by OID."""
        with self._database.reading() as connection:
            return tables.table_by_oid(connection, oid)

    def rename_table(self, table: TableDef, namespace: str, name: str) -> None:
        """Rename a table, or move it to another schema. Its key keeps its name. Raises 42P07 if the
        name is taken."""
        with self._database.transaction() as transaction:
            tables.rename_table(transaction, table, namespace, name)

    def redefine(self, altered: Sequence[Altered]) -> None:
        """Change definitions for all versions, where no row depends on the change."""
        with self._database.transaction() as transaction:
            history.redefine(transaction, altered)

    def table_at(self, table: TableDef, version: int) -> TableDef:
        """Return a table with the columns and key of a version, and its present name and
        privileges. Called after the version was read, so the definition is never older than the
        version."""
        with self._database.reading() as connection:
            present = tables.table_by_oid(connection, table.oid) or table
            return history.as_of(connection, present, version)

    @change
    def create_table(
        self, *made: TableDef, owning: Sequence[OwnedSequence] = ()
    ) -> None:
        """Record tables whose storage exists, and their sequences. Raises 42P07 if a name is
        taken."""
        with self._database.transaction() as transaction:
            for table in made:
                tables.create_table(transaction, table)
            for sequence in owning:
                sequences.create(transaction, sequence)

    def indexes(self) -> list[TableIndex]:
        """Return the indexes that statements have made."""
        with self._database.reading() as connection:
            return indexes.all_indexes(connection)

    @change
    def create_index(self, index: TableIndex) -> None:
        """Record an index. The caller has checked its name."""
        with self._database.transaction() as transaction:
            indexes.create(transaction, index)

    @change
    def drop_indexes(self, oids: Sequence[Oid]) -> None:
        """Drop indexes."""
        with self._database.transaction() as transaction:
            for oid in oids:
                indexes.drop(transaction, oid)

    @change
    def rename_index(self, oid: Oid, name: str) -> None:
        """Rename an index. The caller has checked the name."""
        with self._database.transaction() as transaction:
            indexes.rename(transaction, oid, name)

    def sequences(self) -> list[OwnedSequence]:
        """Return all sequences."""
        with self._database.reading() as connection:
            return sequences.all_of_them(connection)

    def next_values(self, oid: Oid, count: int) -> int:
        """Take ``count`` values of a sequence and return the first. Raises 2200H if there are too
        few."""
        with self._database.transaction() as transaction:
            return sequences.take(transaction, oid, count)

    def last_value(self, oid: Oid) -> int | None:
        """Return the value of a sequence after which the next one is taken; None if the first one
        is next."""
        with self._database.reading() as connection:
            return sequences.last_value(connection, oid)

    def restart_sequences(
        self, lasts: Mapping[Oid, int | None], voided: Collection[tuple[Oid, Oid]]
    ) -> None:
        """Set the value of each sequence after which the next one is taken; None for the first one.
        Copies ``voided`` (subscription, table), which may have taken earlier values, begin anew in
        another epoch."""
        with self._database.transaction() as transaction:
            for oid, last in lasts.items():
                sequences.set_last_value(transaction, oid, last)
            for subid, relid in voided:
                copies.void(transaction, subid, relid, int(take_oid(transaction)))

    def last_values(self) -> dict[Oid, int]:
        """Return the last value of each sequence. Sequences without a taken value are left out."""
        with self._database.reading() as connection:
            return sequences.last_values(connection)

    def set_value(self, oid: Oid, value: int, *, is_called: bool) -> None:
        """Set the last or the next value of a sequence. Raises 22003 if the value is out of
        range."""
        with self._database.transaction() as transaction:
            sequences.put(transaction, oid, value, is_called)

    @change
    def drop_table(self, oid: Oid) -> None:
        """Delete a table and its entries in all subscriptions and publications. Its files have to
        be removed (``pending_deletes``). Raises 42P01 if the table does not exist."""
        with self._database.transaction() as transaction:
            publications.forget_table(transaction, oid)
            tables.drop_table(transaction, oid)

    def locations(self) -> frozenset[str]:
        """Return the locations of all tables, those that other sessions see included."""
        return frozenset(table.location for table in self.tables())

    def expect_deletes(self, made: Mapping[str, Oid]) -> None:
        """Record places, with the OID of their table, before an open block makes tables there.

        Their files are removed at the start of the node, unless a table has the place by then."""
        with self._database.transaction() as transaction:
            for location, oid in made.items():
                pendingdeletes.add(transaction, location, oid)

    def pending_deletes(self) -> dict[str, Oid]:
        """Return the places whose files are to be removed, with the OIDs of their tables."""
        with self._database.reading() as connection:
            return pendingdeletes.all_of_them(connection)

    def deleted(self, location: str) -> None:
        """Record that the files of a dropped table are gone."""
        with self._database.transaction() as transaction:
            pendingdeletes.forget(transaction, location)

    def set_replica_identity(
        self, oids: Sequence[Oid], identity: ReplicaIdentity
    ) -> None:
        """Set the replica identity of tables."""
        with self._database.transaction() as transaction:
            for oid in oids:
                tables.set_replica_identity(transaction, oid, identity)

    @change
    def set_parameters(self, storage: Oid, changes: Mapping[str, str | None]) -> None:
        """Set storage parameters of a table and its partition, by the table's OID; None to remove
        one."""
        with self._database.transaction() as transaction:
            for oid in tables.sharing(transaction, storage):
                tables.set_parameters(transaction, oid, changes)

    def comments(self) -> list[Comment]:
        """Return all comments."""
        with self._database.reading() as connection:
            return comments.all_comments(connection)

    @change
    def set_comment(self, classid: Oid, objid: Oid, text: str | None) -> None:
        """Set the comment of an object. None or an empty text deletes it."""
        with self._database.transaction() as transaction:
            comments.set_comment(transaction, classid, objid, text)
