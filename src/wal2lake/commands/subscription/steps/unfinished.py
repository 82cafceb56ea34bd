"""Finishes or undoes CREATE and DROP SUBSCRIPTION and a re-copy that a crash interrupted.

    found in the catalog                 meaning                   action
    ---------------------------------    ----------------------    ---------------------------
    a planned slot                       CREATE did not record     drop the slot, if it was
                                         its subscription          created; remove the plan
    a subscription marked as dropping    DROP did not delete the   drop the slot, then delete
                                         subscription              subscription and log
    a subscription marked as being       the re-copy was not       resume it (``recopy``), with
    copied again                         recorded                  the recorded tables

All of these also exist for a moment while such a command runs. The command holds the turn of its
subscription, or of the name of the slot that it creates, so whoever finds them within that turn
knows that no command is running. The same code therefore serves the node's start and a publisher
that was unreachable then: a thread of the engine looks every wal_retrieve_retry_interval. Each
piece of work has its own thread, so a publisher that does not answer holds up nothing else. The
thread releases the turn for a command that wants it.

A planned slot is dropped if it was created after the plan, for pgoutput in that database, and is
not in use. Any other slot of that name stays, and the plan is removed. A slot that somebody else
created under the same name, after the crash and before this look, and does not read, cannot be
distinguished. The alternative, leaving such slots, would let every interrupted CREATE retain the
publisher's WAL.

PostgreSQL leaves the first two to the user: its subscription is rolled back, but the slot is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from wal2lake.catalog import HEALS, PlannedSlot, Recopy, WorkerKind
from wal2lake.commands.subscription.publisher import (
    connect_publisher,
    connect_to_drop,
)
from wal2lake.commands.subscription.steps.drop import (
    await_workers,
    finish_drop,
)
from wal2lake.commands.subscription.steps.recopy import (
    RecopiedTables,
    Requester,
    copy_anew,
)
from wal2lake.errors import PublisherError, UsageError, Wal2LakeError
from wal2lake.local.concurrency.turns import Turns
from wal2lake.local.ports import HasCatalog, SubscriptionCommands
from wal2lake.model import Lsn, Oid
from wal2lake.observe import get_logger
from wal2lake.pg import Check, Publisher, connect
from wal2lake.settings import Settings
from wal2lake.sql.backend import Notice

K = TypeVar("K", bound=Hashable)

_CREATING: Final = "CREATE_REPLICATION_SLOT"

_WORKERS_SECONDS: Final = 2.0
"""The supervisor reads the catalog every second, so a receiver has ended by then."""

_ANSWER_SECONDS: Final = 30.0
"""Timeout for a question about a slot, which is repeated later."""

_STOP_SECONDS: Final = 2.0
"""A round that waits for a publisher longer than this ends with the process instead."""


class Verdict(Enum):
    """Decision about a planned slot."""

    DROP = "drop"
    """The slot is ours and will never be used."""
    WAIT = "wait"
    """The publisher is still creating the slot, for a client that is gone."""
    LEAVE = "leave"
    """There is no slot, or it is somebody else's."""


def judge_slot(
    slot: dict[str, str | None] | None, database: str, planned: PlannedSlot
) -> Verdict:
    """Judge ``slot``, which is ``Publisher.slot``'s answer in ``database``."""
    if slot is None or slot["plugin"] != "pgoutput" or slot["database"] != database:
        return Verdict.LEAVE
    if slot["active_pid"] is not None:
        making = (slot["query"] or "").lstrip().upper().startswith(_CREATING)
        return Verdict.WAIT if making else Verdict.LEAVE
    start = slot["restart_lsn"]
    if start is None or Lsn.parse(start) < planned.lsn:
        return Verdict.LEAVE
    return Verdict.DROP


def drop_planned(node: HasCatalog, publisher: Publisher, planned: PlannedSlot) -> None:
    """Drop a slot that a crashed CREATE has left. The caller holds the turn of its name.

    Raises PublisherError if the slot cannot be dropped yet; it stays planned then.
    """
    name = planned.slot_name
    owners = _owners(node, planned)
    if owners - {planned.conninfo}:
        # This may be the same server by another name, or a slot of another server.
        return
    if not owners:
        database = str(publisher.session.value("SELECT pg_catalog.current_database()"))
        verdict = judge_slot(publisher.slot(name), database, planned)
        if verdict is Verdict.WAIT:
            raise PublisherError(
                f'replication slot "{name}" is still being created', sqlstate="55006"
            )
        if _owners(node, planned):
            # An ALTER ... SET (slot_name) has just taken the slot; the next round sees it.
            return
        if verdict is Verdict.DROP:
            publisher.drop_idle_slot(name)
            get_logger().info(
                f'dropped replication slot "{name}" on publisher: the CREATE'
                " SUBSCRIPTION that made it was interrupted",
                subscription=planned.subname,
            )
    node.catalog.forget_planned(planned)


def _owners(node: HasCatalog, planned: PlannedSlot) -> set[str]:
    """Return the connection strings of the subscriptions that have a slot of that name."""
    return {
        s.conninfo
        for s in node.catalog.subscriptions()
        if s.slot_name == planned.slot_name
    }


class _StepAside(Exception):
    """Raised to release the turn for a command, or because the node stops."""


