"""REFRESH PUBLICATION WITH (recopy = true) or (heal = true): copies every table again.

Readers see the old rows of a table until one commit replaces them. With ``heal`` the copies write
the differing rows only (``tablesync.healing``). The durable steps in order:

    mark the subscription as being copied again           catalog
    wait until its receiver, its apply worker             nothing durable
      and the copies of its tables end
    can its slot send what is missing here?
      if not:   drop the slot, if there is one            publisher
                mark slot and log as given up             catalog
                remove the log, forget its positions      storage
                create the slot                           publisher
    under the DDL lock:
      create published tables that are missing here     storage, catalog
      let every table wait for a copy that replaces     ONE catalog transaction
        its rows; with a new slot, the slot's
        position is the floor; remove the mark

The slot must pass the checks that the receiver makes at each start (``receive.source.history``,
``receive.source.slotcheck``), and the log above the floor is read once: a damaged log is as bad as
a missing slot. A slot of that name that does not belong to a subscription is not dropped.

A failure before the slot is dropped removes the mark. So does every failure if the slot can go on.
Once the slot is dropped, or its drop is uncertain (a cancel, a broken connection), the command can
only go forward: ``unfinished`` resumes it after that, after a crash, or when the publisher could
not create a slot. The second mark distinguishes a slot created meanwhile from the slot that the log
belongs to.

PostgreSQL has no such command; its way is DROP SUBSCRIPTION and TRUNCATE.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from wal2lake.catalog import HEALS, NewSource, ProgressFile, Recopy, Subscription
from wal2lake.catalog import SubscriptionRel as Rel
from wal2lake.catalog.access.targets import INSERT, TRUNCATE
from wal2lake.catalog.mapped.committimes import CommitTimes
from wal2lake.changelog import ChangeLog, LogReader, files
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.commands.subscription.publisher import create_slot, drop_slot
from wal2lake.commands.subscription.steps.drop import (
    WORKER_STOP_SECONDS,
    await_workers,
    given_up,
)
from wal2lake.errors import ConfigurationError, CorruptLogError, UsageError
from wal2lake.local.ports import (
    Definitions,
    HasCatalog,
    HasSettings,
    SubscriptionCommands,
    TableDefinitions,
)
from wal2lake.model import INVALID_LSN, Lsn, Oid
from wal2lake.observe import failpoint
from wal2lake.pg import Check, Identity, Publisher, Session, nudged
from wal2lake.receive.source.history import DivergedHistory
from wal2lake.receive.source.slotcheck import UnusableSlot, check_slot
from wal2lake.receive.source.source import ask_history
from wal2lake.sql.backend import Notice

_PREREQUISITE: Final = "55000"
_IN_USE: Final = "55006"


@dataclass(frozen=True, slots=True)
class Requester:
    """The client session, or the node itself, on whose behalf a re-copy runs."""

    notice: Callable[[Notice], None]
    check: Check
    """Raises when the re-copy shall stop."""


@dataclass(frozen=True, slots=True)
class RecopiedTables:
    """Tables of the subscription after the re-copy."""

    publications: Sequence[str]
    added: Sequence[Rel] = ()
    versions: Mapping[int, int] = field(default_factory=dict)
    """Versions of the added tables that readers see until their copy."""
    removed: AbstractSet[Oid] = frozenset()
    whole: Mapping[Oid, bool] = field(default_factory=dict)
    """Whether inserts into the other tables may be trusted; missing tables stay as they are."""


def check_recopy(
    node: HasCatalog, subscription: Subscription, kept: Sequence[Oid]
) -> None:
    """Raise 55000 if the tables cannot be copied again."""
    if subscription.slot_name is None:
        raise UsageError(
            "cannot copy the tables of a subscription that does not have a slot name",
            sqlstate=_PREREQUISITE,
            hint="Name one with ALTER SUBSCRIPTION ... SET (slot_name = ...): if it does"
            " not exist on the publisher, it is created.",
        )
    rights = node.catalog.target_rights(subscription)
    for relid in kept:
        table = node.catalog.table_by_oid(relid)
        denied = None if table is None else rights.denied(table, INSERT + TRUNCATE)
        if denied is not None:
            # The copy replaces all rows of the table.
            raise denied
    names = {s.oid: s.name for s in node.catalog.subscriptions()}
    for rel in node.catalog.rels():
        if rel.relid in kept and rel.subid != subscription.oid:
            table = node.catalog.table_by_oid(rel.relid)
            shown = f"{rel.remote_namespace}.{rel.remote_name}"
            raise UsageError(
                f'table "{shown if table is None else table.qualified}" cannot be copied'
                f' again: subscription "{names.get(rel.subid)}" fills it, too',
                sqlstate=_PREREQUISITE,
                hint="The copy would replace its rows. Let one of the two have the table:"
                " ALTER SUBSCRIPTION ... DROP PUBLICATION, or DROP SUBSCRIPTION.",
            )


def copy_anew(
    node: SubscriptionCommands,
    requester: Requester,
    subscription: Subscription,
    session: Session,
    tables: Callable[[], AbstractContextManager[RecopiedTables]],
    *,
    heals: bool,
) -> None:
    """Do the re-copy, or resume an interrupted one. The caller holds the subscription's turn.

    ``session``: a replication session at the publisher. ``tables``: called at the end, under the
    DDL lock; the tables are recorded within its context. ``heals``: copies write differing rows
    only."""
    earlier_mark = subscription.recopying
    if heals is not bool(subscription.options.get(HEALS)):
        # Before the mark, so that a crash behind it resumes what was asked for.
        node.catalog.set_options(subscription.oid, {HEALS: "on" if heals else ""})
    if earlier_mark is Recopy.NO:
        node.catalog.update_subscription(
            subscription.oid, recopying=Recopy.BEGUN, bump=True
        )
        node.changed()
    with _mark_undone(node, subscription):
        failpoint("recopy.marked")
        await_workers(node, subscription, WORKER_STOP_SECONDS, requester.check)
        publisher = Publisher(session)
        identity = publisher.identify()
        goes_on = _slot_can_continue(node, subscription, publisher, identity)
        if goes_on:
            _record(node, subscription, tables, source=None, heals=heals)
            return
    if earlier_mark is not Recopy.GIVEN_UP:
        _give_up_slot(node, requester, session, subscription)
    start = _new_slot(node, requester, session, subscription, earlier_mark)
    source = NewSource(start, identity.system_identifier, identity.timeline)
    _record(node, subscription, tables, source=source, heals=heals)


@contextmanager
def _mark_undone(node: Definitions, subscription: Subscription) -> Iterator[None]:
    """Remove the mark if the block fails and this command has set the mark."""
    try:
        yield
    except BaseException:
        if subscription.recopying is Recopy.NO:
            node.catalog.update_subscription(
                subscription.oid, recopying=Recopy.NO, bump=True
            )
            node.changed()
        raise


def _record(
    node: TableDefinitions,
    subscription: Subscription,
    tables: Callable[[], AbstractContextManager[RecopiedTables]],
    *,
    source: NewSource | None,
    heals: bool,
) -> None:
    """Create missing tables and let all tables wait for their copies."""
    with node.ddl_lock, tables() as now, node.locks.of(subscription.oid):
        node.catalog.copy_anew(
            subscription.oid,
            now.publications,
            added=now.added,
            versions=now.versions,
            removed=now.removed,
            whole=now.whole,
            source=source,
            heals=heals,
        )
    failpoint("recopy.recorded")
    node.changed()


# ---- the present slot ---------------------------------------------------------------------


def _slot_can_continue(
    node: HasSettings,
    subscription: Subscription,
    publisher: Publisher,
    identity: Identity,
) -> bool:
    """Return whether the slot can send what is missing here.

    Raises UnusableSlot for a slot that belongs to no subscription and must not be dropped."""
    name = str(subscription.slot_name)
    slot = publisher.slot(name)
    if slot is not None:
        # Check only whose slot it is. Its position is checked below.
        ours = {**slot, "invalidation_reason": None, "wal_status": None}
        _check(name, ours, identity, received=None)
    if subscription.recopying is Recopy.GIVEN_UP:
        return False
    try:
        received, logged = _received(node, subscription)
        ask_history(publisher, identity, subscription, logged=logged)
        _check(name, slot, identity, received=received)
        _read_through(node, subscription)
    except (DivergedHistory, UnusableSlot, CorruptLogError):
        return False
    return True


def _check(
    name: str,
    slot: Mapping[str, str | None] | None,
    identity: Identity,
    *,
    received: Lsn | None,
) -> None:
    check_slot(
        slot, name=name, database=identity.database, received=received, same=True
    )


def _received(node: HasSettings, subscription: Subscription) -> tuple[Lsn | None, Lsn]:
    """Return the position received from this slot (None if unknown), and the log's end.

    Raises CorruptLogError, also for a journal that cannot be decoded."""
    directory = node.settings.log_directory / str(int(subscription.oid))
    if not directory.exists():
        return None, INVALID_LSN
    try:
        log = ChangeLog.open(directory, node.settings.log)
    except ConfigurationError as error:
        if error.sqlstate != _IN_USE:
            raise
        raise UsageError(
            f'walreceiver of subscription "{subscription.name}" does not end',
            sqlstate=_IN_USE,
            hint="Try again; see the node's log.",
        ) from None
    try:
        if log.undecodable is not None:
            raise CorruptLogError(f'journal of "{directory}" cannot be decoded')
        logged = log.logged
    finally:
        log.close()
    with ConfirmedFile.open(directory) as confirmed:
        last = confirmed.last
    if last is None or last.slot_name != subscription.slot_name:
        return None, logged
    return Lsn(max(last.position, logged)) or None, logged


def _read_through(node: HasSettings, subscription: Subscription) -> None:
    """Raise CorruptLogError if the log lacks something that is still to be applied."""
    directory = node.settings.log_directory / str(int(subscription.oid))
    if not directory.exists():
        return
    reader = LogReader(directory)
    for segment in reader.above(subscription.floor):
        for file in segment.log_files:
            reader.verify(file)


# ---- a new slot -------------------------------------------------------------------------------


def _give_up_slot(
    node: Definitions,
    requester: Requester,
    session: Session,
    subscription: Subscription,
) -> None:
    """Drop the slot: the first step that cannot be undone."""
    try:
        _drop_slot(requester, session, subscription)
    except BaseException:
        if not session.unanswered:
            with _mark_undone(node, subscription):
                raise
        # A slot found there later cannot be trusted: the server may still drop it.
        node.catalog.update_subscription(subscription.oid, recopying=Recopy.GIVEN_UP)
        requester.notice(
            Notice(
                "publisher has not said whether replication slot"
                f' "{subscription.slot_name}" was dropped',
                severity="WARNING",
                sqlstate="01000",
                detail="This node goes on copying the tables of subscription"
                f' "{subscription.name}" anew.',
            )
        )
        raise


def _drop_slot(
    requester: Requester, session: Session, subscription: Subscription
) -> None:
    slot = str(subscription.slot_name)
    if drop_slot(session, slot, missing_ok=True):
        requester.notice(Notice(f'dropped replication slot "{slot}" on publisher'))
    failpoint("recopy.slot_dropped")


def _new_slot(
    node: HasSettings,
    requester: Requester,
    session: Session,
    subscription: Subscription,
    earlier_mark: Recopy,
) -> Lsn:
    """Create the new slot and return its consistent point. There is no way back from here."""
    try:
        if earlier_mark is Recopy.GIVEN_UP:
            # The slot of an earlier attempt, which was not recorded.
            _drop_slot(requester, session, subscription)
        else:
            node.catalog.update_subscription(
                subscription.oid, recopying=Recopy.GIVEN_UP
            )
        failpoint("recopy.given_up")
        _remove_log(node, subscription.oid)
        failpoint("recopy.log_removed")
        slot = str(subscription.slot_name)
        with nudged(
            subscription.conninfo,
            subscription.name,
            must_use_password=node.catalog.must_use_password(subscription),
        ):
            # two_phase is enabled once every table is ready: ``receive.twophase``.
            start = create_slot(
                requester.notice,
                Publisher(session),
                slot,
                two_phase=False,
                failover=subscription.failover,
            )
        failpoint("recopy.slot_created")
    except Exception:
        if earlier_mark is not Recopy.GIVEN_UP:
            requester.notice(
                Notice(
                    f'subscription "{subscription.name}" has no slot until this node has'
                    " made one, which it goes on to try",
                    severity="WARNING",
                    sqlstate="01000",
                )
            )
        raise
    return start


def _remove_log(node: HasSettings, subid: Oid) -> None:
    """Remove the log; durable on return.

    The new directory exists before the old one is removed: readers of a log recognize another log
    by its directory."""
    directory = node.settings.log_directory / str(int(subid))
    old = given_up(directory)
    try:
        if old.exists():
            shutil.rmtree(old)
        if directory.exists():
            directory.rename(old)
            directory.mkdir()
            files.sync_directory(directory.parent)
            shutil.rmtree(old)
        with ProgressFile(node.settings.run_directory, subid) as progress:
            progress.reset()
        with CommitTimes.open_writer(node.settings.run_directory, subid) as times:
            times.clear()
        files.sync_directory(node.settings.run_directory)
    except OSError as error:
        raise files.storage_error("remove directory", directory, error) from error
