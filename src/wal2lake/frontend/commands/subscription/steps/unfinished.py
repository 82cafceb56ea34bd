"""What a crash has left of CREATE and DROP SUBSCRIPTION, and of a re-copy, is cleaned up and
finished.

    found in the catalog                 what it means             what happens
    ---------------------------------    ----------------------    ---------------------------
    a planned slot                       CREATE did not come to    the slot is dropped, if it
                                         record its subscription   was made; the plan forgotten
    a subscription marked as dropping    DROP did not come to      its slot is dropped, then it
                                         forget it                 is forgotten with its log
    a subscription marked as being       a re-copy was not         it goes on (``recopy``), with
    copied anew                          recorded                  the tables that are recorded

All are there for a moment while such a command runs; it holds the DDL lock, and whoever finds
them under that lock knows that no command does. So the same code serves the node's start
and a publisher that could not be reached then: a thread of the engine looks every
wal_retrieve_retry_interval. It connects before it takes the lock, for a publisher that does not
answer must not hold commands up.

A planned slot is dropped if it was made after the plan, for pgoutput in that database, and is used
by nobody. Another one of that name stays, and the plan is forgotten. It cannot be told from one
that somebody else has made under the same name after the crash and before this look, and is not
reading; the other way, leaving it, would let every interrupted CREATE hold the publisher's WAL.

PostgreSQL leaves the first two to be repaired by hand: its subscription is rolled back, the slot
is not.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Final

from wal2lake.catalog import PlannedSlot, Recopy, Subscription, Worker
from wal2lake.errors import PublisherError, UsageError, Wal2LakeError
from wal2lake.frontend.commands.node import Node
from wal2lake.frontend.commands.subscription.publisher import (
    connect_publisher,
    connect_to_drop,
)
from wal2lake.frontend.commands.subscription.steps.drop import (
    await_workers,
    finish_drop,
)
from wal2lake.frontend.commands.subscription.steps.recopy import Tables, copy_anew
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session, connect

_CREATING: Final = "CREATE_REPLICATION_SLOT"

_WORKERS_SECONDS: Final = 2.0
"""The supervisor looks at the catalog every second, so a receiver is gone by then."""

_STOP_SECONDS: Final = 2.0
"""A round that waits for a publisher is left behind: it dies with the process."""


class Verdict(Enum):
    """What is to be done about a planned slot."""

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


def drop_planned(node: Node, publisher: Publisher, planned: PlannedSlot) -> None:
    """Drop a slot that a crashed CREATE has left; the caller holds the DDL lock.

    Raises PublisherError if it cannot be dropped (yet); it stays planned.
    """
    owners = [
        s for s in node.catalog.subscriptions() if s.slot_name == planned.slot_name
    ]
    name = planned.slot_name
    if any(s.conninfo != planned.conninfo for s in owners):
        # It may be the same server by another name, or another server's slot.
        return
    if not owners:
        database = str(publisher.session.value("SELECT pg_catalog.current_database()"))
        verdict = judge_slot(publisher.slot(name), database, planned)
        if verdict is Verdict.WAIT:
            raise PublisherError(
                f'replication slot "{name}" is still being created', sqlstate="55006"
            )
        if verdict is Verdict.DROP:
            publisher.drop_idle_slot(name)
            get_logger().info(
                f'dropped replication slot "{name}" on publisher: the CREATE'
                " SUBSCRIPTION that made it was interrupted",
                subscription=planned.subname,
            )
    node.catalog.forget_planned(planned)


class UnfinishedCommands:
    """Runs in its own thread from ``start`` to ``stop``."""

    def __init__(self, node: Node) -> None:
        """Nothing is looked at yet."""
        self._node = node
        self._retry_seconds = (
            node.settings.subscription.wal_retrieve_retry_interval_ms / 1000
        )
        self._told: dict[object, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="unfinished", daemon=True
        )

    def start(self) -> None:
        """The first look is at once."""
        self._thread.start()

    def stop(self) -> None:
        """End, or be left to end with the process."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:
                get_logger().error("could not look for commands", exc_info=error)
            if self._stop.wait(self._retry_seconds):
                return

    def look(self) -> None:
        """One round over all that a crash has left."""
        if not self._node.ddl_lock.acquire(blocking=False):
            # A command runs, and what is there may be its own.
            return
        try:
            planned = self._node.catalog.planned_slots()
            found = self._node.catalog.subscriptions()
        finally:
            self._node.ddl_lock.release()
        for one in planned:
            self._drop(one)
        for subscription in found:
            if subscription.dropping:
                self._finish(subscription)
            elif subscription.recopying is not Recopy.NO and subscription.slot_name:
                self._copy_anew(subscription)

    def _drop(self, planned: PlannedSlot) -> None:
        try:
            with (
                connect(planned.conninfo, application_name=planned.subname) as session,
                self._node.ddl_lock,
            ):
                if planned in self._node.catalog.planned_slots():
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

    def _finish(self, subscription: Subscription) -> None:
        session: Session | None = None
        try:
            if subscription.slot_name is not None:
                session = connect_to_drop(
                    subscription,
                    must_use_password=self._node.catalog.must_use_password(
                        subscription
                    ),
                )
            with (
                self._node.ddl_lock,
                self._node.altering.of(subscription.oid),
            ):
                now = self._node.catalog.subscription(subscription.oid)
                # Its slot may have been taken from it meanwhile, or it may be gone.
                if (
                    now is None
                    or not now.dropping
                    or now.slot_name != subscription.slot_name
                ):
                    return
                await_workers(self._node, now, _WORKERS_SECONDS)
                finish_drop(self._node, now, session)
            get_logger().info(
                f'subscription "{subscription.name}" is dropped: the DROP SUBSCRIPTION'
                " was interrupted"
            )
        except (PublisherError, UsageError) as error:
            self._node.catalog.note_error(
                subscription.oid, Worker.DROP, error.describe()
            )
            self._tell(
                subscription.oid,
                f'could not finish dropping subscription "{subscription.name}":'
                f" {error.message}",
                error,
            )
        finally:
            if session is not None:
                session.close()

    def _copy_anew(self, subscription: Subscription) -> None:
        name = subscription.name
        try:
            with (
                connect_publisher(
                    name,
                    subscription.conninfo,
                    must_use_password=self._node.catalog.must_use_password(
                        subscription
                    ),
                ) as session,
                self._node.altering.of(subscription.oid),
            ):
                now = self._node.catalog.subscription(subscription.oid)
                # A command may have ended it, or changed what it is about.
                if now is None or (now.recopying, now.slot_name, now.conninfo) != (
                    subscription.recopying,
                    subscription.slot_name,
                    subscription.conninfo,
                ):
                    return
                copy_anew(
                    self._node,
                    lambda notice: get_logger().info(notice.message, subscription=name),
                    now,
                    session,
                    Tables(now.publications),
                )
            get_logger().info(
                f'tables of subscription "{name}" are copied anew: the ALTER SUBSCRIPTION'
                " was interrupted"
            )
        except Wal2LakeError as error:
            self._node.catalog.note_error(
                subscription.oid, Worker.RECOPY, error.describe()
            )
            self._tell(
                (subscription.oid, Worker.RECOPY),
                f'could not copy the tables of subscription "{name}" anew:'
                f" {error.message}",
                error,
            )

    def _tell(self, what: object, text: str, error: Wal2LakeError) -> None:
        """Once, not at every attempt."""
        if self._told.get(what) != text:
            self._told[what] = text
            get_logger().warning(f"{text}; it is tried again", error=error)
