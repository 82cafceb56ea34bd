"""The files of a table as a batch has left them so far, between its runs.

Comes in: the live files of a version; for each run of the batch the files that it has added, and
the rows that it has removed. Goes out: the files and deleted rows that the next run meets, at the
end the ``adds`` and ``replaced`` of the one commit. Called by ``upsert.runs``; ``upsert.stored``
asks for deleted rows.

Why this way. A run sees exactly the table that the events before it have made, so a batch in runs
means the same as a batch at once: each event meets the same row, whichever run has written it. No
deletion vector is written before the end, so a file that loses rows in several runs gets one
vector. Deleted rows are kept by their numbers while they are few in a file, so that their removal
costs what they are and not what the file is; otherwise as a bit for each row of the file: an eighth
of a byte for each row of the table at most.

A table whose property ``delta.enableDeletionVectors`` is not true gets none: a file that loses some
of its rows is replaced by a file with the others. So is a file whose statistics do not count its
rows, since Delta allows no vector for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from wal2lake.lake.delta.datafile import discard_added
from wal2lake.lake.delta.deletionvectors import (
    Rows,
    read_vector,
    united_rows,
    write_vectors,
)
from wal2lake.lake.port import TableState
from wal2lake.lake.store import remove_file
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced, add_action

_FEW: Final = 64
"""A row's number takes as much memory as the bits of so many rows."""


class LiveFiles:
    """Files of one table version, with the effects of a batch's runs on them."""

    def __init__(self, state: TableState, files: Sequence[DataFile]) -> None:
        self._state = state
        self._stored = list(files)
        self._live = {file.key: file for file in files}
        self._added: dict[str, AddedFile] = {}
        self._rewritten: list[AddedFile] = []
        self._gone: dict[str, _Gone] = {}
        """The deleted rows of the files that lost rows."""

    @property
    def files(self) -> list[DataFile]:
        """Return the files that have rows, those of the version first."""
        return list(self._live.values())

    def gone(self, file: DataFile) -> Rows | None:
        """Return all deleted rows of a file; None if no run has removed any of its rows."""
        gone = self._gone.get(file.key)
        return None if gone is None else gone.rows()

    def add(self, adds: Sequence[AddedFile]) -> None:
        """Add the files that a run has written."""
        for added in adds:
            file = DataFile(add_action(added, data_change=True))
            self._added[file.key] = added
            self._live[file.key] = file

    def remove(self, file: DataFile, rows: npt.NDArray[np.int64], held: int) -> None:
        """Delete rows of a file. ``held``: number of rows in it, deleted rows included."""
        gone = self._gone.get(file.key)
        if gone is None:
            before = np.zeros(0, np.uint64)
            if file.vector is not None:
                before = read_vector(self._state.location, file.vector)
            gone = self._gone[file.key] = _Gone(before, held)
        gone.add(rows)
        if gone.count == held:
            del self._live[file.key]

    def empty(self) -> None:
        """Remove all rows, and the files that runs have added. The commit must replace the whole
        table."""
        discard_added(self._state.location, list(self._added.values()))
        self._stored, self._live = [], {}
        self._added, self._gone = {}, {}

    def finish(
        self, rewrite: Callable[[DataFile], Sequence[AddedFile]]
    ) -> tuple[tuple[AddedFile, ...], tuple[Replaced, ...]]:
        """Return the new files and the replaced ones of the commit. Deletion vectors are in the
        table's directory, not synced. Added files that lost all rows are removed.

        ``rewrite`` writes the rows of a file that are left to other files.
        """
        partly = [self._live[key] for key in self._gone if key in self._live]
        takes_vectors = self._state.has_vectors
        with_vector = {f.key: None for f in partly if takes_vectors and f.is_plain}
        for file in partly:
            if file.key not in with_vector:
                self._rewritten += rewrite(file)
        written = write_vectors(self._state.location, self._vectors(list(with_vector)))
        vectors = dict(zip(with_vector, written, strict=True))
        replaced = tuple(
            Replaced(file, vectors.get(file.key))
            for file in self._stored
            if file.key in self._gone
        )
        adds = []
        for key, added in self._added.items():
            if key in self._gone and key not in vectors:
                remove_file(f"{self._state.location.rstrip('/')}/{added.path}")
            else:
                adds.append(replace(added, vector=vectors.get(key)))
        return (*adds, *self._rewritten), replaced

    def hand_over(
        self, rewrite: Callable[[DataFile], Sequence[AddedFile]]
    ) -> tuple[tuple[AddedFile, ...], dict[str, Rows]]:
        """Return the new files as ``finish`` does, and all deleted rows of the version's files that
        have lost rows, by their keys: other processes may have removed rows of these, too."""
        stored = {file.key for file in self._stored}
        removed = {k: gone.rows() for k, gone in self._gone.items() if k in stored}
        for key in removed:
            self._live.pop(key, None)
        self._stored = []
        adds, _ = self.finish(rewrite)
        return adds, removed

    def _vectors(self, keys: Sequence[str]) -> Iterator[Rows]:
        for key in keys:
            yield self._gone[key].rows()

    def discard(self) -> None:
        """Remove the files that the runs have added."""
        added = [*self._added.values(), *self._rewritten]
        discard_added(self._state.location, added)


class _Gone:
    """Deleted rows of one file."""

    def __init__(self, rows: Rows, held: int) -> None:
        """``held``: number of rows in the file."""
        self._held = held
        self._few = rows
        self._bits: npt.NDArray[np.uint8] | None = None
        """A bit for each row, set if the row is deleted; None while deleted rows are few."""
        self.count = len(rows)

    def add(self, rows: npt.NDArray[np.int64]) -> None:
        """Delete rows; some may be deleted already."""
        if self._bits is None:
            if (len(self._few) + len(rows)) * _FEW < self._held:
                self._few = united_rows(self._few, rows)
                self.count = len(self._few)
                return
            self._bits = np.zeros(-(-self._held // 8), np.uint8)
            rows = np.concatenate([self._few.astype(np.int64), rows])
            self._few = self._few[:0].copy()
        np.bitwise_or.at(self._bits, rows >> 3, (128 >> (rows & 7)).astype(np.uint8))
        self.count = int(np.bitwise_count(self._bits).sum())

    def rows(self) -> Rows:
        """Return all deleted rows."""
        if self._bits is None:
            return self._few
        # Bits behind the last row are zero.
        return np.flatnonzero(np.unpackbits(self._bits)).astype(np.uint64)
