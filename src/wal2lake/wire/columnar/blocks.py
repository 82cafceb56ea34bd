"""Row changes of a run, grouped by relation version, as log-layout batches.

In: the row and TRUNCATE messages of a run, with the transactions of timeline.py, and
the relations that were known before the run. Out: one ChangeBlock per relation version that has
rows (the log layout is in decoder.py's header).

A binary search finds the relation version of every row. Versions are sorted by the key
``relid << 32 | number of the Relation message`` (0 for versions known before), and a row's
version has the greatest key not above ``relid << 32 | number of the row's message``.

Only Relation, Type and TRUNCATE messages are read one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.model import Lsn, Oid, Relation
from wal2lake.wire.columnar.columns import (
    BINARY,
    TEXT,
    UNCHANGED,
    Slices,
    Spread,
    walk_tuples,
)
from wal2lake.wire.columnar.framing import Bytes, Frames, Ints, Words, require, where
from wal2lake.wire.columnar.timeline import Timeline
from wal2lake.wire.pgoutput import (
    RelationMessage,
    Truncate,
    TypeMessage,
    read_message,
)
from wal2lake.wire.stream import PROTOCOL, RelationVersion, StreamState

_INSERT: Final = ord("I")
_UPDATE: Final = ord("U")
_DELETE: Final = ord("D")
_TRUNCATE: Final = ord("T")
_NEW: Final = ord("N")
_KEY: Final = ord("K")
_FULL: Final = ord("O")

_ROW_HEADER: Final = 8
"""Bytes of a row message up to its first column: kind, relid, action, column count."""
_NEW_HEADER: Final = 3
"""Bytes between an old and a new tuple: action, column count."""
_KEY_SHIFT: Final = np.uint64(32)


@dataclass(frozen=True, slots=True)
class ChangeBlock:
    """The rows of one relation version in one feed, in stream order."""

    relation: Relation
    type_names: Mapping[Oid, str]
    """``schema.name`` of the columns' user-defined types."""
    batch: Any
    """pyarrow.RecordBatch in the log layout."""


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Row changes in stream order; all arrays have one element per row."""

    message: Ints
    """Number of the row's message in the run."""
    relid: Words
    op: Bytes
    action: Bytes
    """Kind of the first tuple: N, K or O; 0 for TRUNCATE."""
    count: Words
    """Columns of the first tuple."""
    commit_lsn: Ints
    ordinal: Ints
    options: Bytes

    def taken(self, index: Ints) -> ChangeRows:
        """Return the rows at these positions."""
        return ChangeRows(*(getattr(self, f.name)[index] for f in fields(self)))

    def merged(self, other: ChangeRows) -> ChangeRows:
        """Merge the rows of both, in stream order."""
        both = ChangeRows(
            *(
                np.concatenate((getattr(self, f.name), getattr(other, f.name)))
                for f in fields(self)
            )
        )
        return both.taken(np.argsort(both.message, kind="stable"))


def read_rows(
    frames: Frames, messages: Ints, timeline: Timeline, skip_below: Lsn
) -> ChangeRows:
    """Read the headers of INSERT, UPDATE and DELETE messages; raises Suspect."""
    messages, commit_lsn = _not_skipped(messages, timeline, skip_below)
    require((frames.lengths(messages) >= _ROW_HEADER).all())
    # The header is exactly one word.
    header = frames.words(frames.fields[messages] - 1)
    op = frames.kinds[messages]
    action = (header >> np.uint64(16)).astype(np.uint8)
    old = (action == _KEY) | (action == _FULL)
    new = action == _NEW
    require(((new & (op != _DELETE)) | (old & (op != _INSERT))).all())
    return ChangeRows(
        message=messages,
        relid=(header >> np.uint64(24)) & np.uint64(0xFFFFFFFF),
        op=op,
        action=action,
        count=header & np.uint64(0xFFFF),
        commit_lsn=commit_lsn,
        ordinal=timeline.ordinals(messages),
        options=np.zeros(len(messages), np.uint8),
    )


