"""Digests of blocks of a table's rows.

Comes in: hashes of rows and the block of each, or the answer of a server's aggregate. Goes out:
``BlockDigests``, and the blocks in which two of them differ. Called by ``sides`` and ``compare``.

A block's digest is the number of its rows and the sums, modulo 2^64, of their two hashes. The order
of the rows has no part in it, nor has the order of reading. Sums and not XOR: the same difference
in two rows of a block is no difference to XOR, so a row that is there twice too often was never
found by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wal2lake.verify.rowhashes import RowHashes

_MODULUS = 1 << 64


@dataclass(slots=True)
class BlockDigests:
    """The digest of each block of a table, by the block's number."""

    counts: NDArray[np.int64]
    first: NDArray[np.uint64]
    second: NDArray[np.uint64]

    @classmethod
    def empty(cls, blocks: int) -> BlockDigests:
        """Return the digests of blocks without rows."""
        return cls(
            np.zeros(blocks, np.int64),
            np.zeros(blocks, np.uint64),
            np.zeros(blocks, np.uint64),
        )

    @classmethod
    def answered(
        cls, blocks: int, rows: Iterable[Sequence[str | None]]
    ) -> BlockDigests:
        """Return the digests of a server's answer: block, count, and two sums of signed numbers."""
        digests = cls.empty(blocks)
        for block, count, first, second in rows:
            number = int(str(block))
            digests.counts[number] = int(str(count))
            digests.first[number] = int(str(first)) % _MODULUS
            digests.second[number] = int(str(second)) % _MODULUS
        return digests

    def add(self, blocks: NDArray[np.int64], hashes: RowHashes) -> None:
        """Add rows, of which each belongs to the block of the same place in ``blocks``."""
        self.counts += np.bincount(blocks, minlength=len(self.counts))
        # Additions of unsigned numbers are modulo 2^64.
        np.add.at(self.first, blocks, hashes.first)
        np.add.at(self.second, blocks, hashes.second)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())

    def differing(self, other: BlockDigests) -> NDArray[np.int64]:
        """Return the numbers of the blocks that are not equal."""
        return np.flatnonzero(
            (self.counts != other.counts)
            | (self.first != other.first)
            | (self.second != other.second)
        )
