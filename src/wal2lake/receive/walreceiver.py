"""The walreceiver writes one connection's stream to the change log and reports positions.

    walsender ─▶ reader (main thread) ─▶ LogWriter ──────▶ Sealer ─▶ segments
        ▲              │      ▲          journal thread:   seal thread:
        └── feedback ──┘      │          append, fsync     decode, seal
                              ├─ logged ─────┘
                              └─ verified ── PositionVerifier, a thread that queries the server

The reader, in this module, only moves bytes and sends status updates. It waits neither for a disk
nor for another connection, so it answers keepalives while a slow or full disk holds up the journal
thread. Then the queue fills to its limit, and the reader stops reading (the publisher keeps its
WAL) but goes on sending status updates until there is space again.

Positions. *received* is the end of the data read from the socket. *logged* is the end of the last
whole transaction that is fsynced. *applied* is the engine's word in the progress file.
``feedback.Feedback`` decides which positions to report whenever one of the three changes. A
position beyond the log is reported only after the server has confirmed it and the confirmation has
been fsynced.

Before the stream starts, ``source`` checks that the source is the same and that its slot can send
the missing changes.

One object serves one connection. An error ends it with an exception; the process exits, and the
supervisor starts another one after wal_retrieve_retry_interval.

Source: walreceiver and LogicalRepApplyLoop in worker.c; reference 3.4, 3.7, 4.2.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog, ProgressFile, Subscription
from wal2lake.changelog import ChangeLog, HeldSpools
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.errors import PublisherError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import failpoint, get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import (
    CopyBothStream,
    CopyDataPayloads,
    Publisher,
    Session,
    connect,
    readable,
)
from wal2lake.receive.feedback import Feedback
from wal2lake.receive.gulps import Gulp, divide
from wal2lake.receive.measures import ReceiverMeasures
from wal2lake.receive.negotiation import negotiate
from wal2lake.receive.remotetypes import RemoteTypesKeeper
from wal2lake.receive.source.heldsession import HeldSession
from wal2lake.receive.source.publicationwatch import PublicationKeeper
from wal2lake.receive.source.schemas import SchemaKeeper
from wal2lake.receive.source.source import SourceCheck
from wal2lake.receive.threads.archiver import Archiver
from wal2lake.receive.threads.labels import LabelWatch
from wal2lake.receive.threads.logwriter import RECORD_BYTES, LogWriter
from wal2lake.receive.threads.pauses import Pauses
from wal2lake.receive.threads.sealer import Sealer
from wal2lake.receive.threads.verifier import PAUSE_SECONDS, PositionVerifier
from wal2lake.receive.twophase import TwoPhaseState
from wal2lake.settings import Settings
from wal2lake.wire.copyboth import StandbyStatus, write_payload

_WATCH_SECONDS: Final = 0.02
"""Interval between looks at the applied position; it adds to the latency of remote_apply."""

_ANSWER_SECONDS: Final = 10.0
"""Timeout for reading the server's current WAL position. Chosen arbitrarily."""

_STORED_PAUSE_SECONDS: Final = 1.0
"""Interval of positions beyond the log that the store must record first: each is a request. A
synchronous commit that concerns no table here waits for it."""

_JOIN_SECONDS: Final = 10.0
"""Time for a thread to finish its current work. A thread that takes longer hangs in the kernel, and
ends with the process."""

_CLOSED: Final = -1


def now_us() -> int:
    """Return the microseconds since 2000-01-01 UTC, the protocol's clock."""
    return int(time.time() * 1_000_000) - 946_684_800_000_000


