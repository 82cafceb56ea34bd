"""Compares a copy with its source, row by row and byte by byte of their text.

Both sides return every row. The source returns PostgreSQL's text, and the node must return the
same. Nothing is counted or hashed on a side that could be wrong.

Called by: ``run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from wal2lake.pg.client import Client

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TableDifference:
    """Differences between one table's copy and its source."""

    table: str
    rows: int
    """Number of rows in the source."""
    missing: tuple[Row, ...]
    """Keys that are missing in the copy."""
    extra: tuple[Row, ...]
    """Keys that are missing in the source."""
    different: tuple[tuple[Row, Row], ...]
    """Pairs (source, copy) of rows whose values differ."""
    repeated: int = 0
    """Number of rows in the copy whose key another row has, too."""

    @property
    def is_equal(self) -> bool:
        """True if copy and source are equal."""
        wrong = (self.missing, self.extra, self.different, self.repeated)
        return not any(wrong)


def compare_rows(
    table: str, key: Sequence[int], source: Iterable[Row], copy: Iterable[Row]
) -> TableDifference:
    """Compare two sets of rows; ``key``: the positions of the key's columns."""
    theirs = {tuple(row[i] for i in key): row for row in source}
    ours: dict[Row, Row] = {}
    repeated = 0
    for row in copy:
        name = tuple(row[i] for i in key)
        repeated += name in ours
        ours[name] = row
    return TableDifference(
        table,
        len(theirs),
        tuple(k for k in theirs if k not in ours),
        tuple(k for k in ours if k not in theirs),
        tuple((r, ours[k]) for k, r in theirs.items() if k in ours and ours[k] != r),
        repeated,
    )


def compare_tables(
    source: Client, copy: Client, schema: str, tables: Mapping[str, Sequence[str]]
) -> list[TableDifference]:
    """Compare every table; ``tables`` maps a name to its key's columns.

    Neither side may change meanwhile.
    """
    differences = []
    for table, key in tables.items():
        columns = [
            str(row[0])
            for row in source.rows(
                "select attname from pg_catalog.pg_attribute where attnum > 0"
                f" and not attisdropped and attrelid = '{schema}.{table}'::regclass"
                " order by attnum"
            )
        ]
        query = f"select {', '.join(columns)} from {schema}.{table}"
        positions = [columns.index(name) for name in key]
        differences.append(
            compare_rows(table, positions, source.rows(query), copy.rows(query))
        )
    return differences


def describe(difference: TableDifference) -> list[str]:
    """Return the lines of one table's result, with a few examples of differences."""
    name, rows = difference.table, difference.rows
    if difference.is_equal:
        return [f"{name:<12}{rows:>9,} rows   equal"]
    lines = [
        f"{name:<12}{rows:>9,} rows   NOT EQUAL: {len(difference.missing)} missing,"
        f" {len(difference.extra)} too many, {len(difference.different)} different,"
        f" {difference.repeated} repeated"
    ]
    lines.extend(f"    missing  {row}" for row in islice(difference.missing, 3))
    lines.extend(f"    too many {row}" for row in islice(difference.extra, 3))
    for theirs, ours in islice(difference.different, 3):
        lines.append(f"    source   {_short(theirs)}")
        lines.append(f"    copy     {_short(ours)}")
    return lines


def _short(row: Row) -> str:
    return ", ".join(
        "null" if cell is None else cell if len(cell) <= 40 else cell[:37] + "..."
        for cell in row
    )
