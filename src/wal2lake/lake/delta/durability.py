"""Makes a Delta commit survive a power loss.

Comes in: a table's store and version, or its files. Goes out: nothing; when a function returns, the
files that it was called for are on stable storage. Called by
``spark.delta.deltatables``.

Why this way. Spark's local filesystem never calls fsync, and Delta's log store renames the commit
into place without it. So a commit's files are synced before it. After it everything that the
commit's own JSON names is synced: data files, deletion vectors, change files, then the JSON, then
checkpoints of that version, Hadoop's ``.crc`` companions (a torn companion makes Spark refuse a
good file) and the directories. Versions are synced in order and without gaps: a durable version
above a lost one would break the log's chain.

An object is durable, and whole, once its request is answered, and HDFS makes a closed file durable
itself. So ``settle_*`` do nothing for a store that is not a directory.

``discard_torn_commits`` is the counterpart at start, for a directory. A power loss may leave a
commit torn that was never synced. No caller was told that it succeeded, so it is removed as if it
had never happened. A missing data file does not prove that a commit is torn, because VACUUM deletes
files that a later version has removed; that later version excuses the file if it stays itself.
Other leftovers of a crash are removed from the log, too: temporary files, and Hadoop's companions
of missing files, by which a later file of that name would be judged.

Sources: fsync(2), rename(2); Delta transaction log protocol, "Delta Log Entries", "Deletion
Vectors" ("Derived Fields" for file names, Z85 of ZeroMQ RFC 32).
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from wal2lake.lake.delta.z85 import decode_z85
from wal2lake.lake.store import LocalStore, Store, local_path, sync_path

SYNC_THREADS = 8
"""fsync waits for the device; a few at once let the device order them."""

_UUID_CHARACTERS = 20

_ABANDONED_SECONDS = 3600.0
"""A temporary file of another writer counts as abandoned if it has not been renamed for this
long. A guess."""

_TEMPORARY = re.compile(r"\.([0-9]{20}|_last_checkpoint)\..*\.tmp")
_OUR_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}\.tmp")
"""Names that ``store.local`` gives to temporary files; the names that Delta gives have dashes."""

_COMPANION = re.compile(r"\.(([0-9]{20}\..*|_last_checkpoint)(?<!\.tmp))\.crc")
"""Name of a Hadoop companion; group 1 is the name of the file that it belongs to."""


def settle_files(
    store: Store | None,
    files: Iterable[str],
    vectors: Iterable[Mapping[str, Any] | None] = (),
) -> None:
    """Make new files of a table durable, with the directories between it and them. ``vectors``:
    descriptors of deletion vectors, whose files are new, too."""
    if not isinstance(store, LocalStore):
        return
    written = (vector_file(store.root, vector) for vector in vectors)
    paths = {store.root / file for file in files}
    paths.update(path for path in written if path is not None)
    _sync_all(sorted(paths))
    _sync_all(_with_new_parents({path.parent for path in paths}, store.root))


def settle_commit(
    store: Store | None, version: int, *, first: int | None = None
) -> None:
    """Make versions ``first`` (default: ``version``) to ``version`` durable, in order.

    A version whose JSON Delta's log cleanup has removed is skipped: it is older than any promise
    that is still open.
    """
    if not isinstance(store, LocalStore):
        return
    table = store.root
    log = table / "_delta_log"
    for number in range(version if first is None else first, version + 1):
        commit = log / f"{number:020}.json"
        try:
            text = commit.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        named = set(_named_files(table, text))
        directories = {path.parent for path in named}
        _sync_all(_with_checksums(named))
        _sync_all(_with_new_parents(directories, table))
        _sync_all(_with_checksums([commit, *log.glob(f"{number:020}.c*")]))
    _sync_all([*_pointer(log), *_sidecars(log)])
    _sync_all([log, table])


def _pointer(log: Path) -> list[Path]:
    """Return the file that names the newest checkpoint, with its companion; empty if there is
    none."""
    last = log / "_last_checkpoint"
    return _with_checksums([last] if last.exists() else [])


def actions_of(commit: str) -> list[dict[str, Any]]:
    """Parse a commit's text into actions. Only a newline ends an action: Delta leaves line
    separators that are not ASCII (U+0085, U+2028) unescaped in statistics and predicates."""
    return [json.loads(line) for line in commit.split("\n") if line]


def settle_created(store: Store | None) -> None:
    """Make a new table's directory and its parents durable, with version 0."""
    if not isinstance(store, LocalStore):
        return
    settle_commit(store, 0)
    _sync_all([store.root.parent, store.root.parent.parent])


