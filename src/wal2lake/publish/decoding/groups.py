"""Small transactions that follow each other in a segment, read together.

A segment may have a hundred thousand transactions of one row. What a plugin is given of each costs
little; to cut each one's rows out of the segment's columns would cost a hundred times that. So
they are cut out for some thousand transactions at once: a plugin may take these as they are
(``OutputPlugin.group``), or gets one after the other (``changes``).

Transactions of a group have the same origin, rows only (no TRUNCATE, no messages), and none is a
step of one that was prepared.
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
from wal2lake.publish.decoding.changes import (
    DecodedChange,
    Run,
    Transaction,
    changes_at,
)

MOST_ROWS: Final = 16 * 1024
"""Rows of a group at most: some milliseconds, after which a client is heard again. A guess."""

_MOST_BYTES: Final = 8 << 20
"""The same, of rows as they are stored."""

_FEWEST: Final = 4
"""Transactions that are worth it; a guess."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Some transactions, and the rows of each relation that they have changed."""

    transactions: pa.Table
    """xid, commit_lsn, end_lsn, commit_time, origin, origin_lsn, changes."""
    runs: Sequence[Run]
    """Rows of all the transactions. A relation may have several, one behind the other."""

    @property
    def origin(self) -> str | None:
        """Through which they all came."""
        found: str | None = self.transactions.column("origin")[0].as_py()
        return found

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
        """Bytes of all rows."""
        return sum(int(run.rows.nbytes) for run in self.runs)

    def numbers(self, name: str) -> Ints:
        """A column of the transactions."""
        found: Ints = self.transactions.column(name).to_numpy()
        return found

    def first_lsns(self) -> Ints:
        """Where each transaction begins."""
        return self.numbers("commit_lsn") - CHANGE_BYTES * (self.numbers("changes") + 1)

    def described(self) -> Iterator[Transaction]:
        """Each transaction."""
        return map(transaction_of, self.transactions.to_pylist())

    def changes(
        self,
    ) -> Iterator[tuple[Transaction, Sequence[tuple[Relation, DecodedChange]]]]:
        """Each transaction with its changes, in their order."""
        commits, firsts = self.numbers("commit_lsn"), self.first_lsns()
        listed: list[tuple[Relation, DecodedChange]] = []
        keys = []
        for run in self.runs:
            rows: Any = run.rows
            lsn = rows.column("commit_lsn").to_numpy()
            number = np.searchsorted(commits, lsn)
            found = changes_at(run, firsts[number].tolist())
            listed += [(run.relation, change) for change in found]
            keys.append((number, rows.column("ordinal").to_numpy()))
        number = np.concatenate([one for one, _ in keys])
        order = np.lexsort((np.concatenate([one for _, one in keys]), number))
        bounds = np.searchsorted(number[order], np.arange(len(commits) + 1)).tolist()
        ordered = order.tolist()
        places = pairwise(bounds)
        for transaction, (begin, end) in zip(self.described(), places, strict=True):
            yield transaction, [listed[i] for i in ordered[begin:end]]


def transaction_of(found: dict[str, Any]) -> Transaction:
    """From a row of a segment's transactions."""
    commit, changes = Lsn(found["commit_lsn"]), found["changes"]
    return Transaction(
        Xid(found["xid"]),
        Lsn(commit - CHANGE_BYTES * (changes + 1)),
        commit,
        Lsn(found["end_lsn"]),
        found["commit_time"],
        found["origin"],
        Lsn(found["origin_lsn"] or 0),
        changes,
    )


def divided(manifest: Manifest, transactions: pa.Table) -> list[tuple[int, int, bool]]:
    """A segment's transactions, from number to number; True: they are a group."""
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
    found: list[tuple[int, int, bool]] = []
    begin = held = 0
    for at in range(count + 1):
        full = at < count and held + int(changes[at]) > most
        if at == count or full or origins[at] != origins[begin]:
            if at > begin:
                is_group = at - begin >= _FEWEST and held <= most
                found.append((begin, at, is_group))
            begin, held = at, 0
        if at < count:
            held += int(changes[at])
    return found
