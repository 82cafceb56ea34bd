"""Replays a batch of a subscription as its publisher's transactions made it.

Comes in: a table's commit of exactly the changes that were sent (``commitfacts.SentBatch``), and
the row files of the subscription's log that have them. Goes out: those changes in their order, with
the values that the table has, as record batches:

    commit_lsn i64  ordinal i64, both the publisher's  op u8 (I U D T)  old u8 (0, K, O)
    c<i> binary, the new row  o<i> binary, the old key or row  options u8, of a TRUNCATE

Values go through the same conversion as in apply, and are PostgreSQL's text, as in ``changedrows``.
A value that was not sent because it had not changed (TOAST) is the row's earlier value: from an
earlier change in the batch, or from the row that the commit removed from the table. The same holds
for an old row that must be sent whole, if other writers may have written the table: then the
publisher's old row has the right key, and perhaps other values. In both cases a table's events are
walked one by one.

``NotAsSent`` if the log's rows do not have what the table's changes need: the table has columns of
its own, or another replica identity than the publisher. Then the changes are derived from the
difference that the commit makes.

Called by capture (``publish``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.capture.changedrows import as_text, rows_gone
from wal2lake.lake.capture.commits import TableCommit
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.port import FieldSpec, TableState
from wal2lake.lake.staging.convert import (
    Mask,
    SentColumn,
    convert_column,
    mapping_of,
)
from wal2lake.lake.staging.logrows import LogPart, LogSource, LsnRange, read_rows
from wal2lake.model import Column, Relation, ReplicaIdentity
from wal2lake.pgtypes import RemoteTypes

_INSERT, _UPDATE, _DELETE, _TRUNCATE = map(ord, "IUDT")
_KEY, _ROW = map(ord, "KO")

_PLACE: Final = ("commit_lsn", "ordinal")

_KINDS: Final = ("c", "u", "b", "o", "ob")

_BINARY: Final = {"c": "b", "o": "ob"}
"""The column that marks the values of a kind in binary form."""


class NotAsSent(Exception):
    """A batch is not exactly what was sent; see the module."""


@dataclass(frozen=True, slots=True)
class SentTable:
    """One table's part of a batch."""

    state: TableState
    """The table after its commit."""
    commit: TableCommit
    relation: Relation
    """The relation as subscribers see it: all its columns, and its replica identity."""
    key: Sequence[int]
    """Positions of the primary key in the relation; empty if there is none."""
    found_whole: bool
    """True if old rows are whole; see ``commitfacts.SentBatch``."""
    types: RemoteTypes
    """The publisher's types that are not built in."""
    memory: ComparisonMemory
    """Memory for values that must be remembered."""

    @property
    def tells_own(self) -> bool:
        """True if old rows need values that are not known to equal the publisher's."""
        return not self.found_whole and not set(self.relation.key_positions) <= set(
            self.key
        )


