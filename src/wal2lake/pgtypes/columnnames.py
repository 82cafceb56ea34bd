"""Column names that a lake table cannot have.

Comes in: names. Goes out: an error that names the table. Called before anything is created: by
``wal2lake check``, when a subscription creates tables, and by CREATE TABLE.

``derived_name`` is PostgreSQL's rule for names of objects that belong to a table or column.

Spark compares column names without case, so Delta refuses two names that differ only in case, and
a table without columns. Spark reserves two names, and files have columns in addition to the
table's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wal2lake.errors import DuplicateObjectError, FeatureNotSupportedError
from wal2lake.model import SYSTEM_COLUMNS

KEPT_NAMES: Final = ("_wal2lake_origin", "_wal2lake_xid", "_wal2lake_time")
"""Names of columns that files have in addition to the table's (``lake.origins``)."""

_OF_SPARK: Final = ("_metadata", "_tmp_metadata_row_index")
"""Spark's names for the metadata of a row's file, and for a row's position in it. If a column of
the table has such a name, then Delta cannot find the deleted rows, and the table cannot be read."""

_REMEDY: Final = "Leave it out with a column list of the publication, or rename it."


def check_column_names(names: Iterable[str], table: str | None = None) -> None:
    """Raise 0A000 (42701 for a repeated, reserved or system column name) if the names cannot be
    the columns of one table; ``table`` is the table's name in messages."""
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
        earlier_name = seen[name.lower()]
        if earlier_name == name:
            raise DuplicateObjectError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
        raise FeatureNotSupportedError(
            f'columns "{earlier_name}" and "{name}"{of_table} differ in case only, which Delta'
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
    """makeObjectName(): the longer part is truncated until the name fits in 63 bytes."""
    parts = [table.encode(), b"" if column is None else column.encode()]
    room = 63 - len(label) - 1 - (0 if column is None else 1)
    while sum(map(len, parts)) > room:
        longer = 0 if len(parts[0]) > len(parts[1]) else 1
        parts[longer] = parts[longer][:-1]
    shown = [part.decode(errors="ignore") for part in parts]
    return "_".join([shown[0], *([] if column is None else [shown[1]]), label])
