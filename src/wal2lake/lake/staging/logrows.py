"""Reads a row file of the change log, range by range.

Comes in: a file in log layout and the LSNs that count. Goes out: record batches of the rows with
cursor <= commit LSN < cut, in log order. Called inside Spark's Python workers.

The rows of a file are in log order, so the range is a slice, and row groups outside of it are
skipped by their statistics. Every page's checksum is verified. A file that cannot be read as it
was written is a CorruptLogError that names the file.

Source: docs/formats/segments.md (log layout); Parquet format, "Checksumming".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.errors import (
    DAMAGED,
    RESTORE_HINT,
    CorruptLogError,
    StorageError,
    Wal2LakeError,
    reason_of,
    words_of,
)
from wal2lake.lake.parquet import OpenParquet
from wal2lake.lake.store import (
    MissingFileError,
    PlainReader,
    StoreReader,
    local_path,
    open_reader,
)
from wal2lake.model import Relation

BATCH_ROWS: Final = 128 * 1024
"""Rows decoded and converted at a time: about 15 MB of text at 100 bytes a row, few enough that a
batch of six columns stays near the cache. A guess."""


_SMALL_BYTES: Final = 1 << 20
"""Size of a file up to which it is read at once: opening it, and waiting for other threads, costs
most."""


_MISSING: Final = "The file is missing."


@dataclass(frozen=True, slots=True)
class LogSource:
    """A row file: one relation version of one segment."""

    path: str
    """URL or absolute path."""
    relation: Relation
    rows: int
    """Number of rows by the manifest; used to plan the work."""
    size: int
    """Bytes of the file by the manifest."""
    commit_lsn: int | None = None
    """Commit LSN of all rows of a file that was written before its transaction committed; None:
    each row has its own."""
    rolled_back: tuple[int, ...] = ()
    """Subtransactions whose rows do not count."""
    inserts_before: int = 0
    """Number of inserts in all files of the batch before this one."""
    constants: tuple[str | None, ...] = ()
    """Values that all rows have in the last columns of ``relation``, which are not in the file."""


@dataclass(frozen=True, slots=True)
class LsnRange:
    """The transactions of a batch, by commit LSN."""

    cursor: int
    """The first LSN that counts: the table's cursor."""
    cut: int | None = None
    """The first LSN that does not count; None: all count."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Row groups [first, last) of a source; last None: to its end."""

    source: LogSource
    first: int = 0
    last: int | None = None


def plan_parts(
    sources: Sequence[LogSource], parallelism: int, *, whole: bool = False
) -> list[tuple[LogPart, ...]]:
    """Divide sources among tasks, evenly by rows.

    Reads the footers of sources that are larger than a task's share, which are divided unless
    ``whole``. ``parallelism`` 0 and 1 are one task.
    """
    tasks = max(1, parallelism)
    share = sum(source.rows for source in sources) / tasks
    parts: list[tuple[int, LogPart]] = []
    for source in sources:
        if tasks == 1 or whole or source.rows <= share:
            parts.append((source.rows, LogPart(source)))
            continue
        with _open(source) as file:
            for group in file.groups:
                rows = file.metadata.row_group(group).num_rows
                parts.append((rows, LogPart(source, group, group + 1)))
    # Assign the largest part first, each to the task with the least rows: this is within 4/3
    # of the best plan.
    loads: list[tuple[int, list[LogPart]]] = [(0, []) for _ in range(tasks)]
    for rows, part in sorted(parts, key=lambda p: -p[0]):
        least = min(range(tasks), key=lambda t: loads[t][0])
        total, chosen = loads[least]
        chosen.append(part)
        loads[least] = (total + rows, chosen)
    order = {source.path: i for i, source in enumerate(sources)}
    return [
        tuple(sorted(chosen, key=lambda p: (order[p.source.path], p.first)))
        for _, chosen in loads
        if chosen
    ]


