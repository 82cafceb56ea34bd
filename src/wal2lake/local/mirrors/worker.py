"""Mirrors published versions to Iceberg, in the background.

Takes the node; gives lines in the log. A round begins every ``iceberg.interval_ms``: each mirrored
table whose published version is not shown yet gets a snapshot. When all tables are done, the round
is recorded as a moment (``moments``). A table that cannot be mirrored is reported and tried again,
and holds up no other. A mirror holds files and versions of its table. So one that has not followed
for ``iceberg.history_ms``, whatever the reason, is removed, and begins anew once the table can be
mirrored: VACUUM would never remove anything again otherwise.

Every ``_TRIM_SECONDS`` old snapshots go, also those of tables that nobody writes, and mirrors of
tables that are mirrored no longer.

DROP TABLE removes the catalog's row and then calls ``leave``, under a lock that all such commands
need. A table is begun only if the catalog still has it, since the list of a round may be older; and
between two steps, which are files that are read or written, the worker looks whether it must go.

Called by the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from wal2lake.catalog import SnapshotVector, TableDef
from wal2lake.errors import UndefinedObjectError
from wal2lake.lake import CommitConflict
from wal2lake.lake.iceberg import IcebergMirror, MirrorOptions, ShownMirror
from wal2lake.local.concurrency.leaving import LeftTables
from wal2lake.local.concurrency.rounds import Rounds
from wal2lake.local.mirrors.moments import RoundMoments
from wal2lake.local.mirrors.wanted import WantedMirror, wanted_mirrors
from wal2lake.local.ports import MirrorParts
from wal2lake.local.retention.holders import TablePlace, places_of
from wal2lake.model import Oid
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.settings import IcebergSettings, Settings

_TRIM_SECONDS: Final = 600.0
"""Interval at which mirrors are trimmed. A guess."""

_NOT_MIRRORED: Final = "a table could not be mirrored to Iceberg"


RoundDone = Callable[[Sequence[tuple[TableDef, ShownMirror | None]]], None]
"""Is told what all mirrors show after a round: None for one that has not followed. It must not
wait."""


class _MustGo(Exception):
    """Raised between two steps if the table is being dropped or the engine stops."""


class MirrorWorker:
    """The background work, from ``start`` to ``stop``, which ends it after a step."""

    def __init__(
        self,
        node: MirrorParts,
        done: RoundDone = lambda mirrors: None,
    ) -> None:
        self._node = node
        self._done = done
        self._latest: dict[str, ShownMirror] = {}
        self._left = LeftTables()
        self._shown: dict[str, tuple[int, int]] = {}
        self._behind: dict[str, float] = {}
        self._trimmed = time.monotonic()
        self._repeated: dict[tuple[str, str], RepeatedErrors] = {}
        self._moments = RoundMoments(node.settings.iceberg_directory, _now_ms)
        self._log = get_logger().bind(worker="iceberg")
        self._rounds = Rounds(
            "mirroring",
            self.round,
            lambda: self._settings.interval_ms / 1000,
            self._log,
        )
        self.start = self._rounds.start
        self.stop = self._rounds.stop

    def reload(self, settings: Settings) -> None:
        """Look at the settings, which the node has already."""
        self._shown.clear()
        self._latest.clear()
        self._rounds.hurry()

    def leave(self, location: str) -> None:
        """Stop work on a table that is being dropped; none is running for it on return. Called
        after the table has left the catalog: work on it does not begin again."""
        self._left.leave(location)
        self._shown.pop(location, None)
        self._latest.pop(location, None)

    def round(self) -> None:
        """Mirror each table once."""
        self._moments.begin()
        states = self._node.catalog.newest_vectors()
        wanted = list(wanted_mirrors(self._node.catalog, states))
        behind = []
        for mirror in wanted:
            with self._at(mirror.place) as free:
                if free and not self._mirror(mirror):
                    behind.append(mirror.place)
        self._complete(states, wanted, behind)
        mirrored = {mirror.place.location for mirror in wanted}
        for location in self._behind.keys() - mirrored:
            del self._behind[location]
        for location in self._latest.keys() - mirrored:
            self._latest.pop(location, None)
        if time.monotonic() - self._trimmed >= _TRIM_SECONDS:
            self.trim(mirrored)
        if not self._rounds.is_stopping:
            self._hand_over(wanted, {place.location for place in behind})

    def _hand_over(
        self, wanted: Sequence[WantedMirror], behind: Collection[str]
    ) -> None:
        """Tell what the mirrors show."""
        mirrors = []
        for mirror in wanted:
            location = mirror.place.location
            shown = None if location in behind else self._latest.get(location)
            mirrors.append((mirror.table, shown))
        self._done(mirrors)

    def _complete(
        self,
        states: Mapping[Oid, SnapshotVector],
        wanted: Sequence[WantedMirror],
        behind: Sequence[TablePlace],
    ) -> None:
        """Record the moment, unless the engine stops: then tables are missing from the round."""
        if self._rounds.is_stopping:
            return
        oldest_ms = _now_ms() - self._settings.history_ms
        try:
            self._moments.complete(states, wanted, behind, oldest_ms)
        except OSError as error:
            self._say(
                "", "a moment of the Iceberg mirrors could not be recorded", error
            )

    def trim(self, mirrored: set[str]) -> None:
        """Remove old snapshots, and mirrors of all tables but ``mirrored``."""
        self._trimmed = time.monotonic()
        oldest_ms = _now_ms() - self._settings.history_ms
        for place in places_of(self._node.catalog):
            with self._at(place) as free:
                if not free:
                    continue
                try:
                    if place.location in mirrored:
                        self._trim(place, oldest_ms)
                    elif self._remove(place):
                        self._log.info("mirror removed", table=place.shown)
                except _MustGo:
                    continue
                except Exception as error:
                    self._say(place.location, "a mirror could not be trimmed", error)

    def _trim(self, place: TablePlace, oldest_ms: int) -> None:
        """Trim a mirror. If that fails, or there is none, the next round begins with what the place
        has, even if the table is idle."""
        location = place.location
        shown = self._shown.pop(location, None)
        trimmed = self._mirrors.trim(location, oldest_ms, self._check)
        if shown is not None and trimmed is not None:
            self._show(place)
            self._shown[location] = shown

    def _show(self, place: TablePlace) -> None:
        """Give the web process what the mirror shows now."""
        shown = self._mirrors.shown(place.location, self._check)
        if shown is not None:
            self._moments.show(place, shown)
            if self._node.settings.iceberg_catalog.type != "none":
                self._latest[place.location] = shown

    @property
    def _settings(self) -> IcebergSettings:
        return self._node.settings.iceberg

    @property
    def _mirrors(self) -> IcebergMirror:
        return self._node.mirrors

    @contextmanager
    def _at(self, place: TablePlace) -> Iterator[bool]:
        """Work on a table; false if the table is dropped or the engine stops."""
        with self._left.at(place.location):
            # DROP TABLE waits from here on. If it has not waited, its row is gone already.
            yield not self._must_go() and self._is_there(place)

    def _must_go(self) -> bool:
        return self._rounds.is_stopping or self._left.must_leave

    def _check(self) -> None:
        """End the work on a table that is being dropped, or if the engine stops."""
        if self._must_go():
            raise _MustGo

    def _is_there(self, place: TablePlace) -> bool:
        """Whether the place is still a table's."""
        tables = (self._node.catalog.table_by_oid(relid) for relid in place.relids)
        return any(
            table is not None and table.location == place.location for table in tables
        )

    def _mirror(self, wanted: WantedMirror) -> bool:
        """Let a mirror show what it should; false if it does not."""
        location = wanted.place.location
        try:
            anew = self._follow(wanted)
        except _MustGo:
            return True
        except Exception as error:
            self._could_not(wanted.place, error)
            return False
        self._behind.pop(location, None)
        self._repeated.pop((location, _NOT_MIRRORED), None)
        if anew:
            self._log.info("mirror begun anew", table=wanted.place.shown)
        return True

    def _follow(self, wanted: WantedMirror) -> bool:
        """Let a mirror show what it should; returns whether it has begun anew."""
        location, settings = wanted.place.location, self._settings
        options = MirrorOptions(settings.format_version, settings.history_ms)
        version = wanted.version
        if version is None:
            version = self._node.tables.state(location).version
        shown = version, options.format_version
        if self._shown.get(location) == shown:
            return False
        # Readers of Iceberg must see no version that a power loss takes back.
        self._node.tables.sync(location, version)
        lsn = None if wanted.lsn is None else str(wanted.lsn)
        done = self._mirrors.mirror(
            location, version, lsn, options, self._check, self._moments.number
        )
        self._show(wanted.place)
        self._shown[location] = shown
        return done.anew

    def _could_not(self, place: TablePlace, error: Exception) -> None:
        """Report that a mirror has not followed; remove it if that is so for too long."""
        now = time.monotonic()
        since = self._behind.setdefault(place.location, now)
        # A table may have been dropped meanwhile, and another process may have been first.
        if not isinstance(error, UndefinedObjectError | CommitConflict):
            self._say(place.location, _NOT_MIRRORED, error)
        if now - since < self._settings.history_ms / 1000:
            return
        try:
            if self._remove(place):
                self._log.error(
                    "a mirror was removed that has not followed for iceberg.history_ms",
                    table=place.shown,
                    error=error,
                )
        except _MustGo:
            return
        except Exception as removal_error:
            self._say(place.location, "a mirror could not be removed", removal_error)

    def _remove(self, place: TablePlace) -> bool:
        self._shown.pop(place.location, None)
        self._latest.pop(place.location, None)
        removed = self._mirrors.remove(place.location, self._check)
        if removed:
            self._moments.hide(place)
        return removed

    def _say(self, location: str, text: str, error: Exception) -> None:
        repeated = self._repeated.setdefault((location, text), RepeatedErrors())
        repeated.say(self._log, text, error)


def _now_ms() -> int:
    return int(time.time() * 1000)
