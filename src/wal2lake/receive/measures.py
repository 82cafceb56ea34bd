"""Measurements of one receiver: commit times by position, counters, the time from commit to disk.

    LogWriter ── logging(data, lengths) ──▶ commits of the gulps ─▶ ring of commit times
              ── durable() ───────────────▶ counters, histogram commit -> durable
    reader    ── received(), tick() ──────▶ counters
    verifier  ── watch(session) ──────────▶ gauges: the slot, and the WAL that it holds

The journal's thread finds the commits in the raw messages before it appends them, so a log that
cannot be written shows as a lag of the durable stage. Only few messages are looked at one by one:
300,000 changes take 2 ms of that thread, 300,000 transactions of one row 20 ms, and a gulp of one
transaction 2 us (measured). Sums are made known once a second.

Measurements are never a reason to stop: a ring that cannot be made on a full disk is tried again
later. When it is opened it is compared with the log: transactions behind ``logged`` come again, and
those that only the log has (the ring is new, or a crash of the machine took its newest pages) are
read from the segments.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wal2lake.catalog import Subscription, WorkerKind
from wal2lake.catalog.mapped.committimes import INTERVALS_US, CommitTimes
from wal2lake.changelog import ChangeLog, LogReader, Manifest
from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.errors import Wal2LakeError, sqlstate_of
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.observe.ages import ages
from wal2lake.observe.telemetry import BUCKETS, Telemetry
from wal2lake.pg import Publisher, Session
from wal2lake.settings import Settings
from wal2lake.wire.copyboth import XLOGDATA_HEADER

_PAIRS: Final = 64
"""Most pairs that one gulp adds to the ring. A gulp of a backlog may have hours of commits, whose
lag is hours, so that an hour's 64th is precise enough."""

_SEGMENTS: Final = 256
"""Most segments that are read to fill the ring."""

_RETRY_SECONDS: Final = 10.0
"""Interval between attempts to make the ring. Chosen arbitrarily."""

_COMMITS: Final = (b"C", 1 + 1 + 8), (b"K", 1 + 1 + 8), (b"c", 1 + 4 + 1 + 8)
"""Messages that end a transaction, and the position of its end LSN in them, before the commit time:
Commit and Commit Prepared (kind, flags, LSN), Stream Commit (kind, xid, flags, LSN)."""

_PLACES: Final = {ord(kind): place for kind, place in _COMMITS}
_PAIR: Final = struct.Struct(">qq")
"""End LSN and commit time."""

_FEW: Final = 64
"""Most messages that are looked at one by one: a source that commits now and then sends gulps of
three."""

_EPOCH_SECONDS: Final = 946_684_800
"""2000-01-01 UTC in Unix time."""


