"""Lays out the rows of a history table: what happened to the rows of a mirrored table.

Comes in: rows before and after changes, with the changes' positions. Goes out: Arrow tables with
the columns of the history table. Called by the code that applies batches, and by copies.

    op           text         insert, update, delete, truncate, or snapshot (a copied row)
    commit_lsn   bigint       commit LSN of the transaction; of a snapshot its LSN
    ordinal      bigint       position of the change in its transaction
    xid          bigint       the publisher's transaction; null for a snapshot
    commit_time  timestamptz  its commit time; null for a snapshot
    origin       text         replication origin at the publisher; null: made there
    old_<name>                each column before the change; null for insert and snapshot
    new_<name>                each column after it; null for delete

All names of the table's columns have a prefix, so none can collide with the other six. Columns that
the table no longer has stay, and are null in new rows; ``was_<name>`` are columns of an earlier
type. Pure: executors import this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.lake.port import FieldSpec, TableState
from wal2lake.lake.staging.convert import mapping_of

OLD: Final = "old_"
NEW: Final = "new_"

HISTORY_WORD: Final = "history"
"""Word for the commits of a history table (``commit_files``)."""

Index = npt.NDArray[np.int64]


class HistoryOp(StrEnum):
    """Kinds of rows in a history table."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    """All rows before it are gone, also without a row for each of them."""
    SNAPSHOT = "snapshot"
    """A row that a copy has brought."""


@dataclass(frozen=True, slots=True)
class HistoryCommits:
    """Transactions of a batch, ascending by commit LSN."""

    lsn: Index
    xid: Index
    time_us: Index
    """Commit times, microseconds since 1970."""
    origin: tuple[str | None, ...]
    """Replication origins at the publisher."""

    def of(self, lsn: Index) -> dict[str, pa.Array]:
        """Return the facts of the transactions that committed at ``lsn``, as columns."""
        if not len(self.lsn):
            nulls = np.zeros(len(lsn), np.int64)
            return _facts(nulls, nulls, pa.nulls(len(lsn), pa.string()), nulls == 0)
        place = np.minimum(np.searchsorted(self.lsn, lsn), len(self.lsn) - 1)
        unknown = self.lsn[place] != lsn
        origins = pa.array(self.origin, pa.string())
        origin = origins.take(pa.array(place, mask=unknown))
        return _facts(self.xid[place], self.time_us[place], origin, unknown)


NO_COMMITS: Final = HistoryCommits(*(np.zeros(0, np.int64),) * 3, ())


def _facts(
    xid: Index, time_us: Index, origin: pa.Array, unknown: npt.NDArray[np.bool_]
) -> dict[str, pa.Array]:
    times = pa.array(time_us, mask=unknown).cast(pa.timestamp("us", "UTC"))
    return {
        "xid": pa.array(xid, mask=unknown),
        "commit_time": times,
        "origin": origin,
    }


@dataclass(frozen=True, slots=True)
class HistoryTarget:
    """A history table, and the transactions of the batch that it records."""

    state: TableState
    commits: HistoryCommits


def history_rows(
    target: HistoryTarget,
    op: Sequence[str],
    lsn: Index,
    ordinal: Index,
    old: pa.Table | None,
    new: pa.Table | None,
) -> pa.Table:
    """Return history rows in the columns of the history table. ``old`` and ``new``: the rows in
    the mirrored table's columns, null where there is none."""
    facts: dict[str, Any] = {
        "op": pa.array(op, pa.string()),
        "commit_lsn": pa.array(lsn, pa.int64()),
        "ordinal": pa.array(ordinal, pa.int64()),
        **target.commits.of(lsn),
    }
    for prefix, rows in ((OLD, old), (NEW, new)):
        if rows is not None:
            for name in rows.column_names:
                facts[prefix + name] = rows.column(name)
    return in_columns(target.state.fields, facts, len(lsn))


def in_columns(
    fields: Sequence[FieldSpec], facts: Mapping[str, Any], count: int
) -> pa.Table:
    """Return ``count`` rows with these fields; a field without values is null."""
    columns = []
    for field in fields:
        kind = mapping_of(field).arrow_type
        values = facts.get(field.name)
        if values is None:
            columns.append(pa.nulls(count, kind))
        else:
            columns.append(values if values.type == kind else values.cast(kind))
    return pa.table(columns, names=[field.name for field in fields])
