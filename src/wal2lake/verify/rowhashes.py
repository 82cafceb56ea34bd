"""Two hashes of each row, and one of its key: equal at both sides.

Comes in: the columns of a batch, their forms, the key's positions. Goes out: ``RowHashes``. The
same in SQL: ``statements``. Called by ``sides``.

A row's hash is hash_bytes_extended() of its image, with two seeds: the whole row is mixed by one
function, so a value's place counts, and the hash of a row is no sum of its columns' hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wal2lake.verify.forms import ColumnForm
from wal2lake.verify.images import row_images
from wal2lake.verify.lookup3 import hash_bytes

Hashes = NDArray[np.uint64]

FIRST_SEED: Final = 0x243F6A8885A308D3
SECOND_SEED: Final = 0x13198A2E03707344
KEY_SEED: Final = 0x2B7E151628AED2A6
"""Digits of pi and of e, with which nobody can have an intention."""

_MOST_BYTES: Final = 512 << 20
"""Bytes of columns up to which their rows are hashed at once. An Arrow array has less than
2 GiB."""


@dataclass(frozen=True, slots=True)
class RowHashes:
    """Hashes of some rows."""

    key: Hashes
    """The hash of each row's key; of a table without a key, the first hash of the row."""
    first: Hashes
    second: Hashes

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.first)

    def chosen(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> RowHashes:
        """Return the hashes of some of the rows."""
        return RowHashes(self.key[rows], self.first[rows], self.second[rows])


def hash_rows(
    columns: Sequence[pa.Array], forms: Sequence[ColumnForm], key: Sequence[int]
) -> RowHashes:
    """Hash rows; ``key``: the positions of the key's columns, empty without a key."""
    rows = len(columns[0])
    if rows > 1 and sum(column.nbytes for column in columns) > _MOST_BYTES:
        half = rows // 2
        return united(
            [
                hash_rows([c.slice(0, half) for c in columns], forms, key),
                hash_rows([c.slice(half) for c in columns], forms, key),
            ]
        )
    first, second = hash_bytes(row_images(columns, forms), (FIRST_SEED, SECOND_SEED))
    if not key:
        return RowHashes(first, first, second)
    key_images = row_images([columns[i] for i in key], [forms[i] for i in key])
    return RowHashes(hash_bytes(key_images, (KEY_SEED,))[0], first, second)


def united(parts: Sequence[RowHashes]) -> RowHashes:
    """Return the hashes of all parts."""
    if not parts:
        none = np.zeros(0, np.uint64)
        return RowHashes(none, none, none)
    return RowHashes(
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.second for part in parts]),
    )
