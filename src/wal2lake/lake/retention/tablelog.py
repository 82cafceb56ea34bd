"""Lists a table's ``_delta_log`` and reads which files its versions need.

In: the store of a table, the oldest version that must stay readable. Out: a
``TableLog`` (what is there, and when it was written), a ``History`` (each file that a version from
the oldest one on needs, and the last version that needs it).

A version is read from the newest complete checkpoint at or below it and the commits behind that,
as every reader of Delta does. Neither Delta nor Spark is asked. A log that has what this module
does not know (a feature of a later protocol, a gap) is refused, never guessed.

Called by ``plan``'s caller, ``local.retention``. Source: Delta transaction log protocol, "Delta Log
Entries", "Checkpoints", "Action Reconciliation", "Add CDC File".
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from wal2lake.errors import StorageError
from wal2lake.lake.delta.deletionvectors import path_below
from wal2lake.lake.delta.durability import actions_of
from wal2lake.lake.delta.protocol.features import KNOWN
from wal2lake.lake.delta.versions.checkpointfiles import (
    Checkpoint,
    Wanted,
    complete_checkpoints,
    read_checkpoint,
)
from wal2lake.lake.store import Entry, Store, local_path
from wal2lake.lake.tablefiles import absolute_place

LOG: Final = "_delta_log"

LIVE: Final = 2**63 - 1
"""The last version that needs a file of the newest one."""

FEATURES: Final = KNOWN - {"checkpointProtection"}
"""Delta's features under which the log names every file that a version needs, and may get
shorter."""

_HADOOP_S3: Final = re.compile(r"^s3[an]://")
"""Beginnings of URLs in Hadoop's words for S3."""

_AMBIGUOUS: Final = frozenset(
    {"abfs", "abfss", "adl", "az", "http", "https", "wasb", "wasbs"}
)
"""Schemes of URLs that do not tell whether a file is the same: Azure has several for each."""

_OWN_AZURE: Final = "abfss://"
"""Beginning of the node's own URLs in Azure."""

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_POINTER: Final = re.compile(r'"version"\s*:\s*([0-9]+)')

_WANTED: Final[Wanted] = {
    "protocol": None,
    "metaData": None,
    "add": frozenset({"path", "deletionVector"}),
    "remove": frozenset({"path"}),
}
"""Parts of a checkpoint that say which files a version needs."""


class UnreadableLog(StorageError):
    """The log does not tell which files its versions need; nothing may be removed."""


@dataclass(frozen=True, slots=True)
class TableLog:
    """The files of one ``_delta_log``."""

    store: Store
    entries: Mapping[str, Entry]
    commits: Mapping[int, str]
    """Names of commits, by version."""
    checkpoints: Mapping[int, Checkpoint]
    """Complete checkpoints, by version."""
    pointer: int | None
    """The version that ``_last_checkpoint`` names."""

    @property
    def newest(self) -> int:
        """The newest version."""
        return max(self.commits)

    @property
    def first(self) -> int:
        """The oldest version that the log can tell."""
        run = self.newest
        while run - 1 in self.commits:
            run -= 1
        if run == 0:
            return 0
        bases = [v for v in self.checkpoints if run - 1 <= v <= self.newest]
        if not bases:
            raise UnreadableLog(
                f'the log of the table at "{self.store.location}" has neither version 0 nor a'
                " checkpoint before its commits",
                sqlstate="58P01",
            )
        return min(bases)

    def superseded(self, version: int) -> float | None:
        """Return when the next version was committed, seconds since 1970; None for the newest."""
        name = self.commits.get(version + 1)
        return None if name is None else self.entries[name].written

    def since(self, cutoff: float) -> int:
        """Return the oldest version that was still the newest one at ``cutoff`` or later."""
        kept = self.newest
        for version, name in self.commits.items():
            if self.entries[name].written >= cutoff:
                kept = min(kept, max(version - 1, 0))
        return max(kept, self.first)


def read_log(store: Store) -> TableLog:
    """List the log. UnreadableLog if there is none."""
    try:
        listed = store.list_below(LOG, lambda folder: False)
    except StorageError as error:
        raise UnreadableLog(
            f'could not list the log of the table at "{store.location}"',
            sqlstate=error.sqlstate,
            detail=error.message,
        ) from error
    entries = {key.removeprefix(f"{LOG}/"): entry for key, entry in listed.items()}
    commits = {
        int(match[1]): name for name in entries if (match := _COMMIT.fullmatch(name))
    }
    if not commits:
        raise UnreadableLog(
            f'there is no Delta table at "{store.location}"', sqlstate="42P01"
        )
    # Of several checkpoints of one version the first is the one with the fewest files.
    checkpoints = {
        checkpoint.version: checkpoint
        for checkpoint in reversed(complete_checkpoints(entries))
    }
    return TableLog(store, entries, commits, checkpoints, _pointer(store))


def _pointer(store: Store) -> int | None:
    try:
        text = store.read(f"{LOG}/_last_checkpoint").decode()
    except (StorageError, ValueError):
        return None
    match = _POINTER.search(text)
    return None if match is None else int(match[1])


