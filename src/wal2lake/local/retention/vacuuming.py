"""Vacuums one table.

    step                                              after a crash behind the step
    ------------------------------------------------  --------------------------------------
    states that are too old leave the catalog         fewer states; all that are listed read
    the holders are asked (``holders``)               nothing has happened
    the log is read from the oldest kept version on,
     the files are listed
    states that name a version whose files others     fewer states
     have removed leave the catalog, too
    files are removed                                 some are gone; the next time the rest
    commits are removed from the lowest one up, only  the log begins higher; checkpoint and
     those below a checkpoint                          commits from there on are whole

So a state is never listed while its files are removed: states are removed first, durably. The
oldest kept version is the lowest of the oldest one within ``lake.retention``, those of the listed
states, and those that are held. All versions from there on stay readable, also those that no state
names.

The times of objects are by their store's clock. How far that is ahead of this machine's is found
first, by an object that is made and removed.

``lake.retention`` yields to a longer ``delta.deletedFileRetentionDuration`` (for the log
``delta.logRetentionDuration``) of the table. One table is vacuumed at a time.

Called by the statement VACUUM and by ``worker``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from wal2lake.errors import UndefinedObjectError
from wal2lake.lake.retention import (
    CLEANS_LOG,
    CURSORS,
    FILES,
    LOG_DEFAULT_SECONDS,
    LOG_FILES,
    FileKind,
    History,
    Removal,
    Removed,
    TableLog,
    UnreadableLog,
    choose,
    choose_log,
    has_cursors,
    list_files,
    read_history,
    read_log,
    remove,
    stated_seconds,
)
from wal2lake.lake.store import Store, storage_error
from wal2lake.local.ports import RetentionParts
from wal2lake.local.retention.holders import TablePlace, held_of
from wal2lake.observe import failpoint, get_logger, seconds_ahead

_MOMENT_SECONDS: Final = 2.0
"""A version that was the newest this recently may be read by a reader that is not registered yet.
Steps between reading a table's version and recording it take microseconds."""

Check = Callable[[], None]


class Skipped(Exception):
    """Raised if a table is left as it is; the message says why."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The files of one table that have been, or would be, removed."""

    place: TablePlace
    oldest: int
    """The oldest version that stays readable."""
    newest: int
    states: int
    """States that have left wal2lake.snapshots."""
    files: Mapping[FileKind, int]
    bytes: Mapping[FileKind, int]
    orphans: int = 0
    """How many of the files no version ever had."""
    waiting: int = 0
    """Files that no version has, and that are not old enough to go."""
    lacking: Sequence[str] = ()
    """Files that the newest version needs and that are not there."""

    @property
    def count(self) -> int:
        """Number of files."""
        return sum(self.files.values())

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class VacuumRequest:
    """How tables are vacuumed."""

    dry_run: bool = False
    check: Check = lambda: None
    """Called often; ends the work by raising."""
    pace: Check = lambda: None
    """Called before each file goes; may pause."""