@dataclass(frozen=True, slots=True)
class Commits:
    """Transactions that end in a run of messages, in order."""

    ends: NDArray[np.int64]
    """End LSNs."""
    times: NDArray[np.int64]
    """Commit times in microseconds since 2000-01-01 UTC."""

    def pairs(self) -> list[tuple[int, int]]:
        """Return pairs for the ring, each of neighbouring commits: the end of the last and the time
        of the first. Commits that the finest level would gather anyway are one pair."""
        count = len(self.ends)
        if not count:
            return []
        span = int(self.times.max() - self.times.min())
        parts = min(count, _PAIRS, 1 + span // INTERVALS_US[0])
        starts = np.arange(parts) * count // parts
        ends = self.ends[np.append(starts[1:], count) - 1]
        times = np.minimum.reduceat(self.times, starts)
        return list(zip(ends.tolist(), times.tolist(), strict=True))


def find_commits(data: bytes, lengths: Lengths) -> Commits:
    """Find the commits in XLogData payloads. A malformed message is no commit here; the decoder
    reports it."""
    ends = np.cumsum(lengths, dtype=np.int64)
    bodies = ends - lengths + XLOGDATA_HEADER
    kinds = np.frombuffer(data, np.uint8)[np.minimum(bodies, ends - 1)]
    places: list[NDArray[np.int64]] = []
    for kind, place in _COMMITS:
        of_kind = np.flatnonzero(kinds == ord(kind))
        if len(of_kind):
            fields = bodies[of_kind] + place
            places.append(fields[fields + 16 <= ends[of_kind]])
    fields = np.concatenate(places) if places else np.empty(0, np.int64)
    if len(places) > 1:
        fields.sort()
    # A view with a word at every byte allows unaligned gathers.
    words = np.ndarray((max(len(data) - 7, 0),), np.int64, data, 0, (1,))
    return Commits(_big_endian(words[fields]), _big_endian(words[fields + 8]))


def find_few(data: bytes, lengths: Lengths) -> list[tuple[int, int]]:
    """Find the same commits as ``find_commits`` in few messages, as pairs of end LSN and time:
    without arrays, whose handling costs more than a few messages."""
    pairs = []
    begin = 0
    for length in lengths.tolist():
        body, begin = begin + XLOGDATA_HEADER, begin + length
        place = _PLACES.get(data[body]) if body < begin else None
        if place is not None and body + place + 16 <= begin:
            pairs.append(_PAIR.unpack_from(data, body + place))
    return pairs


def _big_endian(words: NDArray[np.int64]) -> NDArray[np.int64]:
    return words.byteswap() if sys.byteorder == "little" else words


@dataclass(slots=True)
class _Durable:
    """Sums of what has become durable since the last flush."""

    size: int = 0
    messages: int = 0
    transactions: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Transactions in each bucket of ``BUCKETS`` by their age, as in a histogram."""
    seconds: float = 0.0
    """Sum of their ages."""


class ReceiverMeasures:
    """Measurements of one run. ``logging`` and ``durable`` belong to the journal's thread,
    ``received``, ``tick`` and ``flush`` to the reader."""

    def __init__(
        self,
        telemetry: Telemetry,
        subscription: Subscription,
        settings: Settings,
        log: ChangeLog,
    ) -> None:
        """All series are labelled with the subscription's name. Series of earlier names that were
        taken over from a previous process end here."""
        self._telemetry = telemetry
        self._name = subscription.name
        self._subid = subscription.oid
        self._slot_name = str(subscription.slot_name)
        self._run_directory = settings.run_directory
        self._log_directory = settings.log_directory / str(int(subscription.oid))
        self._log = log
        self._times: CommitTimes | None = None
        self._next_attempt = 0.0
        self._has_warned = False
        self._logging: tuple[int, int, Commits | list[tuple[int, int]]] = (0, 0, [])
        self._lock = threading.Lock()
        self._durable = _Durable()
        """Guarded by the lock: the journal's thread adds, the reader takes."""
        self._received = [0, 0]
        self._next_flush = 0.0
        telemetry.keep_only(("subscription",), {(self._name,)})

    # ---- the reader --------------------------------------------------------------------

    def connected(self) -> None:
        """Note that the publisher has begun to stream."""
        # The first connection is none that was lost before.
        reconnects = self._telemetry.counter(
            "reconnects_total", subscription=self._name
        )
        self._count("reconnects_total", 0 if reconnects is None else 1)

    def received(self, size: int, messages: int) -> None:
        """Add what was read from the socket, keepalives included."""
        self._received[0] += size
        self._received[1] += messages

    def tick(self, now: float, *, paused: bool) -> None:
        """Make the sums known, once a second, and whether the reader pauses. ``now`` is a monotonic
        time."""
        if now >= self._next_flush:
            self._next_flush = now + 1.0
            self._telemetry.gauge(
                "receiving_paused", int(paused), subscription=self._name
            )
            self.flush()

    def flush(self) -> None:
        """Make the sums known."""
        size, messages = self._received
        if messages:
            self._received = [0, 0]
            self._count("received_bytes_total", size)
            self._count("received_messages_total", messages)
        with self._lock:
            durable, self._durable = self._durable, _Durable()
        if durable.messages:
            self._count("durable_bytes_total", durable.size)
            self._count("durable_messages_total", durable.messages)
        if durable.transactions:
            self._count("durable_transactions_total", durable.transactions)
            self._telemetry.observe_all(
                "commit_to_durable_seconds",
                durable.counts,
                durable.seconds,
                subscription=self._name,
            )

    # ---- the verifier's thread -----------------------------------------------------------

    def watch(self, session: Session) -> None:
        """Ask the publisher about the subscription's slot. Raises PublisherError."""
        slot = Publisher(session).slot_wal(self._slot_name)
        gauge = partial(self._telemetry.gauge, subscription=self._name)
        gauge("source_asked_timestamp_seconds", time.time())
        gauge("source_wal_lsn", int(slot.wal_lsn))
        gauge("source_slot_exists", int(slot.exists))
        gauge("source_slot_active", int(slot.is_active))
        gauge("source_slot_restart_lsn", slot.restart_lsn)
        gauge("source_slot_confirmed_lsn", slot.confirmed_lsn)
        gauge("source_slot_retained_bytes", slot.retained_bytes)
        gauge("source_slot_safe_wal_bytes", slot.safe_bytes)
        gauge("source_slot_limit_bytes", slot.limit_bytes)
        self._telemetry.state(
            "source_slot_wal_status",
            "status",
            slot.wal_status,
            subscription=self._name,
        )

    def refused(self, session: Session) -> None:
        """Note the slot that a run ends with: it may be lost, and no verifier will ask."""
        # The error that is being raised says more than one about this.
        with suppress(Exception):
            self.watch(session)

    # ---- any thread ------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """Count an error that ends the run, or begins a pause."""
        self._telemetry.count(
            "errors_total",
            subscription=self._name,
            worker=WorkerKind.RECEIVER.value,
            sqlstate=sqlstate_of(error),
        )

    # ---- the journal's thread ------------------------------------------------------

    def begin(self) -> None:
        """Open the ring, and compare it with the log: its readers may have a backlog although
        nothing is received."""
        self._opened()

    def logging(self, data: bytes, lengths: Lengths) -> None:
        """Note messages that are about to be logged."""
        commits: Commits | list[tuple[int, int]]
        if len(lengths) <= _FEW:
            pairs = commits = find_few(data, lengths)
        else:
            commits = find_commits(data, lengths)
            pairs = commits.pairs()
        self._logging = len(data), len(lengths), commits
        times = self._opened()
        if times is not None:
            for end, when in pairs:
                times.append(Lsn(end), when)

    def durable(self) -> None:
        """Note that the messages of the last ``logging`` are durable."""
        size, messages, commits = self._logging
        now = time.time()
        with self._lock:
            sums = self._durable
            sums.size += size
            sums.messages += messages
            if isinstance(commits, Commits):
                counts, seconds = ages(commits.times, now)
                sums.counts = [a + b for a, b in zip(sums.counts, counts, strict=True)]
                sums.seconds += seconds
                sums.transactions += len(commits.times)
                return
            for _, when in commits:
                age = max(0.0, now - _EPOCH_SECONDS - when / 1e6)
                sums.counts[bisect_left(BUCKETS, age)] += 1
                sums.seconds += age
                sums.transactions += 1

    def _count(self, name: str, amount: int) -> None:
        self._telemetry.count(name, amount, subscription=self._name)

    def _opened(self) -> CommitTimes | None:
        now = time.monotonic()
        if self._times is None and now >= self._next_attempt:
            self._next_attempt = now + _RETRY_SECONDS
            try:
                times = CommitTimes.open_writer(self._run_directory, self._subid)
            except OSError as error:
                if not self._has_warned:
                    get_logger().warning(
                        "could not open the file of commit times; it is tried again",
                        error=str(error),
                    )
                self._has_warned = True
                return None
            times.cut(self._log.logged)
            self._fill(times)
            self._times = times
        return self._times

    def _fill(self, times: CommitTimes) -> None:
        """Add the transactions that only the segments have."""
        try:
            reader = LogReader(self._log_directory)
            segments = [s for s in reader.above(times.last_end) if s.transactions]
            step = 1 + len(segments) // _SEGMENTS
            for first in range(0, len(segments), step):
                last = segments[min(first + step, len(segments)) - 1]
                commits = _sealed_commits(reader, segments[first])
                if step > 1:
                    # The file of the first of them stands for the others, too.
                    commits = Commits(
                        np.array([last.sealed_lsn], np.int64), commits.times[:1]
                    )
                for end, when in commits.pairs():
                    times.append(Lsn(end), when)
        except Wal2LakeError as error:
            get_logger().warning(
                "could not read commit times from the change log", error=error
            )

    def close(self) -> None:
        """Unmap the ring. Called once the journal's thread has ended."""
        if self._times is not None:
            self._times.close()
            self._times = None


def _sealed_commits(reader: LogReader, segment: Manifest) -> Commits:
    table = reader.read(segment.transactions_file, ["end_lsn", "commit_time"])
    return Commits(
        table.column("end_lsn").to_numpy(), table.column("commit_time").to_numpy()
    )