def discard_torn_commits(table: Path, synced_version: int) -> tuple[int, ...]:
    """Remove versions of a directory's table above ``synced_version`` that a power loss left
    incomplete.

    Returns the removed versions. Every version above the first torn one is removed, because it
    was built on that one. A version is whole if each of its files is there or has been removed by
    a later version that is whole. In the versions that stay, torn checksums are removed, since
    Delta derives them again. Torn checkpoints, which are written later than their version, and
    abandoned files are removed from the whole log. Call it before the first use of the table,
    with the last version whose sync is on record.
    """
    log = table / "_delta_log"
    unsynced = sorted(v for v in _versions(log) if v > synced_version)
    kept = _count_whole([_inspect_version(table, log, v) for v in unsynced])
    removed = tuple(unsynced[kept:])
    doubtful = [path for v in unsynced for path in _discardable_files(table, log, v)]
    for path in log.glob("*.checkpoint*.parquet"):
        if not _is_parquet(path):
            doubtful += [path.with_name(f".{path.name}.crc"), path]
    pointer = log / "_last_checkpoint"
    if doubtful or removed:
        # The pointer goes before the checkpoint that it points to; without a pointer Delta
        # lists the directory.
        doubtful = [pointer.with_name("._last_checkpoint.crc"), pointer, *doubtful]
    for path in doubtful:
        path.unlink(missing_ok=True)
    # Remove from the newest version down, so that a crash in between leaves no gap.
    for version in reversed(removed):
        # Remove the commit last: while it exists, a repeated call finds its other files.
        commit = log / f"{version:020}.json"
        for path in log.glob(f"{version:020}.*"):
            if path != commit:
                path.unlink()
        _sync_all([log])
        commit.unlink()
        _sync_all([log])
    for path in _abandoned_files(log):
        path.unlink(missing_ok=True)
    return removed


def _abandoned_files(log: Path) -> Iterator[Path]:
    """Yield temporary files that no writer will rename, and companions whose file is missing."""
    names = {path.name for path in log.iterdir()} if log.is_dir() else set()
    for name in names:
        path = log / name
        companion = _COMPANION.fullmatch(name)
        if companion is not None and companion[1] not in names:
            yield path
        if _OUR_TEMPORARY.fullmatch(name) or (
            _TEMPORARY.fullmatch(name) and _is_abandoned(path)
        ):
            yield path
            yield path.with_name(f".{name}.crc")