@dataclass(frozen=True, slots=True)
class Vacuum:
    """Vacuums the tables of one node, one at a time. Safe for all threads."""

    node: RetentionParts

    def run(self, place: TablePlace, request: VacuumRequest) -> VacuumReport:
        """Vacuum one table. Raises Skipped, or StorageError if a file cannot be removed; what has
        gone until then stays gone."""
        store = place.store
        if store is None:
            raise Skipped(
                "its files are in a storage that retention does not know",
                "Use the VACUUM of Delta Lake for this table.",
            )
        with self.node.vacuums.hold(place.location, request.check):
            try:
                return self._run(
                    place, store, replace(request, check=self._check(place, request))
                )
            except (UndefinedObjectError, UnreadableLog) as error:
                raise Skipped(error.message, error.hint) from error
            except OSError as error:
                raise storage_error("vacuum", place.location, error) from error

    def _check(self, place: TablePlace, request: VacuumRequest) -> Check:
        def check() -> None:
            request.check()
            if self.node.vacuums.is_left(place.location):
                raise Skipped("it is being dropped")

        return check

    def _run(
        self, place: TablePlace, store: Store, request: VacuumRequest
    ) -> VacuumReport:
        node, settings = self.node, self.node.settings.lake
        # The newest version becomes durable before files go that only earlier versions need.
        state = node.tables.state(place.location)
        node.tables.sync(place.location, state.version)
        retention = settings.retention_ms / 1000
        kept_seconds = max(retention, stated_seconds(state.properties, FILES) or 0.0)
        ahead = store.seconds_ahead()
        # Before the holders are asked: what begins later reads newer versions.
        kept_since = node.ages.ago(kept_seconds + _MOMENT_SECONDS) + ahead
        too_young = young_since(node) + ahead
        # Delta's own clean-up of the log must not come first.
        listed_seconds = min(retention, _log_kept_seconds(state.properties))
        leaving = self._expire(place, node.ages.ago(listed_seconds), request)
        held = held_of(node, place)
        if held.unknown is not None:
            raise Skipped(held.unknown)
        log = read_log(store)
        states = node.catalog.oldest_versions(leaving.numbers)
        needed = {states[int(relid)] for relid in place.relids if int(relid) in states}
        since = log.since(kept_since)
        oldest = max(min({since} | held.versions | needed), log.first)
        history = read_history(log, oldest, request.check)
        present = list_files(store, frozenset(state.partition_columns), request.check)
        leaving = self._leave_unreadable(place, history, present, leaving, request)
        removal = choose(
            history,
            present,
            held.names,
            -1.0 if held.keeps_orphans else too_young,
        )
        log_removal = self._choose_log(log, state.properties, oldest, too_young, ahead)
        gone = Removed()
        if request.dry_run:
            for file in (*removal.files, *log_removal.files):
                gone.add(file)
        else:
            self._remove(store, removal, log_removal, gone, request)
        lacking = history.lacking(present.__contains__)
        if lacking:
            get_logger().error(
                "files of a table are missing", table=place.shown, files=lacking[:10]
            )
        return VacuumReport(
            place,
            oldest,
            log.newest,
            leaving.states,
            dict(gone.files),
            dict(gone.bytes),
            removal.orphans + log_removal.orphans,
            removal.waiting,
            lacking,
        )

    def _expire(
        self, place: TablePlace, cutoff: float, request: VacuumRequest
    ) -> _Leaving:
        """Remove the states that are too old, of the table's subscriptions."""
        catalog = self.node.catalog
        subids = {int(rel.subid) for rel in catalog.rels() if rel.relid in place.relids}
        if not subids:
            return _Leaving({}, 0)
        moment = datetime.fromtimestamp(cutoff, UTC)
        return self._take_away(catalog.expired_states(moment, subids), 0, request)

    def _leave_unreadable(
        self,
        place: TablePlace,
        history: History,
        present: Collection[str],
        leaving: _Leaving,
        request: VacuumRequest,
    ) -> _Leaving:
        """Remove the states that name versions of which others have removed files."""
        first = history.readable_from(present.__contains__)
        numbers = self.node.catalog.unreadable_states(
            {int(relid): first for relid in place.relids}
        )
        further = {
            subid: max(number, leaving.numbers.get(subid, 0))
            for subid, number in numbers.items()
        }
        return self._take_away({**leaving.numbers, **further}, leaving.states, request)

    def _take_away(
        self, numbers: Mapping[int, int], before: int, request: VacuumRequest
    ) -> _Leaving:
        if not numbers:
            return _Leaving(numbers, before)
        if request.dry_run:
            return _Leaving(numbers, self.node.catalog.count_states(numbers))
        count = self.node.catalog.remove_states(numbers)
        if count:
            failpoint("vacuum.states_removed")
        return _Leaving(numbers, before + count)

    def _remove(
        self,
        store: Store,
        removal: Removal,
        log_removal: Removal,
        gone: Removed,
        request: VacuumRequest,
    ) -> None:
        def before_each() -> None:
            request.check()
            request.pace()

        try:
            remove(store, removal, gone, before_each)
            failpoint("vacuum.files_removed")
            remove(store, log_removal, gone, before_each)
        finally:
            for kind, files in gone.files.items():
                count_removed(self.node, kind, files, gone.bytes[kind])

    def _choose_log(
        self,
        log: TableLog,
        properties: Mapping[str, str],
        oldest: int,
        too_young: float,
        ahead: float,
    ) -> Removal:
        """Choose among the files of the log; none if the table does not want that, or if its
        checkpoints may lack cursors."""
        if properties.get(CLEANS_LOG, "true") != "true" or CURSORS in properties:
            return Removal(())
        stated = stated_seconds(properties, LOG_FILES)
        return choose_log(
            log,
            oldest,
            too_young,
            None if stated is None else self.node.ages.ago(stated) + ahead,
            lambda version: has_cursors(log, version),
        )


def young_since(node: RetentionParts) -> float:
    """Return the moment since which a file that no version has may still be committed."""
    age = node.settings.lake.orphan_age_ms / 1000
    return node.ages.ago(age) + seconds_ahead("vacuum.ages")


def count_removed(node: RetentionParts, kind: FileKind, files: int, size: int) -> None:
    """Count removed files in the engine's telemetry."""
    word = kind.replace(" ", "_")
    node.telemetry.count("retention_removed_files_total", files, kind=word)
    node.telemetry.count("retention_removed_bytes_total", size, kind=word)


@dataclass(frozen=True, slots=True)
class _Leaving:
    """States that go."""

    numbers: Mapping[int, int]
    """By subscription, the number of the last one."""
    states: int


def _log_kept_seconds(properties: Mapping[str, str]) -> float:
    """Return how long Delta's own clean-up keeps a table's log."""
    return stated_seconds(properties, LOG_FILES) or LOG_DEFAULT_SECONDS
