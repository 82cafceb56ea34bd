"""Sends rows to the client.

Comes in: the batches of an Outcome. Goes out: DataRow messages, up to the row limit of each
Execute, in slices of about a megabyte. So memory is bounded by a batch and not by the result, and
interrupts are noticed soon. ``main`` and ``extended`` call this module; ``copying`` sends COPY.

Values of queries are converted to a client_encoding other than UTF8 only here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wal2lake.door.client.transport import Transport
from wal2lake.errors import InternalError
from wal2lake.sql.backend import Outcome, ResultBatch
from wal2lake.sql.parameters import convert_column, is_utf8
from wal2lake.wire.frontback import Format, write_data_rows

_FIRST_SLICE_ROWS: Final = 256
"""The rows of a slice before the width of a row is known."""

_MAX_SLICE_ROWS: Final = 2048
"""The most rows of a slice. Measured: larger slices do not fit in the processor's cache."""

_SLICE_BYTES: Final = 1 << 20
"""The target size of a slice. Chosen arbitrarily, for few sends and a prompt cancel."""

TEXT_IN_BINARY: Final = frozenset({18, 19, 25, 114, 142, 705, 1042, 1043, 2275})
"""Types whose binary format is text, too: "char", name, text, json, xml, unknown, bpchar,
varchar, cstring."""


class RowStream:
    """The rows of one Outcome, taken in portions."""

    __slots__ = (
        "_at",
        "_batch",
        "_batches",
        "_formats",
        "_slice_rows",
        "_textual",
        "outcome",
    )

    def __init__(self, outcome: Outcome, formats: Sequence[Format]) -> None:
        self.outcome = outcome
        fields = outcome.fields or ()
        self._textual = tuple(
            code is Format.TEXT or field.type_oid in TEXT_IN_BINARY
            for field, code in zip(fields, formats, strict=True)
        )
        self._batches: Iterator[ResultBatch] = iter(outcome.batches)
        self._batch: ResultBatch | None = None
        self._at = 0
        self._slice_rows = _FIRST_SLICE_ROWS

    def send(
        self,
        transport: Transport,
        max_rows: int,
        *,
        encoding: str,
        check: Callable[[], None],
    ) -> tuple[int, bool]:
        """Send up to ``max_rows`` rows (0: all); return their number, and whether the limit ended.

        ``check`` is called between slices and may raise. As in PostgreSQL, the limit also counts as
        reached if no rows are left.
        """
        sent = 0
        convert = None if is_utf8(encoding) else encoding
        while max_rows <= 0 or sent < max_rows:
            check()
            batch = self._next_batch()
            if batch is None:
                return sent, False
            count = min(batch.rows - self._at, self._slice_rows)
            if max_rows > 0:
                count = min(count, max_rows - sent)
            data = self._encode(batch, self._at, self._at + count, convert)
            transport.write(data)
            self._adapt(len(data), count)
            self._at += count
            sent += count
        return sent, True

    def close(self) -> None:
        """Discard the remaining rows."""
        self._batch = None
        self._batches = iter(())
        self.outcome.close()

    def _next_batch(self) -> ResultBatch | None:
        while self._batch is None or self._at >= self._batch.rows:
            self._batch = next(self._batches, None)
            self._at = 0
            if self._batch is None:
                return None
            if len(self._batch.columns) != len(self._textual):
                raise InternalError("a batch has not the fields of its outcome")
        return self._batch

    def _encode(
        self, batch: ResultBatch, start: int, stop: int, encoding: str | None
    ) -> bytes:
        columns = [column[start:stop] for column in batch.columns]
        if encoding is not None:
            columns = [
                convert_column(column, encoding) if textual else column
                for column, textual in zip(columns, self._textual, strict=True)
            ]
        return write_data_rows(columns, stop - start)

    def _adapt(self, size: int, rows: int) -> None:
        width = max(1, size // max(1, rows))
        self._slice_rows = max(1, min(_MAX_SLICE_ROWS, _SLICE_BYTES // width))


def completion_tag(outcome: Outcome, rows: int) -> str:
    """The command tag; as in PostgreSQL, SELECT counts only the rows of this Execute."""
    is_counted = outcome.tag in ("SELECT", "FETCH")
    return f"{outcome.tag} {rows}" if is_counted else outcome.tag
