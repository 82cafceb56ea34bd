"""Watches the publications of subscriptions with auto_refresh.

In: the catalog's subscriptions. Out: looks (``look``), and their errors, in the catalog as those of
the worker "auto refresh", in the log once.

For each subscription one connection stays open at its publisher, without a transaction. Every
subscription.auto_refresh_interval_ms one query asks for the fingerprint of the publications
(``pg.publications``). A look follows if it differs, if the subscription's own tables or options
have changed, or if the look before had errors. A look holds the subscription's turn, so no command
changes the subscription meanwhile; a command that wants the turn gets it at once, and the look is
made later. Each subscription has a thread while it is asked about, so a publisher that does not
answer holds up nothing else. Questions end at time-outs, and after failures the intervals grow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from wal2lake.catalog import Subscription, WorkerKind
from wal2lake.commands.subscription.auto.look import look
from wal2lake.errors import PublisherError, Wal2LakeError
from wal2lake.local.node import Caller
from wal2lake.local.ports import SubscriptionCommands
from wal2lake.model import Oid
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.pg import Session, connect
from wal2lake.pg.publications import publication_fingerprint
from wal2lake.settings import Settings
from wal2lake.sql.backend import Notice

_ANSWER_SECONDS: Final = 10.0
"""Longest wait for an answer. A server that takes longer for its catalog is not well. A guess."""

_LOCK_TIMEOUT_MS: Final = 1_000
"""Longest wait for the lock of a table that another session alters, unless max_lock_wait_ms sets
one."""

_ROUND_SECONDS: Final = 0.5
"""Interval of looks at the catalog for subscriptions that are due."""

_LONGEST_PAUSE_SECONDS: Final = 30.0
"""Longest interval after failures. A guess."""

_STOP_SECONDS: Final = 2.0
"""Threads that wait for a publisher longer than this end with the process."""


class _StepAside(Exception):
    """Raised to release the turn for a command, or because the node stops."""


@dataclass(slots=True)
class _Watched:
    """One subscription that is watched. Only its thread uses the fields, while it runs."""

    subid: Oid
    session: Session | None = None
    session_of: Hashable = None
    """Facts that the session was opened with; others need another session."""
    seen: Hashable = None
    """The fingerprint and the subscription's tables at the last look without an error."""
    failures: int = 0
    due: float = 0.0
    repeated: RepeatedErrors = field(default_factory=RepeatedErrors)
    thread: threading.Thread | None = None

    @property
    def runs(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


class AutoRefresh:
    """The threads that watch publications, from ``start`` to ``stop``."""

    def __init__(self, node: SubscriptionCommands) -> None:
        """Prepare; the first look is made after ``start``."""
        self._node = node
        self._watched: dict[Oid, _Watched] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="auto-refresh", daemon=True
        )

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to watch. A change that is being recorded is finished, or made after the start."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on: every subscription is due."""
        for watched in tuple(self._watched.values()):
            watched.due = 0.0

    def _run(self) -> None:
        while not self._stop.wait(_ROUND_SECONDS):
            try:
                self._round()
            except Exception as error:
                get_logger().error(
                    "could not look for subscriptions with auto_refresh", exc_info=error
                )
                self._stop.wait(_ROUND_SECONDS)
        for watched in self._watched.values():
            if not watched.runs:
                watched.close()

    def _round(self) -> None:
        """Start a thread for each subscription that is due, and forget those that are gone."""
        subscriptions = self._node.catalog.subscriptions()
        wanted = {s.oid for s in subscriptions if _is_watched(s)}
        if wanted != self._watched.keys():
            self._retain(wanted, subscriptions)
        now = time.monotonic()
        for watched in self._watched.values():
            if watched.due > now or watched.runs:
                continue
            watched.thread = threading.Thread(
                target=self._ask,
                args=(watched,),
                name=f"auto-refresh-{watched.subid}",
                daemon=True,
            )
            watched.thread.start()

    def _retain(self, wanted: set[Oid], subscriptions: list[Subscription]) -> None:
        for subid in wanted - self._watched.keys():
            self._watched[subid] = _Watched(subid)
        for subid in self._watched.keys() - wanted:
            if not self._watched[subid].runs:
                self._watched.pop(subid).close()
        without = {s.oid for s in subscriptions if not s.auto_refresh}
        for noted in self._node.catalog.errors():
            if noted.worker is WorkerKind.AUTO_REFRESH and noted.subid in without:
                self._node.catalog.note_error(noted.subid, noted.worker, None)

    # ---- the thread of one subscription -----------------------------------------------------

    def _ask(self, watched: _Watched) -> None:
        """Ask once, and note when the subscription is due again."""
        events = get_logger()
        interval = self._node.settings.subscription.auto_refresh_interval_ms / 1000
        try:
            subscription = self._node.catalog.subscription(watched.subid)
            if subscription is None or not _is_watched(subscription):
                return
            error = self._error_of(watched, subscription)
            if error is None:
                watched.failures = 0
                watched.repeated.passed(events)
                self._note(watched.subid, None)
            else:
                watched.failures += 1
                watched.repeated.say(
                    events,
                    f'could not refresh subscription "{subscription.name}"',
                    error,
                )
                self._note(watched.subid, error)
        except _StepAside:
            # Whether the command has changed something is found out at the next round.
            watched.close()
            interval = _ROUND_SECONDS
        except Exception as error:
            watched.failures += 1
            watched.close()
            events.error(
                "could not look at a publisher for auto_refresh", exc_info=error
            )
        pause = interval * 2 ** min(watched.failures, 6)
        watched.due = time.monotonic() + min(
            pause, max(interval, _LONGEST_PAUSE_SECONDS)
        )

    def _error_of(
        self, watched: _Watched, subscription: Subscription
    ) -> Wal2LakeError | None:
        """Ask the publisher, and look if something has changed. Returns an error that stays."""
        try:
            errors = self._compare(watched, subscription)
        except PublisherError as error:
            watched.close()
            watched.seen = None
            return error
        except Wal2LakeError as error:
            watched.seen = None
            return error
        return _combined(errors) if errors else None

    def _compare(
        self, watched: _Watched, subscription: Subscription
    ) -> tuple[Wal2LakeError, ...]:
        """Look if the fingerprint or the tables here differ from the last look's, and return the
        look's errors."""
        session, fingerprint = self._fingerprint(watched, subscription)
        # Read before the look: what the look itself changes leads to one more look.
        seen = fingerprint, self._tables(subscription)
        if seen == watched.seen:
            return ()
        altering = self._node.turns.altering
        with altering.try_hold(watched.subid) as mine:
            now = self._node.catalog.subscription(watched.subid)
            if not mine or now is None or not _is_watched(now):
                raise _StepAside
            if _asked_for(now) != _asked_for(subscription):
                raise _StepAside
            owner = self._node.catalog.role_by_oid(now.owner)
            if owner is None:
                raise _StepAside
            caller = Caller(
                role=owner,
                notice=lambda notice: _log(now, notice),
                check=lambda: self._check(watched.subid),
            )
            errors = look(self._node, caller, now, session, fingerprint)
        watched.seen = None if errors else seen
        return errors

    def _fingerprint(
        self, watched: _Watched, subscription: Subscription
    ) -> tuple[Session, str]:
        """Return a session and the fingerprint. A session that was idle may have been ended by the
        server (idle_session_timeout, a restart); another one is tried then."""
        names = subscription.publications
        if watched.session_of != _asked_for(subscription):
            watched.close()
        if watched.session is not None:
            try:
                return watched.session, publication_fingerprint(watched.session, names)
            except PublisherError:
                watched.close()
        watched.session_of = _asked_for(subscription)
        watched.session = session = self._connect(subscription)
        return session, publication_fingerprint(session, names)

    def _connect(self, subscription: Subscription) -> Session:
        settings = self._node.settings.subscription
        session = connect(
            subscription.conninfo,
            application_name=f"pg_{subscription.oid}_auto_refresh",
            answer_timeout_seconds=_ANSWER_SECONDS,
            must_use_password=self._node.catalog.must_use_password(subscription),
            check=lambda: self._check(subscription.oid),
        )
        wait_ms = settings.max_lock_wait_ms or _LOCK_TIMEOUT_MS
        try:
            session.execute(f"SET lock_timeout = {wait_ms}")
            session.execute(f"SET statement_timeout = {int(_ANSWER_SECONDS * 1000)}")
        except BaseException:
            session.close()
            raise
        return session

    def _tables(self, subscription: Subscription) -> Hashable:
        """Return what makes a look necessary, beside the fingerprint."""
        rels = self._node.catalog.rels(subscription.oid)
        return (
            _asked_for(subscription),
            frozenset(
                (
                    rel.relid,
                    rel.remote_namespace,
                    rel.remote_name,
                    rel.paused,
                    rel.seen_as,
                )
                for rel in rels
            ),
        )

    def _check(self, subid: Oid) -> None:
        if self._stop.is_set() or self._node.turns.altering.wanted(subid):
            raise _StepAside

    def _note(self, subid: Oid, error: Wal2LakeError | None) -> None:
        text, sqlstate = (
            (None, None) if error is None else (error.describe(), error.sqlstate)
        )
        self._node.catalog.note_error(subid, WorkerKind.AUTO_REFRESH, text, sqlstate)


def _is_watched(subscription: Subscription) -> bool:
    return (
        subscription.auto_refresh
        and subscription.runs
        and not subscription.dropping
        and subscription.slot_name is not None
    )


def _asked_for(subscription: Subscription) -> Hashable:
    """Return what a look depends on."""
    return (
        subscription.conninfo,
        subscription.publications,
        subscription.owner,
        subscription.generation,
        subscription.follows_schema,
        subscription.create_tables,
    )


def _combined(errors: tuple[Wal2LakeError, ...]) -> Wal2LakeError:
    """Return the first error, and say how many others there are."""
    first = errors[0]
    if len(errors) > 1:
        others = "; ".join(error.message for error in errors[1:4])
        more = f" ... and {len(errors) - 4} more" if len(errors) > 4 else ""
        first.detail = f"{first.detail or ''} Also: {others}{more}.".strip()
    return first


def _log(subscription: Subscription, notice: Notice) -> None:
    say = get_logger().warning if notice.severity == "WARNING" else get_logger().info
    say(notice.message, subscription=subscription.name)