def sent_changes(
    table: SentTable,
    sources: Sequence[LogSource],
    span: LsnRange,
    *,
    has_unchanged: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of ``span`` in all sources, which follow each other. ``has_unchanged``:
    some values may not have been sent.

    Raises NotAsSent, CorruptLogError or StorageError at any of them; the caller must then discard
    the changes before it, too.
    """
    walks = (has_unchanged or table.tells_own) and table.key
    filler = _Filler(table) if walks else None
    last = (-1, -1)
    for source in sources:
        layout = _Layout(table, source.relation)
        for batch in read_rows(LogPart(source), span, layout.wanted):
            changes, unknown = layout.changes(batch)
            lsn, ordinal = (changes.column(name).to_numpy() for name in _PLACE)
            if (int(lsn[0]), int(ordinal[0])) < last:
                raise NotAsSent("rows of several relation versions alternate")
            last = int(lsn[-1]), int(ordinal[-1])
            if filler is not None:
                changes = filler.filled(changes, unknown)
            elif unknown:
                raise NotAsSent("a value that was not sent is not in the old row")
            yield changes


class _Layout:
    """Converts rows of one of the publisher's relation versions to rows of the table."""

    def __init__(self, table: SentTable, sent: Relation) -> None:
        relation = table.relation
        positions = {column.name: i for i, column in enumerate(sent.columns)}
        if positions.keys() != {column.name for column in relation.columns}:
            raise NotAsSent("the table has other columns")
        specs = {field.name: field for field in table.state.fields}
        if positions.keys() != specs.keys():
            raise NotAsSent("the table has columns of its own")
        self._sent = sent
        self._types = table.types
        self._columns = [
            (column, specs[column.name], positions[column.name])
            for column in relation.columns
        ]
        self._whole = relation.identity is ReplicaIdentity.FULL
        self._identity = relation.key_positions
        self._tells_own = table.tells_own
        self._key = table.key
        self._found_whole = table.found_whole
        self._named = all(
            sent.columns[positions[relation.columns[i].name]].is_key
            for i in (self._key if self._tells_own else self._identity)
        )

    def wanted(self, present: Collection[str]) -> list[str]:
        """Return the columns of a file that are read: all that a change may need."""
        count = len(self._sent.columns)
        names = [f"{kind}{i}" for i in range(count) for kind in _KINDS]
        return [name for name in (*names, "options") if name in present]

    def changes(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, Mask]]:
        """Return the rows, and where a column's value was not sent."""
        op = batch.column("op").to_numpy()
        kind = batch.column("old").to_numpy()
        self._check_old(op, kind)
        columns = {name: batch.column(name) for name in (*_PLACE, "op")}
        news: list[pa.Array] = []
        olds, unknown = {}, {}
        for i, (column, spec, position) in enumerate(self._columns):
            new = self._column(batch, "c", position)
            old = self._column(batch, "o", position)
            if new is None:
                raise NotAsSent("a column was not sent")
            missing = _flags(batch, f"u{position}")
            is_same = self._found_whole or i in self._key
            if missing is not None and old is not None and is_same:
                filled = missing & old.values.is_valid().to_numpy(zero_copy_only=False)
                # A whole old row also has the values that are NULL.
                filled |= missing & (kind == _ROW)
                new, missing = new.filled(filled, old), missing & ~filled
            news.append(_text(new, spec, column))
            if missing is not None and missing.any():
                unknown[i] = missing
            if i in self._identity and old is not None:
                olds[i] = _text(old, spec, column)
        old_kinds, olds = self._old_rows(op, kind, news, olds)
        columns["old"] = pa.array(old_kinds)
        if "options" in batch.schema.names:
            columns["options"] = batch.column("options")
        columns |= {f"c{i}": values for i, values in enumerate(news)}
        columns |= {f"o{i}": values for i, values in olds.items()}
        return pa.RecordBatch.from_pydict(columns), unknown

    def _check_old(self, op: Any, kind: Any) -> None:
        """Check that the old rows that were sent have the columns that ours need."""
        needs = (op == _UPDATE) | (op == _DELETE)
        if not self._identity or not needs.any():
            return
        if self._whole and not self._tells_own:
            if (kind[needs] != _ROW).any():
                raise NotAsSent("old rows were not sent whole")
        elif not self._named or (kind[op == _DELETE] == 0).any():
            raise NotAsSent("old rows were sent by another key")

    def _old_rows(
        self, op: Any, kind: Any, news: Sequence[pa.Array], olds: dict[int, pa.Array]
    ) -> tuple[Any, dict[int, pa.Array]]:
        """Return the kinds of old rows that are sent, and the old rows."""
        no_kinds = np.zeros(len(op), np.uint8)
        if self._tells_own:
            # Only the keys; ``_Filler`` adds the rows' values.
            has_old = pa.array(kind != 0)
            named = {
                i: pc.if_else(has_old, olds[i], news[i]) if i in olds else news[i]
                for i in self._key
            }
            changed = (op == _UPDATE) | (op == _DELETE)
            return np.where(changed, _ROW, no_kinds).astype(np.uint8), named
        if not self._identity or not olds:
            return no_kinds, {}
        if self._whole:
            return np.where(kind != 0, _ROW, no_kinds).astype(np.uint8), olds
        moved = np.zeros(len(op), np.bool_)
        for i, values in olds.items():
            moved |= _differ(values, news[i])
        has_key = (op == _DELETE) | (moved & (op == _UPDATE) & (kind != 0))
        where = pa.array(has_key)
        null = pa.scalar(None, pa.binary())
        return np.where(has_key, _KEY, no_kinds).astype(np.uint8), {
            i: pc.if_else(where, values, null) for i, values in olds.items()
        }

    def _column(
        self, batch: pa.RecordBatch, kind: str, position: int
    ) -> SentColumn | None:
        if f"{kind}{position}" not in batch.schema.names:
            return None
        sent = self._sent.columns[position]
        return SentColumn(
            batch.column(f"{kind}{position}"),
            _flags(batch, f"{_BINARY[kind]}{position}"),
            sent.type_oid,
            sent.typmod,
            self._types,
        )


