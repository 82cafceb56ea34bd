"""The report of ``wal2lake verify`` as lines. Pure.

     subscription |  table   |  result   |    lsn    | blocks | rows  | differing rows
    --------------+----------+-----------+-----------+--------+-------+----------------
     s            | public.t | different | 0/1A2B3C8 |      2 | 20000 |              1

    public.t: 1 changed in 1 of 2 blocks
        changed (id=5): note
    1 of 1 table is different.

Called by: ``run``, ``pairreport``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from wal2lake.cli.terminal.print import table
from wal2lake.cli.terminal.words import clean

EQUAL, DIFFERENT, NOT_COMPARABLE = 0, 1, 2
"""Exit codes."""

_HEADINGS = (
    "subscription",
    "table",
    "result",
    "lsn",
    "blocks",
    "rows",
    "differing rows",
)


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """A row of VERIFY's answer."""

    subscription: str
    table: str
    result: str
    lsn: str | None
    blocks: str | None
    rows: str | None
    differing_rows: str | None
    detail: str | None

    @classmethod
    def of(cls, row: Sequence[str | None]) -> VerifiedTable:
        """Return a row of the answer."""
        subscription, table, result, *others = row
        return cls(str(subscription), str(table), str(result), *others)

    @property
    def code(self) -> int:
        """The exit code for this table alone."""
        match self.result:
            case "equal":
                return EQUAL
            case "different":
                return DIFFERENT
            case _:
                return NOT_COMPARABLE


def exit_code(codes: Sequence[int]) -> int:
    """Return the exit code of all tables: a difference counts more than a table that was not
    compared."""
    if DIFFERENT in codes:
        return DIFFERENT
    return NOT_COMPARABLE if NOT_COMPARABLE in codes else EQUAL


def lines(tables: Sequence[VerifiedTable]) -> Iterator[str]:
    """Yield the report."""
    cells = [
        (
            each.subscription,
            each.table,
            each.result,
            each.lsn or "",
            each.blocks or "",
            each.rows or "",
            each.differing_rows or "",
        )
        for each in tables
    ]
    yield from table(_HEADINGS, cells)
    for each in tables:
        if each.detail is not None:
            first, *rest = each.detail.split("\n")
            yield ""
            yield clean(f"{each.table}: {first}")
            yield from (f"    {clean(line)}" for line in rest)
    yield ""
    yield result_counts([each.code for each in tables])


def document(tables: Sequence[VerifiedTable]) -> str:
    """Return the report as JSON."""
    return json.dumps(
        {"tables": [asdict(each) for each in tables]}, ensure_ascii=False, indent=2
    )


def result_counts(codes: Sequence[int]) -> str:
    """Return the last line; ``codes``: the exit code of each table alone."""
    total = len(codes)
    plural = "table" if total == 1 else "tables"
    if all(code == EQUAL for code in codes):
        return f"{total} {plural} equal."
    parts = [
        f"{codes.count(code)} {word}"
        for code, word in (
            (EQUAL, "equal"),
            (DIFFERENT, "different"),
            (NOT_COMPARABLE, "not comparable"),
        )
        if code in codes
    ]
    return f"{total} {plural}: {', '.join(parts)}."
