"""Decoding of every transaction of a connection to Arrow: whole, streamed or prepared.

In: ``feed(data, lengths)``, like Decoder's. Out: events in stream order (streamed.py). A run
without stream blocks and two-phase messages goes to Decoder unchanged, without additional cost. Any
other run is divided at the messages that are not in protocol 1:

    ... B I I C ... │ S │ R I I U ... │ E │ B I C │ c │ b │ I I │ P │ K ...
    └── Decoder ──┘     └─ _changes ─┘              └─ one by one ─┘

The same column-wise code reads changes between Stream Start and Stop, and between Begin Prepare and
Prepare. Their rows have the subtransaction's xid in place of the commit LSN, which is not known
yet. A stream's relations are its own until it commits; then they become the connection's, unless a
later message by the publisher's clock has described them outside of the stream.

    message   needs                                       then
    S         no open block or transaction; "first" if    its block is open
              and only if the stream is not known
    O         to follow the first S or b at once          unchanged
    E         an open block                               closed
    A         no open block                               (sub)transaction removed
    c p       no open block; a known stream               removed; c: LSNs as for C
    b         no open block or transaction                its changes until P
    P         b's LSNs, xid, gid; or no b: an empty       closed
              transaction, as older minor releases send
    K r       no open block or transaction                LSNs as for c

The LSN of a Prepare may be below ends that were sent before: a transaction that was prepared before
two_phase was enabled is sent at its COMMIT PREPARED.

``headless``: the run may begin in the middle of a transaction, like a journal whose oldest files
have been removed. Then only descriptions of the blocks of an unknown stream are kept. A Prepare
without Begin Prepare is an empty transaction in this case, too: the journal file of a Begin Prepare
is removed only after its changes have been stored elsewhere. ``covered``: streams whose blocks are
skipped because a checkpoint has them.

Called by changelog on the decoding thread, and in recovery. Not thread-safe.

Sources: apply_handle_stream_* and apply_handle_*prepare* in worker.c; ReorderBufferFinishPrepared
in reorderbuffer.c; reference 4.4, 4.5; traps ("Stream").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn, Xid
from wal2lake.wire.columnar.decoder import Decoded, Decoder
from wal2lake.wire.columnar.framing import Frames, Suspect, misframed, where
from wal2lake.wire.columnar.streamed import (
    Described,
    OpenStream,
    PreparedCommitted,
    PreparedRolledBack,
    StreamAborted,
    StreamCommitted,
    Streamed,
    StreamedDefinition,
    StreamPrepared,
)
from wal2lake.wire.columnar.streamedchanges import (
    described,
    explain_changes,
    located,
    read_changes,
    wrong,
)
from wal2lake.wire.columnar.timeline import (
    CLASS_OF_KIND,
    DESCRIPTION,
)
from wal2lake.wire.pgoutput import (
    BeginPrepare,
    CommitPrepared,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    message_name,
    read_message,
)
from wal2lake.wire.stream import (
    LSN_LIMIT,
    OpenTransaction,
    StreamState,
)

Event: TypeAlias = (
    Decoded
    | Streamed
    | StreamAborted
    | StreamCommitted
    | StreamPrepared
    | PreparedCommitted
    | PreparedRolledBack
)

_ORIGIN: Final = ord("O")
_PARALLEL_ABORT_LENGTH: Final = 25
"""Length of a Stream Abort with LSN and time. The option decides whether it has them; the decoder
sees it from the length."""

_MARK: Final = np.zeros(256, np.bool_)
_MARK[list(b"SEcAbPpKr")] = True


@dataclass(frozen=True, slots=True)
class _State:
    """The state between two feeds; replaced as a whole."""

    streams: Mapping[Xid, OpenStream]
    inside: Xid | None = None
    """The transaction whose block is open."""
    preparing: BeginPrepare | None = None
    """The Begin Prepare whose Prepare has not been sent."""
    prepared: OpenStream | None = None
    """Rows and messages of the prepared transaction so far; its caches are the connection's."""
    sent: Mapping[Described, int] | None = None
    """Times at which the connection's descriptions were sent."""


