"""Rows on their way to the client.

In: an Outcome's batches. Out: DataRow frames, in portions as the client asks for them, each
portion in slices of about a megabyte, so that memory is bounded by a batch and not by
the result, and an interrupt is noticed soon.

Only here are values converted to a client_encoding other than UTF8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wal2lake.errors import InternalError
from wal2lake.frontend.backend import Batch, Outcome
from wal2lake.frontend.client.transport import Transport
from wal2lake.frontend.parameters import convert_column, is_utf8
from wal2lake.wire.frontback import Format, write_data_rows

_FIRST_SLICE_ROWS: Final = 256
"""Before the width of a row is known."""

_MAX_SLICE_ROWS: Final = 2048
"""Measured: larger slices only leave the processor's cache."""

_SLICE_BYTES: Final = 1 << 20
"""Aim for a slice. A guess between few sends and a prompt answer to a cancel."""

TEXT_IN_BINARY: Final = frozenset({18, 19, 25, 114, 142, 705, 1042, 1043, 2275})
"""Types whose binary form is text too: "char", name, text, json, xml, unknown, bpchar,
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
        self._batches: Iterator[Batch] = iter(outcome.batches)
        self._batch: Batch | None = None
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
        """Send up to ``max_rows`` (0: all): rows sent, and whether the limit ended it.

        ``check`` is called between slices and may raise. As in PostgreSQL the limit counts as
        reached also when the last row was the last there is.
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
        """The client wants no more."""
        self._batch = None
        self._batches = iter(())
        self.outcome.close()

    def _next_batch(self) -> Batch | None:
        while self._batch is None or self._at >= self._batch.rows:
            self._batch = next(self._batches, None)
            self._at = 0
            if self._batch is None:
                return None
            if len(self._batch.columns) != len(self._textual):
                raise InternalError("a batch has not the fields of its outcome")
        return self._batch

    def _encode(
        self, batch: Batch, start: int, stop: int, encoding: str | None
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
    """The command tag; SELECT's counts the rows of this run only, as PostgreSQL's does."""
    return f"SELECT {rows}" if outcome.tag == "SELECT" else outcome.tag
