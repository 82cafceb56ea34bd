"""Tells marked rows from others, and marks rows.

Comes in: places of keys in a table's files; rows and the transactions that delete them. Goes out:
the places of rows that the publisher has, and of marked ones; the rows with their marks. Called by
``locating``, ``kept`` and ``truncated``.

A marked row is invisible to the evaluation of a batch: it has no key, no writer, no conflict. It is
removed when a row with its key comes or ends, because a key has one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.staging.historyrows import HistoryCommits
from wal2lake.lake.upsert.keys import Index, Places
from wal2lake.lake.upsert.memory import Share
from wal2lake.lake.upsert.stored import StoredRows

NO_PLACES: Final = Places(*(np.zeros(0, np.int64),) * 3)


@dataclass(frozen=True, slots=True)
class DeletionMarks:
    """The column of a table that marks deleted rows, and the transactions of a batch."""

    column: int
    """Position of the column."""
    commits: HistoryCommits

    def times(self, lsn: Index) -> pa.Array:
        """Return the commit times of the transactions that committed at ``lsn``."""
        times = self.commits.of(lsn)["commit_time"]
        if times.null_count:
            # Without a time, a deleted row would look like one that the publisher has.
            raise InternalError("the log lacks the commit time of a transaction")
        return times

    def marked(self, rows: pa.Table, lsn: Index) -> pa.Table:
        """Return the rows as deleted by the transactions that committed at ``lsn``."""
        return self._with(rows, self.times(lsn))

    def unmarked(self, rows: pa.Table) -> pa.Table:
        """Return the rows as rows that the publisher has."""
        return self._with(rows, pa.nulls(rows.num_rows, pa.timestamp("us", "UTC")))

    def _with(self, rows: pa.Table, values: pa.Array) -> pa.Table:
        field = rows.schema.field(self.column)
        return rows.set_column(self.column, field.name, values.cast(field.type))


def split_places(
    marks: DeletionMarks, stored: StoredRows, places: Places, share: Share
) -> tuple[Places, Places]:
    """Divide places into those of rows that the publisher has and those of marked rows. TooLarge
    as in ``fetch``."""
    may_be = [n for n in np.unique(places.file) if not stored.is_null(n, marks.column)]
    here = np.flatnonzero(np.isin(places.file, may_be))
    if not here.size:
        return places, NO_PLACES
    column = stored.fetch(places.file[here], places.row[here], [marks.column], share)
    is_marked = np.zeros(len(places.key), np.bool_)
    is_marked[here] = column.column(0).is_valid().to_numpy()
    return _chosen(places, ~is_marked), _chosen(places, is_marked)


def _chosen(places: Places, mask: npt.NDArray[np.bool_]) -> Places:
    return Places(places.key[mask], places.file[mask], places.row[mask])