class UnfinishedCommands:
    """The threads that clean up, from ``start`` to ``stop``."""

    def __init__(self, node: SubscriptionCommands) -> None:
        """Prepare; the first look is made after ``start``."""
        self._node = node
        self._logged: dict[object, str] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Set to look before the interval has passed."""
        self._thread = threading.Thread(
            target=self._run, name="unfinished", daemon=True
        )
        self._at_work: dict[object, threading.Thread] = {}

    def start(self) -> None:
        """Start the thread, which looks at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, or leave it to end with the process."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_STOP_SECONDS)

    def reload(self, settings: Settings) -> None:
        """Look at once, as the interval in the node's settings may have changed."""
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception as error:
                get_logger().error(
                    "could not look for interrupted commands", exc_info=error
                )
            self._wake.wait(
                self._node.settings.subscription.wal_retrieve_retry_interval_ms / 1000
            )
            self._wake.clear()
            if self._stop.is_set():
                return

    def _look(self) -> None:
        """Start work for everything that a crash has left."""
        for slot in {p.slot_name for p in self._node.catalog.planned_slots()}:
            self._begin(slot, partial(self._drop, slot))
        for subscription in self._node.catalog.subscriptions():
            if subscription.dropping:
                self._begin(subscription.oid, partial(self._finish, subscription.oid))
            elif subscription.recopying is not Recopy.NO and subscription.slot_name:
                again = partial(self._copy_anew, subscription.oid)
                self._begin(subscription.oid, again)

    def _begin(self, key: object, work: Callable[[], None]) -> None:
        """Start a thread for the work, unless one is already running."""
        running = self._at_work.get(key)
        if running is not None and running.is_alive():
            return

        def run() -> None:
            try:
                work()
            except _StepAside:
                pass
            except Exception as error:
                get_logger().error(
                    "could not complete an interrupted command", exc_info=error
                )

        self._at_work = {k: t for k, t in self._at_work.items() if t.is_alive()}
        self._at_work[key] = threading.Thread(
            target=run, name="unfinished-command", daemon=True
        )
        self._at_work[key].start()

    def _aside_for(self, turns: Turns[K], key: K) -> Check:
        def check() -> None:
            if self._stop.is_set() or turns.wanted(key):
                raise _StepAside

        return check

    def _drop(self, slot: str) -> None:
        """Drop all planned slots of a name, one after the other.

        If each waited for the turn by itself, one with an unreachable publisher could keep the
        turn from the others forever."""
        making = self._node.turns.making
        with making.try_hold(slot) as mine:
            for planned in self._node.catalog.planned_slots() if mine else ():
                if planned.slot_name == slot:
                    self._drop_one(planned, self._aside_for(making, slot))

    def _drop_one(self, planned: PlannedSlot, check: Check) -> None:
        if _owners(self._node, planned) - {planned.conninfo}:
            return
        try:
            with connect(
                planned.conninfo,
                application_name=planned.subname,
                answer_timeout_seconds=_ANSWER_SECONDS,
                must_use_password=planned.must_use_password,
                check=check,
            ) as session:
                drop_planned(self._node, Publisher(session), planned)
        except Wal2LakeError as error:
            self._log_once(
                planned,
                f'could not drop replication slot "{planned.slot_name}", which an'
                f' interrupted CREATE SUBSCRIPTION "{planned.subname}" may have left on'
                f" the publisher: {error.message}",
                PublisherError(
                    error.message,
                    hint="A slot that nobody reads holds the publisher's WAL. If this"
                    " node is not going to reach it, drop the slot there.",
                ),
            )

    def _finish(self, subid: Oid) -> None:
        check = self._aside_for(self._node.turns.altering, subid)
        with self._node.turns.altering.try_hold(subid) as mine:
            now = self._node.catalog.subscription(subid)
            if not mine or now is None or not now.dropping:
                return
            try:
                session = None
                if now.slot_name is not None:
                    session = connect_to_drop(self._node, now, check)
                with session or nullcontext():
                    await_workers(self._node, now, _WORKERS_SECONDS, check)
                    finish_drop(self._node, now, session)
                get_logger().info(
                    f'subscription "{now.name}" is dropped: the DROP SUBSCRIPTION was'
                    " interrupted"
                )
            except (PublisherError, UsageError) as error:
                self._node.catalog.note_error(
                    subid, WorkerKind.DROP, error.describe(), error.sqlstate
                )
                self._log_once(
                    subid,
                    f'could not finish dropping subscription "{now.name}":'
                    f" {error.message}",
                    error,
                )

    def _copy_anew(self, subid: Oid) -> None:
        check = self._aside_for(self._node.turns.altering, subid)
        with self._node.turns.altering.try_hold(subid) as mine:
            now = self._node.catalog.subscription(subid)
            if not mine or now is None or now.recopying is Recopy.NO:
                return
            name, tables = now.name, RecopiedTables(now.publications)
            try:
                with connect_publisher(
                    self._node,
                    name,
                    now.conninfo,
                    check=check,
                    must_use_password=self._node.catalog.must_use_password(now),
                ) as session:
                    copy_anew(
                        self._node,
                        Requester(partial(_log_notice, name), check),
                        now,
                        session,
                        lambda: nullcontext(tables),
                        heals=bool(now.options.get(HEALS)),
                    )
                get_logger().info(
                    f'tables of subscription "{name}" will be copied again: the ALTER'
                    " SUBSCRIPTION was interrupted"
                )
            except Wal2LakeError as error:
                self._node.catalog.note_error(
                    subid, WorkerKind.RECOPY, error.describe(), error.sqlstate
                )
                self._log_once(
                    (subid, WorkerKind.RECOPY),
                    f'could not start to copy the tables of subscription "{name}" again:'
                    f" {error.message}",
                    error,
                )

    def _log_once(self, key: object, text: str, error: Wal2LakeError) -> None:
        """Log a failure once, not at every attempt."""
        if self._logged.get(key) != text:
            self._logged[key] = text
            get_logger().warning(f"{text}; will retry", error=error)


def _log_notice(subscription: str, notice: Notice) -> None:
    get_logger().info(notice.message, subscription=subscription)
