"""Registers tables in Unity Catalog, over its REST interface.

Implements ``port.ExternalCatalog`` by the standard library: five kinds of requests with JSON. The
catalog itself (``catalog.name``) must exist; a schema is made if it does not.

The interface has no request that changes a table. So an entry with other columns or another place
is removed and made again: for that moment readers find no table, and what was granted on the entry
is lost. Hence types are compared by their meaning, not by the words that a server has for them. If
the new entry is refused, the one before is made again. The interface has no version of a table
either: an entry that another program makes in between is met by the creation, which fails.

A redirect is not followed, since the token would go to another host with it.

Source: unitycatalog, ``api/all.yaml`` (2.1).
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.catalogs.entries import NODE
from wal2lake.lake.catalogs.options import (
    CatalogOptions,
    denied,
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


_TOKEN_SECONDS: Final = 60.0
"""Age from which a refused token of the command is replaced: servers say 403 for a token that has
ended, too, and a table that is not allowed must not run the command each time. A guess."""

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

_TOKEN: Final = re.compile(r"[!-~]+")

_COMPOSITE: Final = ("ARRAY", "MAP", "STRUCT", "")
"""Names of types that do not say everything about a type."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect the error that its status is."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        """Follow nothing."""


class UnityCatalog:
    """Unity Catalog, as OSS or of Databricks."""

    def __init__(self, options: CatalogOptions) -> None:
        """Connect to nothing yet."""
        self._options = options
        self._token = options.token
        self._token_at = 0.0
        self._opener = urllib.request.build_opener(_NoRedirects)

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

    def _ask(
        self, method: str, path: str, body: Any = None, *, expected: int = 0
    ) -> dict[str, Any] | None:
        """Return the JSON object of an answer; None if the server says that the object does not
        exist, with the status that is expected."""
        try:
            return self._answer(method, path, body)
        except urllib.error.HTTPError as error:
            with error:
                code, message = _said(error)
            # A page of something else on the way to the server is no word about the object.
            if error.code == expected and code:
                return None
            raise self._failed(error, code, message) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise unreachable("unity", str(reason) or type(error).__name__) from None

    def _answer(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """Send a request; once more if the command has another token than the one refused."""
        for again in (False, True):
            request = urllib.request.Request(
                f"{self._options.uri.rstrip('/')}{_API}{path}",
                data=None if body is None else json.dumps(body).encode(),
                method=method,
                headers=self._headers(),
            )
            try:
                with self._opener.open(
                    request, timeout=self._options.timeout_seconds
                ) as answer:
                    text = answer.read(_MOST_BYTES)
                break
            except urllib.error.HTTPError as error:
                if again or error.code not in (401, 403) or not self._is_old():
                    raise
                error.close()
                self.close()
        try:
            document = json.loads(text) if text.strip() else {}
        except ValueError:
            raise unreachable("unity", "its answer is not JSON") from None
        if not isinstance(document, dict):
            raise unreachable("unity", "its answer is not a JSON object")
        return document

    def _is_old(self) -> bool:
        """Whether the token may have ended since the command has printed it."""
        age = time.monotonic() - self._token_at
        return bool(self._options.command) and age >= _TOKEN_SECONDS

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if not self._token and self._options.command:
            try:
                printed = run_command(self._options.command).strip()
                if not _TOKEN.fullmatch(printed):
                    raise CredentialsCommandFailed("its output is not a token")
            except CredentialsCommandFailed as error:
                raise failed_command(error) from None
            self._token, self._token_at = printed, time.monotonic()
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _failed(
        self, error: urllib.error.HTTPError, code: str, message: str
    ) -> Wal2LakeError:
        status = error.code
        if status == 401:
            self.close()
            return not_let_in("unity", message)
        if status == 403:
            return denied("unity", message)
        if 300 <= status < 400:
            place = urllib.parse.urlsplit(error.headers.get("Location") or "").netloc
            host = place.rpartition("@")[2]
            return unreachable(
                "unity", f"it redirects to another place ({host or 'unknown'})"
            )
        # The reference server answers 400 for this, too.
        if status == 409 or code.endswith(_EXISTS):
            return EntryChanged(f"an entry has changed in the unity catalog: {message}")
        if status in (400, 422) or (status == 404 and code):
            return EntryRefused(
                f"the unity catalog has refused an entry: {message}",
                hint="The entry is tried again later. Check catalog.name, rename the table, or"
                " correct the catalog.",
            )
        return unreachable("unity", message)


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
