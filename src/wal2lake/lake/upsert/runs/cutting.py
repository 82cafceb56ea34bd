"""Divides staged changes into runs: consecutive events in log order, each within a size.

Comes in: staged tables in memory, and staged files. Goes out: tables that together have one run's
events; no event of a run is before an event of an earlier run. Called by ``whole``.

Why this way. Staging writes several files at once, and each has its rows in log order. The
statistics of a row group give a *bound*: none of its events is before it. So row groups are read
in the order of their bounds, and events below the next group's bound are complete. What is read
and not yet complete waits for the next run: at most about one row group of each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.parquet import open_parquet
from wal2lake.lake.staging.layout import Seq


@dataclass(frozen=True, slots=True)
class _Piece:
    """Staged changes that are read at once."""

    bound: Seq
    """No event of the piece is before it."""
    read: Callable[[], pa.Table]


def cut_into_runs(
    tables: Sequence[pa.Table], paths: Sequence[str], most_bytes: int
) -> Iterator[list[pa.Table]]:
    """Yield runs of at most about ``most_bytes``, in log order. The caller clears a list when it
    has taken its tables: only later events are held here."""
    pieces = [_held(table) for table in tables if table.num_rows]
    for path in paths:
        pieces += _groups(path)
    pieces.sort(key=lambda piece: piece.bound)
    waiting: list[pa.Table] = []
    for piece in pieces:
        if sum(table.nbytes for table in waiting) >= most_bytes:
            ready = [table.filter(_before(table, piece.bound)) for table in waiting]
            if any(table.num_rows for table in ready):
                waiting = [
                    rest
                    for table in waiting
                    if (rest := _from(table, piece.bound)).num_rows
                ]
                yield ready
        waiting.append(piece.read())
    if waiting:
        yield waiting


def has_one_transaction(tables: Sequence[pa.Table], paths: Sequence[str]) -> bool:
    """Return whether all staged changes have the same commit LSN."""
    bounds = [pc.min_max(table.column("lsn")) for table in tables if table.num_rows]
    ends = {int(bound[side].as_py()) for bound in bounds for side in ("min", "max")}
    for path in paths:
        with open_parquet(path) as parquet:
            for group in map(parquet.metadata.row_group, parquet.groups):
                lsn = _statistics(group)["lsn"]
                ends |= {lsn.min, lsn.max}
    return len(ends) <= 1


def _held(table: pa.Table) -> _Piece:
    lsn, ordinal = table.column("lsn").to_numpy(), table.column("ord").to_numpy()
    first = int(lsn.min())
    bound = Seq(first, int(ordinal[lsn == first].min()))
    return _Piece(bound, lambda: table)


def _groups(path: str) -> list[_Piece]:
    with open_parquet(path) as parquet:
        metadata = parquet.metadata
        return [
            _Piece(
                _bound(metadata.row_group(group)),
                partial(_read_group, path, metadata, group),
            )
            for group in parquet.groups
        ]


def _read_group(path: str, metadata: Any, group: int) -> pa.Table:
    with open_parquet(path, metadata=metadata) as parquet:
        return parquet.read_group(group)


def _bound(group: Any) -> Seq:
    """Return a position that no event of a staged row group is before."""
    columns = _statistics(group)
    lsn, ordinal = columns["lsn"], columns["ord"]
    # Events of a later transaction may have lower ordinals than the first one's.
    same = lsn.min == lsn.max
    return Seq(lsn.min, ordinal.min if same else 0)


def _statistics(group: Any) -> dict[str, Any]:
    return {
        column.path_in_schema: column.statistics
        for column in map(group.column, range(group.num_columns))
    }


def _from(table: pa.Table, bound: Seq) -> pa.Table:
    return table.filter(pc.invert(_before(table, bound)))


def _before(table: pa.Table, bound: Seq) -> pa.Array:
    lsn, ordinal = table.column("lsn").to_numpy(), table.column("ord").to_numpy()
    same = (lsn == bound.commit_lsn) & (ordinal < bound.ordinal)
    return pa.array(np.asarray((lsn < bound.commit_lsn) | same))
