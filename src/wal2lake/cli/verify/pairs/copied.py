"""Rows of a server that cannot hash them: a node, or a PostgreSQL before 14.

Comes in: a session in a transaction, a relation, its columns. Goes out: all rows, as Arrow batches
of text, read by COPY. Called by ``pairing``, whose digests are then computed here.

The text is what every client sees: the canonical output of each type (``OUTPUT_SETTINGS``). So it
is compared with the text of the other server's output functions. Columns of integers become
integers, because a key of integers is divided into ranges.

In text format neither a tab nor a newline of a value is sent as such, so Arrow divides the data,
and backslash sequences are replaced afterwards, in the columns that have any.

Memory: one block of some megabytes.

Source: CopyAttributeOutText() in src/backend/commands/copyto.c (the sequences that it writes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from wal2lake.errors import PublisherError
from wal2lake.pg import Session
from wal2lake.pg.quoting import quote_ident
from wal2lake.verify import NotComparable

_BLOCK_BYTES: Final = 4 << 20
"""Bytes to gather before they are divided into rows: enough to make the cost of a block
negligible."""

_SEQUENCES: Final = (
    ("\\\\", "\0"),
    ("\\b", "\b"),
    ("\\f", "\f"),
    ("\\n", "\n"),
    ("\\r", "\r"),
    ("\\t", "\t"),
    ("\\v", "\v"),
    ("\0", "\\"),
)
"""Backslash sequences and their characters. A doubled backslash comes first, and is a character
that no text of PostgreSQL has until all others are replaced."""


@dataclass(frozen=True, slots=True)
class CopyRead:
    """Reads the rows of one table by COPY (``verify.sides.RowReader``)."""

    session: Session
    relation: str
    """Text behind FROM: the relation, and WHERE with a filter."""
    columns: tuple[str, ...]
    integers: tuple[bool, ...]
    """Which columns are integers."""
    whole_table: str | None = None
    """The table's name, if all rows of it alone are read. A node answers that faster."""

    @property
    def rows(self) -> int | None:
        """Number of rows."""
        # A node takes no qualified name here. The search path has pg_catalog alone.
        count = self.session.query(
            f"SELECT count(*) FROM {self.relation}", patient=True
        )
        return int(str(count[0][0]))

    @contextmanager
    def batches(self) -> Iterator[Iterable[pa.RecordBatch]]:
        """Read all rows. If the block ends before them, the rest is read and dropped, because the
        session cannot be used otherwise."""
        blocks = self.session.copy_out(self._statement, block_bytes=_BLOCK_BYTES)
        try:
            yield self._batches(blocks)
        except (NotComparable, PublisherError):
            for _ in blocks:
                pass
            raise

    def _batches(self, blocks: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
        names = [f"c{number}" for number in range(len(self.columns))]
        parse = pacsv.ParseOptions(
            delimiter="\t",
            quote_char=False,
            escape_char=False,
            ignore_empty_lines=False,
        )
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=["\\N"],
            strings_can_be_null=True,
        )
        for block in blocks:
            read = pacsv.ReadOptions(
                column_names=names, block_size=len(block) + 1, use_threads=False
            )
            try:
                table = pacsv.read_csv(pa.BufferReader(block), read, parse, convert)
            except pa.ArrowInvalid:
                raise NotComparable("its text is not in UTF-8") from None
            for batch in table.to_batches():
                yield pa.record_batch(
                    [
                        column.cast(pa.int64()) if is_integer else _unescaped(column)
                        for column, is_integer in zip(
                            batch.columns, self.integers, strict=True
                        )
                    ],
                    names=names,
                )

    @property
    def _statement(self) -> str:
        columns = ", ".join(map(quote_ident, self.columns))
        if self.whole_table is not None:
            return f"COPY {self.whole_table} ({columns}) TO STDOUT"
        return f"COPY (SELECT {columns} FROM {self.relation}) TO STDOUT"


def _unescaped(column: pa.Array) -> pa.Array:
    """Replace the backslash sequences of COPY."""
    if not pc.any(pc.match_substring(column, "\\")).as_py():
        return column
    for sequence, character in _SEQUENCES:
        column = pc.replace_substring(column, sequence, character)
    return column