@dataclass(slots=True)
class History:
    """The files of the versions from ``oldest`` on."""

    location: str
    oldest: int
    newest: int
    needed: dict[str, int] = field(default_factory=dict)
    """By name below the table: the last version that needs the file, or ``LIVE``."""
    gone: set[str] = field(default_factory=set)
    """Names that the log below ``oldest`` has, whether or not they are needed."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def readable_from(self, present: Callable[[str], bool]) -> int:
        """Return the oldest version from which on every file is ``present``, apart from files that
        the newest version lacks."""
        return max(
            (
                last + 1
                for name, last in self.needed.items()
                if last != LIVE and not present(name)
            ),
            default=self.oldest,
        )

    def lacking(self, present: Callable[[str], bool]) -> list[str]:
        """Return the files that the newest version needs and that are not ``present``."""
        return sorted(
            name
            for name, last in self.needed.items()
            if last == LIVE and not present(name)
        )


class _Replay:
    """Versions as they are replayed."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._live: dict[str, str | None] = {}
        """By path, the file of its deletion vector."""
        self._vectors: Counter[str] = Counter()
        """Live files by the file of their vectors."""
        self._records = False

    def live(self) -> Iterator[str]:
        """Yield the files of the version reached, with those of its deletion vectors."""
        yield from self._live
        yield from self._vectors

    def begin_at_oldest(self) -> None:
        """Record what is live now, and from now on what comes and goes."""
        self._records = True
        needed = self._history.needed
        needed.update(dict.fromkeys(self._live, LIVE))
        needed.update(dict.fromkeys(self._vectors, LIVE))

    def apply(self, version: int, actions: list[dict[str, Any]]) -> None:
        """Apply the actions of one commit."""
        for action in actions:
            if "remove" in action:
                self.remove(version, action["remove"])
        for action in actions:
            if "add" in action:
                self.add(action["add"])
            elif "cdc" in action and self._records:
                self._note(action["cdc"]["path"], version)
            elif "cdc" in action:
                self._history.gone.update(self._named(action["cdc"]["path"]))
            elif "metaData" in action:
                self._history.metadata = action["metaData"]
            elif "protocol" in action:
                self._history.protocol = action["protocol"]

    def change_files(self, version: int, actions: list[dict[str, Any]]) -> None:
        """Record the change files of the oldest version, which its own commit names."""
        for action in actions:
            if "cdc" in action:
                self._note(action["cdc"]["path"], version)

    def add(self, add: Mapping[str, Any]) -> None:
        """Apply an ``add``."""
        for name in self._named(add["path"]):
            self._drop(name, 0)
            vector = self._vector(add.get("deletionVector"))
            self._live[name] = vector
            if vector is not None:
                self._vectors[vector] += 1
            for file in (name, vector):
                if file is not None and self._records:
                    self._history.needed[file] = LIVE
                elif file is not None:
                    self._history.gone.add(file)

    def remove(self, version: int, remove: Mapping[str, Any]) -> None:
        """Apply a ``remove``."""
        for name in self._named(remove["path"]):
            self._drop(name, version - 1)
            if not self._records:
                self._history.gone.add(name)

    def _drop(self, name: str, last: int) -> None:
        """Forget a live file. It is needed up to version ``last``."""
        if name not in self._live:
            return
        vector = self._live.pop(name)
        needed = self._history.needed
        if self._records:
            needed[name] = last
        if vector is None:
            return
        self._vectors[vector] -= 1
        if not self._vectors[vector]:
            del self._vectors[vector]
            if self._records:
                needed[vector] = last

    def _note(self, path: str, version: int) -> None:
        for name in self._named(path):
            needed = self._history.needed
            needed[name] = max(version, needed.get(name, -1))

    def _named(self, path: str) -> Iterator[str]:
        name = name_below(self._history.location, path)
        if name is not None:
            yield name

    def _vector(self, descriptor: Mapping[str, Any] | None) -> str | None:
        return vector_below(self._history.location, descriptor)


def read_history(
    log: TableLog, oldest: int, check: Callable[[], None] = lambda: None
) -> History:
    """Read the versions from ``oldest`` on. ``check`` is called now and then and may raise.

    UnreadableLog if a commit is missing, or if the protocol has an unknown feature."""
    if not log.first <= oldest <= log.newest:
        raise UnreadableLog(
            f'the log of the table at "{log.store.location}" does not have version {oldest}',
            sqlstate="58P01",
        )
    history = History(log.store.location, oldest, log.newest)
    replay = _replayed(log, history, check)
    replay.begin_at_oldest()
    if oldest in log.commits:
        replay.change_files(oldest, _commit(log, oldest))
    for version in range(oldest + 1, log.newest + 1):
        check()
        replay.apply(version, _commit(log, version))
    _refuse_unknown(history)
    return history


