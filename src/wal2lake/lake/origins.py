"""Stores the writer of each row of a table, and the time, beside the rows in their files.

Comes in: transactions of a batch; data files. Goes out: columns for the rows that a batch writes,
and the writers of stored rows. Used by the code that writes files of a table or looks for
conflicts, while ``apply.track_commit_timestamp`` is on. Executors import it.

Why this way. A row's origin is not a column of its table (DESIGN 2.3). A Parquet file may have
columns that the table's schema does not name, and readers of the schema never see them. So a row
keeps its origin as long as its file exists, also with deletion vectors, and our own compaction
copies it. A file that Spark has written (OPTIMIZE, any job) has no such columns, and the writers
of its rows are unknown. PostgreSQL has the same case with frozen rows, which are no
conflict there either. The rows of a local statement belong to one transaction, so their files have
a tag in their ``add`` action instead.

    _wal2lake_origin  bigint  OID of the subscription; 0: a local statement; null: not known
    _wal2lake_xid     bigint  its transaction at the publisher; local: the transaction's number
    _wal2lake_time    bigint  commit time, microseconds since 1970
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.model import Modified
from wal2lake.pgtypes.columnnames import KEPT_NAMES

Index = npt.NDArray[np.int64]

COLUMNS: Final = KEPT_NAMES
"""Names of the columns, which no column of a table has."""

LOCAL: Final = 0
"""Origin of a local statement."""

UNKNOWN: Final = -1
"""Origin of a row whose writer is unknown."""

LONG_AGO: Final = -(1 << 62)
"""Time before all known times."""

_TAG: Final = "wal2lake.origin"


@dataclass(frozen=True, slots=True)
class BatchCommits:
    """Transactions of a batch, ascending by commit LSN, and their subscription. Picklable."""

    origin: int
    """OID of the subscription."""
    lsn: Index
    xid: Index
    time_us: Index

    def of(self, lsn: Index) -> RowMarks:
        """Return the marks of rows whose transactions committed at ``lsn``."""
        positions = np.searchsorted(self.lsn, lsn)
        positions = np.minimum(positions, max(0, len(self.lsn) - 1))
        if len(lsn) and (
            not len(self.lsn) or not np.array_equal(self.lsn[positions], lsn)
        ):
            # The log has no information about one of the transactions.
            return RowMarks.unknown(len(lsn))
        origin = np.full(len(lsn), self.origin, np.int64)
        return RowMarks(origin, self.xid[positions], self.time_us[positions])


@dataclass(frozen=True, slots=True)
class RowMarks:
    """Writers of some rows, one for each row."""

    origin: Index
    xid: Index
    time_us: Index

    @classmethod
    def unknown(cls, rows: int) -> RowMarks:
        """Return marks of rows whose writers are unknown."""
        return cls(
            np.full(rows, UNKNOWN, np.int64),
            np.zeros(rows, np.int64),
            np.full(rows, LONG_AGO, np.int64),
        )

    def at(self, row: int) -> Modified | None:
        """Return the writer of one row; None if unknown."""
        if self.origin[row] == UNKNOWN:
            return None
        return Modified(
            int(self.origin[row]), int(self.xid[row]), int(self.time_us[row])
        )

    def appended(self, rows: pa.Table) -> pa.Table:
        """Return the rows with their marks as columns."""
        is_unknown = self.origin == UNKNOWN
        for name, values in zip(
            COLUMNS, (self.origin, self.xid, self.time_us), strict=True
        ):
            rows = rows.append_column(name, pa.array(values, mask=is_unknown))
        return rows


def marks_in(columns: pa.Table) -> RowMarks:
    """Read the marks of rows that were read with the three ``COLUMNS``."""
    is_unknown = columns.column(COLUMNS[0]).is_null().to_numpy()
    values = [columns.column(name).fill_null(0).to_numpy() for name in COLUMNS]
    return RowMarks(
        np.where(is_unknown, UNKNOWN, values[0]),
        values[1],
        np.where(is_unknown, LONG_AGO, values[2]),
    )


def tagged(action: Mapping[str, Any], modified: Modified) -> dict[str, Any]:
    """Add the writer to the ``add`` action of a file that one transaction has written."""
    value = json.dumps([modified.origin, modified.xid, modified.time_us])
    return {**action, "tags": {**(action.get("tags") or {}), _TAG: value}}


def tag_of(action: Mapping[str, Any]) -> Modified | None:
    """Read the tag that ``tagged`` wrote; None if there is none."""
    text = (action.get("tags") or {}).get(_TAG)
    return None if text is None else Modified(*json.loads(text))
