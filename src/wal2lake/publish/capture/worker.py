"""The capture thread, and its requests from sessions.

    sessions ──▶ requests ──▶ a look (``step``) ──▶ segments ──▶ results ──▶ sessions

The thread looks whenever a commit is reported, and every ``LOOK_SECONDS``, because writers outside
of the node report nothing.

A session hands over a message that belongs to no table's commit (pg_logical_emit_message). The
message is added after everything visible at that time. In the same way sessions hand over the empty
transaction that a definition (CREATE TABLE, GRANT) is for decoders, a transaction that is prepared,
and the end of one without a commit of a table. A prepared transaction is in the log twice: at its
PREPARE, and when it commits, like any other. Transactions that a subscription's publisher has
prepared are handed on (``cascading.handing``).

A session that needs everything visible to be captured (to create a slot, to read the log's
position) calls ``catch_up``, which returns the end of the log and the versions of the tables there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog
from wal2lake.changelog import LogReader, TwoPhase
from wal2lake.errors import StorageError, Wal2LakeError
from wal2lake.lake import TablePort
from wal2lake.lake.capture import ComparisonMemory, Emitted, OriginMark
from wal2lake.model import Lsn
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.publish.capture.cascading.cascade import Cascade
from wal2lake.publish.capture.cascading.handing import HandingOn
from wal2lake.publish.capture.recorder import TransactionRecorder
from wal2lake.publish.capture.requests import CaptureRequest, Point, Preparation
from wal2lake.publish.capture.statementchanges import Statements
from wal2lake.publish.capture.step import CaptureHost, CaptureStep

LOOK_SECONDS: Final = 1.0
"""Interval of looks for commits of writers outside of the node. Chosen arbitrarily."""

_RETRY_SECONDS: Final = 5.0

_CHECK_SECONDS: Final = 0.05
"""Interval of checks during a wait for capture. Chosen so that users do not notice it."""

CATCH_UP_SECONDS: Final = 600.0
"""Time limit for capture to reach the visible state. Longer than any client waits."""


class Capture:
    """Captures the commits of one node, from ``start`` to ``stop``. Other methods may be called
    by any thread."""

    def __init__(
        self,
        catalog: Catalog,
        tables: TablePort,
        host: CaptureHost,
        directory: Path,
        memory: ComparisonMemory,
        statements: Statements,
        cascade: Cascade,
        handing: HandingOn,
        segment_bytes: int,
    ) -> None:
        """``directory``: the publisher's log."""
        self._catalog = catalog
        self._directory = directory
        recorder = TransactionRecorder(
            catalog, tables, memory, statements, cascade, handing
        )
        self._step = CaptureStep(
            catalog, host, recorder, handing, directory, segment_bytes
        )
        self._log = get_logger().bind(worker="capture")
        self._repeated = RepeatedErrors()
        self._wake = threading.Condition()
        self._requests: list[CaptureRequest] = []
        self._reported = self._stopping = False
        self.captured_at: float | None = None
        """Time (Unix) such that every commit that was visible then is in the log; None before the
        first look has ended."""
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def start(self) -> None:
        """Start the thread. Sessions take transaction numbers only afterwards: the log of an
        earlier version may have used some."""
        if self._directory.is_dir():
            # A log that cannot be read is reported by the thread, which opens it.
            with suppress(Wal2LakeError):
                newest = LogReader(self._directory).newest()
                if newest is not None and newest.captured is not None:
                    self._catalog.xids.begin_above(newest.captured.last_xid)
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End between two looks. Transactions that are not sealed are captured again."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_seconds)

    def report_commit(self) -> None:
        """Report a commit."""
        with self._wake:
            self._reported = True
            self._wake.notify()

    def catch_up(
        self, timeout_seconds: float, check: Callable[[], None] = lambda: None
    ) -> Point:
        """Capture everything visible now. Raises capture's error, or TimeoutError. ``check`` is
        called during the wait and may end it."""
        return self._request(CaptureRequest(), timeout_seconds, check)

    def emit(
        self,
        messages: Sequence[Emitted],
        *,
        transactional: bool,
        origin: OriginMark | None = None,
        statements: str = "",
        xid: int | None = None,
    ) -> Lsn:
        """Log messages after everything visible now, durably. Return the last one's position.

        While there is no slot, nothing is logged. ``transactional``: the messages form a
        transaction with the number ``xid``; ``statements`` names its file of statements.
        Otherwise each message is non-transactional."""
        request = CaptureRequest(messages, transactional, origin, statements, xid=xid)
        point = self._request(request, CATCH_UP_SECONDS)
        return point.lsn if request.lsn is None else request.lsn

    def defined(self, check: Callable[[], None], xid: int | None = None) -> None:
        """Log the transaction of a definition, which is empty for decoders, after everything
        visible now. While there is no slot, nothing is logged. ``check`` may end the wait."""
        self._request(CaptureRequest(defines=True, xid=xid), CATCH_UP_SECONDS, check)

    def prepare(self, preparation: Preparation) -> TwoPhase | None:
        """Log a prepared transaction once, durably. None if there is no slot."""
        request = CaptureRequest(preparation=preparation)
        self._request(request, CATCH_UP_SECONDS)
        return request.two_phase

    def commit_prepared(
        self, number: int, messages: Sequence[Emitted], xid: int | None
    ) -> None:
        """Log, once, the commit of a prepared transaction that has written no table."""
        request = CaptureRequest(messages, commits=number, xid=xid)
        self._request(request, CATCH_UP_SECONDS)

    def roll_back_prepared(self, number: int) -> None:
        """Log, once, the rollback of a prepared transaction, if its PREPARE is in the log."""
        self._request(CaptureRequest(rolls_back=number), CATCH_UP_SECONDS)

    def _request(
        self,
        request: CaptureRequest,
        timeout_seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> Point:
        with self._wake:
            self._requests.append(request)
            self._wake.notify()
        deadline = time.monotonic() + timeout_seconds
        while not request.done.wait(_CHECK_SECONDS):
            check()
            if self._stopping and not self._thread.is_alive():
                raise StorageError("the node is shutting down", sqlstate="57P01")
            if time.monotonic() > deadline:
                raise TimeoutError("the change log of the publisher is busy")
        if request.error is not None:
            raise request.error
        assert request.point is not None
        return request.point

    def catch_up_for_long(self) -> Point:
        """Capture everything visible now, however long that takes."""
        return self.catch_up(CATCH_UP_SECONDS)

    def captured(self) -> dict[int, int] | None:
        """Return, by OID, the version of each table that the sealed log has. None: not known."""
        if not self._catalog.slots():
            return {}
        newest = (
            LogReader(self._directory).newest() if self._directory.is_dir() else None
        )
        if newest is None or newest.captured is None:
            return None
        return dict(newest.captured.versions)

    def end(self) -> Lsn | None:
        """Return the end of the log; None if the log has not been opened."""
        writer = self._step.writer
        return None if writer is None else writer.sealed

    def origins(self) -> dict[str, Lsn]:
        """Return, for each origin, the end of its last transaction captured since the start."""
        writer = self._step.writer
        return {} if writer is None else dict(writer.origins)

    # ---- the thread ------------------------------------------------------------------

    def _run(self) -> None:
        pause = LOOK_SECONDS
        while True:
            with self._wake:
                if not (self._reported or self._requests or self._stopping):
                    self._wake.wait(pause)
                if self._stopping:
                    return
                self._reported = False
                requests, self._requests = self._requests, []
            try:
                began = time.time()
                point = self._step.look(requests)
                self.captured_at = began
                pause = LOOK_SECONDS
                self._repeated.passed(self._log)
                for request in requests:
                    request.point = point
            except Exception as error:
                pause = _RETRY_SECONDS
                # The next look begins at the last seal, as after a start.
                self._step.reset()
                for request in requests:
                    request.error = error
                self._repeated.say(self._log, "capture stopped", error)
            finally:
                for request in requests:
                    request.done.set()
