"""Lists a table's ``_delta_log`` and reads which files its versions need.

In: a table's directory on this machine, the oldest version that must stay readable. Out: a
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
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from wal2lake.errors import StorageError
from wal2lake.lake.delta.durability import actions_of, vector_file
from wal2lake.lake.delta.protocol.features import KNOWN
from wal2lake.lake.delta.versions.checkpointfiles import (
    Checkpoint,
    Wanted,
    complete_checkpoints,
    read_checkpoint,
)
from wal2lake.lake.store import LocalStore, local_path

LOG: Final = "_delta_log"

LIVE: Final = 2**63 - 1
"""The last version that needs a file of the newest one."""

FEATURES: Final = KNOWN - {"checkpointProtection"}
"""Delta's features under which the log names every file that a version needs, and may get
shorter."""

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
class Entry:
    """A file as a directory lists it."""

    size: int
    changed: float
    """The later of modification and status change, seconds since 1970: a link that was made
    recently is recent, however old its content is."""
    written: float
    """Modification time."""
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Entry:
        """Return the entry of a file's status."""
        changed = max(status.st_mtime, status.st_ctime)
        return cls(status.st_size, changed, status.st_mtime, status.st_ino)


@dataclass(frozen=True, slots=True)
class TableLog:
    """The files of one ``_delta_log``."""

    root: Path
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
                f'the log of the table at "{self.root}" has neither version 0 nor a'
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


def read_log(root: Path) -> TableLog:
    """List the log. UnreadableLog if there is none."""
    entries = {}
    try:
        with os.scandir(root / LOG) as listed:
            for item in listed:
                if item.is_file(follow_symlinks=False):
                    entries[item.name] = Entry.of(item.stat(follow_symlinks=False))
    except OSError as error:
        raise UnreadableLog(
            f'could not list the log of the table at "{root}": {error.strerror}',
            sqlstate="58030",
        ) from error
    commits = {
        int(found[1]): name for name in entries if (found := _COMMIT.fullmatch(name))
    }
    if not commits:
        raise UnreadableLog(f'there is no Delta table at "{root}"', sqlstate="42P01")
    # Of several checkpoints of one version the first is the one with the fewest files.
    checkpoints = {one.version: one for one in reversed(complete_checkpoints(entries))}
    return TableLog(root, entries, commits, checkpoints, _pointer(root))


def _pointer(root: Path) -> int | None:
    try:
        text = (root / LOG / "_last_checkpoint").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = _POINTER.search(text)
    return None if found is None else int(found[1])


@dataclass(slots=True)
class History:
    """The files of the versions from ``oldest`` on."""

    root: Path
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
        name = name_below(self._history.root, path)
        if name is not None:
            yield name

    def _vector(self, descriptor: Mapping[str, Any] | None) -> str | None:
        file = vector_file(self._history.root, descriptor)
        return None if file is None else name_below(self._history.root, str(file))


def read_history(
    log: TableLog, oldest: int, check: Callable[[], None] = lambda: None
) -> History:
    """Read the versions from ``oldest`` on. ``check`` is called now and then and may raise.

    UnreadableLog if a commit is missing, or if the protocol has an unknown feature."""
    if not log.first <= oldest <= log.newest:
        raise UnreadableLog(
            f'the log of the table at "{log.root}" does not have version {oldest}',
            sqlstate="58P01",
        )
    history = History(log.root, oldest, log.newest)
    replay = _replayed(log, history, check)
    replay.begin_at_oldest()
    if oldest in log.commits:
        replay.change_files(oldest, _commit(log, oldest))
    for version in range(oldest + 1, log.newest + 1):
        check()
        replay.apply(version, _commit(log, version))
    _refuse_unknown(history)
    return history


def are_present(root: Path, version: int) -> bool:
    """Whether every file of a version is there. UnreadableLog if the log does not tell."""
    log = read_log(root)
    if not log.first <= version <= log.newest:
        return False
    replay = _replayed(log, History(root, version, log.newest), lambda: None)
    return all((root / name).exists() for name in replay.live())


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
        path = log.root / LOG / log.commits[version]
        return actions_of(path.read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError) as error:
        raise UnreadableLog(
            f'could not read version {version} of the table at "{log.root}"',
            sqlstate="58030",
        ) from error


def _read_checkpoint(
    log: TableLog, checkpoint: Checkpoint, history: History, replay: _Replay
) -> None:
    try:
        for action in read_checkpoint(LocalStore(log.root), checkpoint, _WANTED):
            if "protocol" in action:
                history.protocol = action["protocol"]
            elif "metaData" in action:
                history.metadata = action["metaData"]
            elif "add" in action:
                replay.add(action["add"])
            elif "remove" in action:
                # The same path may be live again, with another deletion vector.
                below = name_below(history.root, action["remove"]["path"])
                if below is not None:
                    history.gone.add(below)
    except (StorageError, OSError, ValueError, pa.ArrowException) as error:
        names = ", ".join(checkpoint.names)
        raise UnreadableLog(
            f'could not read checkpoint "{log.root / LOG / names}"', sqlstate="58030"
        ) from error


def has_cursors(log: TableLog, version: int) -> bool:
    """Whether a checkpoint has every cursor that the version's checksum file lists. False if there
    is no such file."""
    try:
        summed = json.loads(
            (log.root / LOG / f"{version:020}.crc").read_text(encoding="utf-8")
        )
        expected = {
            (str(token["appId"]), int(token["version"]))
            for token in summed["setTransactions"]
        }
        found = {
            (str(token["appId"]), int(token["version"]))
            for action in read_checkpoint(
                LocalStore(log.root), log.checkpoints[version], {"txn": None}
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
    return expected <= found


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
            f'the table at "{history.root}" {shown}, which retention does not know',
            sqlstate="0A000",
            hint="Use the VACUUM of Delta Lake for this table.",
        )


def name_below(root: Path, path: str) -> str | None:
    """Return the name below the table of a path in its log, which is percent-encoded and relative,
    or an absolute path or URL; None for a file elsewhere."""
    if urlsplit(path).scheme or path.startswith("/"):
        place = local_path(path)
        for base in (root, Path(os.path.realpath(root))):
            if place is not None and place.is_relative_to(base):
                return place.relative_to(base).as_posix()
        return None
    return os.path.normpath(unquote(path))
