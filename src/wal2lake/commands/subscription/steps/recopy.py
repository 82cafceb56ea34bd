"""REFRESH PUBLICATION WITH (recopy = true): every table is copied anew, in the order of its
durable steps. Readers have the old rows until the new ones take their place, of each table in one
commit of its own.

    mark it as being copied anew                          catalog
    wait until its receiver, its apply worker             nothing durable
      and the copies of its tables end
    can its slot send what is missing here?
      if not:   drop the slot, if there is one            publisher
                mark that slot and log are given up       catalog
                remove its log, forget its positions      storage
                make the slot                             publisher
    under the DDL lock:
      make what is published and not here               storage, catalog
      every table waits for a copy that replaces its    ONE catalog transaction
        rows; with a new slot, its position is the
        floor; the mark is gone

The slot is asked what the receiver asks it at each start (``receive.source.history``,
``receive.source.slotcheck``), and what the log has above the floor is read once: a damaged log is
no better than a slot that is gone. A slot of that name that is not a subscription's is not dropped.

A failure before the slot is dropped takes the mark back, and if the slot can go on, so does every
failure. Once it is dropped, or nobody knows whether it was (a cancel, a connection that broke), the
command can only go forward: ``unfinished`` goes on with what that, a crash, or a publisher that
makes no slot now has interrupted. The second mark tells a slot that was made meanwhile from one
that the log belongs to.

PostgreSQL has no such command: there the way out is DROP SUBSCRIPTION and TRUNCATE.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from wal2lake.catalog import NewSource, ProgressFile, Recopy, Subscription
from wal2lake.catalog import SubscriptionRel as Rel
from wal2lake.catalog.access.targets import INSERT, TRUNCATE
from wal2lake.changelog import ChangeLog, LogReader, files
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.commands.subscription.publisher import create_slot, drop_slot
from wal2lake.commands.subscription.steps.drop import (
    WORKER_STOP_SECONDS,
    await_workers,
    given_up,
)
from wal2lake.errors import ConfigurationError, CorruptLogError, UsageError
from wal2lake.local.node import EngineParts
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
class Asker:
    """On whose behalf: a session, or the node itself."""

    tell: Callable[[Notice], None]
    check: Check
    """Raises when it is to stop."""


@dataclass(frozen=True, slots=True)
class RecopiedTables:
    """Tables of the subscription once it is copied anew."""

    publications: Sequence[str]
    added: Sequence[Rel] = ()
    versions: Mapping[int, int] = field(default_factory=dict)
    """Versions of the added tables that readers see until their copy."""
    removed: AbstractSet[Oid] = frozenset()
    whole: Mapping[Oid, bool] = field(default_factory=dict)
    """Other tables, with whether their inserts may be trusted then; a table that is not here: as
    before."""


def check_recopy(
    node: EngineParts, subscription: Subscription, kept: Sequence[Oid]
) -> None:
    """Raise if it cannot be: 55000."""
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
            # All rows of the table are replaced.
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
    node: EngineParts,
    asker: Asker,
    subscription: Subscription,
    session: Session,
    tables: Callable[[], AbstractContextManager[RecopiedTables]],
) -> None:
    """All of it, from wherever it was interrupted; the caller holds the subscription's
    turn. ``session`` is one for replication at the publisher. ``tables``: called at the end,
    under the DDL lock; they are recorded within."""
    found = subscription.recopying
    if found is Recopy.NO:
        node.catalog.update_subscription(
            subscription.oid, recopying=Recopy.BEGUN, bump=True
        )
        node.changed()
    with _taken_back(node, subscription):
        failpoint("recopy.marked")
        await_workers(node, subscription, WORKER_STOP_SECONDS, asker.check)
        publisher = Publisher(session)
        identity = publisher.identify()
        goes_on = _goes_on(node, subscription, publisher, identity)
        if goes_on:
            _record(node, subscription, tables, source=None)
            return
    if found is not Recopy.GIVEN_UP:
        _give_up_slot(node, asker, session, subscription)
    start = _new_slot(node, asker, session, subscription, found)
    source = NewSource(start, identity.system_identifier, identity.timeline)
    _record(node, subscription, tables, source=source)


@contextmanager
def _taken_back(node: EngineParts, subscription: Subscription) -> Iterator[None]:
    """A failure within leaves everything as it was, if it was this command that began."""
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
    node: EngineParts,
    subscription: Subscription,
    tables: Callable[[], AbstractContextManager[RecopiedTables]],
    *,
    source: NewSource | None,
) -> None:
    """Tables that are missing are made, and all of them wait for their copies."""
    with node.ddl_lock, tables() as now, node.locks.of(subscription.oid):
        node.catalog.copy_anew(
            subscription.oid,
            now.publications,
            added=now.added,
            versions=now.versions,
            removed=now.removed,
            whole=now.whole,
            source=source,
        )
    failpoint("recopy.recorded")
    node.changed()


# ---- the slot that is there ---------------------------------------------------------------


def _goes_on(
    node: EngineParts,
    subscription: Subscription,
    publisher: Publisher,
    identity: Identity,
) -> bool:
    """Can its slot send what is missing here? Raises UnusableSlot for one that is nobody's
    to drop."""
    name = str(subscription.slot_name)
    slot = publisher.slot(name)
    if slot is not None:
        # Only whose it is: its position is another question.
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


def _received(node: EngineParts, subscription: Subscription) -> tuple[Lsn | None, Lsn]:
    """How far everything has come from this slot (None: that is not known), and how far
    it is in the log. Raises CorruptLogError, also for a journal that cannot be decoded."""
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


def _read_through(node: EngineParts, subscription: Subscription) -> None:
    """Raises CorruptLogError if the log does not have what is still to be applied."""
    directory = node.settings.log_directory / str(int(subscription.oid))
    if not directory.exists():
        return
    reader = LogReader(directory)
    for segment in reader.above(subscription.floor):
        for file in segment.log_files:
            reader.verify(file)


# ---- and a new one ----------------------------------------------------------------------------


def _give_up_slot(
    node: EngineParts, asker: Asker, session: Session, subscription: Subscription
) -> None:
    """The first step that cannot be taken back."""
    try:
        _drop_slot(asker, session, subscription)
    except BaseException:
        if not session.unanswered:
            with _taken_back(node, subscription):
                raise
        # Whatever is found there later is not to be trusted: the server may drop it yet.
        node.catalog.update_subscription(subscription.oid, recopying=Recopy.GIVEN_UP)
        asker.tell(
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


def _drop_slot(asker: Asker, session: Session, subscription: Subscription) -> None:
    slot = str(subscription.slot_name)
    if drop_slot(session, slot, missing_ok=True):
        asker.tell(Notice(f'dropped replication slot "{slot}" on publisher'))
    failpoint("recopy.slot_dropped")


def _new_slot(
    node: EngineParts,
    asker: Asker,
    session: Session,
    subscription: Subscription,
    found: Recopy,
) -> Lsn:
    """From here on there is no way back; returns the new slot's consistent point."""
    try:
        if found is Recopy.GIVEN_UP:
            # Made, and not recorded.
            _drop_slot(asker, session, subscription)
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
            # Not before every table is ready: ``receive.twophase``.
            start = create_slot(
                asker.tell,
                Publisher(session),
                slot,
                two_phase=False,
                failover=subscription.failover,
            )
        failpoint("recopy.slot_created")
    except Exception:
        if found is not Recopy.GIVEN_UP:
            asker.tell(
                Notice(
                    f'subscription "{subscription.name}" has no slot until this node has'
                    " made one, which it goes on to try",
                    severity="WARNING",
                    sqlstate="01000",
                )
            )
        raise
    return start


def _remove_log(node: EngineParts, subid: Oid) -> None:
    """The new directory is there before the old one is gone: whoever looks at a log knows
    by its directory that it is another one. Durable on return."""
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
        files.sync_directory(node.settings.run_directory)
    except OSError as error:
        raise files.storage_error("remove directory", directory, error) from error
