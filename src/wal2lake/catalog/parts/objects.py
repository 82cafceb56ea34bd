"""``Catalog``'s methods about roles, schemas, tables and comments; see ``store``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wal2lake.catalog.access import roles
from wal2lake.catalog.access.authority import Authority
from wal2lake.catalog.access.targets import TargetRights
from wal2lake.catalog.database import take_oid
from wal2lake.catalog.definitions import history, publications
from wal2lake.catalog.objects import comments, namespaces, sequences, tables
from wal2lake.catalog.objects.ownedsequence import OwnedSequence
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
    """The newest, and the change that it was read after."""

    def roles(self) -> list[Role]:
        """All roles."""
        with self._database.reading() as connection:
            return roles.all_roles(connection)

    def role(self, name: str) -> Role | None:
        """One role by name."""
        with self._database.reading() as connection:
            return roles.role_named(connection, name)

    def role_by_oid(self, oid: Oid) -> Role | None:
        """One role by OID."""
        with self._database.reading() as connection:
            return roles.role_by_oid(connection, oid)

    def role_members(self) -> list[RoleMember]:
        """All memberships."""
        with self._database.reading() as connection:
            return roles.all_members(connection)

    def authority(self) -> Authority:
        """Roles and memberships of this moment, to be asked many times."""
        change, known = self.change_counter, self._authority
        if known is not None and known[0] == change:
            return known[1]
        with self._database.reading() as connection:
            found = Authority(
                tuple(roles.all_roles(connection)), tuple(roles.all_members(connection))
            )
        # As of that change or a later one, which then is not the counter's any more.
        self._authority = change, found
        return found

    def create_role(self, role: Role, members: Sequence[RoleMember] = ()) -> None:
        """With its first memberships; 42710 if the name is taken."""
        with self._database.transaction() as transaction:
            roles.create_role(transaction, role)
            for member in members:
                roles.put_member(transaction, member)

    def update_role(self, oid: Oid, **changes: Any) -> None:
        """Set fields; 42710 if a new name is taken."""
        with self._database.transaction() as transaction:
            roles.update_role(transaction, oid, changes)

    def drop_roles(self, oids: Sequence[Oid]) -> None:
        """With their memberships. The caller has looked that nothing depends on them."""
        with self._database.transaction() as transaction:
            for oid in oids:
                roles.drop_role(transaction, oid)

    def set_members(
        self, put: Sequence[RoleMember] = (), removed: Sequence[RoleMember] = ()
    ) -> None:
        """Grants and revokes of roles, at one moment."""
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
        """Owners and acls of objects, at one moment."""
        with self._database.transaction() as transaction:
            for oid, (owner, acl) in (tables or {}).items():
                roles.set_relation_access(transaction, oid, owner, acl)
            for oid, (owner, acl) in (namespaces or {}).items():
                roles.set_namespace_access(transaction, oid, owner, acl)
            if database is not None:
                roles.set_database_acl(transaction, database)

    def database_acl(self) -> Acl | None:
        """Return the acl of the one database; None: the defaults."""
        with self._database.reading() as connection:
            return roles.database_acl(connection)

    def target_rights(self, subscription: Subscription) -> TargetRights:
        """Return the privileges that the subscription has on its tables now."""
        owner = self.role_by_oid(subscription.owner)
        return TargetRights(
            subscription,
            superuser=owner is not None and owner.superuser,
            authority=self.authority,
        )

    def must_use_password(self, subscription: Subscription) -> bool:
        """Whether its connections must be authenticated by a password in its connection
        string: so that nobody borrows what the node's own OS user may open."""
        if not subscription.password_required:
            return False
        owner = self.role_by_oid(subscription.owner)
        return owner is None or not owner.superuser

    def namespaces(self) -> list[Namespace]:
        """All schemas of lake tables."""
        with self._database.reading() as connection:
            return namespaces.all_namespaces(connection)

    @change
    def create_namespace(self, name: str, owner: Oid) -> Namespace:
        """42P06 if it exists."""
        with self._database.transaction() as transaction:
            return namespaces.create_namespace(transaction, name, owner)

    def drop_namespace(self, name: str) -> None:
        """The schema must be empty; 3F000 if there is none."""
        with self._database.transaction() as transaction:
            publications.forget_schema(transaction, name)
            namespaces.drop_namespace(transaction, name)

    def tables(self) -> list[TableDef]:
        """All lake tables, by OID."""
        with self._database.reading() as connection:
            return tables.all_tables(connection)

    def table(self, namespace: str, name: str) -> TableDef | None:
        """One table by its exact names."""
        with self._database.reading() as connection:
            return tables.table_named(connection, namespace, name)

    def sharing(self, table: TableDef) -> tuple[Oid, ...]:
        """All tables that are names of its location: it, and the partition that it has or
        the partitioned table that it is of."""
        if table.partition_key is None and table.partition_of is None:
            return (table.oid,)
        with self._database.reading() as connection:
            return tables.sharing(connection, table.storage)

    def table_by_oid(self, oid: Oid) -> TableDef | None:
        """One table by OID."""
        with self._database.reading() as connection:
            return tables.table_by_oid(connection, oid)

    def rename_table(self, table: TableDef, namespace: str, name: str) -> None:
        """Another name or schema; 42P07 if it is taken. Its key keeps the name that it has."""
        with self._database.transaction() as transaction:
            tables.rename_table(transaction, table, namespace, name)

    def redefine(self, altered: Sequence[Altered]) -> None:
        """Change definitions for all versions: what no row depends on."""
        with self._database.transaction() as transaction:
            history.redefine(transaction, altered)

    def table_at(self, table: TableDef, version: int) -> TableDef:
        """A table as that version of it is: its present name and rights, with the columns and
        the key of then. Asked once the version is known, it is never older than that."""
        with self._database.reading() as connection:
            found = tables.table_by_oid(connection, table.oid) or table
            return history.as_of(connection, found, version)

    @change
    def create_table(
        self, *made: TableDef, owning: Sequence[OwnedSequence] = ()
    ) -> None:
        """Record tables whose storage exists, and sequences of theirs, or none; 42P07 if a name
        is taken."""
        with self._database.transaction() as transaction:
            for table in made:
                tables.create_table(transaction, table)
            for one in owning:
                sequences.create(transaction, one)

    def sequences(self) -> list[OwnedSequence]:
        """All of them."""
        with self._database.reading() as connection:
            return sequences.all_of_them(connection)

    def next_values(self, oid: Oid, count: int) -> int:
        """Take so many values of a sequence; the first of them. 2200H if there are not so many."""
        with self._database.transaction() as transaction:
            return sequences.take(transaction, oid, count)

    def last_value(self, oid: Oid) -> int | None:
        """Return the value of a sequence behind which the next one is taken; None: its first one is
        next."""
        with self._database.reading() as connection:
            return sequences.last_value(connection, oid)

    def restart_sequences(
        self, lasts: Mapping[Oid, int | None], voided: Collection[tuple[Oid, Oid]]
    ) -> None:
        """From now on the next value of each is that behind the one given; None: the first.
        Copies ``voided`` (subscription, table), which may have taken values before, begin anew,
        in another epoch."""
        with self._database.transaction() as transaction:
            for oid, last in lasts.items():
                sequences.set_last_value(transaction, oid, last)
            for subid, relid in voided:
                copies.void(transaction, subid, relid, int(take_oid(transaction)))

    def last_values(self) -> dict[Oid, int]:
        """Return the last value of each sequence of which a value was taken."""
        with self._database.reading() as connection:
            return sequences.last_values(connection)

    def set_value(self, oid: Oid, value: int, *, is_called: bool) -> None:
        """Set the last or the next value of a sequence; 22003 if it is out of range."""
        with self._database.transaction() as transaction:
            sequences.put(transaction, oid, value, is_called)

    def drop_table(self, oid: Oid) -> None:
        """Forget a table and its part in every subscription and publication."""
        with self._database.transaction() as transaction:
            publications.forget_table(transaction, oid)
            tables.drop_table(transaction, oid)

    def set_replica_identity(
        self, oids: Sequence[Oid], identity: ReplicaIdentity
    ) -> None:
        """ALTER TABLE ... REPLICA IDENTITY."""
        with self._database.transaction() as transaction:
            for oid in oids:
                tables.set_replica_identity(transaction, oid, identity)

    def comments(self) -> list[Comment]:
        """All of them."""
        with self._database.reading() as connection:
            return comments.all_comments(connection)

    @change
    def set_comment(self, classid: Oid, objid: Oid, text: str | None) -> None:
        """COMMENT ON; None or an empty text deletes it."""
        with self._database.transaction() as transaction:
            comments.set_comment(transaction, classid, objid, text)
