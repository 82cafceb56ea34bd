"""Holds a node's files as they are at one moment, while everything goes on.

    all files of the logs and tables are linked         no process waits; may take a while
    the catalog is locked for writing, and copied       its writers wait from here on
      the publisher's log is linked                     it may lag behind the tables, never lead
      the tables' newest versions are listed, until     so there is a moment that has them all
       two lists are the same
      the tables' new files are linked, and their
       logs up to these versions
      the subscriptions' logs are linked                they may lead: what is applied is in them
    the catalog is released                             typically after a few milliseconds

The links hold the state that a crash at that moment would have left, so a restored node starts as
after a crash. While the catalog is locked, no transaction to several tables begins or ends, nothing
is published, no state leaves ``wal2lake.snapshots``, and the floor, to which logs are trimmed,
stands still. VACUUM removes only files that no state of the copied catalog needs.

The links are in a directory beside the logs and one in the warehouse. They keep disk space, so
they are removed at the end; those of a killed backup are removed by the next one, and a lock on
the directory tells whether it still runs. Called by ``run``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog
from wal2lake.cli.backup.leftover import left_over
from wal2lake.cli.backup.links import DELTA_LOG, ICEBERG, Links
from wal2lake.errors import (
    ConfigurationError,
    FeatureNotSupportedError,
    StorageError,
    UndefinedObjectError,
    reason_of,
)
from wal2lake.observe import failpoint
from wal2lake.settings import PUBLISHER_LOG, Settings

_PATIENCE_SECONDS: Final = 5.0
"""Longest wait, with the catalog locked, for logs and versions that stand still. A guess; writers
of the catalog wait for up to 30 seconds."""

_LOG_NAME: Final = re.compile(r"[1-9]\d*")
_VERSION: Final = re.compile(r"\.?(\d{20})\.")
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_POINTER: Final = "_delta_log/_last_checkpoint"
_POINTERS_CHECKSUM: Final = "_delta_log/._last_checkpoint.crc"
_POINTED: Final = re.compile(r'"version"\s*:\s*(\d+)')

WAREHOUSE: Final = "warehouse"
LOG: Final = "log"
NODE: Final = "node"


@dataclass(frozen=True, slots=True)
class HeldNode:
    """The files of one moment, which are held."""

    catalog: Path
    """The copy of the catalog."""
    files: dict[str, Path]
    """By the name in the backup."""
    versions: dict[str, int]
    """The version of each table, by its place below the warehouse."""


@contextlib.contextmanager
def held_moment(settings: Settings, catalog: Catalog) -> Iterator[HeldNode]:
    """Hold the node's files while the context is open."""
    warehouse = warehouse_path(settings)
    name = f".wal2lake-backup-{catalog.system_identifier}"
    places = settings.log_directory / name, warehouse / name
    with _locked(places[0]):
        try:
            for place in places:
                _renew(place)
            yield _Holder(settings, catalog, *places).hold()
        finally:
            for place in places:
                shutil.rmtree(place, ignore_errors=True)


