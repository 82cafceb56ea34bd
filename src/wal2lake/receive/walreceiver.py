"""The walreceiver: one connection's stream into the change log, positions back upstream.

    walsender ─▶ reader (main thread) ─▶ queue ─▶ journal thread ─▶ seal thread ─▶ segments
        ▲              │                          append, fsync      decode, seal
        └── feedback ──┘◀── wake ─────────────────── logged

The reader only moves bytes and speaks: it never waits for a disk, so it answers
keepalives while a slow or full disk holds the journal thread up. Then the queue fills to
its bound, the reader stops reading (the publisher keeps its WAL), and goes on sending
status updates until there is space again.

Positions. *received* is what has left the socket. *logged* is the end of the last whole
transaction behind an fsync. *applied* is the engine's word in the progress file. What goes
upstream is ``feedback.Feedback``'s decision, made anew whenever one of the three moves.

One object is one connection; an error ends it with an exception, the process exits and
the supervisor starts another after wal_retrieve_retry_interval.

Source: walreceiver and LogicalRepApplyLoop in worker.c; reference 3.4, 3.7, 4.2.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from wal2lake.catalog import Catalog, ProgressFile, Subscription, Worker
from wal2lake.changelog import (
    ChangeLog,
    LimitState,
    LogReader,
    Retention,
    check_limit,
    history_bytes,
    log_size,
)
from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.errors import PublisherError, StorageError, UnusableLogError
from wal2lake.model import Lsn
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import (
    CopyBothStream,
    Identity,
    Payloads,
    Publisher,
    Session,
    connect,
)
from wal2lake.receive.feedback import Feedback
from wal2lake.receive.history import check_history
from wal2lake.receive.negotiation import negotiate
from wal2lake.receive.remotetypes import RemoteTypesKeeper
from wal2lake.receive.twophase import TwoPhase
from wal2lake.settings import Settings
from wal2lake.wire.copyboth import (
    Keepalive,
    StandbyStatus,
    read_from_server,
    write_payload,
)

_GULP_BYTES: Final = 4 << 20
"""Most that one journal record takes: one fsync for it costs about what its write does."""

_QUEUE_BYTES: Final = 64 << 20
"""Bound of what waits for the journal thread; a guess at a second of a busy walsender."""

_WATCH_SECONDS: Final = 0.02
"""How often the engine's word is looked at: the latency that remote_apply sees."""

_STORAGE_RETRY_SECONDS: Final = 1.0

_UPKEEP_SECONDS: Final = 1.0
"""How often the log is trimmed and its size compared with the limit."""

_UNWRITABLE: Final = "the change log cannot be written"
_LIMIT_REACHED: Final = "the change log has reached its size limit"

_XLOGDATA_HEADER: Final = 25
_KEEPALIVE: Final = ord("k")
_ENDS: Final = b"CEcAPpKr"
"""Kinds behind which nothing is open that would come to an end with later messages. A
transaction between two blocks of its stream is none: it will be sent again."""
_MESSAGE: Final = ord("M")


def now_us() -> int:
    """Microseconds since 2000-01-01 UTC, the protocol's clock."""
    return int(time.time() * 1_000_000) - 946_684_800_000_000


def _open_at_end(data: bytes, lengths: Lengths, before: bool) -> bool:
    """Whether a transaction is open behind a gulp. Only a Commit ends one, or what else
    ``_ENDS`` has, and logical messages, inside and between transactions, change nothing."""
    end = len(data)
    # One step as a rule: numbers are taken out of the array one by one.
    for length in lengths[::-1]:
        end -= int(length)
        kind = data[end + _XLOGDATA_HEADER] if length > _XLOGDATA_HEADER else None
        if kind != _MESSAGE:
            return kind is None or kind not in _ENDS
    return before


@dataclass(frozen=True, slots=True)
class _Gulp:
    data: bytes
    lengths: Lengths
    open_at_end: bool


@dataclass(frozen=True, slots=True)
class _Logged:
    lsn: Lsn
    open_at_end: bool


