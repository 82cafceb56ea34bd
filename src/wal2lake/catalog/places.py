"""Converts locations of tables: relative to the warehouse in the file, absolute in records.

In: the warehouse's path or URL, and a location of either kind. Out: the other kind. So a node
continues after its directory or its warehouse was moved. Only a table outside of the warehouse has
an absolute location in the file: an earlier version stored absolute locations for all tables, and
some tables are below a former warehouse.

Called by the modules whose rows have a location (``tables``, ``published``), and by ``database`` to
migrate a file of an earlier version.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

RELATIVE_SINCE: Final = 27
"""First version of the file with relative locations."""

_SEGMENTS: Final = 2
"""Segments of a table's location below its warehouse: schema and table."""

_DELTA_LOG: Final = "_delta_log"


class PlacedConnection(sqlite3.Connection):
    """A connection to the file that knows the warehouse."""

    warehouse: str = ""


def stored(connection: sqlite3.Connection, location: str) -> str:
    """Convert an absolute location to the file's form."""
    return location.removeprefix(f"{_warehouse(connection)}/")


def resolved(connection: sqlite3.Connection, text: str) -> str:
    """Convert a location from the file to an absolute one."""
    if text.startswith("/") or "://" in text:
        return text
    return f"{_warehouse(connection)}/{text}"


def _warehouse(connection: sqlite3.Connection) -> str:
    assert isinstance(connection, PlacedConnection), "it was not opened by Database"
    return connection.warehouse


def make_relative(connection: sqlite3.Connection, warehouse: str) -> None:
    """Make the locations of an older file relative, inside the caller's transaction.

    A table outside of the warehouse that does not exist at its location was moved before the node
    had this version. It is looked for below the warehouse."""
    rows = connection.execute("select location from relation")
    locations = frozenset(row[0] for row in rows)

    def relative(location: str) -> str:
        tail = "/".join(location.rsplit("/", _SEGMENTS)[-_SEGMENTS:])
        below_warehouse = f"{warehouse}/{tail}"
        if location == below_warehouse:
            return tail
        if not location.startswith("/") or below_warehouse in locations:
            return location
        is_left = _is_table(location) and not _is_table(below_warehouse)
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
    return _dumped([_relocated(recorded, change) for recorded in json.loads(text)])


def _relocated(
    recorded: dict[str, Any], change: Callable[[str], str]
) -> dict[str, Any]:
    return {**recorded, "location": change(recorded["location"])}


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_table(location: str) -> bool:
    return location.startswith("/") and (Path(location) / _DELTA_LOG).is_dir()
