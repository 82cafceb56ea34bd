"""How one table is divided for a parallel copy, and what each part asks. Pure.

An ordinary table is cut into ranges of pages, read with TID range scans (PostgreSQL 14
and later) under one snapshot. The first range has no lower bound and the last no upper one, so
rows on pages that the size estimate did not know are in it. A partitioned table
has no ctid of its own and is read as one range; so are one of which only columns may be read, and
the tables of another node.

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
"""A range under 64 pages is not worth a connection of its own, nor a Spark task."""

_BUNDLE_TABLES: Final = 32
"""Small ranges that one task reads: 16 MiB at most."""

_GROUP_TABLES: Final = 32
"""Small tables that one worker copies together. What a crash can leave committed without the
catalog's knowledge, and what one error of the whole group can hold up; beyond about as many
the shared costs do not show any more."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages ``first`` <= page < ``end`` of a table; None: unbounded on that side."""

    number: int
    first: int | None
    end: int | None


def page_ranges(
    table: RemoteTable, *, range_bytes: int, min_ranges: int
) -> tuple[PageRange, ...]:
    """Divide a table into ranges of about ``range_bytes`` of heap.

    At least ``min_ranges`` (the number of readers) where there are that many pages, and a
    multiple of it, so that the readers end together. The
    table may grow meanwhile: a resumed copy uses the division that was recorded.
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
    """A range of one of several tables."""

    table: int
    """Which of them, by its place."""
    pages: PageRange
    size: int | None
    """Bytes, as far as known."""


def table_bytes(table: RemoteTable | None) -> int | None:
    """About how large it is; 0 if it is gone, None if it is not known."""
    if table is None:
        return 0
    return table.pages * _PAGE_BYTES if table.kind == "r" else None


def range_bytes(table: RemoteTable, pages: PageRange) -> int | None:
    """About how many bytes of heap a range has; None: the table's size is not known."""
    if table_bytes(table) is None:
        return None
    end = table.pages if pages.end is None else pages.end
    return max(0, end - (pages.first or 0)) * _PAGE_BYTES


def bundles(parts: Sequence[CopyPart], *, readers: int) -> list[tuple[CopyPart, ...]]:
    """Bundle the parts that one reader reads over one connection. A large range is alone; small
    ones come together, as evenly over the readers as their number allows."""
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
    """Tables, each with its bytes as far as known, for the next ``workers`` workers.

    A large table is alone; the small ones before it come together, in their order.
    """
    small = sum(1 for _, size in tables if size is not None and size <= SMALL_BYTES)
    most = min(_GROUP_TABLES, -(-small // workers)) if workers else 0
    found: list[tuple[T, ...]] = []
    together: list[T] = []
    for table, size in tables:
        if size is None or size > SMALL_BYTES:
            found.append((table,))
            continue
        together.append(table)
        if len(together) == most:
            found.append(tuple(together))
            together = []
    if together:
        found.append(tuple(together))
    return found[:workers]


def encode_plan(snapshot: str, ranges: tuple[PageRange, ...]) -> str:
    """Encode a division for the catalog; ``decode_plan`` is the inverse. ``snapshot`` is its
    identity."""
    return json.dumps({"snapshot": snapshot, "bounds": [r.end for r in ranges]})


def decode_plan(text: str | None, snapshot: str) -> tuple[PageRange, ...] | None:
    """The recorded division, if it was made under this very snapshot."""
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
    """Whether COPY can send this table in binary format and we can read it: unlike the
    stream, COPY does not send a value as text whose type has no binary format."""
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
    """COPY of one range; as CSV, which tells NULL (nothing) from '' (two quotes), unless
    it is to be ``binary``."""
    columns = ", ".join(quote_ident(c.name) for c in table.columns)
    return (
        f"COPY (SELECT {columns} FROM {_rows(table, pages)})"
        f" TO STDOUT WITH (FORMAT {'binary' if binary else 'csv'})"
    )


def count_statement(table: RemoteTable, pages: PageRange) -> str:
    """How many rows that COPY has."""
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
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{only}{table.qualified}{where}"
