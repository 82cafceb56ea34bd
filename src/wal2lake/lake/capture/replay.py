"""A batch of a subscription, as its publisher's transactions made it.

Comes in: a table's commit that is just what was sent (``messages.Sent``), and the rows files of the
subscription's log that have it. Goes out: those changes in their order, in the values that the
table has, as record batches:

    commit_lsn i64  ordinal i64, both the publisher's  op u8 (I U D T)  old u8 (0, K, O)
    c<i> binary, the new row  o<i> binary, the old key or row  options u8, of a TRUNCATE

Values go through the conversion that apply gave them, and are PostgreSQL's text as ``rows`` has it.
What was not sent because it had not changed (TOAST) is the row's value before: of an earlier change
in the batch, or what the commit has taken out of the table. So is an old row that is told whole, if
others may have written the table: there the publisher's has its key, and need not have the rest.
For both a table's events are walked one by one, which is done for no others.

``NotAsSent`` if the log's rows cannot tell what the table's changes have to: it has columns of its
own, or its replica identity is another than the publisher's. The difference that the commit makes
tells it then.

Called by capture (``publish``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.capture.commits import TableCommit
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.capture.rows import as_text, rows_gone
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
"""The column that says which values of a kind are in binary form."""


class NotAsSent(Exception):
    """Reports that a batch is not just what was sent; the module explains it."""


@dataclass(frozen=True, slots=True)
class SentTable:
    """One table's part of a batch."""

    state: TableState
    """Behind its commit."""
    commit: TableCommit
    relation: Relation
    """The relation as its changes are told: all its columns, and its replica identity."""
    key: Sequence[int]
    """Positions in it of the primary key; empty: there is none."""
    found_whole: bool
    """True if old rows are whole; ``messages.Sent`` explains it."""
    types: RemoteTypes
    """The publisher's types that are not built in."""
    memory: ComparisonMemory
    """For values that have to be remembered."""

    @property
    def tells_own(self) -> bool:
        """Old rows are told by more than what is known to be the publisher's, too."""
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
    """The rows of ``span`` in all the sources, which follow each other. ``has_unchanged``: some
    value may not have been sent. NotAsSent, CorruptLogError or StorageError at any of them: then
    what came before it is to be forgotten, too."""
    walks = (has_unchanged or table.tells_own) and table.key
    filler = _Filler(table) if walks else None
    last = (-1, -1)
    for source in sources:
        layout = _Layout(table, source.relation)
        for batch in read_rows(LogPart(source), span, layout.wanted):
            found, unknown = layout.changes(batch)
            lsn, ordinal = (found.column(name).to_numpy() for name in _PLACE)
            if (int(lsn[0]), int(ordinal[0])) < last:
                raise NotAsSent("rows of several relation versions alternate")
            last = int(lsn[-1]), int(ordinal[-1])
            if filler is not None:
                found = filler.filled(found, unknown)
            elif unknown:
                raise NotAsSent("a value that was not sent is not in the old row")
            yield found


