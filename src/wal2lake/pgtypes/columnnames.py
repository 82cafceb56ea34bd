"""Which columns cannot be together in one lake table.

Comes in: names. Goes out: a refusal, in words that name the table. Asked before anything is made:
by ``wal2lake check``, when a subscription creates tables, and by CREATE TABLE.

``derived_name`` is how PostgreSQL names what belongs to a table or a column.

Spark finds columns regardless of case, so Delta refuses two that differ in nothing else, and
a table of none. Spark keeps two names for itself, and files have columns beside the table's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wal2lake.errors import DuplicateObjectError, FeatureNotSupportedError
from wal2lake.model import SYSTEM_COLUMNS

KEPT_NAMES: Final = ("_wal2lake_origin", "_wal2lake_xid", "_wal2lake_time")
"""Names of columns that files have beside the table's, see ``lake.origins``."""

_OF_SPARK: Final = ("_metadata", "_tmp_metadata_row_index")
"""Names that Spark gives to the facts about a row's file, and to a row's place in it. If a column
of the table has such a name, Delta cannot tell which rows are deleted, and the table cannot be
read."""

_REMEDY: Final = "Leave it out with a column list of the publication, or rename it."


def check_column_names(names: Iterable[str], table: str | None = None) -> None:
    """0A000 (42701 for a name that is there twice, kept, or a system column's) unless they
    can be the columns of a table; ``table`` is what messages call it."""
    of_table = "" if table is None else f' of table "{table}"'
    seen: dict[str, str] = {}
    for name in names:
        if name in SYSTEM_COLUMNS:
            raise DuplicateObjectError(
                f'column name "{name}" conflicts with a system column name',
                sqlstate="42701",
            )
        if name.lower() in KEPT_NAMES:
            raise DuplicateObjectError(
                f'column name "{name}"{of_table} conflicts with a system column name',
                detail="In a table's files columns of this name say who has written a row.",
                sqlstate="42701",
                hint=_REMEDY,
            )
        if name in _OF_SPARK:
            raise FeatureNotSupportedError(
                f'column "{name}"{of_table} has a name that Spark keeps for itself',
                hint=_REMEDY,
            )
        if name.lower() not in seen:
            seen[name.lower()] = name
            continue
        other = seen[name.lower()]
        if other == name:
            raise DuplicateObjectError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
        raise FeatureNotSupportedError(
            f'columns "{other}" and "{name}"{of_table} differ in case only, which Delta'
            " Lake cannot store",
            hint="Leave one of them out with a column list of the publication, or rename"
            " it.",
        )
    if not seen:
        subject = "the table" if table is None else f'table "{table}"'
        raise FeatureNotSupportedError(
            f"{subject} has no columns, which a Delta table cannot be",
            hint="Add a column, or take the table out of the publication (FOR ALL TABLES"
            " and FOR TABLES IN SCHEMA leave none out: list the tables).",
        )


def derived_name(table: str, column: str | None, label: str) -> str:
    """makeObjectName(): the longer part is cut until all fits into 63 bytes."""
    parts = [table.encode(), b"" if column is None else column.encode()]
    room = 63 - len(label) - 1 - (0 if column is None else 1)
    while sum(map(len, parts)) > room:
        longer = 0 if len(parts[0]) > len(parts[1]) else 1
        parts[longer] = parts[longer][:-1]
    shown = [part.decode(errors="ignore") for part in parts]
    return "_".join([shown[0], *([] if column is None else [shown[1]]), label])
