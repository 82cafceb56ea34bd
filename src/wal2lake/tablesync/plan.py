"""How one table is divided for a parallel copy, and what each part asks. Pure.

An ordinary table is cut into ranges of pages, read with TID range scans (PostgreSQL 14
and later) under one snapshot. The first range has no lower bound and the last no upper one, so
rows on pages that the size estimate did not know are in it. A partitioned table
has no ctid of its own and is read as one range.

Source: reference 3.5 step 8 (what PostgreSQL's tablesync asks); DESIGN 6.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from wal2lake.pg import RemoteTable
from wal2lake.pg.publisher import quote_ident
from wal2lake.pgtypes import NoDecoder, RemoteTypes, check_decoder, sent_as_text

_PAGE_BYTES: Final = 8192


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

    At least ``min_ranges`` (the number of readers) where there are that many pages. The
    table may grow meanwhile: a resumed copy uses the division that was recorded.
    """
    if table.kind != "r" or table.pages == 0:
        return (PageRange(0, None, None),)
    by_size = -(-table.pages * _PAGE_BYTES // range_bytes)
    # A range under 64 pages is not worth a connection of its own.
    count = max(1, by_size, min(min_ranges, table.pages // 64))
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


def encode_plan(snapshot: str, ranges: tuple[PageRange, ...]) -> str:
    """What the catalog keeps of a division; ``decode_plan`` is its inverse."""
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
    return (
        f"COPY (SELECT {columns} FROM {only}{table.qualified}{where})"
        f" TO STDOUT WITH (FORMAT {'binary' if binary else 'csv'})"
    )
