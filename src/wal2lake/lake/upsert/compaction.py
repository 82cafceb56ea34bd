"""Small files of a table as one: what a stream of small commits needs now and then.

Comes in: the files of a version. Goes out: which of them are worth it, and one commit that
holds the same rows in fewer files. Called by ``batches.py`` after every so many commits.

Why this way. Each small batch leaves a file, and each later batch and query opens them all.
Rewriting those that are small, or mostly deleted, whenever there are ``MANY`` of them,
writes each row a few times in its life, until its file has outgrown ``SMALL_BYTES``.

The commit says that no data has changed (``dataChange`` false), so that a change feed
of the table shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from wal2lake.lake.delta.datafile import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    DataFileWriter,
)
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.stored import StoredRows

LOOK_EVERY: Final = 32
"""Commits of a table between two looks at its files."""

MANY: Final = 16
"""Opening a file costs about 0.5 ms, rewriting 16 small ones about 50."""

SMALL_BYTES: Final = 8 << 20

MOST_BYTES: Final = 64 << 20
"""Read in one go at most: the next batch waits for it."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The same rows in fewer files."""

    adds: tuple[AddedFile, ...]
    replaced: tuple[Replaced, ...]


def worth_compacting(files: Sequence[DataFile]) -> list[DataFile]:
    """Which files to rewrite as one; empty: leave the table as it is."""
    candidates = sorted(
        (file for file in files if file.is_plain and _is_small(file)),
        key=lambda file: file.size,
    )
    if len(candidates) < MANY:
        return []
    chosen, size = [], 0
    for file in candidates:
        size += file.size
        if size > MOST_BYTES:
            break
        chosen.append(file)
    return chosen


def compact(state: TableState, chosen: Sequence[DataFile]) -> Compaction:
    """Write the rows of the chosen files as one new file; nothing is visible yet."""
    columns = range(len(state.fields))
    with DataFileWriter(state.location, state.physical_fields) as writer:
        for table in _grouped(StoredRows(state, chosen).live(columns)):
            writer.write(table)
        added = writer.finish()
    return Compaction(
        () if added is None else (added,),
        tuple(Replaced(file, None) for file in chosen),
    )


def _grouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Row groups of small files as larger ones."""
    group: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if group and (
            rows + table.num_rows > ROW_GROUP_ROWS
            or size + table.nbytes > ROW_GROUP_BYTES
        ):
            yield pa.concat_tables(group)
            group, rows, size = [], 0, 0
        group.append(table)
        rows += table.num_rows
        size += table.nbytes
    if group:
        yield pa.concat_tables(group)


def _is_small(file: DataFile) -> bool:
    rows = file.rows or 0
    return file.size < SMALL_BYTES or (
        file.deleted * 2 > rows and file.size <= MOST_BYTES
    )