class WalReceiver:
    """One run of a subscription's receiver, from connecting to its end."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        settings: Settings,
        log: ChangeLog,
        progress: ProgressFile,
        telemetry: Telemetry | None = None,
    ) -> None:
        """``log`` is open and recovered. The caller closes it (see ``at_work``)."""
        self._catalog = catalog
        self._subscription = subscription
        self._must_use_password = catalog.must_use_password(subscription)
        self._settings = settings
        self._log = log
        self._progress = progress
        self._asked_to_stop = False
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._archiver: Archiver | None = None
        self._open = False
        """Whether a transaction has begun on the wire and not ended."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._threads: list[threading.Thread] = []
        self._measures = ReceiverMeasures(
            telemetry or Telemetry(), subscription, settings, log
        )
        self._pauses = Pauses(catalog, subscription.oid, self._measures.failed)
        self._labels = LabelWatch(catalog, subscription, self._session, self._stop)
        self._looks = HeldSession(self._session)
        self._schemas = SchemaKeeper(
            catalog, subscription, self._looks, self._labels.check
        )
        self._publications = PublicationKeeper(catalog, subscription, self._looks)
        self._writer = LogWriter(
            log,
            self._pauses,
            stop=self._stop,
            wake=self._wake,
            before=self._note,
            observer=self._measures,
        )
        self._held = None if settings.log_store is None else HeldSpools(self._directory)
        self._sealer = self._new_sealer()
        self._types = RemoteTypesKeeper(catalog, subscription)
        self._two_phase = TwoPhaseState(catalog, subscription)
        self._events = get_logger()

    def _note(self, gulp: Gulp) -> None:
        """Record in the catalog everything that must be there before the gulp is logged."""
        with self._looks.held():
            self._publications.record(gulp)
            self._schemas.record(gulp)

    # ---- the run -----------------------------------------------------------------

    def request_stop(self) -> None:
        """Ask the run to end in order. Safe in a signal handler: a handler interrupts the main
        thread anywhere, perhaps while it holds the lock of an Event, so no Event is used."""
        self._asked_to_stop = True
        self._wake()

    @property
    def at_work(self) -> bool:
        """Whether a thread still runs. After ``run`` such a thread hangs, and the log must not be
        closed under it."""
        return any(thread.is_alive() for thread in self._threads)

    def run(self, on_streaming: threading.Event) -> None:
        """Stream until stopped. Sets ``on_streaming`` once the publisher has accepted the
        publications. Raises the error that ended the run."""
        try:
            with ConfirmedFile.open(self._directory) as confirmed:
                self._run(on_streaming, confirmed)
        finally:
            self._close_pipe()

    def _run(self, on_streaming: threading.Event, confirmed: ConfirmedFile) -> None:
        subscription = self._subscription
        session = connect(
            subscription.conninfo,
            application_name=subscription.name,
            replication=True,
            must_use_password=self._must_use_password,
            on_notice=lambda text: self._events.warning(
                f"publisher says: {text}", subscription=subscription.name
            ),
        )
        verifier: PositionVerifier | None = None
        try:
            source = SourceCheck(
                self._catalog,
                subscription,
                self._log,
                confirmed,
                self._session,
                partial(self._session, replication=True),
                look_again=self._waits_for_store,
            )
            self._archiver = self._new_archiver(confirmed)
            start = self._log.logged
            stream, verified = self._begin(session, source, start)
            on_streaming.set()
            # The run before may have ended with an error.
            self._pauses.record()
            self._events.info(
                f'walreceiver for subscription "{subscription.name}" has started',
                streaming_from=start,
            )
            feedback = Feedback(logged=start, applied=self._applied())
            feedback.received = start
            feedback.verified = verified
            feedback.waits_for_store = self._waits_for_store
            verifier = self._new_verifier(confirmed, verified, source)
            verifier.start()
            self._start("journal", self._writer.work)
            self._start("seal", self._sealer.work)
            self._start("labels", self._labels.work)
            if self._archiver is not None:
                self._start("archive", self._archiver.work)
            self._measures.connected()
            self._read(stream, feedback, verifier)
            self._send(stream, feedback)
            stream.finish()
        finally:
            self._stop.set()
            self._writer.end()
            self._log.wake()
            for thread in self._threads:
                thread.join(timeout=_JOIN_SECONDS)
            self._measures.flush()
            if not self.at_work:
                self._measures.close()
            session.close()
            if verifier is not None:
                self._threads.append(verifier.stop())

    def _begin(
        self, session: Session, source: SourceCheck, start: Lsn
    ) -> tuple[CopyBothStream, Lsn]:
        """Check the source, and start streaming. Return the stream and the confirmed position."""
        try:
            findings = source.check(Publisher(session))
        except PublisherError:
            self._measures.refused(session)
            raise
        self._schemas.begin()
        self._labels.check()
        binary = self._types.learn(
            Publisher(session),
            received=findings.received,
            position=findings.identity.position,
        )
        options = negotiate(
            self._subscription,
            server_version=session.server_version,
            start=start,
            messages=self._settings.log.messages,
            two_phase=self._two_phase.wanted(session.server_version),
            binary=binary,
        )
        stream = CopyBothStream(session, options.command)
        self._sealer.arrival.position = findings.identity.position
        confirmed = source.accepted()
        self._log.connected(
            start, streaming=options.streaming, two_phase=options.may_prepare
        )
        if options.two_phase:
            self._two_phase.accepted()
        return stream, confirmed

    @property
    def _waits_for_store(self) -> bool:
        return self._settings.log.confirm == "store"

    def _new_archiver(self, confirmed: ConfirmedFile) -> Archiver | None:
        if self._held is None:
            return None
        return Archiver(
            self._catalog,
            self._subscription,
            self._settings,
            self._held,
            confirmed,
            stop=self._stop,
            wake=self._wake,
        )

    def _removable(self, applied: Lsn) -> Lsn:
        return applied if self._archiver is None else self._archiver.removable(applied)

    def _new_verifier(
        self, confirmed: ConfirmedFile, verified: Lsn, source: SourceCheck
    ) -> PositionVerifier:
        slot_name = str(self._subscription.slot_name)
        record, pause = confirmed.record, PAUSE_SECONDS
        if self._archiver is not None and self._waits_for_store:
            record, pause = self._archiver.record, _STORED_PAUSE_SECONDS
        settings = self._settings.subscription
        return PositionVerifier(
            self._session,
            partial(record, slot_name),
            self._wake,
            verified=verified,
            retry_interval_seconds=settings.wal_retrieve_retry_interval_ms / 1000,
            subscription=self._subscription.name,
            look=source.check_timeline,
            watch=self._measures.watch,
            pause_seconds=pause,
        )

    def _new_sealer(self) -> Sealer:
        return Sealer(
            self._log,
            self._directory,
            self._settings.log,
            self._catalog,
            self._subscription,
            self._progress,
            self._pauses,
            applied=self._applied,
            stop=self._stop,
            removable=self._removable,
            held=self._held,
        )

    def _start(self, name: str, work: Callable[[], None]) -> None:
        """Start a thread whose failure ends the run."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._failure = error
                self._wake()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _session(self, *, replication: bool = False) -> Session:
        """Open a session other than the stream's."""
        return connect(
            self._subscription.conninfo,
            application_name=f"pg_{self._subscription.oid}_check",
            replication=replication,
            answer_timeout_seconds=_ANSWER_SECONDS,
            must_use_password=self._must_use_password,
        )

    # ---- reader: the main thread ---------------------------------------------------

    def _read(
        self, stream: CopyBothStream, feedback: Feedback, verifier: PositionVerifier
    ) -> None:
        timeouts = self._settings.subscription
        timeout = timeouts.wal_receiver_timeout_ms / 1000
        status = timeouts.wal_receiver_status_interval_ms / 1000
        last_heard = last_status = time.monotonic()
        pinged = False
        while not (self._asked_to_stop or self._stop.is_set()):
            reply = False
            if self._pauses or self._writer.is_full:
                # While the reader pauses, silence does not count against the timeout.
                readable([self._wake_read], _WATCH_SECONDS)
                last_heard = time.monotonic()
            else:
                payloads = stream.read(_WATCH_SECONDS, RECORD_BYTES, self._wake_read)
                if payloads is None:
                    raise PublisherError(
                        "data stream from publisher has ended",
                        sqlstate="08006",
                        hint="The publisher was shut down, or ended the connection: its"
                        " log says why.",
                    )
                if payloads.sizes:
                    last_heard, pinged = time.monotonic(), False
                    reply = self._take(payloads, feedback)
            self._drain_wake()
            self._collect(feedback, verifier)
            # Checked before anything is confirmed: a message that the seal thread could not
            # decode must, if possible, be sent again.
            self._raise_failure()
            now = time.monotonic()
            self._measures.tick(now, paused=bool(self._pauses))
            self._two_phase.check(now)
            silence = now - last_heard
            if timeout and silence >= timeout:
                raise PublisherError(
                    "terminating logical replication worker due to timeout",
                    detail=f"The publisher has sent nothing for {silence:.0f} s.",
                    hint="Look at the network and at the publisher, or raise"
                    ' "subscription.wal_receiver_timeout_ms".',
                )
            ping = bool(timeout) and silence >= timeout / 2 and not pinged
            due = bool(status) and now - last_status >= status
            if reply or ping or due or feedback.worth_sending():
                self._send(stream, feedback, ping=ping)
                pinged = pinged or ping
                last_status = now

    def _take(self, payloads: CopyDataPayloads, feedback: Feedback) -> bool:
        """Hand changes to the journal thread. Return True if a keepalive requests a reply."""
        stamp = now_us()
        self._measures.received(len(payloads.data), len(payloads.sizes))
        taken = divide(payloads, is_open=self._open)
        if taken.gulp is not None and not self._types.admit(taken.gulp):
            # Later messages and keepalives are dropped, too: the publisher will send everything
            # again.
            self._stop.set()
            return False
        for alive in taken.keepalives:
            feedback.keepalive(alive.end_lsn)
            self._progress.set(last_msg_send_time=max(0, alive.send_time))
        if taken.gulp is not None and taken.newest is not None:
            self._open = taken.gulp.open_at_end
            feedback.data_arrived(taken.newest.end_lsn)
            self._sealer.arrival.received = taken.newest.end_lsn
            self._writer.put(taken.gulp)
            self._progress.set(last_msg_send_time=max(0, taken.newest.send_time))
        # The publisher sends a keepalive when it has sent everything.
        self._sealer.arrival.alive = (
            taken.keepalives[-1].end_lsn if taken.keepalives else INVALID_LSN
        )
        if self._sealer.arrival.is_whole:
            self._log.wake()
        self._progress.set(received=feedback.received, last_msg_receipt_time=stamp)
        return any(alive.reply_requested for alive in taken.keepalives)

    def _collect(self, feedback: Feedback, verifier: PositionVerifier) -> None:
        """Take over the positions that the journal thread and the engine have reached."""
        for logged in self._writer.collect():
            feedback.data_logged(logged.lsn, logged.gulp.open_at_end)
        feedback.applied = self._applied()
        feedback.verified = verifier.position
        if feedback.needs_verification():
            verifier.request(feedback.received)
        if self._archiver is not None:
            feedback.archived = self._archiver.position
        durable = feedback.durable()
        self._progress.set(logged=durable)
        if feedback.idle and self._log.sealed >= feedback.logged:
            self._progress.set(sealed=durable)

    def _send(
        self, stream: CopyBothStream, feedback: Feedback, *, ping: bool = False
    ) -> None:
        positions = feedback.positions()
        stamp = now_us()
        stream.write(
            write_payload(
                StandbyStatus(
                    write_lsn=positions.write,
                    flush_lsn=positions.flush,
                    apply_lsn=positions.apply,
                    send_time=stamp,
                    reply_requested=ping,
                )
            )
        )
        feedback.last_sent = positions
        self._progress.set(
            latest_end_lsn=positions.flush,
            latest_end_time=stamp,
            replay_lsn=positions.apply,
        )
        failpoint("feedback.sent")

    def _applied(self) -> Lsn:
        return Lsn(max(self._progress.word("applied"), self._subscription.floor))

    # ---- for all of them ----------------------------------------------------------------

    @property
    def _directory(self) -> Path:
        return self._settings.log_directory / str(int(self._subscription.oid))

    # ---- between the threads ------------------------------------------------------------

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            return

    def _close_pipe(self) -> None:
        """Close the pipe, once no thread can wake the reader: a descriptor number may be reused,
        and a late write would go to another file."""
        if self.at_work:
            return
        ends = (self._wake_read, self._wake_write)
        self._wake_read = self._wake_write = _CLOSED
        for end in ends:
            os.close(end)

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return