class StreamDecoder:
    """Decodes the whole stream of one subscription."""

    def __init__(
        self,
        *,
        skip_below: Lsn = INVALID_LSN,
        headless: bool = False,
        streams: Mapping[Xid, OpenStream] | None = None,
    ) -> None:
        """``skip_below`` is like Decoder's, for transactions that are sent after their commit.
        ``streams`` has the open streams that are known from checkpoints."""
        self._plain = Decoder(skip_below=skip_below)
        self._headless = headless
        self._state = _State(dict(streams or {}))
        self.covered: frozenset[Xid] = frozenset()
        """Streams whose blocks are skipped; may be set between two feeds."""

    @property
    def open_transaction(self) -> OpenTransaction | None:
        """The transaction that is not streamed and whose Commit has not been fed yet."""
        return self._plain.open_transaction

    @property
    def inside(self) -> bool:
        """True if a stream block is open."""
        return self._state.inside is not None

    def feed(self, data: bytes, lengths: NDArray[np.uint32]) -> list[Event]:
        """Decode a run of payloads; raises like Decoder.feed, without changing the state."""
        if not len(lengths) and not data:
            return []
        state, plain = self._state, self._plain.snapshot()
        try:
            try:
                frames = Frames(data, lengths)
            except Suspect:
                raise self._misframed(data, lengths) from None
            return self._feed(frames)
        except BaseException:
            self._state = state
            self._plain.restore(plain)
            raise

    def _misframed(self, data: bytes, lengths: NDArray[np.uint32]) -> ProtocolViolation:
        """Return the violation of a payload that is not an XLogData; raises an earlier one."""
        number, problem = misframed(data, lengths)
        self._feed(
            Frames(data[: lengths[:number].sum(dtype=np.int64)], lengths[:number])
        )
        return problem

    def _feed(self, frames: Frames) -> list[Event]:
        marks = where(_MARK[frames.kinds]).tolist()
        events: list[Event] = []
        first = 0
        for number in [*marks, len(frames)]:
            if number > first:
                self._run(frames.part(first, number), events)
            if number < len(frames):
                try:
                    event = self._mark(frames, number)
                except ProtocolViolation as error:
                    raise located(error, frames, number) from None
                if event is not None:
                    events.append(event)
            first = number + 1
        return events

    # ---- runs between marks --------------------------------------------------------

    def _run(self, frames: Frames, events: list[Event]) -> None:
        state = self._state
        if state.inside is not None:
            stream = state.streams[state.inside]
            if state.inside in self.covered:
                return
            if stream.lost:
                try:
                    self._keep(described(frames, stream))
                except (Suspect, ProtocolViolation):
                    raise explain_changes(
                        frames, stream, stream.state, in_stream=True
                    ) from None
            else:
                self._keep(self._changes(frames, stream, stream.state, events))
        elif state.preparing is not None and state.prepared is not None:
            self._note_sent(frames)
            caches = self._plain.state
            own = self._changes(frames, state.prepared, caches, events)
            self._plain.state = own.state
            self._state = replace(self._state, prepared=own)
        else:
            self._note_sent(frames)
            events.append(self._plain.feed_frames(frames))

    def _keep(self, stream: OpenStream) -> None:
        streams = {**self._state.streams, stream.xid: stream}
        self._state = replace(self._state, streams=streams)

    def _note_sent(self, frames: Frames) -> None:
        """Remember when the connection's descriptions were sent."""
        described = where(CLASS_OF_KIND[frames.kinds] == DESCRIPTION)
        if not len(described):
            return
        sent = dict(self._state.sent or {})
        for number in described.tolist():
            if frames.ends[number] - frames.fields[number] >= 4:
                definition = StreamedDefinition(
                    frames.message(number), frames.send_time(number), frozenset()
                )
                sent[definition.described] = definition.sent
        self._state = replace(self._state, sent=sent)

    def _changes(
        self,
        frames: Frames,
        stream: OpenStream,
        caches: StreamState,
        events: list[Event],
    ) -> OpenStream:
        """Read rows of one transaction; appends a Streamed and returns the stream after them."""
        in_stream = self._state.inside is not None
        if frames.kinds[0] == _ORIGIN and stream.just_begun:
            try:
                origin = read_message(frames.message(0), in_stream=in_stream)
            except ProtocolViolation as error:
                raise located(error, frames, 0) from None
            if not isinstance(origin, Origin):
                raise InternalError("an ORIGIN message was read as something else")
            stream = replace(stream, origin=origin.name)
            frames = frames.part(1, len(frames))
        stream = replace(stream, just_begun=False)
        if not len(frames):
            return stream
        try:
            shifted = (
                frames.streamed() if in_stream else frames.of_transaction(stream.xid)
            )
            streamed = read_changes(shifted, stream, caches, own=in_stream)
        except (Suspect, ProtocolViolation):
            raise explain_changes(frames, stream, caches, in_stream=in_stream) from None
        events.append(streamed)
        return streamed.stream

    # ---- marks, one by one -----------------------------------------------------------

    def _mark(self, frames: Frames, number: int) -> Event | None:
        state = self._state
        data = frames.message(number)
        message = read_message(
            data,
            in_stream=state.inside is not None,
            parallel=data[:1] == b"A" and len(data) == _PARALLEL_ABORT_LENGTH,
        )
        if isinstance(message, StreamStop):
            self._state = replace(state, inside=None)
            return None
        if not isinstance(message, Prepare):
            self._outside(data[0])
        match message:
            case StreamStart():
                return self._start(message)
            case StreamAbort():
                return self._abort(message)
            case StreamCommit():
                stream = self._end(message.xid, data[0])
                self._ended(message.commit_lsn, message.end_lsn, data[0])
                if stream is not None:
                    self._adopt(stream)
                return StreamCommitted(
                    message.xid,
                    message.commit_lsn,
                    message.end_lsn,
                    message.commit_time,
                    _whole(stream),
                )
            case StreamPrepare():
                stream = self._end(message.xid, data[0])
                return self._prepared(message, _whole(stream))
            case BeginPrepare():
                begun = OpenStream(message.xid, just_begun=True)
                self._state = replace(state, preparing=message, prepared=begun)
                return Streamed(begun, [], None, whole=True)
            case Prepare():
                return self._prepare(message)
            case CommitPrepared():
                self._ended(message.commit_lsn, message.end_lsn, data[0])
                return PreparedCommitted(
                    message.xid,
                    message.gid,
                    message.commit_lsn,
                    message.end_lsn,
                    message.commit_time,
                )
            case RollbackPrepared():
                self._ended(None, message.rollback_end_lsn, data[0])
                return PreparedRolledBack(
                    message.xid,
                    message.gid,
                    message.prepare_end_lsn,
                    message.rollback_end_lsn,
                )
        raise InternalError(f"no rule for a {message_name(data[0])} message")

    def _outside(self, kind: int) -> None:
        """Check that no transaction which is sent whole is open."""
        if self._plain.open_transaction is not None or self._state.preparing:
            raise wrong(f"{message_name(kind)} message inside of a transaction", kind)

    def _start(self, message: StreamStart) -> Streamed | None:
        state = self._state
        begun = None
        is_known = message.xid in state.streams
        if is_known is message.first_segment and message.xid not in self.covered:
            if is_known:
                raise wrong(
                    f"first block of streamed transaction {message.xid}, of which a"
                    " block has come before",
                    ord("S"),
                )
            if not self._headless:
                raise wrong(
                    f"block of streamed transaction {message.xid} without the first",
                    ord("S"),
                )
            self._keep(OpenStream(message.xid, lost=True))
        elif message.first_segment and not is_known:
            begun = OpenStream(message.xid, just_begun=True)
            self._keep(begun)
        self._state = replace(self._state, inside=message.xid)
        return Streamed(begun, [], None, whole=False) if begun is not None else None

    def _end(self, xid: Xid, kind: int) -> OpenStream | None:
        """Remove and return a stream that ends."""
        streams = dict(self._state.streams)
        stream = streams.pop(xid, None)
        if stream is None and not self._headless:
            raise wrong(f"streamed transaction {xid} is not known", kind)
        self._state = replace(self._state, streams=streams)
        return stream

    def _abort(self, message: StreamAbort) -> StreamAborted:
        if message.xid == message.subxid:
            # An unknown stream is allowed: it may be rolled back before its first block.
            streams = dict(self._state.streams)
            streams.pop(message.xid, None)
            self._state = replace(self._state, streams=streams)
            return StreamAborted(message.xid, message.subxid, None)
        stream = self._state.streams.get(message.xid)
        if stream is not None and message.xid not in self.covered:
            stream = stream.without(message.subxid)
            self._keep(stream)
        return StreamAborted(message.xid, message.subxid, _whole(stream))

    def _prepare(self, message: Prepare) -> StreamPrepared:
        begun, changes = self._state.preparing, self._state.prepared
        kind = ord("P")
        if self._plain.open_transaction is not None:
            raise wrong("PREPARE message inside of a transaction", kind)
        if begun is None:
            # In a headless run, too: the Begin Prepare was removed after its changes were stored.
            return self._prepared(message, OpenStream(message.xid))
        if message.prepare_lsn != begun.prepare_lsn:
            raise wrong(
                f"incorrect prepare LSN {message.prepare_lsn} in prepare message"
                f" (expected {begun.prepare_lsn})",
                kind,
                2,
            )
        if (message.xid, message.gid) != (begun.xid, begun.gid):
            raise wrong("prepare message of another transaction", kind)
        self._state = replace(self._state, preparing=None, prepared=None)
        return self._prepared(message, changes)

    def _prepared(
        self, message: Prepare | StreamPrepare, stream: OpenStream | None
    ) -> StreamPrepared:
        kind = ord("P") if isinstance(message, Prepare) else ord("p")
        self._ended(message.prepare_lsn, message.end_lsn, kind, late=True)
        return StreamPrepared(
            message.xid,
            message.gid,
            message.prepare_lsn,
            message.end_lsn,
            message.prepare_time,
            stream,
        )

    def _ended(
        self, commit: Lsn | None, end: Lsn, kind: int, *, late: bool = False
    ) -> None:
        """Check and record the end of a transaction, committed or prepared."""
        last = self._plain.state.last_end_lsn
        if end >= LSN_LIMIT:
            raise wrong(f"end_lsn {end} is out of range", kind)
        if commit is not None and end <= commit:
            raise wrong(f"end_lsn {end} is not after {commit}", kind)
        if not late and (end if commit is None else commit) < last:
            raise wrong(
                f"commit_lsn {commit or end} is before the end of the previous"
                f" transaction, {last}",
                kind,
            )
        self._plain.reached(end)

    def _adopt(self, stream: OpenStream) -> None:
        """Add the descriptions of a stream that has committed to the connection's."""
        sent = dict(self._state.sent or {})
        state = self._plain.state.copy()
        newest = [versions[-1] for versions in stream.definitions.values()]
        changed = False
        for definition in sorted(newest, key=lambda entry: not entry.described[0]):
            if definition.sent >= sent.get(definition.described, definition.sent):
                sent[definition.described] = definition.sent
                state.describe(definition.read())
                changed = True
        if changed:
            self._plain.state = state
            self._state = replace(self._state, sent=sent)


def _whole(stream: OpenStream | None) -> OpenStream | None:
    """Return the stream if its first block is not missing."""
    return None if stream is None or stream.lost else stream
