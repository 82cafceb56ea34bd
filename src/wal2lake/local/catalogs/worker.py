"""Registers tables in a catalog of others, in the background.

Takes the entries that are wanted; gives lines in the log, and the file of what is registered. A
round begins at an interval, or when there is something new, and asks the catalog only about tables
that have changed; every ``sweep_interval_ms`` it compares all entries. After a failure the next
attempt waits twice as long as the one before, up to ``_MOST_SECONDS``. Nothing else waits for the
catalog, and DROP TABLE does not wait for this worker, which opens no file of a table but its log.

    settings name another catalog     what was registered in the one before stays there
    settings name none                the same; the file is emptied

Called by the engine, which has one worker for [catalog] and one for [iceberg.catalog].
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from wal2lake.catalog import (
    EntryState,
    RegisteredTable,
    RegisteredTables,
    read_registered,
    write_registered,
)
from wal2lake.errors import Wal2LakeError
from wal2lake.lake.catalogs import CatalogEntry, CatalogUnavailable, ExternalCatalog
from wal2lake.local.catalogs.registry import EntryAttempts, EntryRules, Registry
from wal2lake.local.concurrency.rounds import Rounds
from wal2lake.observe import RepeatedErrors, failpoint, get_logger
from wal2lake.settings import CatalogSettings, IcebergCatalogSettings, Settings

_FIRST_SECONDS: Final = 1.0
"""Pause after a first failure."""

_MOST_SECONDS: Final = 300.0
"""Longest pause: a catalog that is back is brought up to date within this time. A guess."""

RegisterSettings = CatalogSettings | IcebergCatalogSettings

OpenCatalog = Callable[[Any], ExternalCatalog]
"""Makes the client of the catalog that the settings name."""


class EntrySource(Protocol):
    """The entries of one kind of catalog."""

    name: str
    """Name of the worker in the log."""

    @property
    def rules(self) -> EntryRules:
        """The rules about whose an entry is."""

    @property
    def file(self) -> Path:
        """The file that says what is registered."""

    @property
    def settings(self) -> RegisterSettings:
        """The settings in force."""

    @property
    def interval_seconds(self) -> float:
        """Longest time between two rounds."""

    def read(self, *, anew: bool) -> Mapping[str, CatalogEntry | None] | None:
        """Return the entries by ``schema.table``; None for one that is not known now, and instead
        of all before they are known. ``anew``: take nothing from an earlier reading."""


class CatalogWorker:
    """The background work, from ``start`` to ``stop``, which ends it between two entries."""

    def __init__(
        self,
        source: EntrySource,
        open_catalog: OpenCatalog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._open = open_catalog
        self._clock = clock
        self._path = source.file
        self._saved = read_registered(self._path)
        self._client: ExternalCatalog | None = None
        self._client_for: RegisterSettings | None = None
        self._sweep_at = self._retry_at = self._read_at = 0.0
        self._sweep_now = False
        self._attempts = EntryAttempts()
        self._pause = _FIRST_SECONDS
        self._repeated = RepeatedErrors()
        self._log = get_logger().bind(worker=source.name)
        self._rounds = Rounds(
            "registering",
            self.round,
            lambda: source.interval_seconds,
            self._log,
        )
        self.start = self._rounds.start
        self.hurry = self._rounds.hurry

    def stop(self) -> None:
        """End the work between two requests."""
        self._rounds.stop()

    def close(self) -> None:
        """Close connections; for a worker that does not run."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def reload(self, settings: Settings) -> None:
        """Look at the settings, which the node has already, at once, and at each entry."""
        self._sweep_now = True
        self._rounds.hurry()

    def round(self) -> None:
        """Register what has changed."""
        settings, now = self._settings, self._clock()
        if settings != self._client_for:
            self._begin(settings)
        if settings.type == "none":
            return
        if self._sweep_now:
            self._sweep_now, self._sweep_at, self._retry_at = False, 0.0, 0.0
            self._attempts.clear()
        sweep = now >= self._sweep_at
        wanted = self._read(now)
        if wanted is None:
            return
        registry = Registry(
            self._source.rules,
            self._saved.tables,
            self._rounds.check,
            self._attempts,
        )
        registry.note(wanted)
        self._save(registry)
        if now < self._retry_at or not (sweep or registry.is_behind):
            return
        try:
            catalog = self._catalog(settings)
            if sweep and not self._attempts.looked:
                # A comparison takes nothing from earlier answers.
                catalog.close()
            failpoint("catalog.noted")
            registry.follow(catalog, wanted, sweep=sweep)
            failpoint("catalog.told")
        except Wal2LakeError as error:
            registry.fail(error)
            self._failed(error)
        else:
            self._followed(sweep)
        finally:
            self._save(registry)

    def _read(self, now: float) -> Mapping[str, CatalogEntry | None] | None:
        """Return the entries. All logs are read as often as a sweep comes, also if the catalog
        is down, when a sweep is due in each round."""
        anew = now >= self._read_at
        if anew:
            self._read_at = now + self._settings.sweep_interval_ms / 1000
        return self._source.read(anew=anew)

    @property
    def _settings(self) -> RegisterSettings:
        return self._source.settings

    def _begin(self, settings: RegisterSettings) -> None:
        """Begin with other settings. Entries of another catalog are forgotten."""
        if self._client is not None:
            self._client.close()
        self._client, self._client_for = None, settings
        self._sweep_at = self._retry_at = self._read_at = 0.0
        self._attempts.clear()
        self._pause = _FIRST_SECONDS
        if settings.target != self._saved.target:
            self._write(RegisteredTables(settings.target, settings.shown))

    def _catalog(self, settings: RegisterSettings) -> ExternalCatalog:
        if self._client is None:
            self._client = self._open(settings)
        return self._client

    def _failed(self, error: Wal2LakeError) -> None:
        self._repeated.say(
            self._log, "the catalog could not be brought up to date", error
        )
        if isinstance(error, CatalogUnavailable) and self._client is not None:
            # The next attempt makes a new connection, with new credentials.
            self._client.close()
            self._client = None
        self._retry_at = self._clock() + self._pause * random.uniform(0.8, 1.2)
        self._pause = min(self._pause * 2, _MOST_SECONDS)

    def _followed(self, sweep: bool) -> None:
        self._repeated.passed(self._log)
        self._pause, self._retry_at = _FIRST_SECONDS, 0.0
        if sweep:
            self._sweep_at = self._clock() + self._settings.sweep_interval_ms / 1000

    def _save(self, registry: Registry) -> None:
        saved = self._saved
        if registry.tables != saved.tables:
            self._write(replace(saved, tables=dict(registry.tables)))

    def _write(self, content: RegisteredTables) -> None:
        before = self._saved.tables
        write_registered(self._path, content)
        self._saved = content
        for name, table in content.tables.items():
            if _is_news(before.get(name), table):
                self._log.info(
                    "catalog entry",
                    table=name,
                    entry=table.registered_name,
                    state=str(table.state),
                    error=table.error,
                )


def _is_news(before: RegisteredTable | None, table: RegisteredTable) -> bool:
    """Whether a state is worth a line. An entry that follows its table, which that of a mirror does
    in each round, is not."""
    if before is None:
        return True
    follows = {before.state, table.state} <= {EntryState.PENDING, EntryState.REGISTERED}
    failed = before.error is not None or table.error is not None
    return before.state is not table.state and (failed or not follows)