def read_truncates(
    frames: Frames, messages: Ints, timeline: Timeline, skip_below: Lsn
) -> ChangeRows:
    """Read one row per relation of each TRUNCATE; raises Suspect or ProtocolViolation."""
    messages, commit_lsn = _not_skipped(messages, timeline, skip_below)
    truncates = []
    for number in messages.tolist():
        message = read_message(frames.message(number), protocol=PROTOCOL)
        if not isinstance(message, Truncate):
            raise InternalError("a TRUNCATE message was read as something else")
        truncates.append(message)
    of = np.repeat(
        np.arange(len(messages)), np.array([len(t.relids) for t in truncates], np.int64)
    )
    return ChangeRows(
        message=messages[of],
        relid=np.array([r for t in truncates for r in t.relids], np.uint64),
        op=np.full(len(of), _TRUNCATE, np.uint8),
        action=np.zeros(len(of), np.uint8),
        count=np.zeros(len(of), np.uint64),
        commit_lsn=commit_lsn[of],
        ordinal=timeline.ordinals(messages)[of],
        options=np.array([t.options for t in truncates], np.uint8)[of],
    )


def _not_skipped(
    messages: Ints, timeline: Timeline, skip_below: Lsn
) -> tuple[Ints, Ints]:
    """Return the messages that are not skipped, and their commit LSNs."""
    require(timeline.inside(messages))
    commit_lsn = timeline.final_lsn[timeline.slot[messages]]
    # LSNs ascend, so nothing is skipped if the first row is not.
    if len(messages) and commit_lsn[0] < skip_below:
        keep = commit_lsn >= skip_below
        return messages[keep], commit_lsn[keep]
    return messages, commit_lsn


@dataclass(frozen=True, slots=True)
class Versions:
    """The relation versions of one run."""

    versions: list[RelationVersion]
    keys: Words
    """Keys in ascending order: relid << 32 | number of the Relation message."""
    of_key: Ints
    """Position in ``versions`` of each key."""

    def of(self, rows: ChangeRows) -> Ints:
        """Return each row's position in ``versions``; raises Suspect for an unknown relid."""
        wanted_keys = rows.relid << _KEY_SHIFT | rows.message.view(np.uint64)
        positions = np.searchsorted(self.keys, wanted_keys, side="right") - 1
        require((positions >= 0).all())
        require((self.keys[positions] >> _KEY_SHIFT == rows.relid).all())
        return self.of_key[positions]


@dataclass(frozen=True, slots=True)
class KnownRelations:
    """A relation cache prepared for look-ups; valid while the cache does not change."""

    source: dict[Oid, RelationVersion]
    versions: list[RelationVersion]
    position: dict[Oid, int]
    keys: Words

    @classmethod
    def of(cls, source: dict[Oid, RelationVersion]) -> KnownRelations:
        """Prepare ``source``, which must not change afterwards."""
        relids = sorted(source)
        return cls(
            source,
            [source[relid] for relid in relids],
            {relid: i for i, relid in enumerate(relids)},
            np.array(relids, np.uint64) << _KEY_SHIFT,
        )

    def described(
        self, frames: Frames, messages: Ints, state: StreamState
    ) -> tuple[StreamState, Versions]:
        """Return the caches after these Relation and Type messages, and all versions.

        ``state`` itself is not changed; raises ProtocolViolation.
        """
        indexes = np.arange(len(self.versions))
        if not len(messages):
            return state, Versions(self.versions, self.keys, indexes)
        state = state.copy()
        versions = list(self.versions)
        positions = {relid: [position] for relid, position in self.position.items()}
        keys: list[int] = []
        of_key: list[int] = []
        for number in messages.tolist():
            message = read_message(frames.message(number), protocol=PROTOCOL)
            if not isinstance(message, RelationMessage | TypeMessage):
                raise InternalError("a description was read as something else")
            state.describe(message)
            if isinstance(message, TypeMessage):
                continue
            relid = message.relation.relid
            version = state.relations[relid]
            mine = positions.setdefault(relid, [])
            same = [i for i in mine if versions[i] == version]
            if not same:
                same = [len(versions)]
                mine += same
                versions.append(version)
            keys.append(relid << 32 | number)
            of_key += same
        # A stable sort: a Relation message that opens the run follows the versions known before.
        all_keys = np.concatenate((self.keys, np.array(keys, np.uint64)))
        order = np.argsort(all_keys, kind="stable")
        all_of_key = np.concatenate((indexes, np.array(of_key, np.int64)))
        return state, Versions(versions, all_keys[order], all_of_key[order])


def change_blocks(
    frames: Frames, rows: ChangeRows, versions: Versions
) -> list[ChangeBlock]:
    """Convert the rows to blocks, in the order of their first rows; raises Suspect."""
    if not len(rows.message):
        return []
    positions = versions.of(rows)
    single = (positions == positions[0]).all()
    groups = [(int(positions[0]), rows)] if single else _grouped(rows, positions)
    blocks = []
    for position, own in groups:
        version = versions.versions[position]
        batch = _batch(frames, own, version.relation)
        blocks.append(ChangeBlock(version.relation, version.type_names, batch))
    return blocks


