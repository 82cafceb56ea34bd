"""Divides tables for a parallel copy, and builds the statement of each part. Pure.

An ordinary table is divided into ranges of pages, read with TID range scans (PostgreSQL 14 and
later) under one snapshot. The first range has no lower bound and the last no upper bound, so the
last range includes pages beyond the size estimate. A partitioned table has no ctid of its own and
is read as one range; so are tables with column privileges only, and tables of another wal2lake
node.

Source: reference 3.5 step 8 (what PostgreSQL's tablesync asks); DESIGN 6.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from wal2lake.pg import RemoteTable
from wal2lake.pg.quoting import quote_ident
from wal2lake.pgtypes import NoDecoder, RemoteTypes, check_decoder, sent_as_text

T = TypeVar("T")

_PAGE_BYTES: Final = 8192

SMALL_BYTES: Final = 512 << 10
"""Size of a small range. A range below 64 pages is not worth a connection or a Spark task of its
own."""

_BUNDLE_TABLES: Final = 32
"""Number of small ranges that one task reads, 16 MiB at most."""

_GROUP_TABLES: Final = 32
"""Number of small tables that one worker copies together. So many commits can be unknown to the
catalog after a crash, and so many tables can be held up by one error of the group. With more tables
the shared costs would hardly decrease."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages ``first`` <= page < ``end`` of a table. None means unbounded on that side."""

    number: int
    first: int | None
    end: int | None


def page_ranges(
    table: RemoteTable, *, range_bytes: int, min_ranges: int
) -> tuple[PageRange, ...]:
    """Divide a table into ranges of about ``range_bytes`` of heap.

    There are at least ``min_ranges`` (the number of readers) if the table has enough pages, and a
    multiple of it, so that the readers end together. A resumed copy uses the recorded division,
    because the table may have grown.
    """
    if table.kind != "r" or table.pages == 0 or not table.whole:
        return (PageRange(0, None, None),)
    by_size = -(-table.pages * _PAGE_BYTES // range_bytes)
    even = -(-by_size // min_ranges) * min_ranges
    count = max(1, min(even, table.pages * _PAGE_BYTES // SMALL_BYTES))
    step = -(-table.pages // count)
    bounds = list(range(0, table.pages, step))
    return tuple(
        PageRange(
            i,
            None if i == 0 else first,
            None if i == len(bounds) - 1 else bounds[i + 1],
        )
        for i, first in enumerate(bounds)
    )


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A range of one table of a group."""

    table: int
    """Index of the table in the group."""
    pages: PageRange
    size: int | None
    """Estimated bytes, if known."""


def table_bytes(table: RemoteTable | None) -> int | None:
    """Estimate the size of a table; 0 if it was dropped, None if the size is not known."""
    if table is None:
        return 0
    return table.pages * _PAGE_BYTES if table.kind == "r" else None


def range_bytes(table: RemoteTable, pages: PageRange) -> int | None:
    """Estimate the bytes of heap of a range; None if the table's size is not known."""
    if table_bytes(table) is None:
        return None
    end = table.pages if pages.end is None else pages.end
    return max(0, end - (pages.first or 0)) * _PAGE_BYTES


def bundles(parts: Sequence[CopyPart], *, readers: int) -> list[tuple[CopyPart, ...]]:
    """Bundle the parts that one reader reads over one connection. A large range is alone. Small
    ranges are bundled, spread evenly over the readers."""
    alone = [part for part in parts if part.size is None or part.size > SMALL_BYTES]
    small = [
        part for part in parts if part.size is not None and part.size <= SMALL_BYTES
    ]
    step = min(_BUNDLE_TABLES, -(-len(small) // readers)) or 1
    return [(part,) for part in alone] + [
        tuple(small[first : first + step]) for first in range(0, len(small), step)
    ]


def groups(
    tables: Sequence[tuple[T, int | None]], *, workers: int
) -> list[tuple[T, ...]]:
    """Group tables, each given with its estimated bytes, for the next ``workers`` workers.

    A large table is alone. Small tables are grouped, in their order.
    """
    small = sum(1 for _, size in tables if size is not None and size <= SMALL_BYTES)
    most = min(_GROUP_TABLES, -(-small // workers)) if workers else 0
    grouped: list[tuple[T, ...]] = []
    together: list[T] = []
    for table, size in tables:
        if size is None or size > SMALL_BYTES:
            grouped.append((table,))
            continue
        together.append(table)
        if len(together) == most:
            grouped.append(tuple(together))
            together = []
    if together:
        grouped.append(tuple(together))
    return grouped[:workers]


def encode_plan(snapshot: str, ranges: tuple[PageRange, ...]) -> str:
    """Encode a division for the catalog. ``snapshot`` is the snapshot's identity. ``decode_plan``
    is the inverse."""
    return json.dumps({"snapshot": snapshot, "bounds": [r.end for r in ranges]})


def decode_plan(text: str | None, snapshot: str) -> tuple[PageRange, ...] | None:
    """Return the recorded division if it was made under this snapshot."""
    if text is None:
        return None
    recorded = json.loads(text)
    if recorded["snapshot"] != snapshot:
        return None
    ends: list[int | None] = recorded["bounds"]
    return tuple(
        PageRange(i, None if i == 0 else ends[i - 1], end) for i, end in enumerate(ends)
    )


def copies_in_binary(table: RemoteTable, types: RemoteTypes) -> bool:
    """Whether COPY can send this table in binary format and this node can decode it. Unlike the
    stream, COPY does not send values as text if their type has no binary format."""
    try:
        for column in table.columns:
            check_decoder(column.type_oid, types)
    except NoDecoder:
        return False
    sent = [not sent_as_text(c.type_oid, types) for c in table.columns]
    return bool(sent) and all(sent)


def copy_statement(
    table: RemoteTable, pages: PageRange, *, binary: bool = False
) -> str:
    """Build the COPY of one range, in ``binary`` format or as CSV. CSV tells NULL (nothing) from ''
    (two quotes)."""
    columns = ", ".join(quote_ident(c.name) for c in table.columns)
    return (
        f"COPY (SELECT {columns} FROM {_rows(table, pages)})"
        f" TO STDOUT WITH (FORMAT {'binary' if binary else 'csv'})"
    )


def count_statement(table: RemoteTable, pages: PageRange) -> str:
    """Build the query for the number of rows of that COPY."""
    return f"SELECT pg_catalog.count(*) FROM {_rows(table, pages)}"


def _rows(table: RemoteTable, pages: PageRange) -> str:
    only = "ONLY " if table.kind == "r" else ""
    conditions = []
    if pages.first is not None:
        conditions.append(f"ctid >= '({pages.first},0)'::pg_catalog.tid")
    if pages.end is not None:
        conditions.append(f"ctid < '({pages.end},0)'::pg_catalog.tid")
    if table.row_filters:
        filters = " OR ".join(f"({text})" for text in table.row_filters)
        conditions.append(f"({filters})")
    where_clause = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{only}{table.qualified}{where_clause}"
