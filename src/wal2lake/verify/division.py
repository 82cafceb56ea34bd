"""The division of a table into blocks of about 16,000 rows, the same at both sides.

Comes in: the key's columns and a sample of its values, or a number of rows. Goes out: a
``Division``, which gives the block of a row here, and as an SQL expression. Called by ``sides``
and ``statements``.

    by order   the key is one integer column: the blocks are ranges of its values, so changes that
               are near each other are in few blocks. One side chooses the bounds.
    by hash    other keys: the blocks are parts of the hashes of the key. Text has another order at
               each side (collations), and the first of several columns may have few values.
               Without a key the row's own hash is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wal2lake.verify.forms import ColumnForm, ValueForm
from wal2lake.verify.rowhashes import RowHashes

BLOCK_ROWS: Final = 16_000

SAMPLE_STEP: Final = 500
"""One of so many values of the key is in the sample from which bounds are chosen. A sample of 1,000
million rows is then 16 MB, and blocks of rows in random order vary by a fifth or so."""


@dataclass(frozen=True, slots=True)
class Division:
    """A division into numbered blocks."""

    blocks: int
    bounds: tuple[int, ...] | None = None
    """The lowest value of each block but the first; None: the division is by hash."""
    column: int = 0
    """Position of the column that has the bounds."""

    def of(self, columns: Sequence[pa.Array], hashes: RowHashes) -> NDArray[np.int64]:
        """Return the block of each row."""
        if self.bounds is None:
            numbers: NDArray[np.uint64] = hashes.key & np.uint64(self.blocks - 1)
            by_hash: NDArray[np.int64] = numbers.astype(np.int64)
            return by_hash
        column = columns[self.column].cast(pa.int64())
        values = column.fill_null(_NULL).to_numpy(zero_copy_only=False)
        bounds = np.array(self.bounds, np.int64)
        by_order: NDArray[np.int64] = np.searchsorted(bounds, values, side="right")
        return by_order

    def expression(self, column: str, key_hash: str) -> str:
        """Return the SQL expression of a row's block; ``column``: the bounds' column."""
        if self.bounds is None:
            return f"{key_hash} & {self.blocks - 1}"
        if not self.bounds:
            return "0"
        listed = ",".join(str(bound) for bound in self.bounds)
        return (
            f"pg_catalog.width_bucket(COALESCE({column}::bigint, {_NULL}),"
            f" '{{{listed}}}'::bigint[])"
        )

    def ranges(self, blocks: Sequence[int]) -> Iterator[tuple[int | None, int | None]]:
        """Yield the lowest value and the first value above, of neighbouring blocks together. None:
        no bound. Only for a division by order."""
        bounds = self.bounds or ()
        first: int | None = None
        for place, block in enumerate(blocks):
            if first is None:
                first = block
            if place + 1 < len(blocks) and blocks[place + 1] == block + 1:
                continue
            yield (
                bounds[first - 1] if first > 0 else None,
                bounds[block] if block < len(bounds) else None,
            )
            first = None

    def place(self, block: int, columns: Sequence[str] | None) -> str:
        """Describe the rows of a block. ``columns``: the names of the table's columns; None if
        values of the key are not to be shown."""
        if self.bounds is None or columns is None:
            return f"block {block + 1} of {self.blocks}"
        name = columns[self.column]
        parts: list[str] = []
        if block > 0:
            parts.append(f"{name} >= {self.bounds[block - 1]}")
        if block < len(self.bounds):
            parts.append(f"{name} < {self.bounds[block]}")
        return " and ".join(parts) or "all rows"


_NULL: Final = -(2**63)
"""Stands for NULL, which a primary key does not have, but a copy with a fault may."""


def is_ordered(forms: Sequence[ColumnForm], key: Sequence[int]) -> bool:
    """Whether a table with this key is divided by order."""
    return len(key) == 1 and forms[key[0]].value is ValueForm.INTEGER


def divided_by_order(column: int, sample: NDArray[np.int64], step: int) -> Division:
    """Divide by the values of a sample, which has every ``step``-th row."""
    sample = np.sort(sample)
    every = max(1, BLOCK_ROWS // step)
    bounds = np.unique(sample[every::every])
    return Division(len(bounds) + 1, tuple(bounds.tolist()), column)


def divided_by_hash(rows: int) -> Division:
    """Divide a table of about this number of rows."""
    needed = max(1, -(-rows // BLOCK_ROWS))
    return Division(1 << (needed - 1).bit_length())
