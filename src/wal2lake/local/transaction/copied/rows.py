"""The rows of one COPY ... FROM STDIN: from what the client sends to data files of a branch.

    CopyData ──▶ blocks of rows ──▶ typed rows ──▶ data files ──▶ one commit of the branch
                 (wire.copyin)      (lake.staging)

A block is converted by the kernels that convert replicated values. Values in an unusual spelling
are written in the usual one first (``values``). The first error in the order of rows is
raised, with PostgreSQL's context; with ON_ERROR ignore, rows whose values cannot be read are left
out.

Memory: a block, and the rows of one row group.

Source: CopyFrom() and CopyFromErrorCallback() in copyfrom.c, NextCopyFrom() in copyfromparse.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.catalog import local_writer as writer_of
from wal2lake.errors import About, FeatureNotSupportedError, UsageError, Wal2LakeError
from wal2lake.lake import Cursor, row_texts
from wal2lake.lake.capture import CommitRemarks, with_remarks
from wal2lake.lake.delta import TableWriter
from wal2lake.lake.plain import PlainChange
from wal2lake.lake.staging import (
    BadValue,
    ConversionRules,
    Fills,
    SentColumn,
    computed,
    convert_columns,
)
from wal2lake.local.ports import HasTables
from wal2lake.local.transaction.copied.values import as_sent, input_error
from wal2lake.sql.backend import Notice
from wal2lake.wire.copyin import BadFormat, RowBlock

_OPERATION: Final = "local transaction"

_GROUP_BYTES: Final = 32 << 20
"""Typed rows that are held before they are written as a row group."""

_SHOWN_BYTES: Final = 100
"""PostgreSQL's MAX_COPY_DATA_DISPLAY."""

_CONSTRAINTS: Final = "23"
"""Class of SQLSTATEs of rows that violate a constraint."""

_NOT_NULL: Final = "23502"

_INPUT: Final = "22"
"""Class of SQLSTATEs of values that cannot be read."""


@dataclass(frozen=True, slots=True)
class Leniency:
    """The options ON_ERROR, REJECT_LIMIT and LOG_VERBOSITY."""

    skips: bool = False
    limit: int | None = None
    verbosity: str = "default"


