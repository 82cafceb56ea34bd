"""The catalog's store: records in, records out, one SQLite transaction a method.

Every process opens its own; a connection belongs to the thread that made it and never
crosses a fork. A method returns only after the commit is durable (synchronous=FULL), and raises
StorageError (53100, 58030) if the file cannot be read or written.
``change_counter`` grows with every commit of any process, so a cache can ask cheaply
whether it is stale.

Here is what callers may rely on, and where transactions begin and end; the SQL of each table is in
the module of its name (``namespaces``, ``tables``, ``comments``, ``subscriptions``, ``copies``,
``published``; ``access.roles``).

Called by: commands and system views (frontend), the supervisor (launch), workers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from wal2lake.catalog import comments, copies, namespaces, subscriptions, tables
from wal2lake.catalog.access import roles
from wal2lake.catalog.access.authority import Authority
from wal2lake.catalog.access.targets import TargetRights
from wal2lake.catalog.database import Database, create_database, take_oid
from wal2lake.catalog.published import coercions, snapshot_vectors
from wal2lake.catalog.records import (
    REMOTE_TYPES,
    UNDECODED_TYPES,
    CoercionTotal,
    Comment,
    CopyRange,
    Namespace,
    NewSource,
    PlannedSlot,
    Recopy,
    Role,
    RoleMember,
    SnapshotVector,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
    SyncSnapshot,
    TableDef,
    Worker,
)
from wal2lake.catalog.schema import SUBSCRIPTION_CATALOG
from wal2lake.errors import Retry, StorageError, Wal2LakeError
from wal2lake.model import INVALID_LSN, Acl, Coercion, Lsn, Oid
from wal2lake.observe import get_logger


class Catalog:
    """The durable facts of one node."""

    def __init__(self, path: Path, *, migrate: bool = False) -> None:
        """Open an existing catalog; ConfigurationError if missing or of another version.
        ``migrate``: bring an older one up to date (who starts the node does)."""
        self._database = Database(path, migrate=migrate)

    @classmethod
    def create(cls, path: Path, superuser: str, password: str | None) -> Catalog:
        """Make a new catalog with its first role and schema public."""
        create_database(path, superuser, password)
        return cls(path)

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()

    # ---- the node ---------------------------------------------------------------

    @property
    def change_counter(self) -> int:
        """Grows with every commit; equal numbers mean nothing has changed."""
        return int(self._database.meta("counter"))

    @property
    def system_identifier(self) -> int:
        """This node's own, as IDENTIFY_SYSTEM would report it: 64 bits."""
        return int(self._database.meta("system_identifier"))

    def new_oid(self) -> Oid:
        """A number that no object of this node had before."""
        with self._database.transaction() as transaction:
            return take_oid(transaction)

    # ---- roles and namespaces --------------------------------------------------------

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
        with self._database.reading() as connection:
            return Authority(
                tuple(roles.all_roles(connection)), tuple(roles.all_members(connection))
            )

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
        """Of the one database; None: the defaults."""
        with self._database.reading() as connection:
            return roles.database_acl(connection)

    def target_rights(self, subscription: Subscription) -> TargetRights:
        """What the subscription may do with its tables now."""
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

    def create_namespace(self, name: str, owner: Oid) -> Namespace:
        """42P06 if it exists."""
        with self._database.transaction() as transaction:
            return namespaces.create_namespace(transaction, name, owner)

    def drop_namespace(self, name: str) -> None:
        """The schema must be empty; 3F000 if there is none."""
        with self._database.transaction() as transaction:
            namespaces.drop_namespace(transaction, name)

    # ---- tables ----------------------------------------------------------------------

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

    def create_table(self, table: TableDef) -> None:
        """Record a table whose storage exists; 42P07 if the name is taken."""
        with self._database.transaction() as transaction:
            tables.create_table(transaction, table)

    def drop_table(self, oid: Oid) -> None:
        """Forget a table and its part in every subscription."""
        with self._database.transaction() as transaction:
            tables.drop_table(transaction, oid)

    # ---- subscriptions ---------------------------------------------------------------

    def subscriptions(self) -> list[Subscription]:
        """All of them, by OID."""
        with self._database.reading() as connection:
            return subscriptions.all_subscriptions(connection)

    def subscription(self, oid: Oid) -> Subscription | None:
        """One by OID."""
        with self._database.reading() as connection:
            return subscriptions.subscription_by_oid(connection, oid)

    def subscription_named(self, name: str) -> Subscription | None:
        """One by name."""
        with self._database.reading() as connection:
            return subscriptions.subscription_named(connection, name)

    def create_subscription(
        self,
        subscription: Subscription,
        rels: Sequence[SubscriptionRel],
        versions: Mapping[int, int] | None = None,
    ) -> None:
        """Record it with its tables; 42710 if the name is taken.

        Readers see ``versions`` of the tables from now on, and the slot is no longer a
        planned one: both in the same transaction.
        """
        with self._database.transaction() as transaction:
            subscriptions.create_subscription(transaction, subscription)
            subscriptions.add_rels(transaction, rels)
            subscriptions.forget_planned_slot(
                transaction, subscription.slot_name, subscription.conninfo
            )
            if versions is not None:
                snapshot_vectors.publish(
                    transaction, subscription.oid, subscription.floor, versions, (), ()
                )

    def planned_slots(self) -> list[PlannedSlot]:
        """Slots that CREATE SUBSCRIPTION makes now, or was making at a crash."""
        with self._database.reading() as connection:
            return subscriptions.planned_slots(connection)

    def plan_slot(self, planned: PlannedSlot) -> None:
        """Before it is made: what a crash leaves behind is known here."""
        with self._database.transaction() as transaction:
            subscriptions.plan_slot(transaction, planned)

    def forget_planned(self, planned: PlannedSlot) -> None:
        """There is no such slot, or it is not this node's to drop."""
        with self._database.transaction() as transaction:
            subscriptions.forget_planned(transaction, planned)

    def update_subscription(
        self, oid: Oid, *, bump: bool = False, **changes: Any
    ) -> Subscription:
        """Set fields of one subscription and return it.

        A change that its workers must notice is a new ``generation``: pass
        ``bump=True``. 42704 if it is gone, 42710 if a new name is taken.
        """
        with self._database.transaction() as transaction:
            return subscriptions.update_subscription(
                transaction, oid, changes, bump=bump
            )

    def set_connection(self, oid: Oid, conninfo: str) -> Subscription:
        """Another publisher, or another way to it: the next generation. No snapshot of the
        one before is taken for one of this one; 42704 if the subscription is gone."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, oid)
            return subscriptions.update_subscription(
                transaction, oid, {"conninfo": conninfo}, bump=True
            )

    def set_options(self, oid: Oid, changes: Mapping[str, str]) -> Subscription:
        """Set some of a subscription's options, leaving the others; 42704 if it is gone."""
        with self._database.transaction() as transaction:
            return subscriptions.update_subscription(
                transaction, oid, {}, options=changes, bump=False
            )

    def alter_subscription(
        self,
        oid: Oid,
        *,
        options: Mapping[str, str],
        distrust: bool = False,
        **changes: Any,
    ) -> Subscription:
        """All that one ALTER SUBSCRIPTION ... SET asks for: fields, options, and the next
        generation. ``distrust``: from now on inserts must look for rows."""
        with self._database.transaction() as transaction:
            if distrust:
                subscriptions.distrust(transaction, oid, None)
            return subscriptions.update_subscription(
                transaction, oid, changes, options=options, bump=True
            )

    def set_publications(
        self,
        oid: Oid,
        publications: Sequence[str],
        *,
        added: Sequence[SubscriptionRel] = (),
        versions: Mapping[int, int] | None = None,
        removed: Collection[Oid] = (),
        distrusted: Collection[Oid] = (),
    ) -> Subscription:
        """What a subscription is of, with its tables, at one moment: the next generation if
        the publications are other ones than before.

        Readers see ``versions`` of the ``added`` tables. ``removed`` ones leave with
        their data; inserts into ``distrusted`` ones must look for rows.
        """
        with self._database.transaction() as transaction:
            _change_tables(transaction, oid, added, versions or {}, removed)
            subscriptions.distrust(transaction, oid, distrusted)
            before = subscriptions.subscription_by_oid(transaction, oid)
            return subscriptions.update_subscription(
                transaction,
                oid,
                {"publications": tuple(publications)},
                bump=before is not None
                and set(before.publications) != set(publications),
            )

    def copy_anew(
        self,
        oid: Oid,
        publications: Sequence[str],
        *,
        added: Sequence[SubscriptionRel] = (),
        versions: Mapping[int, int] | None = None,
        removed: Collection[Oid] = (),
        whole: Mapping[Oid, bool] | None = None,
        source: NewSource | None = None,
    ) -> Subscription:
        """As ``set_publications``, and every other table waits for a copy that takes the
        place of its rows; readers have these until then. The next generation, and the
        end of ``recopying``.

        ``whole`` says of tables whether inserts may be trusted after their copy; without
        it that is as it was. With a ``source`` everything begins at its slot: nothing
        that was received before counts any more, and the floor may go back.
        """
        known = whole or {}
        changes: dict[str, Any] = {
            "publications": tuple(publications),
            "recopying": Recopy.NO,
        }
        options: dict[str, str] = {}
        with self._database.transaction() as transaction:
            before = subscriptions.rels_of(transaction, oid)
            if source is not None:
                snapshot_vectors.rebase(transaction, oid, source.start)
                changes |= {
                    "floor": source.start,
                    "system_identifier": source.system_identifier,
                    "timeline": source.timeline,
                    "skip_lsn": INVALID_LSN,
                    "skipping": False,
                }
                # Of another server, perhaps, whose types and positions are others.
                options |= {REMOTE_TYPES: "", UNDECODED_TYPES: ""}
                found = subscriptions.subscription_by_oid(transaction, oid)
                if found is not None and found.two_phase != "d":
                    options["two_phase"] = "p"
            _change_tables(transaction, oid, added, versions or {}, removed)
            for rel in before:
                if rel.relid not in removed:
                    copies.restart(
                        transaction,
                        rel,
                        int(take_oid(transaction)),
                        trusted=known.get(rel.relid, rel.trusted),
                    )
            copies.release_snapshot(transaction, oid)
            subscriptions.clear_errors(transaction, oid)
            return subscriptions.update_subscription(
                transaction, oid, changes, options=options, bump=True
            )

    def drop_subscription(self, oid: Oid) -> None:
        """Forget it, its relation states, ranges, vectors and comment."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, oid)
            subscriptions.drop_subscription(transaction, oid)
            comments.set_comment(transaction, SUBSCRIPTION_CATALOG, oid, None)

    # ---- errors of their workers -----------------------------------------------------

    def errors(self) -> list[SubscriptionError]:
        """What stops subscriptions now; those of single tables are in ``rels``."""
        with self._database.reading() as connection:
            return subscriptions.errors(connection)

    def note_error(self, oid: Oid, worker: Worker, text: str | None) -> None:
        """What one attempt of a worker has failed with, which counts; None: it succeeded,
        and no longer stops the subscription. Other workers' errors stay.

        Who notes an error handles one already: if it cannot be written, that is in the
        log, and no second one is raised."""
        with self._database.reading() as connection:
            known = subscriptions.error_of(connection, oid, worker)
        if known == text and (text is None or not subscriptions.counts(worker)):
            return
        try:
            with self._database.transaction() as transaction:
                if text is None:
                    subscriptions.clear_error(transaction, oid, worker)
                    return
                subscriptions.note_error(transaction, oid, worker, text)
                subscriptions.count_error(transaction, oid, worker)
        except StorageError as error:
            if text is None:
                raise
            get_logger().error("could not note an error", error=error)

    def set_skip(self, oid: Oid, lsn: Lsn) -> None:
        """ALTER SUBSCRIPTION ... SKIP; 0: none. UsageError (55006) if another transaction is
        being left out at this moment: some tables may be beyond it already."""
        with self._database.transaction() as transaction:
            subscriptions.set_skip(transaction, oid, lsn)

    def begin_skip(self, oid: Oid, lsn: Lsn) -> bool:
        """Leaving out the transaction begins; False if it is not to be left out any more."""
        with self._database.transaction() as transaction:
            return subscriptions.begin_skip(transaction, oid, lsn)

    def disable_if_asked(self, oid: Oid, error: BaseException) -> None:
        """disable_on_error: after an error that a worker has noted, the subscription is
        disabled instead of tried again.

        What may pass by itself (a server that cannot be reached, a full disk, another
        writer's commit) is tried again all the same. Source:
        DisableSubscriptionAndExit() in worker.c.
        """
        if isinstance(error, Wal2LakeError) and error.retry is Retry.LATER:
            return
        with self._database.transaction() as transaction:
            found = subscriptions.subscription_by_oid(transaction, oid)
            if found is None or not (found.enabled and found.disable_on_error):
                return
            subscriptions.update_subscription(
                transaction, oid, {"enabled": False}, bump=True
            )
        get_logger().error(
            f'subscription "{found.name}" has been disabled because of an error'
        )

    def stats(self) -> list[SubscriptionStats]:
        """How often the workers of subscriptions have failed."""
        with self._database.reading() as connection:
            return subscriptions.stats(connection)

    def reset_stats(self, oid: Oid | None) -> None:
        """Count from zero: one subscription's errors, or with None those of all."""
        with self._database.transaction() as transaction:
            subscriptions.reset_stats(transaction, oid)

    # ---- comments --------------------------------------------------------------------

    def comments(self) -> list[Comment]:
        """All of them."""
        with self._database.reading() as connection:
            return comments.all_comments(connection)

    def set_comment(self, classid: Oid, objid: Oid, text: str | None) -> None:
        """COMMENT ON; None or an empty text deletes it."""
        with self._database.transaction() as transaction:
            comments.set_comment(transaction, classid, objid, text)

    # ---- relation states and copies --------------------------------------------------

    def rels(self, subid: Oid | None = None) -> list[SubscriptionRel]:
        """Relation states of one subscription, or of all."""
        with self._database.reading() as connection:
            return subscriptions.rels_of(connection, subid)

    def add_rels(self, rels: Sequence[SubscriptionRel]) -> None:
        """New tables of a subscription."""
        with self._database.transaction() as transaction:
            subscriptions.add_rels(transaction, rels)

    def remove_rel(self, subid: Oid, relid: Oid) -> None:
        """A table leaves a subscription; its data stays, and the newest vector no longer
        pins it."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, subid, relid)
            snapshot_vectors.forget_version(transaction, subid, relid)
            subscriptions.remove_rel(transaction, subid, relid)

    def update_rel(self, subid: Oid, relid: Oid, **changes: Any) -> None:
        """Set fields of one relation state (a state of SyncState, an Lsn ...)."""
        with self._database.transaction() as transaction:
            subscriptions.update_rel(transaction, subid, relid, changes)

    def begin_copies(self, started: Sequence[SubscriptionRel]) -> None:
        """Attempts begin: ``copy_plan``, ``rows_expected`` and ``lsn`` (the S that their
        commits may have) are stored, ranges that are not of the plan's snapshot are void.
        """
        with self._database.transaction() as transaction:
            for rel in started:
                copies.begin_copy(transaction, rel)

    def record_ranges(self, done: Sequence[CopyRange]) -> None:
        """Finished ranges of copies, and their rows in the tables' progress."""
        with self._database.transaction() as transaction:
            for one in done:
                copies.record_range(transaction, one)

    def ranges(self, subid: Oid, relid: Oid) -> list[CopyRange]:
        """The finished ranges of a table's running copy."""
        with self._database.reading() as connection:
            return copies.ranges(connection, subid, relid)

    def end_attempts(
        self, ended: Sequence[tuple[SubscriptionRel, str | None, bool]]
    ) -> None:
        """Copies that have not reached f, each with its error (None: the one it has stays)
        and whether its commit may have been made all the same: the floor still waits for
        that one's S."""
        with self._database.transaction() as transaction:
            for rel, error, made in ended:
                copies.end_attempt(transaction, rel, error, made=made)
                if error is not None:
                    subscriptions.count_error(transaction, rel.subid, Worker.COPY)

    def finish_copies(self, copied: Sequence[SubscriptionRel]) -> set[Oid]:
        """Copies are committed (d -> f), each with its S as ``lsn``: what their ranges have
        changed is known, and the ranges are forgotten.

        Returns the tables that were waiting for just that: one that has left meanwhile,
        or has come back in another epoch, is as it is.
        """
        finished = set()
        with self._database.transaction() as transaction:
            for rel in copied:
                if copies.finish_copy(transaction, rel):
                    finished.add(rel.relid)
        return finished

    def hold_snapshot(
        self, held: SyncSnapshot, *, generation: int | None = None
    ) -> bool:
        """A receiver holds an exported snapshot for this subscription's copies. False, and
        nothing is recorded: the subscription's generation is no longer the one it streams
        with (None: whichever it is)."""
        with self._database.transaction() as transaction:
            found = subscriptions.subscription_by_oid(transaction, held.subid)
            if found is None or generation not in (None, found.generation):
                return False
            copies.hold_snapshot(transaction, held)
            subscriptions.clear_error(transaction, held.subid, Worker.SNAPSHOT)
            return True

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """The snapshot that copies of this subscription may use now."""
        with self._database.reading() as connection:
            return copies.snapshot_held(connection, subid)

    def release_snapshot(self, subid: Oid) -> None:
        """The snapshot is gone, or no longer needed."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, subid)

    # ---- published states ------------------------------------------------------------

    def publish(
        self,
        subid: Oid,
        reached: Lsn,
        versions: Mapping[int, int],
        *,
        participants: Collection[int] = (),
        joined: Sequence[int] = (),
        skipped: Lsn | None = None,
    ) -> Lsn:
        """Advance the floor and publish the tables' versions, in one transaction.

        ``versions`` holds the changed tables only; the others keep theirs. Equal
        state at a new LSN moves the newest vector instead of adding one.

        The subscription's floor follows ``reached`` but never goes back, and never
        passes what a table still needs of the log: the snapshot of one that is being
        copied, the position of one that has come since the caller looked (it is not
        among ``participants``, the tables that are complete below ``reached``).

        Tables in ``joined`` take their next step to ready: f -> s at ``reached``,
        s -> r. ``skipped``: the finish LSN of a transaction below ``reached`` that ALTER
        SUBSCRIPTION ... SKIP has left out, which is hereby done. Returns the floor.
        """
        with self._database.transaction() as transaction:
            if skipped is not None:
                subscriptions.clear_skip(transaction, subid, skipped)
            coercions.publish(transaction, subid, reached)
            return snapshot_vectors.publish(
                transaction, subid, reached, versions, participants, joined
            )

    def expect_coercions(
        self,
        subid: Oid,
        reached: Lsn,
        positions: Mapping[Oid, Lsn],
        found: Mapping[Oid, Sequence[Coercion]],
    ) -> None:
        """Before the tables of a batch that ends at ``reached`` commit: what policies have
        changed in it. ``positions``: of each of its tables; what was expected above them
        has not come to pass. ``publish`` adds it to the totals."""
        with self._database.reading() as connection:
            pending = coercions.any_pending(connection, subid)
        if pending or any(found.values()):
            with self._database.transaction() as transaction:
                coercions.expect(transaction, subid, reached, positions, found)

    def coercions(self) -> list[CoercionTotal]:
        """What value policies have changed in published states."""
        with self._database.reading() as connection:
            return coercions.totals(connection)

    def newest_vector(self, subid: Oid) -> SnapshotVector | None:
        """The state that a SELECT sees."""
        with self._database.reading() as connection:
            return snapshot_vectors.newest_vector(connection, subid)

    def vectors(self) -> list[SnapshotVector]:
        """All published states that are kept, oldest first."""
        with self._database.reading() as connection:
            return snapshot_vectors.all_vectors(connection)


def _change_tables(
    transaction: sqlite3.Connection,
    oid: Oid,
    added: Sequence[SubscriptionRel],
    versions: Mapping[int, int],
    removed: Collection[Oid],
) -> None:
    """Tables come to a subscription, seen at these versions, and others leave it."""
    subscriptions.add_rels(transaction, added)
    if versions:
        newest = snapshot_vectors.newest_vector(transaction, oid)
        found = subscriptions.subscription_by_oid(transaction, oid)
        floor = INVALID_LSN if found is None else found.floor
        reached = floor if newest is None else newest.lsn
        snapshot_vectors.publish(transaction, oid, reached, versions, (), ())
    for relid in removed:
        snapshot_vectors.hand_over(transaction, oid, relid)
        snapshot_vectors.forget_version(transaction, oid, relid)
        subscriptions.remove_rel(transaction, oid, relid)