def warehouse_path(settings: Settings) -> Path:
    """Return the warehouse's directory; an error if it is not on this machine."""
    if "://" in settings.warehouse:
        raise FeatureNotSupportedError(
            f'the warehouse "{settings.warehouse}" is not a directory of this machine',
            hint="Stop the node, and copy its directory and the warehouse with the tools of"
            " that storage.",
        )
    return Path(settings.warehouse)


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f'could not create directory "{place}": {reason_of(error)}',
            sqlstate="58030",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                "another backup of this node is running", sqlstate="55006"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _renew(place: Path) -> None:
    """Empty the directory: a killed backup may have left it. It keeps its inode, as it is
    locked."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


class _Holder:
    def __init__(
        self, settings: Settings, catalog: Catalog, beside_log: Path, beside: Path
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._beside_log = beside_log
        self._beside = beside
        self._warehouse = warehouse_path(settings)
        self._tables: dict[str, Links] = {}
        self._left_over: dict[str, frozenset[str]] = {}
        self._files: dict[str, Path] = {}

    def hold(self) -> HeldNode:
        for place in self._places(self._catalog):
            self._left_over[place] = left_over(
                self._catalog, self._settings, self._warehouse, place
            )
            self._hold_files(place, None)
        failpoint("backup.linked")
        copy = self._beside_log / "catalog.sqlite"
        with self._catalog.copied_to(copy):
            copied = Catalog(copy, self._settings.warehouse)
            try:
                places = self._places(copied)
            finally:
                copied.close()
            until = time.monotonic() + _PATIENCE_SECONDS
            self._hold_log(PUBLISHER_LOG, until)
            versions = self._versions(places, until)
            for place, version in versions.items():
                self._hold_table(place, version)
            for name in self._logs():
                self._hold_log(name, until)
        return HeldNode(copy, self._files, versions)

    def _places(self, catalog: Catalog) -> list[str]:
        """Return the tables' directories below the warehouse."""
        places: dict[str, None] = {}
        for table in catalog.tables():
            place = table.location.removeprefix(f"{self._settings.warehouse}/")
            if place == table.location:
                raise FeatureNotSupportedError(
                    f'table "{table.qualified}" is not in the warehouse: its files are'
                    f' at "{table.location}"',
                    hint="Stop the node, and copy its directory and those of such tables.",
                )
            places[place] = None
        return list(places)

    def _links(self, place: str) -> Links:
        if place not in self._tables:
            root = self._warehouse / place
            self._tables[place] = Links(root, self._beside / place)
        return self._tables[place]

    def _logs(self) -> list[str]:
        directory = self._settings.log_directory
        return [p.name for p in directory.iterdir() if _LOG_NAME.fullmatch(p.name)]

    def _hold_log(self, name: str, until: float) -> None:
        root = self._settings.log_directory / name
        links = Links(root, self._beside_log / name)
        while (held := links.hold_log()) is None:
            _check(until, f'log "{root}"')
        for file in held:
            self._files[f"{LOG}/{name}/{file}"] = links.place / file

    def _versions(self, places: list[str], until: float) -> dict[str, int]:
        """Return the tables' newest versions, all of one moment."""
        before, now = None, self._listed(places)
        while before != now:
            before, now = now, self._listed(places)
            if before != now:
                _check(until, "set of the tables' versions")
        return now

    def _listed(self, places: list[str]) -> dict[str, int]:
        return {place: newest_version(self._warehouse / place) for place in places}

    def _hold_table(self, place: str, version: int) -> None:
        place_links = self._links(place)
        for name in self._hold_files(place, version):
            path = place_links.place / name
            if name != _POINTER or _points_to(path, version):
                self._files[f"{WAREHOUSE}/{place}/{name}"] = path

    def _hold_files(self, place: str, version: int | None) -> set[str]:
        """Hold the files of a table up to a version, or all of them."""
        leaving = self._left_over.get(place, frozenset())

        def is_wanted(name: str) -> bool:
            return name not in leaving and is_of_version(name, version)

        return self._links(place).hold_table(is_wanted)


def newest_version(root: Path) -> int:
    """Return a table's newest version, by the names in its log."""
    try:
        names = [path.name for path in (root / "_delta_log").iterdir()]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise StorageError(
            f'could not open directory "{root / "_delta_log"}": {reason_of(error)}',
            sqlstate="58030",
        ) from error
    versions = [int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))]
    if not versions:
        raise UndefinedObjectError(
            f'there is no Delta table at "{root}"',
            hint='If the warehouse was moved, set "warehouse" of [spark] to its new place.',
        )
    return max(versions)


def is_of_version(name: str, version: int | None) -> bool:
    """Return whether a table's file may belong to a version up to this one; None: to any.

    Files of its Iceberg mirror never do: the mirror may show a later version by now. A restored
    node begins it anew, which it does in any case if it is in another place."""
    if name.startswith(ICEBERG):
        return False
    if version is None or not name.startswith(DELTA_LOG):
        return True
    if name == _POINTERS_CHECKSUM:
        # The pointer may change between the two copies; readers do without a checksum.
        return False
    numbered = _VERSION.match(name.removeprefix(DELTA_LOG))
    return numbered is None or int(numbered[1]) <= version


def _points_to(pointer: Path, version: int) -> bool:
    """Return whether ``_last_checkpoint`` names a checkpoint of a version that is held. Readers
    list the log if there is no such file."""
    pointed = _POINTED.search(pointer.read_text(encoding="utf-8", errors="replace"))
    return pointed is not None and int(pointed[1]) <= version


def _check(until: float, what: str) -> None:
    if time.monotonic() > until:
        raise StorageError(
            f"the {what} did not stand still for a moment",
            sqlstate="55006",
            hint="Repeat the backup when less is written, or stop the node for it.",
        )
    time.sleep(0.005)
