"""Formats rows as psql does: aligned, or one line for each row.

     id | name            with --no-align: id|name
    ----+------                            1|x
      1 | x                                (1 row)
    (1 row)

Pure. Numbers are right-aligned, a cell's continued lines are marked with ``+``, and widths are
counted in terminal cells (two for an East Asian character). Called by ``sql``, ``check`` and the
demo.

Source: PostgreSQL's src/fe_utils/print.c, and column_type_alignment in psql.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.pg.client import ResultRows

_RIGHT_ALIGNED: Final = frozenset({20, 21, 23, 26, 28, 29, 700, 701, 790, 1700, 5069})
"""The types int8 int2 int4 oid xid cid float4 float8 money numeric xid8."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The options of psql's output."""

    aligned: bool = True
    tuples_only: bool = False


def render(rows: ResultRows, layout: Layout) -> Iterator[str]:
    """Yield the lines of one result, including the empty line after it."""
    if layout.aligned:
        yield from _aligned(rows, layout)
    else:
        yield from _unaligned(rows, layout)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str | None]]
) -> Iterator[str]:
    """Yield the lines of aligned text columns, without a count."""
    made = ResultRows(tuple(columns), (25,) * len(columns), tuple(map(tuple, rows)), "")
    lines = list(_aligned(made, Layout()))
    yield from lines[:-2]


def _count(rows: ResultRows) -> str:
    number = len(rows.rows)
    return f"({number} row{'' if number == 1 else 's'})"


def _unaligned(rows: ResultRows, layout: Layout) -> Iterator[str]:
    if not layout.tuples_only:
        yield "|".join(rows.columns)
    for row in rows.rows:
        yield "|".join(cell or "" for cell in row)
    if not layout.tuples_only:
        yield _count(rows)


def _aligned(rows: ResultRows, layout: Layout) -> Iterator[str]:
    cells = [[(cell or "").split("\n") for cell in row] for row in rows.rows]
    widths = [
        max((_width(line) for row in cells for line in row[i]), default=0)
        for i in range(len(rows.columns))
    ]
    if not layout.tuples_only:
        widths = [
            max(w, _width(name)) for w, name in zip(widths, rows.columns, strict=True)
        ]
        names = zip(rows.columns, widths, strict=True)
        yield "|".join(f" {_center(name, width)} " for name, width in names)
        yield "+".join("-" * (width + 2) for width in widths)
    right = [oid in _RIGHT_ALIGNED for oid in rows.type_oids]
    for row in cells:
        yield from _row(row, widths, right)
    if not layout.tuples_only:
        yield _count(rows)
    yield ""


def _row(
    row: Sequence[list[str]], widths: Sequence[int], right: Sequence[bool]
) -> Iterator[str]:
    height = max((len(lines) for lines in row), default=0)
    for number in range(height):
        parts = []
        for i, lines in enumerate(row):
            text = lines[number] if number < len(lines) else ""
            continues = number + 1 < len(lines)
            pad = " " * (widths[i] - _width(text))
            body = pad + text if right[i] else text + pad
            if i == len(row) - 1 and not continues and not right[i]:
                # psql writes no blanks at the end of a line.
                body = text
            end = "+" if continues else " " if i < len(row) - 1 else ""
            parts.append(f" {body}{end}")
        yield "|".join(parts)


def _center(text: str, width: int) -> str:
    space = width - _width(text)
    return " " * (space // 2) + text + " " * (space - space // 2)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(c)
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )
