"""Registers tables in Unity Catalog, over its REST interface.

Implements ``port.ExternalCatalog`` by the standard library: five kinds of requests with JSON. The
catalog itself (``catalog.name``) must exist; a schema is made if it does not.

The interface has no request that changes a table's columns. So a changed entry is removed and made
again, and for that moment readers find no table. It has no version of a table either: an entry that
another program makes in between is met by the creation, which fails.

Source: unitycatalog, ``api/all.yaml`` (2.1).
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from wal2lake.lake.catalogs.entries import NODE
from wal2lake.lake.catalogs.options import (
    CatalogOptions,
    failed_command,
    not_let_in,
    unreachable,
)
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    EntryChanged,
    EntryName,
    EntryRefused,
    FoundEntry,
)
from wal2lake.lake.catalogs.types import unity_column
from wal2lake.lake.store.access.command import CredentialsCommandFailed, run_command

_API: Final = "/api/2.1/unity-catalog"

_TEXT: Final = 500
"""Characters of an answer that an error quotes."""

_EXISTS: Final = "ALREADY_EXISTS"

_MOST_BYTES: Final = 16 << 20
"""Longest answer that is read. A table with 10,000 columns has 3 MB."""


class UnityCatalog:
    """Unity Catalog, as OSS or of Databricks."""

    def __init__(self, options: CatalogOptions) -> None:
        """Connect to nothing yet."""
        self._options = options
        self._token = options.token

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""
        table = self._ask("GET", f"/tables/{self._full(name)}", expected=404)
        if table is None:
            return None
        columns = sorted(table.get("columns") or (), key=_position)
        return FoundEntry(
            str(table.get("storage_location") or ""),
            tuple((str(c.get("name")), str(c.get("type_text"))) for c in columns),
            table.get("properties") or {},
            table,
        )

    def shows(self, found: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether what was found is the entry."""
        wanted = tuple((c["name"], c["type_text"]) for c in _columns(entry))
        return (
            _plain(found.location) == _plain(entry.location)
            and found.columns == wanted
            and entry.properties.items() <= found.properties.items()
        )

    def create(self, entry: CatalogEntry) -> None:
        """Make an entry that does not exist, and its schema if that does not exist either."""
        self._make_schema(entry)
        self._create(entry, entry.properties, None)

    def change(self, entry: CatalogEntry, found: FoundEntry) -> None:
        """Replace what was found."""
        self.remove(entry.name, found)
        properties = {**found.properties, **entry.properties}
        self._create(entry, properties, found.original.get("comment"))

    def remove(self, name: EntryName, found: FoundEntry) -> None:
        """Remove what was found; no file is touched."""
        self._ask("DELETE", f"/tables/{self._full(name)}", expected=404)

    def close(self) -> None:
        """Forget a token that a command has printed."""
        self._token = self._options.token

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
        self, entry: CatalogEntry, properties: Any, comment: str | None
    ) -> None:
        table = {
            "name": entry.name.table,
            "catalog_name": self._options.name,
            "schema_name": entry.name.database,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": _columns(entry),
            "storage_location": entry.location,
            "properties": dict(properties),
        }
        if comment:
            table["comment"] = comment
        self._ask("POST", "/tables", table)

    def _full(self, name: EntryName) -> str:
        return _quoted(f"{self._options.name}.{name}")

    def _ask(
        self, method: str, path: str, body: Any = None, *, expected: int = 0
    ) -> Any:
        """Return the JSON of an answer; None if its status is the one that is expected."""
        request = urllib.request.Request(
            f"{self._options.uri.rstrip('/')}{_API}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers=self._headers(),
        )
        try:
            with urllib.request.urlopen(
                request, timeout=self._options.timeout_seconds
            ) as answer:
                text = answer.read(_MOST_BYTES)
            return json.loads(text) if text.strip() else {}
        except urllib.error.HTTPError as error:
            with error:
                code, said = _said(error)
            if error.code == expected:
                return None
            raise self._failed(error.code, code, said) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise unreachable("unity", str(reason) or type(error).__name__) from None
        except ValueError:
            raise unreachable("unity", "its answer is not JSON") from None

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if not self._token and self._options.command:
            try:
                self._token = run_command(self._options.command).strip()
            except CredentialsCommandFailed as error:
                raise failed_command(error) from None
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _failed(self, status: int, code: str, said: str) -> Exception:
        if status in (401, 403):
            self.close()
            return not_let_in("unity", said)
        # The reference server answers 400 for this, too.
        if status == 409 or code.endswith(_EXISTS):
            return EntryChanged(f"an entry has changed in the unity catalog: {said}")
        if status in (400, 404, 422):
            return EntryRefused(
                f"the unity catalog has refused an entry: {said}",
                hint="The entry is tried again later. Check catalog.name, rename the table, or"
                " correct the catalog.",
            )
        return unreachable("unity", said)


def _columns(entry: CatalogEntry) -> list[dict[str, Any]]:
    return [
        unity_column(column, position) for position, column in enumerate(entry.columns)
    ]


def _position(column: dict[str, Any]) -> int:
    return int(column.get("position") or 0)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe=".")


def _plain(location: str) -> str:
    """Return a location as it can be compared: servers write it in their own way."""
    return urllib.parse.unquote(location).rstrip("/").replace("file:///", "file:/")


def _said(error: urllib.error.HTTPError) -> tuple[str, str]:
    """Return the server's error code and words."""
    try:
        text = error.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        text = ""
    try:
        answer = json.loads(text)
        code, text = str(answer.get("error_code", "")), str(answer["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        code = text = ""
    return code, text[:_TEXT] or f"{error.code} {error.reason}"