def _grouped(rows: ChangeRows, positions: Ints) -> list[tuple[int, ChangeRows]]:
    # NumPy sorts 16-bit numbers stably by radix, ten times faster than wider ones.
    narrow = positions.astype(np.uint16) if positions.max() < 1 << 16 else positions
    order = np.argsort(narrow, kind="stable")
    arranged = positions[order]
    starts = np.concatenate(([0], where(arranged[1:] != arranged[:-1]) + 1))
    parts = np.split(order, starts[1:])
    groups = [(int(positions[part[0]]), part) for part in parts]
    groups.sort(key=lambda group: int(group[1][0]))
    return [(position, rows.taken(part)) for position, part in groups]


def _batch(frames: Frames, rows: ChangeRows, relation: Relation) -> Any:
    """Build the log-layout batch of rows of one relation version; raises Suspect."""
    columns = len(relation.columns)
    truncated = rows.op == _TRUNCATE
    old = (rows.action == _KEY) | (rows.action == _FULL)
    new = (rows.op == _INSERT) | (rows.op == _UPDATE)
    require(((rows.count == columns) | truncated).all())

    begin = frames.fields[rows.message]
    ends = frames.ends[rows.message]
    cursor = begin + (_ROW_HEADER - 1)
    old_rows, new_rows = where(old), where(new)
    old_slices: list[Slices] = []
    if len(old_rows):
        old_slices, cursor[old_rows] = walk_tuples(
            frames, cursor[old_rows], columns, old=True
        )
        _step_over_new_header(frames, cursor, where(old & new), columns)
    everywhere = len(new_rows) == len(new)
    chosen: Any = slice(None) if everywhere else new_rows
    new_slices, cursor[chosen] = walk_tuples(frames, cursor[chosen], columns, old=False)
    # Cursors never move back, so a cursor that ends in the right place was always right.
    require(((cursor == ends) | truncated).all())

    out = _Batch()
    if frames.xids is None:
        out.required("commit_lsn", pa.array(rows.commit_lsn))
    else:
        out.required("xid", pa.array(frames.xids[rows.message]))
    out.required("ordinal", pa.array(rows.ordinal))
    out.required("op", pa.array(rows.op))
    out.required("old", pa.array(np.where(old, rows.action, np.uint8(0))))
    if rows.options.any():
        out.required("options", pa.array(rows.options))
    spread = Spread(frames.data, begin, None if everywhere else new_rows)
    for i, slices in enumerate(new_slices):
        out.nullable(f"c{i}", spread.values(slices))
        if slices.any(UNCHANGED):
            out.required(f"u{i}", spread.has(slices, UNCHANGED))
        if slices.any(BINARY):
            out.required(f"b{i}", spread.has(slices, BINARY))
    spread = Spread(frames.data, begin, old_rows)
    whole = bool((rows.action == _FULL).any())
    for i, slices in enumerate(old_slices):
        binary = slices.any(BINARY)
        if whole or binary or relation.columns[i].is_key or slices.any(TEXT):
            out.nullable(f"o{i}", spread.values(slices))
        if binary:
            out.required(f"ob{i}", spread.has(slices, BINARY))
    return out.batch()


def _step_over_new_header(
    frames: Frames, cursor: Ints, rows: Ints, columns: int
) -> None:
    """Move the cursors of rows with both tuples from the end of the old one into the new one."""
    starts = cursor[rows]
    header = frames.windows(starts) >> np.uint64(40)
    require((header == (_NEW << 16 | columns)).all())
    cursor[rows] = starts + _NEW_HEADER


class _Batch:
    """A builder of a record batch."""

    __slots__ = ("_arrays", "_fields")

    def __init__(self) -> None:
        self._arrays: list[Any] = []
        self._fields: list[Any] = []

    def required(self, name: str, array: Any) -> None:
        self._arrays.append(array)
        self._fields.append(pa.field(name, array.type, nullable=False))

    def nullable(self, name: str, array: Any) -> None:
        self._arrays.append(array)
        self._fields.append(pa.field(name, array.type))

    def batch(self) -> Any:
        return pa.RecordBatch.from_arrays(self._arrays, schema=pa.schema(self._fields))
