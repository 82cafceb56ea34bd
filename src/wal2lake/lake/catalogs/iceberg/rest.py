"""Registers mirrors in an Iceberg REST catalog.

Implements ``port.ExternalCatalog`` and ``GroupedChanges`` (``jsonservice``).

    a new table        register: the server reads the mirror's metadata file
    new snapshots      a commit of changes (``updates``); of several tables in one request
                       (``transactions/commit``) if the server has that, else one by one
    a mirror anew      the entry is removed and registered: its UUID is another one

Registering over an existing entry would be simpler, but it asks nothing about what the entry was,
so a commit of another program would be lost; few servers can do it, and none for several tables.

What a server has after a commit is known without asking. So a round costs one request, and a table
is loaded only after a failure and in a sweep.

Source: Iceberg REST catalog specification (rest-catalog-open-api.yaml).
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.catalogs.entries import NODE
from wal2lake.lake.catalogs.iceberg.updates import (
    ServedTable,
    commit_to,
    served_table,
)
from wal2lake.lake.catalogs.jsonservice import EndpointMissing, JsonService
from wal2lake.lake.catalogs.options import CatalogOptions
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    EntryChange,
    EntryChanged,
    EntryName,
    EntryRefused,
    FoundEntry,
)

_TRANSACTIONS: Final = "POST /v1/{prefix}/transactions/commit"

_REFUSED: Final = (
    "The entry is tried again later. Rename the table, or correct the catalog."
)


@dataclass(slots=True)
class _ServerConfig:
    """Facts that a server has told of itself."""

    root: str
    """Path that all others begin with."""
    has_transactions: bool


class RestIcebergCatalog:
    """An Iceberg REST catalog."""

    def __init__(self, options: CatalogOptions) -> None:
        """Connect to nothing yet."""
        self._options = options
        self._service = JsonService(
            options, options.uri.rstrip("/"), _said, self._failed
        )
        self._config: _ServerConfig | None = None
        self._served: dict[EntryName, ServedTable] = {}

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""
        if name not in self._served:
            answer = self._ask("GET", _table(name), expected=404)
            if answer is None:
                return None
            self._keep(name, answer)
        served = self._served[name]
        return FoundEntry(
            "", (), served.properties, served, served.uuid, served.foreign
        )

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether the existing entry matches ``entry``."""
        served: ServedTable = existing.original
        return _is_same(served, entry) and not commit_to(served, entry).updates

    def create(self, entry: CatalogEntry) -> None:
        """Register a table, and make its namespace if that does not exist."""
        path = f"{_namespace(entry.name)}/register"
        body = {"name": entry.name.table, "metadata-location": entry.location}
        answer = self._ask("POST", path, body, expected=404)
        if answer is None:
            self._make_namespace(entry)
            answer = self._ask("POST", path, body)
        assert answer is not None
        self._keep(entry.name, answer)

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        """Let the server show the mirror."""
        self.change_all([(entry, existing)])

    def change_all(self, changes: Sequence[EntryChange]) -> None:
        """Let the server show the mirrors, at once if it can."""
        anew = [c for c in changes if not _is_same(c[1].original, c[0])]
        for entry, existing in anew:
            self.remove(entry.name, existing)
            self.create(entry)
        commits = {
            entry.name: commit_to(existing.original, entry)
            for entry, existing in changes
            if _is_same(existing.original, entry)
        }
        bodies = {
            name: {"requirements": commit.requirements, "updates": commit.updates}
            for name, commit in commits.items()
        }
        # Whatever happens, what the server has is not known before the answer.
        for name in commits:
            self._served.pop(name, None)
        self._commit(bodies)
        for name, commit in commits.items():
            self._served[name] = commit.after

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        """Remove the existing entry; no file is touched."""
        self._served.pop(name, None)
        self._ask("DELETE", f"{_table(name)}?purgeRequested=false", expected=404)

    def close(self) -> None:
        """Forget what the server has said."""
        self._service.forget()
        self._config = None
        self._served.clear()

    def _commit(self, bodies: Mapping[EntryName, Any]) -> None:
        """Commit, in one request if the server offers it. Of one table no transaction is made."""
        config = self._configured()
        if len(bodies) > 1 and config.has_transactions:
            tables = [
                {
                    "identifier": {"namespace": [name.database], "name": name.table},
                    **body,
                }
                for name, body in bodies.items()
            ]
            try:
                self._ask(
                    "POST",
                    "/transactions/commit",
                    {"table-changes": tables},
                    may_be_missing=True,
                )
                return
            except EndpointMissing:
                config.has_transactions = False
        for name, body in bodies.items():
            self._ask("POST", _table(name), body)

    def _keep(self, name: EntryName, answer: Mapping[str, Any]) -> None:
        try:
            self._served[name] = served_table(answer["metadata"])
        except (LookupError, TypeError, AttributeError):
            raise self._options.unreachable("its answer is not a table's") from None

    def _make_namespace(self, entry: CatalogEntry) -> None:
        body = {
            "namespace": [entry.name.database],
            "properties": {NODE: entry.properties[NODE]},
        }
        try:
            self._ask("POST", "/namespaces", body)
        except EntryChanged:
            return

    def _configured(self) -> _ServerConfig:
        """Return what the server says of itself; asked once for a connection."""
        if self._config is None:
            query = urllib.parse.urlencode({"warehouse": self._options.name})
            path = f"/v1/config?{query}" if self._options.name else "/v1/config"
            answer = self._service.ask("GET", path) or {}
            settings = {
                **(answer.get("defaults") or {}),
                **(answer.get("overrides") or {}),
            }
            prefix = str(settings.get("prefix") or "").strip("/")
            root = f"/v1/{urllib.parse.quote(prefix)}" if prefix else "/v1"
            endpoints = answer.get("endpoints")
            offered = endpoints is None or _TRANSACTIONS in endpoints
            self._config = _ServerConfig(root, offered)
        return self._config

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: int = 0,
        may_be_missing: bool = False,
    ) -> dict[str, Any] | None:
        return self._service.ask(
            method,
            f"{self._configured().root}{path}",
            body,
            expected=expected,
            may_be_missing=may_be_missing,
        )

    def _failed(self, status: int, code: str, message: str) -> Wal2LakeError:
        if status == 409:
            return EntryChanged(f"an entry has changed in the rest catalog: {message}")
        if status in (400, 405, 406, 422, 501) or (status == 404 and code):
            return EntryRefused(
                f"the rest catalog has refused an entry: {message}", hint=_REFUSED
            )
        return self._options.unreachable(message)


def _is_same(served: ServedTable, entry: CatalogEntry) -> bool:
    return served.uuid in entry.identities


def _namespace(name: EntryName) -> str:
    return f"/namespaces/{urllib.parse.quote(name.database, safe='')}"


def _table(name: EntryName) -> str:
    return f"{_namespace(name)}/tables/{urllib.parse.quote(name.table, safe='')}"


def _said(answer: Any) -> tuple[str, str]:
    error = answer["error"]
    return str(error["type"]), str(error["message"])
