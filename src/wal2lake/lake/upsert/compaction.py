"""Small files of a table as one: what a stream of small commits needs now and then.

Comes in: the files of a version. Goes out: which of them are worth it, and one commit that
holds the same rows in fewer files. Called by ``batches.py`` after every so many commits.

Why this way. Each small batch leaves a file, and each later batch and query opens them all.
Rewriting those that are small, or mostly deleted, whenever there are ``MANY`` of them,
writes each row a few times in its life, until its file has outgrown ``SMALL_BYTES``. A larger file
most of whose rows are deleted is written anew however few there are: what is read of it for
nothing is more than what is written.

The rows come in the order of the key, if there are not too many to be sorted in memory: then the
row groups of a file, and files of one range of keys, say which keys they do not have.

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
    TableWriter,
    row_groups,
)
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.stored import StoredRows

LOOK_EVERY: Final = 32
"""Commits of a table between two looks at its files."""

MANY: Final = 16
"""Opening a file costs about 0.5 ms, rewriting 16 small ones about 50."""

MANY_IN_PARTITION: Final = 4
"""The same of one partition, of several that have ``MANY`` small files together."""

SMALL_BYTES: Final = 8 << 20

MOST_BYTES: Final = 64 << 20
"""Written in one go at most, as files are: the next batch waits for it."""

SORTED_BYTES: Final = 64 << 20
"""The same, not compressed, in the order of the key: it takes three times as much memory."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The same rows in fewer files."""

    adds: tuple[AddedFile, ...]
    replaced: tuple[Replaced, ...]


def worth_compacting(files: Sequence[DataFile]) -> list[DataFile]:
    """Which files to rewrite as one; empty: leave the table as it is."""
    small = sorted(
        (file for file in files if file.is_plain and _is_small(file)), key=_live_bytes
    )
    groups: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for file in small:
        groups.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    # A batch leaves a file in each partition that it meets: fewer are many there.
    many = MANY_IN_PARTITION if len(groups) > 1 and len(small) >= MANY else MANY
    candidates = [
        file
        for group in groups.values()
        for file in (
            group if len(group) >= many else [f for f in group if _is_rotten(f)]
        )
    ]
    chosen, size = [], 0
    for file in candidates:
        size += _live_bytes(file)
        if size > MOST_BYTES:
            break
        chosen.append(file)
    return chosen


def compact(
    state: TableState, chosen: Sequence[DataFile], key: Sequence[int] = ()
) -> Compaction:
    """Write the rows of the chosen files as one new file for each partition; nothing is visible
    yet. ``key``: positions of the columns by which they are to be ordered."""
    columns = range(len(state.fields))
    stored = StoredRows(state, chosen)
    tables = _grouped(stored.live(columns))
    if (
        _are_sortable(state, key)
        and stored.scan_bytes(columns, range(len(chosen))) <= SORTED_BYTES
    ):
        tables = _sorted(tables, [state.fields[i].name for i in key])
    with TableWriter(state.location, state.physical_fields) as writer:
        for table in tables:
            writer.write(table)
        adds = writer.finish()
    return Compaction(adds, tuple(Replaced(file, None) for file in chosen))


def _are_sortable(state: TableState, key: Sequence[int]) -> bool:
    kinds = [mapping_of(state.fields[i]).arrow_type for i in key]
    return bool(kinds) and not any(map(pa.types.is_nested, kinds))


def _sorted(tables: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """All rows in order, as row groups; as they come, if they are larger in memory than
    their files say: values that repeat are stored once."""
    found: list[pa.Table] = []
    coming = iter(tables)
    size = 0
    for table in coming:
        found.append(table)
        size += table.nbytes
        if size > SORTED_BYTES:
            yield from found
            yield from coming
            return
    if found:
        rows = pa.concat_tables(found)
        yield from row_groups(rows.sort_by([(name, "ascending") for name in names]))


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
    return file.size < SMALL_BYTES or _is_rotten(file)


def _is_rotten(file: DataFile) -> bool:
    """Most of its rows are gone, and neither what is left nor what is read is too much."""
    return (
        file.deleted * 2 > (file.rows or 0)
        and _live_bytes(file) <= MOST_BYTES
        and file.size <= 4 * MOST_BYTES
    )


def _live_bytes(file: DataFile) -> int:
    rows = max(1, file.rows or 0)
    return file.size * max(0, rows - file.deleted) // rows
