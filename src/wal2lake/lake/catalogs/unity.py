"""Registers tables in Unity Catalog, over its REST interface.

Implements ``port.ExternalCatalog`` with five kinds of requests (``jsonservice``). The
catalog itself (``catalog.name``) must exist; a schema is made if it does not.

The interface has no request that changes a table. So an entry with other columns or another place
is removed and made again: for that moment readers find no table, and what was granted on the entry
is lost. Hence types are compared by their meaning, not by the words that a server has for them. If
the new entry is refused, the one before is made again. The interface has no version of a table
either: an entry that another program makes in between is met by the creation, which fails.

Source: unitycatalog, ``api/all.yaml`` (2.1).
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, Final

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.catalogs.entries import NODE
from wal2lake.lake.catalogs.jsonservice import JsonService
from wal2lake.lake.catalogs.options import CatalogOptions
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    EntryChanged,
    EntryName,
    EntryRefused,
    FoundEntry,
)
from wal2lake.lake.catalogs.types import unity_column

_API: Final = "/api/2.1/unity-catalog"

_EXISTS: Final = "ALREADY_EXISTS"

_CREATED: Final = (
    "name",
    "catalog_name",
    "schema_name",
    "table_type",
    "data_source_format",
    "columns",
    "storage_location",
    "comment",
    "properties",
)
"""Properties of a table that are said when it is made."""

_COMPOSITE: Final = ("ARRAY", "MAP", "STRUCT", "")
"""Names of types that do not say everything about a type."""


class UnityCatalog:
    """Unity Catalog, as OSS or of Databricks."""

    def __init__(self, options: CatalogOptions) -> None:
        """Connect to nothing yet."""
        self._options = options
        self._service = JsonService(
            options, f"{options.uri.rstrip('/')}{_API}", _said, self._failed
        )
        self._ask = self._service.ask

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""
        table = self._ask("GET", f"/tables/{self._full(name)}", expected=404)
        if table is None:
            return None
        columns = sorted(table.get("columns") or (), key=_position)
        return FoundEntry(
            str(table.get("storage_location") or ""),
            tuple(map(_shown, columns)),
            table.get("properties") or {},
            table,
        )

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether the existing entry matches ``entry``."""
        return (
            _plain(existing.location) == _plain(entry.location)
            and existing.columns == tuple(map(_shown, _columns(entry)))
            and entry.properties.items() <= existing.properties.items()
        )

    def create(self, entry: CatalogEntry) -> None:
        """Make an entry that does not exist, and its schema if that does not exist either."""
        self._make_schema(entry)
        self._create(entry, entry.properties, {})

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        """Remove the existing entry and create it anew."""
        before = existing.original
        self.remove(entry.name, existing)
        try:
            self._create(entry, {**existing.properties, **entry.properties}, before)
        except EntryChanged:
            raise
        except EntryRefused:
            self._ask("POST", "/tables", _made_of(before))
            raise

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        """Remove the existing entry; no file is touched."""
        self._ask("DELETE", f"/tables/{self._full(name)}", expected=404)

    def close(self) -> None:
        """Forget a token that a command has printed."""
        self._service.forget()

    def _make_schema(self, entry: CatalogEntry) -> None:
        name = f"{self._options.name}.{entry.name.database}"
        if self._ask("GET", f"/schemas/{_quoted(name)}", expected=404) is not None:
            return
        schema = {
            "name": entry.name.database,
            "catalog_name": self._options.name,
            "properties": {NODE: entry.properties[NODE]},
        }
        try:
            self._ask("POST", "/schemas", schema)
        except EntryChanged:
            return

    def _create(
        self, entry: CatalogEntry, properties: Any, before: dict[str, Any]
    ) -> None:
        """Make an entry. What others have said about the one before stays."""
        comments = {
            str(column.get("name")).lower(): column["comment"]
            for column in before.get("columns") or ()
            if column.get("comment")
        }
        columns = _columns(entry)
        for column in columns:
            if column["name"].lower() in comments:
                column["comment"] = comments[column["name"].lower()]
        table = {
            "name": entry.name.table,
            "catalog_name": self._options.name,
            "schema_name": entry.name.database,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": columns,
            "storage_location": entry.location,
            "properties": dict(properties),
        }
        if before.get("comment"):
            table["comment"] = before["comment"]
        self._ask("POST", "/tables", table)

    def _full(self, name: EntryName) -> str:
        return _quoted(f"{self._options.name}.{name}")

    def _failed(self, status: int, code: str, message: str) -> Wal2LakeError:
        # The reference server answers 400 for this, too.
        if status == 409 or code.endswith(_EXISTS):
            return EntryChanged(f"an entry has changed in the unity catalog: {message}")
        if status in (400, 422) or (status == 404 and code):
            return EntryRefused(
                f"the unity catalog has refused an entry: {message}",
                hint="The entry is tried again later. Check catalog.name, rename the table, or"
                " correct the catalog.",
            )
        return self._options.unreachable(message)


def _columns(entry: CatalogEntry) -> list[dict[str, Any]]:
    return [
        unity_column(column, position) for position, column in enumerate(entry.columns)
    ]


def _shown(column: dict[str, Any]) -> tuple[str, str]:
    """Return a column's name and type as they can be compared: servers write them in their own
    way."""
    kind = str(column.get("type_name") or "")
    if kind in _COMPOSITE:
        kind = re.sub(r"\s", "", str(column.get("type_text"))).lower()
    elif kind == "DECIMAL":
        kind += f"({column.get('type_precision')},{column.get('type_scale')})"
    return str(column.get("name")).lower(), kind


def _made_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return the request that makes a table like one that was found."""
    return {name: table[name] for name in _CREATED if table.get(name) is not None}


def _position(column: dict[str, Any]) -> int:
    return int(column.get("position") or 0)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe=".")


def _plain(location: str) -> str:
    """Return a location as it can be compared: servers write it in their own way."""
    return urllib.parse.unquote(location).rstrip("/").replace("file:///", "file:/")


def _said(answer: Any) -> tuple[str, str]:
    return str(answer.get("error_code", "")), str(answer["message"])