def _text(sent: SentColumn, spec: FieldSpec, column: Column) -> pa.Array:
    """Return the values as the table has them, as text."""
    converted = convert_column(sent, spec, mapping_of(spec))
    if converted.bad:
        raise NotAsSent("a value is not what was sent")
    return as_text(converted.array, column)


def _flags(batch: pa.RecordBatch, name: str) -> Mask | None:
    if name not in batch.schema.names:
        return None
    flags: Mask = pc.fill_null(batch.column(name), False).to_numpy(zero_copy_only=False)
    return flags


def _differ(left: pa.Array, right: pa.Array) -> Mask:
    """Mark where two texts differ; NULL equals NULL."""
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    nulls = pc.xor(left.is_null(), right.is_null())
    differ: Mask = pc.or_(unequal, nulls).to_numpy(zero_copy_only=False)
    return differ


_Row = list[bytes | None]

_ROW_BYTES: Final = 250
"""Python's bytes for a row that is remembered by its key; measured."""

_VALUE_BYTES: Final = 41
"""Python's bytes for each value of such a row, besides the value: the object, and its
reference."""


class _Filler:
    """Tracks the contents of rows, from one change of the batch to the next."""

    def __init__(self, table: SentTable) -> None:
        relation = table.relation
        self._table = table
        self._columns = range(len(relation.columns))
        self._named = set(table.key) <= set(relation.key_positions)
        self._known: dict[tuple[bytes | None, ...], _Row | None] = {}
        """Rows that the batch has made, by key; None if the batch removed the row."""
        self._stored: dict[tuple[bytes | None, ...], _Row] | None = None
        """Rows that the commit has removed from the table; read at the first use."""
        self._left = table.memory.bytes
        self._emptied = False

    def filled(
        self, batch: pa.RecordBatch, unknown: Mapping[int, Mask]
    ) -> pa.RecordBatch:
        """Return the next batch with all its values."""
        if not self._named:
            raise NotAsSent("rows are not known by the primary key")
        self._reserve(batch)
        columns = [batch.column(f"c{i}").to_pylist() for i in self._columns]
        names = batch.schema.names
        nulls: _Row = [None] * batch.num_rows
        key = self._table.key
        old_key = [
            batch.column(f"o{i}").to_pylist() if f"o{i}" in names else nulls
            for i in key
        ]
        ops = batch.column("op").to_pylist()
        kinds = batch.column("old").to_pylist()
        olds: list[_Row] = [[None] * batch.num_rows for _ in self._columns]
        for row_number, (op, kind) in enumerate(zip(ops, kinds, strict=True)):
            if op == _TRUNCATE:
                self._known.clear()
                self._emptied = True
                continue
            old = tuple(column[row_number] for column in old_key)
            if self._table.tells_own and op != _INSERT:
                for column, value in zip(olds, self._current_row(old), strict=True):
                    column[row_number] = value
            if op == _DELETE:
                self._known[old] = None
                continue
            new = tuple(columns[i][row_number] for i in key)
            old = old if kind else new
            missing = [i for i, mask in unknown.items() if mask[row_number]]
            if missing:
                before = self._current_row(old)
                for i in missing:
                    columns[i][row_number] = before[i]
            if old != new:
                self._known[old] = None
            self._known[new] = [column[row_number] for column in columns]
        columns_by_name = {name: batch.column(name) for name in names}
        columns_by_name |= {f"c{i}": pa.array(columns[i], pa.binary()) for i in unknown}
        if self._table.tells_own:
            columns_by_name |= {
                f"o{i}": pa.array(olds[i], pa.binary()) for i in self._columns
            }
        return pa.RecordBatch.from_pydict(columns_by_name)

    def _current_row(self, key: tuple[bytes | None, ...]) -> _Row:
        """Return the row that a key has now."""
        row = self._known.get(key)
        if row is None and key not in self._known and not self._emptied:
            if self._stored is None:
                self._stored = self._read()
            row = self._stored.get(key)
        if row is None:
            raise NotAsSent("a row that has changed was not there")
        return row

    def _read(self) -> dict[tuple[bytes | None, ...], _Row]:
        table = self._table
        by_key = {}
        for rows in rows_gone(table.state, table.commit, table.relation):
            self._reserve(rows)
            values = [column.to_pylist() for column in rows.columns]
            for row in zip(*values, strict=True):
                by_key[tuple(row[i] for i in table.key)] = list(row)
        return by_key

    def _reserve(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Count the memory of rows before they become Python objects."""
        each = _ROW_BYTES + _VALUE_BYTES * len(self._columns)
        self._left -= rows.nbytes + each * rows.num_rows
        if self._left < 0:
            raise NotAsSent("the batch is too large to remember")
