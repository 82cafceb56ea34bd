"""Finishes or undoes CREATE and DROP SUBSCRIPTION and a re-copy that a crash interrupted.

    found in the catalog                 what it means             what happens
    ---------------------------------    ----------------------    ---------------------------
    a planned slot                       CREATE did not come to    the slot is dropped, if it
                                         record its subscription   was made; the plan forgotten
    a subscription marked as dropping    DROP did not come to      its slot is dropped, then it
                                         forget it                 is forgotten with its log
    a subscription marked as being       a re-copy was not         it goes on (``recopy``), with
    copied anew                          recorded                  the tables that are recorded

All are there for a moment while such a command runs; it holds the turn of its subscription, or of
the name of the slot that it makes, and whoever finds them in that turn knows that no command does.
So the same code serves the node's start and a publisher that could not be reached then: a thread of
the engine looks every wal_retrieve_retry_interval. Each piece of work has a thread of its own, for
a publisher that does not answer must hold up nobody else's; and it steps aside for a command that
wants the turn.

A planned slot is dropped if it was made after the plan, for pgoutput in that database, and is used
by nobody. Another one of that name stays, and the plan is forgotten. It cannot be told from one
that somebody else has made under the same name after the crash and before this look, and is not
reading; the other way, leaving it, would let every interrupted CREATE hold the publisher's WAL.

PostgreSQL leaves the first two to be repaired by hand: its subscription is rolled back, the slot
is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from wal2lake.catalog import PlannedSlot, Recopy, WorkerKind
from wal2lake.commands.subscription.publisher import (
    connect_publisher,
    connect_to_drop,
)
from wal2lake.commands.subscription.steps.drop import (
    await_workers,
    finish_drop,
)
from wal2lake.commands.subscription.steps.recopy import (
    Asker,
    RecopiedTables,
    copy_anew,
)
from wal2lake.errors import PublisherError, UsageError, Wal2LakeError
from wal2lake.local.concurrency.turns import Turns
from wal2lake.local.node import EngineParts
from wal2lake.model import Lsn, Oid
from wal2lake.observe import get_logger
from wal2lake.pg import Check, Publisher, connect
from wal2lake.settings import Settings
from wal2lake.sql.backend import Notice

K = TypeVar("K", bound=Hashable)

_CREATING: Final = "CREATE_REPLICATION_SLOT"

_WORKERS_SECONDS: Final = 2.0
"""The supervisor looks at the catalog every second, so a receiver is gone by then."""

_ANSWER_SECONDS: Final = 30.0
"""For a question about a slot; it is asked again."""

_STOP_SECONDS: Final = 2.0
"""A round that waits for a publisher is left behind: it dies with the process."""


class Verdict(Enum):
    """Decision about a planned slot."""

    DROP = "drop"
    """It is ours, and nobody will ever use it."""
    WAIT = "wait"
    """The publisher is still making it, for a client that is gone."""
    LEAVE = "leave"
    """There is none, or it is somebody else's."""


def judge_slot(
    slot: dict[str, str | None] | None, database: str, planned: PlannedSlot
) -> Verdict:
    """``slot`` is ``Publisher.slot``'s answer, ``database`` the one that was asked."""
    if slot is None or slot["plugin"] != "pgoutput" or slot["database"] != database:
        return Verdict.LEAVE
    if slot["active_pid"] is not None:
        making = (slot["query"] or "").lstrip().upper().startswith(_CREATING)
        return Verdict.WAIT if making else Verdict.LEAVE
    start = slot["restart_lsn"]
    if start is None or Lsn.parse(start) < planned.lsn:
        return Verdict.LEAVE
    return Verdict.DROP


