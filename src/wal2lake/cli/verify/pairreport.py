"""The report on pairs of tables, as lines and as JSON. Pure.

        table     |  result   | rows  | target rows | blocks | differing | differing rows | seconds
    --------------+-----------+-------+-------------+--------+-----------+----------------+---------
     public.items | different | 20000 | 19999       | 2      | 1         | 2              | 0.4

    public.items: 1 changed, 1 missing in 1 of 2 blocks
        changed (id=5): price is 9.99 at the source, 9.98 at the target
        missing (id=7)

    Compared at LSN 0/16B3748 of the source.
    1 table: 1 different.

Called by: ``run``.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Final

from wal2lake.cli.terminal.print import table
from wal2lake.cli.terminal.words import clean
from wal2lake.cli.verify.pairs import PairResult
from wal2lake.cli.verify.report import DIFFERENT, EQUAL, NOT_COMPARABLE, result_counts
from wal2lake.verify import Comparison, RowDifference

_HEADINGS: Final = (
    *(
        "table",
        "result",
        "rows",
        "target rows",
        "blocks",
        "differing",
        "differing rows",
    ),
    "seconds",
)

_MOST_NAMED: Final = 20
"""Rows of a table that the lines name, and blocks. JSON has all that the comparison has named."""

_LONG: Final = 60
"""Characters of a value in the lines."""


def code_of(result: PairResult) -> int:
    """Return the exit code for this table alone."""
    if result.comparison is None:
        return NOT_COMPARABLE
    return EQUAL if result.comparison.is_equal else DIFFERENT


_WORDS: Final = {
    EQUAL: "equal",
    DIFFERENT: "different",
    NOT_COMPARABLE: "not comparable",
}


def word_of(result: PairResult) -> str:
    """Return the result for this table in words."""
    return _WORDS[code_of(result)]


def pair_lines(results: Sequence[PairResult]) -> Iterator[str]:
    """Yield the report."""
    yield from table(_HEADINGS, [_cells(result) for result in results])
    for result in results:
        details = [*_details(result)]
        if details:
            yield ""
            yield clean(f"{result.table}: {details[0]}")
            yield from (f"    {clean(line)}" for line in details[1:])
    yield ""
    lsns = sorted({result.lsn for result in results if result.lsn is not None})
    if lsns:
        yield f"Compared at LSN {', '.join(map(str, lsns))} of the source."
    yield result_counts([code_of(result) for result in results])


def pair_document(results: Sequence[PairResult]) -> str:
    """Return the report as JSON."""
    return json.dumps(
        {"tables": [_object(result) for result in results]},
        ensure_ascii=False,
        indent=2,
    )


def _cells(result: PairResult) -> tuple[str, ...]:
    compared = result.comparison
    numbers: tuple[str, ...] = ("",) * 5
    if compared is not None:
        numbers = tuple(
            str(number)
            for number in (
                compared.rows,
                compared.copy_rows,
                compared.blocks,
                compared.differing_blocks,
                compared.differing_rows,
            )
        )
    return (
        clean(result.table),
        word_of(result),
        *numbers,
        f"{result.seconds:.1f}",
    )


def _details(result: PairResult) -> Iterator[str]:
    compared = result.comparison
    if compared is None:
        yield from (result.reason or "").split("\n")
        return
    if compared.is_equal:
        return
    yield _counts(compared)
    yield from map(_difference, compared.named[:_MOST_NAMED])
    if len(compared.named) > _MOST_NAMED:
        yield f"and {len(compared.named) - _MOST_NAMED} more (--format json)"
    yield from (
        f"{block.place}: {block.rows} rows at the source, {block.copy_rows} at the target"
        for block in compared.unread[:_MOST_NAMED]
    )


def _counts(compared: Comparison) -> str:
    read = compared.differing_blocks - len(compared.unread)
    parts: list[str] = []
    if read:
        counts = ", ".join(f"{count} {kind.value}" for kind, count in compared.counts)
        parts.append(f"{counts} in {read} of {_blocks(compared)}")
    if compared.unread:
        rows = sum(block.differing_rows for block in compared.unread)
        parts.append(
            f"at least {rows} {'row' if rows == 1 else 'rows'} in {len(compared.unread)} of"
            f" {_blocks(compared)}, which have too many rows to compare one by one"
        )
    return "; ".join(parts)


def _blocks(compared: Comparison) -> str:
    return f"{compared.blocks} {'block' if compared.blocks == 1 else 'blocks'}"


def _difference(difference: RowDifference) -> str:
    key = ", ".join(f"{name}={_short(value)}" for name, value in difference.key)
    values = "; ".join(
        f"{name} is {_short(there)} at the source, {_short(here)} at the target"
        for name, (there, here) in zip(
            difference.columns, difference.values, strict=True
        )
    )
    return f"{difference.kind.value} ({key})" + (f": {values}" if values else "")


def _short(value: str | None) -> str:
    if value is None:
        return "null"
    shown = value if len(value) <= _LONG else value[: _LONG - 3] + "..."
    # An empty text, and one that could be mistaken for another one, stand out by quotes.
    mistakable = shown.strip() != shown or shown in ("", "null")
    combined = any(map(unicodedata.combining, shown))
    plain = shown.isprintable() and not mistakable and not combined
    return shown if plain else ascii(shown)


def _object(result: PairResult) -> dict[str, Any]:
    compared = result.comparison
    document: dict[str, Any] = {
        "table": result.table,
        "result": word_of(result),
        "lsn": None if result.lsn is None else str(result.lsn),
        "seconds": round(result.seconds, 3),
    }
    if compared is None:
        return {**document, "reason": result.reason}
    return {
        **document,
        "rows": compared.rows,
        "target_rows": compared.copy_rows,
        "blocks": compared.blocks,
        "differing_blocks": compared.differing_blocks,
        "differing_rows": compared.differing_rows,
        "differences": [
            {
                "kind": difference.kind.value,
                "key": dict(difference.key),
                "columns": [
                    {"column": name, "source": there, "target": here}
                    for name, (there, here) in zip(
                        difference.columns, difference.values, strict=True
                    )
                ],
            }
            for difference in compared.named
        ],
        "blocks_not_read": [
            {
                "place": block.place,
                "rows": block.rows,
                "target_rows": block.copy_rows,
            }
            for block in compared.unread
        ],
    }