class _Layout:
    """Rows of one of the publisher's relation versions as rows of the table."""

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
        """The rows, and where a column's value was not sent."""
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
            known = self._found_whole or i in self._key
            if missing is not None and old is not None and known:
                there = missing & old.values.is_valid().to_numpy(zero_copy_only=False)
                # An old row that is whole has what is NULL, too.
                there |= missing & (kind == _ROW)
                new, missing = new.filled(there, old), missing & ~there
            news.append(_text(new, spec, column))
            if missing is not None and missing.any():
                unknown[i] = missing
            if i in self._identity and old is not None:
                olds[i] = _text(old, spec, column)
        told, olds = self._old(op, kind, news, olds)
        columns["old"] = pa.array(told)
        if "options" in batch.schema.names:
            columns["options"] = batch.column("options")
        columns |= {f"c{i}": values for i, values in enumerate(news)}
        columns |= {f"o{i}": values for i, values in olds.items()}
        return pa.RecordBatch.from_pydict(columns), unknown

    def _check_old(self, op: Any, kind: Any) -> None:
        """The old rows that were sent have what ours must have."""
        needs = (op == _UPDATE) | (op == _DELETE)
        if not self._identity or not needs.any():
            return
        if self._whole and not self._tells_own:
            if (kind[needs] != _ROW).any():
                raise NotAsSent("old rows were not sent whole")
        elif not self._named or (kind[op == _DELETE] == 0).any():
            raise NotAsSent("old rows were sent by another key")

    def _old(
        self, op: Any, kind: Any, news: Sequence[pa.Array], olds: dict[int, pa.Array]
    ) -> tuple[Any, dict[int, pa.Array]]:
        """Which old rows are told, and those."""
        none = np.zeros(len(op), np.uint8)
        if self._tells_own:
            # Of which row; what it had is put in behind.
            had = pa.array(kind != 0)
            named = {
                i: pc.if_else(had, olds[i], news[i]) if i in olds else news[i]
                for i in self._key
            }
            changed = (op == _UPDATE) | (op == _DELETE)
            return np.where(changed, _ROW, none).astype(np.uint8), named
        if not self._identity or not olds:
            return none, {}
        if self._whole:
            return np.where(kind != 0, _ROW, none).astype(np.uint8), olds
        moved = np.zeros(len(op), np.bool_)
        for i, values in olds.items():
            moved |= _differ(values, news[i])
        told = (op == _DELETE) | (moved & (op == _UPDATE) & (kind != 0))
        where = pa.array(told)
        nothing = pa.scalar(None, pa.binary())
        return np.where(told, _KEY, none).astype(np.uint8), {
            i: pc.if_else(where, values, nothing) for i, values in olds.items()
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
    """Return the text as the table has it."""
    found = convert_column(sent, spec, mapping_of(spec))
    if found.bad:
        raise NotAsSent("a value is not what was sent")
    return as_text(found.array, column)


def _flags(batch: pa.RecordBatch, name: str) -> Mask | None:
    if name not in batch.schema.names:
        return None
    flags: Mask = pc.fill_null(batch.column(name), False).to_numpy(zero_copy_only=False)
    return flags


def _differ(left: pa.Array, right: pa.Array) -> Mask:
    """Where two texts are not the same; NULL is NULL."""
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    nulls = pc.xor(left.is_null(), right.is_null())
    found: Mask = pc.or_(unequal, nulls).to_numpy(zero_copy_only=False)
    return found


_Row = list[bytes | None]

_ROW_BYTES: Final = 250
"""Bytes that Python needs for a row that is remembered by its key; measured."""

_VALUE_BYTES: Final = 41
"""The same for each of its values, besides the value: an object of its own, and its place."""


class _Filler:
    """Knows what rows hold, from one change of the batch to the next."""

    def __init__(self, table: SentTable) -> None:
        relation = table.relation
        self._table = table
        self._columns = range(len(relation.columns))
        self._named = set(table.key) <= set(relation.key_positions)
        self._known: dict[tuple[bytes | None, ...], _Row | None] = {}
        """Rows that the batch has made, by key; None: there is no row."""
        self._stored: dict[tuple[bytes | None, ...], _Row] | None = None
        """Rows that the commit has removed from the table, once somebody asks."""
        self._left = table.memory.bytes
        self._emptied = False

    def filled(
        self, batch: pa.RecordBatch, unknown: Mapping[int, Mask]
    ) -> pa.RecordBatch:
        """The batch, which follows those before, with all its values."""
        if not self._named:
            raise NotAsSent("rows are not known by the primary key")
        self._take(batch)
        columns = [batch.column(f"c{i}").to_pylist() for i in self._columns]
        names = batch.schema.names
        nothing: _Row = [None] * batch.num_rows
        key = self._table.key
        old_key = [
            batch.column(f"o{i}").to_pylist() if f"o{i}" in names else nothing
            for i in key
        ]
        ops = batch.column("op").to_pylist()
        kinds = batch.column("old").to_pylist()
        olds: list[_Row] = [[None] * batch.num_rows for _ in self._columns]
        for at, (op, kind) in enumerate(zip(ops, kinds, strict=True)):
            if op == _TRUNCATE:
                self._known.clear()
                self._emptied = True
                continue
            old = tuple(column[at] for column in old_key)
            if self._table.tells_own and op != _INSERT:
                for column, value in zip(olds, self._before(old), strict=True):
                    column[at] = value
            if op == _DELETE:
                self._known[old] = None
                continue
            new = tuple(columns[i][at] for i in key)
            old = old if kind else new
            missing = [i for i, mask in unknown.items() if mask[at]]
            if missing:
                before = self._before(old)
                for i in missing:
                    columns[i][at] = before[i]
            if old != new:
                self._known[old] = None
            self._known[new] = [column[at] for column in columns]
        found = {name: batch.column(name) for name in names}
        found |= {f"c{i}": pa.array(columns[i], pa.binary()) for i in unknown}
        if self._table.tells_own:
            found |= {f"o{i}": pa.array(olds[i], pa.binary()) for i in self._columns}
        return pa.RecordBatch.from_pydict(found)

    def _before(self, key: tuple[bytes | None, ...]) -> _Row:
        """The row that a key has."""
        found = self._known.get(key)
        if found is None and key not in self._known and not self._emptied:
            if self._stored is None:
                self._stored = self._read()
            found = self._stored.get(key)
        if found is None:
            raise NotAsSent("a row that has changed was not there")
        return found

    def _read(self) -> dict[tuple[bytes | None, ...], _Row]:
        table = self._table
        found = {}
        for rows in rows_gone(table.state, table.commit, table.relation):
            self._take(rows)
            values = [column.to_pylist() for column in rows.columns]
            for row in zip(*values, strict=True):
                found[tuple(row[i] for i in table.key)] = list(row)
        return found

    def _take(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Before they become Python's objects."""
        each = _ROW_BYTES + _VALUE_BYTES * len(self._columns)
        self._left -= rows.nbytes + each * rows.num_rows
        if self._left < 0:
            raise NotAsSent("the batch is too large to remember")
