"""Groups consecutive small transactions of a segment, which are read together.

A segment may have a hundred thousand transactions of one row. To slice each transaction's rows out
of the segment's columns would cost a hundred times as much as the plugin's callbacks. So rows are
sliced for some thousand transactions at once. A plugin may take the group as it is
(``OutputPlugin.group``), or gets one transaction after the other (``changes``).

Transactions of a group have the same origin and only rows (no TRUNCATE, no messages), and none is a
step of a prepared transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.changelog import Manifest
from wal2lake.model import Lsn, Relation, Xid
from wal2lake.publish.capture.positions import CHANGE_BYTES
from wal2lake.publish.decoding.decoded import (
    DecodedChange,
    Run,
    Transaction,
    changes_at,
)

MOST_ROWS: Final = 16 * 1024
"""Maximum rows of a group: some milliseconds, after which the client's messages are read again.
Chosen arbitrarily."""

_MOST_BYTES: Final = 8 << 20
"""Maximum bytes of a group, as stored."""

_FEWEST: Final = 4
"""Minimum number of transactions that are worth a group. Chosen arbitrarily."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Transactions, and the rows of each relation that they have changed."""

    transactions: pa.Table
    """xid, commit_lsn, end_lsn, commit_time, origin, origin_lsn, changes."""
    runs: Sequence[Run]
    """Rows of all transactions. A relation may have several consecutive runs."""

    @property
    def origin(self) -> str | None:
        """Replication origin of all the transactions."""
        origin: str | None = self.transactions.column("origin")[0].as_py()
        return origin

    @property
    def first_commit(self) -> Lsn:
        """Commit LSN of the first transaction."""
        return Lsn(self.transactions.column("commit_lsn")[0].as_py())

    @property
    def last_commit(self) -> Lsn:
        """Commit LSN of the last transaction."""
        return Lsn(self.transactions.column("commit_lsn")[-1].as_py())

    @property
    def end(self) -> Lsn:
        """End LSN of the last transaction."""
        return Lsn(self.transactions.column("end_lsn")[-1].as_py())

    @property
    def size(self) -> int:
        """Bytes of all rows of the group."""
        return sum(int(run.rows.nbytes) for run in self.runs)

    def numbers(self, name: str) -> Ints:
        """Return a column of the transactions as an array."""
        column: Ints = self.transactions.column(name).to_numpy()
        return column

    def first_lsns(self) -> Ints:
        """Return the start of each transaction."""
        return self.numbers("commit_lsn") - CHANGE_BYTES * (self.numbers("changes") + 1)

    def described(self) -> Iterator[Transaction]:
        """Yield the transactions."""
        return map(transaction_of, self.transactions.to_pylist())

    def changes(
        self,
    ) -> Iterator[tuple[Transaction, Sequence[tuple[Relation, DecodedChange]]]]:
        """Yield each transaction with its changes, in order."""
        commits, firsts = self.numbers("commit_lsn"), self.first_lsns()
        listed: list[tuple[Relation, DecodedChange]] = []
        keys = []
        for run in self.runs:
            rows: Any = run.rows
            lsn = rows.column("commit_lsn").to_numpy()
            number = np.searchsorted(commits, lsn)
            changes = changes_at(run, firsts[number].tolist())
            listed += [(run.relation, change) for change in changes]
            keys.append((number, rows.column("ordinal").to_numpy()))
        number = np.concatenate([numbers for numbers, _ in keys])
        order = np.lexsort((np.concatenate([numbers for _, numbers in keys]), number))
        bounds = np.searchsorted(number[order], np.arange(len(commits) + 1)).tolist()
        ordered = order.tolist()
        places = pairwise(bounds)
        for transaction, (begin, end) in zip(self.described(), places, strict=True):
            yield transaction, [listed[i] for i in ordered[begin:end]]


def transaction_of(row: dict[str, Any]) -> Transaction:
    """Build a transaction from a row of a segment's transactions."""
    commit, changes = Lsn(row["commit_lsn"]), row["changes"]
    return Transaction(
        Xid(row["xid"]),
        Lsn(commit - CHANGE_BYTES * (changes + 1)),
        commit,
        Lsn(row["end_lsn"]),
        row["commit_time"],
        row["origin"],
        Lsn(row["origin_lsn"] or 0),
        changes,
    )


def divided(manifest: Manifest, transactions: pa.Table) -> list[tuple[int, int, bool]]:
    """Divide a segment's transactions into ranges (begin, end, whether they form a group)."""
    count = transactions.num_rows
    steps = manifest.captured is not None and manifest.captured.steps
    if (
        steps
        or manifest.messages_files
        or any(file.has_truncate for file in manifest.files)
    ):
        return [(0, count, False)] if count else []
    rows = sum(file.rows for file in manifest.files)
    size = sum(file.file.size for file in manifest.files)
    most = max(1, min(MOST_ROWS, _MOST_BYTES * rows // max(size, 1)))
    changes = transactions.column("changes").to_numpy()
    origins = transactions.column("origin").to_pylist()
    ranges: list[tuple[int, int, bool]] = []
    begin = held = 0
    for number in range(count + 1):
        full = number < count and held + int(changes[number]) > most
        if number == count or full or origins[number] != origins[begin]:
            if number > begin:
                is_group = number - begin >= _FEWEST and held <= most
                ranges.append((begin, number, is_group))
            begin, held = number, 0
        if number < count:
            held += int(changes[number])
    return ranges