class WalReceiver:
    """One run of a subscription's receiver, from connecting to its end."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        settings: Settings,
        log: ChangeLog,
        progress: ProgressFile,
    ) -> None:
        """The log is open and recovered; it stays the caller's to close."""
        self._catalog = catalog
        self._subscription = subscription
        self._settings = settings
        self._log = log
        self._progress = progress
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._queue: queue.SimpleQueue[_Gulp | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._open = False
        """A transaction has begun on the wire and not ended."""
        self._done: queue.SimpleQueue[_Logged] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._holds: dict[str, str] = {}
        """Why nothing more is taken off the socket; empty: it is."""
        self._checker: Session | None = None
        self._limit_state = LimitState.BELOW
        """Of the log's size, as last looked at: the seal thread's."""
        self._types = RemoteTypesKeeper(catalog, subscription)
        self._two_phase = TwoPhase(catalog, subscription)
        self._events = get_logger()

    # ---- the run -----------------------------------------------------------------

    def request_stop(self) -> None:
        """End the run in order; safe in a signal handler."""
        self._stop.set()
        self._wake()

    def run(self, on_streaming: threading.Event) -> None:
        """Stream until stopped. Raises what ended it; sets ``on_streaming`` once the
        publisher has accepted the publications."""
        subscription = self._subscription
        session = connect(
            subscription.conninfo,
            application_name=subscription.name,
            replication=True,
            connect_timeout_seconds=self._settings.subscription.connect_timeout_ms
            // 1000,
            on_notice=lambda text: self._events.warning(
                f"publisher says: {text}", subscription=subscription.name
            ),
        )
        workers: list[threading.Thread] = []
        try:
            identity = self._check_source(session)
            self._types.learn(Publisher(session))
            start = self._log.logged
            asked = negotiate(
                subscription,
                server_version=session.server_version,
                start=start,
                messages=self._settings.log.messages,
                two_phase=self._two_phase.wanted(session.server_version),
            )
            stream = CopyBothStream(session, asked.command)
            self._drop_undecodable()
            self._log.connected(
                start, streaming=asked.streaming, two_phase=asked.may_prepare
            )
            if asked.two_phase:
                self._two_phase.accepted()
            on_streaming.set()
            self._catalog.note_error(subscription.oid, Worker.RECEIVER, None)
            self._events.info(
                f'walreceiver for subscription "{subscription.name}" has started',
                streaming_from=start,
            )
            feedback = Feedback(logged=start, applied=self._applied())
            feedback.received = start
            feedback.verified = identity.position
            for name, target in (("journal", self._journal), ("seal", self._seal)):
                worker = threading.Thread(target=target, name=name, daemon=True)
                worker.start()
                workers.append(worker)
            self._read(stream, feedback)
            self._send(stream, feedback)
            stream.finish()
        finally:
            self._stop.set()
            self._queue.put(None)
            self._log.wake()
            for worker in workers:
                worker.join(timeout=10.0)
            session.close()
            if self._checker is not None:
                self._checker.close()

    def _check_source(self, session: Session) -> Identity:
        publisher = Publisher(session)
        identity = publisher.identify()
        known = self._subscription
        history = None
        if known.timeline is not None and known.timeline != identity.timeline:
            history = publisher.timeline_history(identity.timeline)
        check_history(
            identity,
            known_system=known.system_identifier,
            known_timeline=known.timeline,
            logged=self._log.logged,
            timeline_history=history,
        )
        if (known.system_identifier, known.timeline) != (
            identity.system_identifier,
            identity.timeline,
        ):
            self._catalog.update_subscription(
                known.oid,
                system_identifier=identity.system_identifier,
                timeline=identity.timeline,
            )
        return identity

    def _drop_undecodable(self) -> None:
        """Have what the journal cannot give sent again, or raise why that cannot be.

        Streaming has begun: the slot is ours, and nobody moves its position but we.
        """
        if self._log.undecodable is None:
            return
        slot = Publisher(self._second_session()).slot(str(self._subscription.slot_name))
        confirmed = (slot or {}).get("confirmed_flush_lsn")
        if confirmed is None:
            raise PublisherError(
                f'replication slot "{self._subscription.slot_name}" does not exist',
                sqlstate="42704",
            )
        self._log.ask_again(Lsn.parse(confirmed))

    # ---- reader: the main thread ---------------------------------------------------

    def _read(self, stream: CopyBothStream, feedback: Feedback) -> None:
        timeouts = self._settings.subscription
        timeout = timeouts.wal_receiver_timeout_ms / 1000
        status = timeouts.wal_receiver_status_interval_ms / 1000
        last_heard = last_status = time.monotonic()
        pinged = False
        while not self._stop.is_set():
            reply = False
            if self._holds or self._queued_bytes >= _QUEUE_BYTES:
                # Not reading is not silence of the publisher's.
                select.select([self._wake_read], [], [], _WATCH_SECONDS)
                last_heard = time.monotonic()
            else:
                payloads = stream.read(_WATCH_SECONDS, _GULP_BYTES, self._wake_read)
                if payloads is None:
                    raise PublisherError(
                        "data stream from publisher has ended", sqlstate="08006"
                    )
                if payloads.sizes:
                    last_heard, pinged = time.monotonic(), False
                    reply = self._take(payloads, feedback)
            self._drain_wake()
            self._collect(feedback)
            # Before anything is confirmed: what the seal thread could not decode must, if
            # possible, be sent again.
            self._raise_failure()
            now = time.monotonic()
            self._two_phase.look(now)
            silence = now - last_heard
            if timeout and silence >= timeout:
                raise PublisherError(
                    "terminating logical replication worker due to timeout"
                )
            ping = bool(timeout) and silence >= timeout / 2 and not pinged
            due = bool(status) and now - last_status >= status
            if reply or ping or due or feedback.worth_sending():
                self._send(stream, feedback, ping=ping)
                pinged = pinged or ping
                last_status = now

    def _take(self, payloads: Payloads, feedback: Feedback) -> bool:
        """Hand changes to the journal thread; True if a keepalive wants an answer."""
        reply = False
        data = bytes(payloads.data)
        lengths = np.array(payloads.sizes, np.uint32)
        ends = np.cumsum(lengths, dtype=np.int64)
        first = np.frombuffer(data, np.uint8)[ends - lengths]
        special = np.flatnonzero(first != ord("w")).tolist()
        stamp = now_us()
        if special:
            changes, begin = [], 0
            for i in special:
                end = int(ends[i])
                start = end - int(lengths[i])
                message = read_from_server(data[start:end])
                if isinstance(message, Keepalive):
                    feedback.keepalive(message.end_lsn)
                    reply = reply or message.reply_requested
                    self._progress.set(last_msg_send_time=message.send_time)
                changes.append(data[begin:start])
                begin = end
            data = b"".join((*changes, data[begin:]))
            lengths = np.delete(lengths, special)
        if len(lengths):
            last = len(data) - int(lengths[-1])
            end = Lsn(int.from_bytes(data[last + 9 : last + 17], "big"))
            sent = int.from_bytes(data[last + 17 : last + 25], "big")
            self._open = _open_at_end(data, lengths, self._open)
            feedback.data_arrived(end)
            self._queued_bytes += len(data)
            self._queue.put(_Gulp(data, lengths, self._open))
            self._progress.set(last_msg_send_time=sent)
        self._progress.set(received=feedback.received, last_msg_receipt_time=stamp)
        return reply

    def _collect(self, feedback: Feedback) -> None:
        """Take what the journal thread and the engine have reached since."""
        while True:
            try:
                one = self._done.get_nowait()
            except queue.Empty:
                break
            feedback.data_logged(one.lsn, one.open_at_end)
        feedback.applied = self._applied()
        if feedback.needs_verification():
            self._verify(feedback)
        positions = feedback.positions()
        self._progress.set(logged=positions.flush)
        if feedback.idle and self._log.sealed >= feedback.logged:
            self._progress.set(sealed=positions.flush)

    def _verify(self, feedback: Feedback) -> None:
        """Ask on another connection how far the server's WAL really is."""
        try:
            feedback.verified = Publisher(self._second_session()).flushed_lsn()
        except PublisherError as error:
            # Nothing is lost: the position is believed once a later check succeeds.
            self._events.debug("could not verify a keepalive", error=error)
            if self._checker is not None:
                self._checker.close()
                self._checker = None

    def _second_session(self) -> Session:
        """An ordinary session: it takes no walsender, and pg_stat_replication shows one
        row for the subscription."""
        if self._checker is None:
            self._checker = connect(
                self._subscription.conninfo,
                application_name=f"pg_{self._subscription.oid}_check",
            )
        return self._checker

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

    # ---- journal thread --------------------------------------------------------------

    def _journal(self) -> None:
        try:
            while (one := self._next_gulps()) is not None:
                if not self._write(one):
                    # What follows may fit where this did not: behind a hole.
                    return
        except BaseException as error:
            self._fail(error)

    def _next_gulps(self) -> list[_Gulp] | None:
        """All that waits, up to one record's size: the group of a group fsync."""
        first = self._queue.get()
        if first is None:
            return None
        group, size = [first], len(first.data)
        while size < _GULP_BYTES:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            group.append(more)
            size += len(more.data)
        return group

    def _write(self, group: list[_Gulp]) -> bool:
        """Log a group; False: the run was stopped before there was space for it."""
        data = group[0].data if len(group) == 1 else b"".join(g.data for g in group)
        lengths = (
            group[0].lengths
            if len(group) == 1
            else np.concatenate([g.lengths for g in group])
        )
        while True:
            try:
                self._log.append(data, lengths)
                break
            except UnusableLogError:
                raise
            except StorageError as error:
                self._hold(_UNWRITABLE, error)
                if self._stop.wait(_STORAGE_RETRY_SECONDS):
                    return False
        self._resume(_UNWRITABLE)
        logged = self._log.sync()
        for one in group:
            self._queued_bytes -= len(one.data)
            self._done.put(_Logged(logged, one.open_at_end))
        self._wake()
        return True

    def _hold(self, what: str, error: StorageError) -> None:
        if what not in self._holds:
            self._holds[what] = error.describe()
            self._events.error(f"{what}; receiving is paused", error=error)
            self._note_hold()

    def _resume(self, what: str) -> None:
        if what in self._holds:
            del self._holds[what]
            self._events.info(f"no longer: {what}")
            self._note_hold()

    def _note_hold(self) -> None:
        """What pauses receiving still, the newest first."""
        texts = list(self._holds.values())
        self._catalog.note_error(
            self._subscription.oid, Worker.RECEIVER, texts[-1] if texts else None
        )

    # ---- seal thread -----------------------------------------------------------------

    def _seal(self) -> None:
        interval = self._settings.log.segment_interval_ms / 1000
        directory = self._settings.log_directory / str(int(self._subscription.oid))
        retention = Retention(
            directory, history_bytes=history_bytes(self._settings.log)
        )
        reader, noticed = LogReader(directory), self._log.last_segment
        last_seal = last_upkeep = time.monotonic()
        unsealed = False
        try:
            while not self._stop.is_set():
                try:
                    self._log.absorb(interval)
                    now = time.monotonic()
                    if now - last_seal >= interval:
                        self._log.seal()
                        last_seal = now
                    # Not by seal alone: a large transaction is sealed when it commits.
                    if self._log.last_segment > noticed:
                        if self._subscription.binary:
                            for one in reader.after(noticed):
                                self._types.notice(one)
                        noticed = self._log.last_segment
                        self._progress.set(sealed=self._log.sealed)
                    if now - last_upkeep >= _UPKEEP_SECONDS:
                        retention.trim(self._applied())
                        self._compare_with_limit()
                        last_upkeep = now
                except UnusableLogError:
                    # Recovery makes of the journal what is not known to be durable.
                    raise
                except StorageError as error:
                    self._events.error("could not seal a segment", error=error)
                    self._catalog.note_error(
                        self._subscription.oid, Worker.RECEIVER, error.describe()
                    )
                    self._stop.wait(_STORAGE_RETRY_SECONDS)
                    unsealed = True
                else:
                    if unsealed:
                        unsealed = False
                        self._note_hold()
        except BaseException as error:
            self._fail(error)

    def _compare_with_limit(self) -> None:
        directory = self._settings.log_directory / str(int(self._subscription.oid))
        if not self._settings.log.size_limit_bytes:
            return
        size = log_size(directory)
        state = check_limit(size, self._settings.log)
        if state is LimitState.REACHED:
            self._hold(
                _LIMIT_REACHED,
                StorageError(
                    f"change log has {size.limited_bytes} bytes, limit is"
                    f" {self._settings.log.size_limit_bytes}",
                    hint="See wal2lake.subscription_errors for what holds apply up,"
                    " or raise log.size_limit_bytes.",
                ),
            )
        elif state is LimitState.NEAR and self._limit_state is LimitState.BELOW:
            # Once, and not at every look.
            limit = self._settings.log.size_limit_bytes
            near = StorageError(
                f'the change log of subscription "{self._subscription.name}" is near its'
                f" size limit: {size.limited_bytes} of {limit} bytes",
                hint="At the limit receiving is paused, and the publisher keeps its WAL."
                " See wal2lake.log_readers for who needs the log, and"
                " wal2lake.subscription_errors for why.",
            )
            self._events.warning(near.message, error=near)
        if state is not LimitState.REACHED:
            self._resume(_LIMIT_REACHED)
        self._limit_state = state

    # ---- between the threads ------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            return

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return