def _is_abandoned(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def _discardable_files(table: Path, log: Path, version: int) -> Iterator[Path]:
    """Yield files that may be torn though the commit is whole, and that readers can do
    without."""
    commit = log / f"{version:020}.json"
    files = [*log.glob(f"{version:020}.*")]
    with suppress(ValueError, OSError):
        files += _named_files(table, commit.read_text(encoding="utf-8"))
    for path in files:
        companion = path.with_name(f".{path.name}.crc")
        if companion.exists():
            yield companion
    checksum = log / f"{version:020}.crc"
    if checksum.exists() and not _is_json(checksum):
        yield checksum


def _is_parquet(path: Path) -> bool:
    """Whether the file ends with Parquet's magic number, which its writer writes last."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 12:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read(4) == b"PAR1"


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _versions(log: Path) -> Iterator[int]:
    if log.is_dir():
        for path in log.glob("*.json"):
            if path.stem.isdecimal() and len(path.stem) == 20:
                yield int(path.stem)


@dataclass(frozen=True, slots=True)
class _VersionOnDisk:
    """One version as a start finds it on disk."""

    readable: bool
    """True if its JSON is whole, and so are its change files, which no version removes."""
    incomplete: frozenset[Path]
    """Data files that it adds and that are missing or short, or whose deletion vector is."""
    removes: frozenset[Path]


_UNREADABLE = _VersionOnDisk(False, frozenset(), frozenset())


def _count_whole(versions: list[_VersionOnDisk]) -> int:
    """Return how many of these consecutive versions, from the lowest on, are whole together.

    An incomplete file must have been removed by a later version that stays. Each time a version
    has to go, the files that it excused are judged again.
    """
    kept = len(versions)
    while True:
        removed: set[Path] = set()
        torn = None
        for index in reversed(range(kept)):
            version = versions[index]
            if not version.readable or not version.incomplete <= removed:
                torn = index
            removed |= version.removes
        if torn is None:
            return kept
        kept = torn


def _inspect_version(table: Path, log: Path, version: int) -> _VersionOnDisk:
    try:
        text = (log / f"{version:020}.json").read_text(encoding="utf-8")
        actions = actions_of(text)
    except (ValueError, FileNotFoundError):
        return _UNREADABLE
    if not any("commitInfo" in action for action in actions):
        return _UNREADABLE
    incomplete: set[Path] = set()
    removes: set[Path] = set()
    for action in actions:
        if "add" in action:
            add = action["add"]
            path = _resolve(table, add["path"])
            if path is not None and not _is_complete(table, path, add):
                incomplete.add(path)
        elif "remove" in action:
            path = _resolve(table, action["remove"]["path"])
            if path is not None:
                removes.add(path)
        elif "cdc" in action:
            # VACUUM takes change files by their age: an absent one says nothing.
            size = _size(_resolve(table, action["cdc"]["path"]))
            if size is not None and size != action["cdc"]["size"]:
                return _UNREADABLE
    return _VersionOnDisk(True, frozenset(incomplete), frozenset(removes))


def _is_complete(table: Path, path: Path, add: dict[str, Any]) -> bool:
    """Whether the file has its full size and its deletion vector exists in full."""
    if _size(path) != add["size"]:
        return False
    described = add.get("deletionVector")
    vector = vector_file(table, described)
    if described is None or vector is None:
        return True
    end: int = described.get("offset", 0) + described["sizeInBytes"]
    return (_size(vector) or 0) >= end


def _size(path: Path | None) -> int | None:
    try:
        return None if path is None else path.stat().st_size
    except FileNotFoundError:
        return None


def _named_files(table: Path, commit: str) -> Iterator[Path]:
    """Yield every file on this machine that a commit's JSON adds."""
    for action in actions_of(commit):
        content = action.get("add") or action.get("cdc")
        if content is None:
            continue
        for path in (
            _resolve(table, content["path"]),
            vector_file(table, content.get("deletionVector")),
        ):
            if path is not None:
                yield path


def _resolve(table: Path, path: str) -> Path | None:
    """Return the local path of a path in the log, which is percent-encoded, and relative or an
    absolute URL."""
    if urlsplit(path).scheme or path.startswith("/"):
        return local_path(path)
    return table / unquote(path)


def vector_file(table: Path, vector: Mapping[str, Any] | None) -> Path | None:
    """Return the path of a deletion vector; None if it is inline, or not on this machine."""
    if vector is None or vector["storageType"] == "i":
        return None
    name = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "p":
        return _resolve(table, name)
    prefix = name[:-_UUID_CHARACTERS]
    identity = uuid.UUID(bytes=decode_z85(name[-_UUID_CHARACTERS:]))
    return table / prefix / f"deletion_vector_{identity}.bin"


def _with_checksums(paths: Iterable[Path]) -> list[Path]:
    """Return the files, each followed by Hadoop's companion ``.name.crc`` if it has one."""
    files = []
    for path in sorted(set(paths)):
        files.append(path)
        companion = path.with_name(f".{path.name}.crc")
        if companion.exists():
            files.append(companion)
    return files


def _with_new_parents(directories: Iterable[Path], table: Path) -> list[Path]:
    """Return the directories and those between them and the table, which may be as new as the
    files."""
    folders = set()
    for directory in directories:
        current = directory
        while current != table and table in current.parents:
            folders.add(current)
            current = current.parent
        folders.add(current)
    return sorted(folders)


def _sidecars(log: Path) -> list[Path]:
    folder = log / "_sidecars"
    return [*_with_checksums(folder.iterdir()), folder] if folder.is_dir() else []


def _sync_all(paths: list[Path]) -> None:
    if len(paths) <= 2:
        for path in paths:
            sync_path(path)
        return
    with ThreadPoolExecutor(min(SYNC_THREADS, len(paths))) as pool:
        for _ in pool.map(sync_path, paths):
            pass