class CopiedRows:
    """The rows of one COPY. Used by the session's thread."""

    def __init__(
        self,
        node: HasTables,
        table: TableDef,
        columns: Sequence[ColumnDef],
        fills: Callable[[int], Fills],
        leniency: Leniency,
        zone: str,
        notice: Callable[[Notice], None],
        *,
        is_binary: bool,
    ) -> None:
        """``table``: the branch. ``columns``: those that have values. ``fills``: returns the
        defaults of the others for so many rows."""
        change = PlainChange.adding(node.tables, table.location)
        if change is None:
            raise FeatureNotSupportedError(
                f'COPY FROM is not supported for relation "{table.name}"',
                detail="Only Spark can change rows of its files.",
            )
        self._node = node
        self._table = table
        self._columns = columns
        self._fills = fills
        self._leniency = leniency
        self._zone = zone
        self._notice = notice
        self._is_binary = is_binary
        self._state = change.state
        self._writer = TableWriter(table.location, self._state.physical_fields)
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._skipped = 0
        required = {c.name for c in table.columns if c.not_null}
        self._rules = ConversionRules(
            required=frozenset(required),
            key=frozenset(table.key),
            checks=table.checks,
            generated=table.generated,
        )

    def add(self, block: RowBlock) -> None:
        """Convert the rows of a block, and write what is enough for a row group. Raises the first
        error of a row, or the block's."""
        if len(block):
            typed = self._typed(block)
            self._held.append(typed)
            self._held_bytes += typed.nbytes
            if self._held_bytes >= _GROUP_BYTES:
                self._write()
        if block.error is not None:
            if block.error.fields:
                self._read_before(block.error)
            raise self._malformed(block.error)

    def commit(self) -> int:
        """Commit the rows to the branch; returns their number."""
        self._write()
        if self._skipped and self._leniency.verbosity != "silent":
            rows = "row was" if self._skipped == 1 else "rows were"
            self._notice(
                Notice(
                    f"{self._skipped} {rows} skipped due to data type incompatibility"
                )
            )
        count = self._writer.rows
        adds = self._writer.finish()
        if adds:
            writer = writer_of(self._node.catalog.system_identifier)
            self._node.tables.commit_files(
                self._table.location,
                adds,
                Cursor(writer, (self._state.cursor(writer) or 0) + 1),
                read_version=self._state.version,
                operation=with_remarks(_OPERATION, CommitRemarks()),
            )
        return count

    def discard(self) -> None:
        """Remove what was written."""
        self._held = []
        self._writer.discard()

    def _write(self) -> None:
        if self._held:
            self._writer.write_all(pa.concat_tables(self._held))
        self._held, self._held_bytes = [], 0

    # ---- values -------------------------------------------------------------------------

    def _typed(self, block: RowBlock) -> pa.Table:
        fills = dict(self._fills(len(block)))
        rows = np.arange(len(block))
        read, numbers = block, {}
        if self._leniency.skips:
            rows = self._readable(block)
            places = pa.array(rows)
            columns = tuple(values.take(places) for values in block.columns)
            read = RowBlock(columns, block.lines[rows])
            # Rows that are left out have taken values of sequences, too.
            for name, fill in list(fills.items()):
                if fill.first is not None:
                    taken = pa.array(fill.first + fill.step * rows)
                    texts = taken.cast(pa.string()).cast(pa.binary())
                    numbers[name] = SentColumn(texts)
                    del fills[name]
        typed, bad, _ = convert_columns(
            self._sent(read) | numbers,
            self._state.fields,
            namespace=self._table.namespace,
            relation=self._table.name,
            required=self._table.key,
            rules=self._rules,
            fills=fills,
        )
        if bad:
            first = min(bad, key=self._rank)
            row = typed.slice(first.row, 1)
            first = replace(first, row=int(rows[first.row]))
            raise self._refused(block, first, row)
        return typed

    def _readable(self, block: RowBlock) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows whose values can be read. The others are skipped."""
        names = {column.name for column in self._columns}
        fields = [field for field in self._state.fields if field.name in names]
        typed, _, _ = convert_columns(self._sent(block), fields)
        readable = np.ones(len(block), np.bool_)
        first = np.zeros(len(block), np.int64)
        for place, column in reversed(list(enumerate(self._columns))):
            # A value that cannot be read is null in the typed rows.
            is_lost = pc.and_(
                typed.column(column.name).combine_chunks().is_null(),
                block.columns[place].is_valid(),
            ).to_numpy(zero_copy_only=False)
            readable &= ~is_lost
            first[is_lost] = place
        for row in np.flatnonzero(~readable).tolist():
            self._skip(block, row, int(first[row]))
        return np.flatnonzero(readable)

    def _rank(self, value: BadValue) -> tuple[int, bool, int]:
        """Return the place of an error: PostgreSQL reads a row before it checks constraints."""
        places = [column.name for column in self._columns]
        place = places.index(value.column) if value.column in places else len(places)
        return value.row, value.sqlstate.startswith(_CONSTRAINTS), place

    def _sent(self, block: RowBlock) -> dict[str, SentColumn]:
        sent = {}
        chosen = self._columns[: len(block.columns)]
        for column, values in zip(chosen, block.columns, strict=True):
            if self._is_binary:
                every = np.ones(len(block), np.bool_)
                received = SentColumn(values, every, column.type_oid)
                if column.typmod != -1:
                    # The client may not have kept to the length or scale.
                    received = as_sent(received.texts(), column, self._zone)
                sent[column.name] = received
            else:
                sent[column.name] = as_sent(values, column, self._zone)
        return sent

    def _skip(self, block: RowBlock, row: int, place: int) -> None:
        self._skipped += 1
        limit = self._leniency.limit
        line, column = int(block.lines[row]), self._columns[place].name
        shown = _shown(block.columns[place][row].as_py())
        if self._leniency.verbosity == "verbose":
            self._notice(
                Notice(
                    "skipping row due to data type incompatibility at line"
                    f' {line} for column "{column}": {shown}',
                    context=f"COPY {self._table.name}",
                )
            )
        if limit is not None and self._skipped > limit:
            error = UsageError(
                f"skipped more than REJECT_LIMIT ({limit}) rows due to data type"
                " incompatibility",
                sqlstate="22P02",
            )
            error.context = (
                f"COPY {self._table.name}, line {line}, column {column}: {shown}"
            )
            raise error

    # ---- errors -------------------------------------------------------------------------

    def _refused(
        self, block: RowBlock, value: BadValue, typed: pa.Table
    ) -> Wal2LakeError:
        """Return PostgreSQL's error. ``typed``: the row, with NULL for values that are none."""
        line = int(block.lines[value.row])
        context = f"COPY {self._table.name}, line {line}"
        columns = {c.name: (n, c) for n, c in enumerate(self._columns)}
        if value.sqlstate.startswith(_CONSTRAINTS) or value.column not in columns:
            text, detail = block.text_of(value.row), value.detail
            if value.sqlstate == _NOT_NULL:
                detail = f"Failing row contains {self._row_text(typed)}."
            error = UsageError(value.message, sqlstate=value.sqlstate, detail=detail)
            if value.column:
                error.about = About(
                    self._table.namespace, self._table.name, column=value.column
                )
            error.context = context if text is None else f"{context}: {_shown(text)}"
            return error
        number, column = columns[value.column]
        context += f", column {value.column}"
        sent = block.columns[number][value.row].as_py()
        if self._is_binary:
            failure: Wal2LakeError = UsageError(value.message, sqlstate=value.sqlstate)
        else:
            failure = input_error(sent, column, self._zone, value)
            context += f": {_shown(sent)}"
        failure.context = context
        return failure

    def _row_text(self, typed: pa.Table) -> str:
        """Return a row as PostgreSQL shows it, with the values of generated columns, which are not
        computed for a row that is refused."""
        generated, fields = self._table.generated, self._state.fields
        row, _ = computed(generated, fields, typed)
        return row_texts(fields, row)[0]

    def _read_before(self, bad: BadFormat) -> None:
        """Raise the error of a value that precedes the missing field of a line."""
        names = [c.name for c in self._columns[: len(bad.fields)]]
        line = np.asarray([bad.line], np.int64)
        arrays = tuple(pa.array([value], pa.binary()) for value in bad.fields)
        row = RowBlock(arrays, line)
        fields = [field for field in self._state.fields if field.name in names]
        typed, refused, _ = convert_columns(self._sent(row), fields)
        refused = tuple(v for v in refused if v.sqlstate[:2] == _INPUT)
        if refused:
            raise self._refused(row, min(refused, key=self._rank), typed)

    def _malformed(self, bad: BadFormat) -> UsageError:
        error = UsageError(bad.message, sqlstate=bad.sqlstate, hint=bad.hint)
        if bad.line:
            error.context = f"COPY {self._table.name}, line {bad.line}"
            if bad.text is not None:
                error.context += f": {_shown(bad.text)}"
        return error


def _shown(value: bytes) -> str:
    """Return a value as the context of an error has it."""
    if len(value) <= _SHOWN_BYTES:
        return f'"{value.decode("utf-8", "replace")}"'
    return f'"{value[:_SHOWN_BYTES].decode("utf-8", "ignore")}..."'