def read_rows(
    part: LogPart, span: LsnRange, wanted: Callable[[Collection[str]], list[str]]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows in ``span``; ``wanted`` chooses among the file's columns."""
    path = part.source.path
    streamed = part.source.commit_lsn is not None
    with _open(part.source) as file:
        groups = (
            _all_groups(file.metadata, part)
            if streamed
            else _row_groups(file.metadata, part, span)
        )
        if not groups:
            return
        present = set(file.names)
        order_column = "xid" if streamed else "commit_lsn"
        columns = [order_column, "ordinal", "op", "old", *wanted(present)]
        missing = set(columns[:4]) - present
        if missing:
            raise corrupt(path, f"It has no column {min(missing)}.")
        for batch in _batches(file, groups, columns):
            if streamed:
                batch = _of_transaction(batch, part.source)
            batch = _within(batch, span)
            if batch.num_rows:
                yield _with_constants(batch, part.source)


def read_log_rows(source: LogSource, span: LsnRange) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows of a whole source in ``span``, with all its columns."""

    def others(present: Collection[str]) -> list[str]:
        return sorted(set(present) - {"commit_lsn", "xid", "ordinal", "op", "old"})

    yield from read_rows(LogPart(source), span, others)


def _batches(
    file: OpenParquet, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    metadata = file.metadata
    if sum(metadata.row_group(i).total_byte_size for i in groups) > _SMALL_BYTES:
        yield from file.batches(groups, columns, BATCH_ROWS)
        return
    # Iterating over batches would switch threads for each batch.
    table = file.read_groups(groups, columns, use_threads=False)
    yield from table.combine_chunks().to_batches()


def corrupt(path: str, detail: str, original: str | None = None) -> CorruptLogError:
    """Build the error for a file of the log whose content is not what was written."""
    return CorruptLogError(
        f'change log file "{path}" is corrupted',
        detail=detail,
        hint=RESTORE_HINT,
        original=original,
    )


def _open(source: LogSource) -> OpenParquet:
    path, local = source.path, local_path(source.path)
    try:
        reader = open_reader(path, source.size) if local is None else _local(local)
        return OpenParquet(
            path, reader, failed=_unreadable, page_checksum_verification=True
        )
    except MissingFileError as error:
        raise corrupt(path, _MISSING) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _local(path: Path) -> StoreReader:
    """Open a file of this machine; a small one is read into memory at once."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= _SMALL_BYTES:
            return PlainReader(pa.BufferReader(file.read()))
    return PlainReader(pa.OSFile(str(path), "rb"))


def _unreadable(path: str, error: Exception) -> Wal2LakeError:
    """Return the error for an unreadable file. An error of the operating system proves nothing
    about the file, unless the file is missing."""
    if isinstance(error, FileNotFoundError):
        return corrupt(path, _MISSING)
    if isinstance(error, OSError) and error.errno:
        return StorageError(
            f'could not read change log file "{path}": {reason_of(error)}',
            sqlstate="58030",
            hint="Check the file system of the log directory.",
        )
    return corrupt(path, DAMAGED, words_of(error))


def _all_groups(metadata: Any, part: LogPart) -> list[int]:
    last = metadata.num_row_groups if part.last is None else part.last
    return list(range(part.first, last))


def _of_transaction(batch: pa.RecordBatch, source: LogSource) -> pa.RecordBatch:
    """Return the rows of a streamed file in the layout of other files: the rows that count, with
    their commit LSN."""
    xid_column = batch.schema.get_field_index("xid")
    if source.rolled_back:
        gone = np.array(source.rolled_back, np.int64)
        keep = np.isin(batch.column(xid_column).to_numpy(), gone, invert=True)
        batch = batch.filter(pa.array(keep))
    lsn = np.full(batch.num_rows, source.commit_lsn, np.int64)
    return batch.set_column(xid_column, "commit_lsn", pa.array(lsn))


def _with_constants(batch: pa.RecordBatch, source: LogSource) -> pa.RecordBatch:
    """Add the constants to new and old rows."""
    first = len(source.relation.columns) - len(source.constants)
    for position, text in enumerate(source.constants, first):
        value = pa.scalar(None if text is None else text.encode(), pa.binary())
        values = pa.repeat(value, batch.num_rows)
        for name in (f"c{position}", f"o{position}"):
            batch = batch.append_column(name, values)
    return batch


def _row_groups(metadata: Any, part: LogPart, span: LsnRange) -> list[int]:
    last = metadata.num_row_groups if part.last is None else part.last
    groups = []
    for group in range(part.first, last):
        described = metadata.row_group(group)
        column = next(
            described.column(i)
            for i in range(described.num_columns)
            if described.column(i).path_in_schema == "commit_lsn"
        )
        statistics = column.statistics
        if statistics is not None and statistics.has_min_max:
            if statistics.max < span.cursor:
                continue
            if span.cut is not None and statistics.min >= span.cut:
                continue
        groups.append(group)
    return groups


def _within(batch: pa.RecordBatch, span: LsnRange) -> pa.RecordBatch:
    lsn = batch.column("commit_lsn").to_numpy()
    start = int(np.searchsorted(lsn, span.cursor, "left"))
    stop = len(lsn)
    if span.cut is not None:
        stop = int(np.searchsorted(lsn, span.cut, "left"))
    return batch.slice(start, max(0, stop - start))
