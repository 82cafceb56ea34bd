"""Keeps the writer of each row of a table, and the time, beside the rows in their files.

Comes in: transactions of a batch; data files. Goes out: columns for the rows that a batch writes,
and those of rows that are stored. Used by whoever writes files of a table or looks for conflicts,
while ``apply.track_commit_timestamp`` is on. Executors import it.

Why this way. A row's origin is no column of its table (DESIGN 2.3): a Parquet file may hold
columns that the table's schema does not name, and readers of the schema never see them. So a row
keeps its origin as long as its file lives, deletion vectors included, and a compaction of ours
carries it along. So does Spark where it writes a branch that has these columns (``with_marks``). A
file that it has written elsewhere (OPTIMIZE, anybody's job) has none, and of its rows nothing is
known. PostgreSQL is in the same position with rows that are frozen: there, too, they are no
conflict. What a local statement has written is one transaction's, so its files say it in a tag
of their ``add`` action.

    _wal2lake_origin  bigint  OID of the subscription; 0: a local statement; null: not known
    _wal2lake_xid     bigint  its transaction at the publisher; local: the transaction's number
    _wal2lake_time    bigint  of its commit, microseconds since 1970
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
"""No column of a table has such a name."""

LOCAL: Final = 0
"""Origin of a local statement."""

UNKNOWN: Final = -1
"""Origin of a row whose writer is not known."""

LONG_AGO: Final = -(1 << 62)
"""Time before all known times."""

_TAG: Final = "wal2lake.origin"

_INDEXED: Final = "delta.dataSkippingNumIndexedCols"

_INDEXED_BY_DEFAULT: Final = 32
"""Columns that have statistics; -1 as a property means all."""

_HIGHEST_ID: Final = "delta.columnMapping.maxColumnId"

_FIRST_ID: Final = 2_147_483_000
"""Column id in files of a table whose columns have ids: the table gives it to no column of its
own."""


@dataclass(frozen=True, slots=True)
class BatchCommits:
    """Transactions of a batch, ascending by commit LSN, and their subscription. Picklable."""

    origin: int
    """OID of the subscription."""
    lsn: Index
    xid: Index
    time_us: Index

    def of(self, lsn: Index) -> RowMarks:
        """Marks of rows that transactions committed there have made."""
        at = np.searchsorted(self.lsn, lsn)
        at = np.minimum(at, max(0, len(self.lsn) - 1))
        if len(lsn) and (not len(self.lsn) or not np.array_equal(self.lsn[at], lsn)):
            # A transaction that the log does not tell of.
            return RowMarks.unknown(len(lsn))
        origin = np.full(len(lsn), self.origin, np.int64)
        return RowMarks(origin, self.xid[at], self.time_us[at])


@dataclass(frozen=True, slots=True)
class RowMarks:
    """Writers of some rows, one for each."""

    origin: Index
    xid: Index
    time_us: Index

    @classmethod
    def unknown(cls, rows: int) -> RowMarks:
        """Nobody says."""
        return cls(
            np.full(rows, UNKNOWN, np.int64),
            np.zeros(rows, np.int64),
            np.full(rows, LONG_AGO, np.int64),
        )

    def at(self, row: int) -> Modified | None:
        """Return the writer of one row; None: not known."""
        if self.origin[row] == UNKNOWN:
            return None
        return Modified(
            int(self.origin[row]), int(self.xid[row]), int(self.time_us[row])
        )

    def appended(self, rows: pa.Table) -> pa.Table:
        """The rows with their marks as columns."""
        nobody = self.origin == UNKNOWN
        for name, values in zip(
            COLUMNS, (self.origin, self.xid, self.time_us), strict=True
        ):
            rows = rows.append_column(name, pa.array(values, mask=nobody))
        return rows


def marks_in(columns: pa.Table) -> RowMarks:
    """Read the marks of rows that were read with their three ``COLUMNS``."""
    nobody = columns.column(COLUMNS[0]).is_null().to_numpy()
    found = [columns.column(name).fill_null(0).to_numpy() for name in COLUMNS]
    return RowMarks(
        np.where(nobody, UNKNOWN, found[0]),
        found[1],
        np.where(nobody, LONG_AGO, found[2]),
    )


def with_marks(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Delta's metadata of a table with the three columns behind its own: Spark then writes them
    into its files. No statistics of them are kept."""
    schema = json.loads(metadata["schemaString"])
    configuration = dict(metadata["configuration"])
    own = len(schema["fields"])
    indexed = min(own, int(configuration.get(_INDEXED, _INDEXED_BY_DEFAULT)))
    configuration[_INDEXED] = str(indexed if indexed >= 0 else own)
    for number, name in enumerate(COLUMNS, start=_FIRST_ID):
        mapped = {}
        if _HIGHEST_ID in configuration:
            mapped = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": name,
            }
            configuration[_HIGHEST_ID] = str(number)
        schema["fields"].append(
            {"name": name, "type": "long", "nullable": True, "metadata": mapped}
        )
    return {
        **metadata,
        "schemaString": json.dumps(schema, separators=(",", ":")),
        "configuration": configuration,
    }


def tagged(action: Mapping[str, Any], modified: Modified) -> dict[str, Any]:
    """An ``add`` action of a file that one transaction has written, with who it was."""
    value = json.dumps([modified.origin, modified.xid, modified.time_us])
    return {**action, "tags": {**(action.get("tags") or {}), _TAG: value}}


def tag_of(action: Mapping[str, Any]) -> Modified | None:
    """Read the tag that ``tagged`` has written; None: there is none."""
    text = (action.get("tags") or {}).get(_TAG)
    return None if text is None else Modified(*json.loads(text))
