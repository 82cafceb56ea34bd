"""Where tables are: in the file relative to the warehouse, in records as a place to be opened.

In: the warehouse's path or URL, and a location of either kind. Out: the other kind. So a node goes
on wherever its directory or its warehouse has been moved to. Only a table that is not below the
warehouse has an absolute location in the file: an earlier version had them for all tables, and
left those behind whose warehouse was not the settings' any more.

Called by the modules whose rows have a location (``tables``, ``published``), and by ``database``
for a file of an earlier version.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

RELATIVE_SINCE: Final = 27
"""The version of the file that has relative locations."""

_SEGMENTS: Final = 2
"""Segments of a table's location below its warehouse: schema and table."""

_DELTA_LOG: Final = "_delta_log"


class PlacedConnection(sqlite3.Connection):
    """A connection to the file that knows the warehouse."""

    warehouse: str = ""


def stored(connection: sqlite3.Connection, location: str) -> str:
    """A place as the file has it."""
    return location.removeprefix(f"{_warehouse(connection)}/")


def found(connection: sqlite3.Connection, text: str) -> str:
    """The inverse."""
    if text.startswith("/") or "://" in text:
        return text
    return f"{_warehouse(connection)}/{text}"


def _warehouse(connection: sqlite3.Connection) -> str:
    assert isinstance(connection, PlacedConnection), "it was not opened by Database"
    return connection.warehouse


def make_relative(connection: sqlite3.Connection, warehouse: str) -> None:
    """Change the absolute locations of an older file; part of a transaction.

    A table that is not below the warehouse and not where its location says either was moved
    before the node had this version: it is looked for below the warehouse."""
    rows = connection.execute("select location from relation")
    known = frozenset(row[0] for row in rows)

    def relative(location: str) -> str:
        tail = "/".join(location.rsplit("/", _SEGMENTS)[-_SEGMENTS:])
        here = f"{warehouse}/{tail}"
        if location == here:
            return tail
        if not location.startswith("/") or here in known:
            return location
        is_left = _is_table(location) and not _is_table(here)
        return location if is_left else tail

    _rewrite(connection, "relation", "location", relative)
    for table in ("local_commit", "prepared_commit"):
        _rewrite(connection, table, "tables", lambda text: _in_list(text, relative))
    _rewrite(
        connection,
        "definition_history",
        "definition",
        lambda text: _in_object(text, relative),
        "kind = 'relation' and definition is not null",
    )


def _rewrite(
    connection: sqlite3.Connection,
    table: str,
    column: str,
    change: Callable[[str], str],
    condition: str = "true",
) -> None:
    texts = connection.execute(
        f"select distinct {column} from {table} where {condition}"
    )
    for (text,) in texts.fetchall():
        connection.execute(
            f"update {table} set {column} = ? where {column} = ? and {condition}",
            (change(text), text),
        )


def _in_object(text: str, change: Callable[[str], str]) -> str:
    return _dumped(_relocated(json.loads(text), change))


def _in_list(text: str, change: Callable[[str], str]) -> str:
    return _dumped([_relocated(one, change) for one in json.loads(text)])


def _relocated(one: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    return {**one, "location": change(one["location"])}


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_table(location: str) -> bool:
    return location.startswith("/") and (Path(location) / _DELTA_LOG).is_dir()