def drop_planned(node: EngineParts, publisher: Publisher, planned: PlannedSlot) -> None:
    """Drop a slot that a crashed CREATE has left; the caller holds the turn of its name.

    Raises PublisherError if it cannot be dropped (yet); it stays planned.
    """
    name = planned.slot_name
    owners = _owners(node, planned)
    if owners - {planned.conninfo}:
        # It may be the same server by another name, or another server's slot.
        return
    if not owners:
        database = str(publisher.session.value("SELECT pg_catalog.current_database()"))
        verdict = judge_slot(publisher.slot(name), database, planned)
        if verdict is Verdict.WAIT:
            raise PublisherError(
                f'replication slot "{name}" is still being created', sqlstate="55006"
            )
        if _owners(node, planned):
            # An ALTER ... SET (slot_name) has taken it meanwhile: the next look sees that.
            return
        if verdict is Verdict.DROP:
            publisher.drop_idle_slot(name)
            get_logger().info(
                f'dropped replication slot "{name}" on publisher: the CREATE'
                " SUBSCRIPTION that made it was interrupted",
                subscription=planned.subname,
            )
    node.catalog.forget_planned(planned)


def _owners(node: EngineParts, planned: PlannedSlot) -> set[str]:
    """The connection strings of the subscriptions that have a slot of that name."""
    return {
        s.conninfo
        for s in node.catalog.subscriptions()
        if s.slot_name == planned.slot_name
    }


class _StepAside(Exception):
    """A command wants the turn, or the node stops."""


class UnfinishedCommands:
    """Runs in its own threads from ``start`` to ``stop``."""

    def __init__(self, node: EngineParts) -> None:
        """Nothing is looked at yet."""
        self._node = node
        self._told: dict[object, str] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Do not wait for the interval."""
        self._thread = threading.Thread(
            target=self._run, name="unfinished", daemon=True
        )
        self._at_work: dict[object, threading.Thread] = {}

    def start(self) -> None:
        """The first look is at once."""
        self._thread.start()

    def stop(self) -> None:
        """End, or be left to end with the process."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_STOP_SECONDS)

    def reload(self, settings: Settings) -> None:
        """The interval may be another one: the next look is at once. It is the node's."""
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception as error:
                get_logger().error("could not look for commands", exc_info=error)
            self._wake.wait(
                self._node.settings.subscription.wal_retrieve_retry_interval_ms / 1000
            )
            self._wake.clear()
            if self._stop.is_set():
                return

    def _look(self) -> None:
        """One round over all that a crash has left."""
        for slot in {p.slot_name for p in self._node.catalog.planned_slots()}:
            self._begin(slot, partial(self._drop, slot))
        for subscription in self._node.catalog.subscriptions():
            if subscription.dropping:
                self._begin(subscription.oid, partial(self._finish, subscription.oid))
            elif subscription.recopying is not Recopy.NO and subscription.slot_name:
                again = partial(self._copy_anew, subscription.oid)
                self._begin(subscription.oid, again)

    def _begin(self, key: object, work: Callable[[], None]) -> None:
        """In a thread, unless it is at work already."""
        before = self._at_work.get(key)
        if before is not None and before.is_alive():
            return

        def run() -> None:
            try:
                work()
            except _StepAside:
                pass
            except Exception as error:
                get_logger().error("could not clean up", exc_info=error)

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
        """All of that name, one after the other: were each to ask for the turn by itself,
        one whose publisher is away could keep it from the others for ever."""
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
            self._tell(
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
                self._tell(
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
                        Asker(partial(_log_notice, name), check),
                        now,
                        session,
                        lambda: nullcontext(tables),
                    )
                get_logger().info(
                    f'tables of subscription "{name}" are copied anew: the ALTER'
                    " SUBSCRIPTION was interrupted"
                )
            except Wal2LakeError as error:
                self._node.catalog.note_error(
                    subid, WorkerKind.RECOPY, error.describe(), error.sqlstate
                )
                self._tell(
                    (subid, WorkerKind.RECOPY),
                    f'could not copy the tables of subscription "{name}" anew:'
                    f" {error.message}",
                    error,
                )

    def _tell(self, what: object, text: str, error: Wal2LakeError) -> None:
        """Once, not at every attempt."""
        if self._told.get(what) != text:
            self._told[what] = text
            get_logger().warning(f"{text}; it is tried again", error=error)


def _log_notice(subscription: str, notice: Notice) -> None:
    get_logger().info(notice.message, subscription=subscription)