def are_present(store: Store, version: int) -> bool:
    """Whether every file of a version is there. UnreadableLog if the log does not tell."""
    log = read_log(store)
    if not log.first <= version <= log.newest:
        return False
    replay = _replayed(log, History(store.location, version, log.newest), lambda: None)
    names = set(replay.live())
    return len(store.entries(names)) == len(names)


def _replayed(log: TableLog, history: History, check: Callable[[], None]) -> _Replay:
    """Replay the log up to the oldest version of ``history``."""
    replay = _Replay(history)
    base = max((v for v in log.checkpoints if v <= history.oldest), default=-1)
    if base >= 0:
        _read_checkpoint(log, log.checkpoints[base], history, replay)
    for version in range(base + 1, history.oldest + 1):
        check()
        replay.apply(version, _commit(log, version))
    return replay


def _commit(log: TableLog, version: int) -> list[dict[str, Any]]:
    try:
        return actions_of(log.store.read(f"{LOG}/{log.commits[version]}").decode())
    except (KeyError, StorageError, ValueError) as error:
        raise UnreadableLog(
            f'could not read version {version} of the table at "{log.store.location}"',
            sqlstate="58030",
        ) from error


def _read_checkpoint(
    log: TableLog, checkpoint: Checkpoint, history: History, replay: _Replay
) -> None:
    try:
        for action in read_checkpoint(log.store, checkpoint, _WANTED):
            if "protocol" in action:
                history.protocol = action["protocol"]
            elif "metaData" in action:
                history.metadata = action["metaData"]
            elif "add" in action:
                replay.add(action["add"])
            elif "remove" in action:
                # The same path may be live again, with another deletion vector.
                below = name_below(history.location, action["remove"]["path"])
                if below is not None:
                    history.gone.add(below)
    except (StorageError, OSError, ValueError, pa.ArrowException) as error:
        names = ", ".join(checkpoint.names)
        raise UnreadableLog(
            f'could not read checkpoint "{log.store.location}/{LOG}/{names}"',
            sqlstate="58030",
        ) from error


def has_cursors(log: TableLog, version: int) -> bool:
    """Whether a checkpoint has every cursor that the version's checksum file lists. False if there
    is no such file."""
    try:
        summed = json.loads(log.store.read(f"{LOG}/{version:020}.crc"))
        expected = {
            (str(token["appId"]), int(token["version"]))
            for token in summed["setTransactions"]
        }
        cursors = {
            (str(token["appId"]), int(token["version"]))
            for action in read_checkpoint(
                log.store, log.checkpoints[version], {"txn": None}
            )
            if "txn" in action
            for token in (action["txn"],)
        }
    except (
        StorageError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        pa.ArrowException,
    ):
        return False
    return expected <= cursors


def _refuse_unknown(history: History) -> None:
    protocol = history.protocol
    features = {
        *(protocol.get("readerFeatures") or ()),
        *(protocol.get("writerFeatures") or ()),
    }
    unknown = ", ".join(sorted(features - FEATURES))
    if unknown or not protocol:
        shown = f"has the feature {unknown}" if unknown else "has no protocol"
        raise UnreadableLog(
            f'the table at "{history.location}" {shown}, which retention does not know',
            sqlstate="0A000",
            hint="Use the VACUUM of Delta Lake for this table.",
        )


def name_below(location: str, path: str) -> str | None:
    """Return the name below the table at ``location`` of a path in its log, which is
    percent-encoded and relative, or an absolute path or URL; None for a file elsewhere.

    UnreadableLog if that is not known: a store may have several URLs for one file."""
    scheme = urlsplit(path).scheme
    if not scheme and not path.startswith("/"):
        return posixpath.normpath(unquote(path))
    root = local_path(location)
    if root is None:
        return _object_below(location, path, scheme)
    place = local_path(path)
    for base in (root, Path(os.path.realpath(root))):
        if place is not None and place.is_relative_to(base):
            return place.relative_to(base).as_posix()
    return None


def _object_below(location: str, path: str, scheme: str) -> str | None:
    # The node's own URL of a container is the same for each of its files.
    container = f"{location.partition('://')[2].partition('/')[0]}/"
    is_alike = path.startswith(f"{_OWN_AZURE}{container}") and location.startswith(
        _OWN_AZURE
    )
    if scheme in _AMBIGUOUS and not is_alike:
        raise UnreadableLog(
            f'the log of the table at "{location}" names a file by the URL "{path}"',
            sqlstate="0A000",
            detail="It may be a file of the table under another name.",
            hint="Use the VACUUM of Delta Lake for this table.",
        )
    own = absolute_place(_HADOOP_S3.sub("s3://", path))
    below = f"{location.rstrip('/')}/"
    return own.removeprefix(below) if own.startswith(below) else None


def vector_below(location: str, vector: Mapping[str, Any] | None) -> str | None:
    """Return the name below the table of a deletion vector's file; None if the vector is inline or
    in a file elsewhere."""
    if vector is None or vector["storageType"] == "i":
        return None
    name = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return name_below(location, name)
    return path_below("", name).removeprefix("/")
