"""Keeps the files of one mirror in the table's store: names, the newest metadata, commits.

Comes in: a table's store, content. Goes out: files below ``_iceberg``, the newest metadata. Called
by ``mirror``.

    _iceberg/metadata/version-hint.text         number of the newest metadata, or of one before it
    _iceberg/metadata/v7.metadata.json          the table; put-if-absent is the commit
    _iceberg/metadata/TIME-UUID-list.avro       manifests of a snapshot
    _iceberg/metadata/TIME-UUID-N.avro          manifests
    _iceberg/metadata/TIME-UUID.puffin          deletion vectors
    _iceberg/metadata/TIME-UUID-N.parquet       position deletes, format 2

A folder that begins with an underscore is nothing to Delta, so no VACUUM of any engine removes what
is in it. Files have the time of their creation in their names (milliseconds since 1970), since an
object store tells no other. A file is removed once the newest metadata does not need it and it is
older than ``GRACE_MS``. Readers of a snapshot have the time for which the mirror keeps snapshots.

Sources: Iceberg table specification, "File System Tables"; HadoopTableOperations.java (readers
look for the metadata behind the hint's).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import StorageError
from wal2lake.lake.iceberg.columns import Json
from wal2lake.lake.iceberg.metadata import is_of_mirror, oldest_version
from wal2lake.lake.store import MissingFileError, Stamp, Store
from wal2lake.observe import failpoint, get_logger

FOLDER: Final = "_iceberg"
_METADATA: Final = f"{FOLDER}/metadata"
_HINT: Final = f"{_METADATA}/version-hint.text"

GRACE_MS: Final = 3_600_000
"""Age from which a file that no metadata names is removed: no commit is under way so long. A
guess."""

Check = Callable[[], None]
"""Is called between the steps of a longer work, which it ends by raising."""

_NUMBERED: Final = re.compile(r"v(\d+)\.metadata\.json")
_TIMED: Final = re.compile(r"(\d{13})-[0-9a-f]{32}.*")
_NAMES: Final = rf"{_NUMBERED.pattern}|{_TIMED.pattern}|version-hint\.text"
_OWN: Final = re.compile(rf"{_NAMES}|\.(?:{_NAMES})\.[0-9a-f]{{32}}\.tmp")
"""Names that the mirror gives. A crash leaves temporary ones."""


class UnreadableMirror(StorageError):
    """The newest metadata is damaged."""

    sqlstate = "XX001"


class ForeignMetadata(UnreadableMirror):
    """The newest metadata is another writer's."""


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """The metadata of a mirror as it is stored."""

    number: int
    stamp: Stamp
    metadata: Json


class MirrorPlace:
    """The files of one table's mirror."""

    def __init__(self, store: Store, check: Check = lambda: None) -> None:
        """``check`` is called before each file is read, written or removed; when it raises, nothing
        names what was written."""
        self._store = store
        self.check = check

    @property
    def location(self) -> str:
        """Path or URL that a reader of Iceberg opens."""
        return f"{self._store.location}/{FOLDER}"

    def make(self) -> None:
        """Create the folder in that of the table. One that is missing was dropped, and a new one
        would block the next table of that name."""
        self.check()
        self._store.make_folder(_METADATA, with_root=False)

    def newest(self, cached: StoredMetadata | None) -> StoredMetadata | None:
        """Return the newest metadata; None if the table has no mirror. ``cached`` is returned if it
        still is the newest."""
        if (
            cached is not None
            and self._store.stamp(_key(cached.number)) == cached.stamp
            and self._store.stamp(_key(cached.number + 1)) is None
        ):
            return cached
        names = (
            _NUMBERED.fullmatch(name) for name in self._store.list_after(_METADATA)
        )
        number = max((int(name[1]) for name in names if name), default=None)
        if number is None:
            return None
        stamp = self._store.stamp(_key(number))
        metadata = self._parsed(number)
        assert stamp is not None
        return StoredMetadata(number, stamp, metadata)

    def _parsed(self, number: int) -> Json:
        text = f'could not read Iceberg metadata "{self.metadata_path(number)}"'
        hint = "Remove the table's folder _iceberg; the mirror begins anew."
        content = self._store.read(_key(number))
        try:
            metadata: Json = json.loads(content)
            if not is_of_mirror(metadata):
                detail = "Another writer has made it."
                raise ForeignMetadata(text, detail=detail, hint=hint)
            oldest_version(metadata)
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableMirror(text, hint=hint) from error
        return metadata

    def metadata_path(self, number: int) -> str:
        """Return the path of a metadata file."""
        return f"{self._store.location}/{_key(number)}"

    def names(self, time_ms: int) -> MirrorNames:
        """Return names for the files of one commit."""
        prefix = f"{self._store.location}/{_METADATA}/{time_ms:013}-{uuid.uuid4().hex}"
        return MirrorNames(prefix)

    def write(self, path: str, content: bytes) -> None:
        """Write a new file. It counts only once the folder is settled."""
        self.check()
        self._store.put(self._key_of(path), content)

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        self.check()
        return self._store.read(self._key_of(path))

    def commit(self, number: int, metadata: Json) -> StoredMetadata | None:
        """Make metadata the newest, durably; None if another writer has made that number.

        The files that it names become durable before.
        """
        self.check()
        self._store.settle(_METADATA)
        failpoint("mirror.written")
        content = json.dumps(metadata, separators=(",", ":")).encode()
        stamp = self._store.put_if_absent(_key(number), content)
        if stamp is None:
            return None
        self._store.settle(_METADATA)
        failpoint("mirror.committed")
        self.hint(number)
        return StoredMetadata(number, stamp, metadata)

    def hint(self, number: int) -> None:
        """Let readers begin at this number. After a crash the hint may be behind; a reader that
        looks no further sees an earlier moment, so the hint is not synced."""
        self._store.put(_HINT, str(number).encode(), durable=False)

    def hinted(self) -> int | None:
        """Return the number in the hint; None if there is none."""
        try:
            return int(self._store.read(_HINT))
        except (MissingFileError, ValueError):
            return None

    def remove_others(self, needed: Collection[str], newest: int, now_ms: int) -> int:
        """Remove files that are old enough unless their paths are ``needed``; return how many.
        ``newest``: the number of the newest metadata."""
        kept = {path.rpartition("/")[2] for path in needed}
        removed = 0
        for name in self._store.list_after(_METADATA):
            if name in kept or not _is_old(name, newest, now_ms - GRACE_MS):
                continue
            self.check()
            self._store.delete(f"{_METADATA}/{name}")
            removed += 1
        if removed:
            self._store.settle(_METADATA)
        return removed

    def remove(self) -> bool:
        """Remove all files of the mirror, first those by which readers find the others; false if
        there are none, or if the metadata is another writer's."""
        names = [
            name for name in self._store.list_after(_METADATA) if _OWN.fullmatch(name)
        ]
        try:
            if names:
                self.newest(None)
        except ForeignMetadata as error:
            get_logger().warning(
                "Iceberg metadata of another writer was left", error=error
            )
            return False
        except UnreadableMirror:
            pass
        names.sort(key=lambda name: (name != "version-hint.text", "json" not in name))
        for name in names:
            self.check()
            self._store.delete(f"{_METADATA}/{name}")
        if names:
            self._store.settle(_METADATA)
        return bool(names)

    def _key_of(self, path: str) -> str:
        return path.removeprefix(f"{self._store.location}/")


@dataclass(frozen=True, slots=True)
class MirrorNames:
    """Names of the files of one commit."""

    prefix: str

    @property
    def manifest_list(self) -> str:
        """The manifest list's path."""
        return f"{self.prefix}-list.avro"

    @property
    def vectors(self) -> str:
        """The Puffin file's path."""
        return f"{self.prefix}.puffin"

    def numbered(self, ending: str) -> Iterator[str]:
        """Yield paths of manifests or position delete files."""
        number = 0
        while True:
            yield f"{self.prefix}-{number}.{ending}"
            number += 1


def _is_old(name: str, newest: int, before_ms: int) -> bool:
    """Whether a file may go unless something names it."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None:
        return int(numbered[1]) < newest
    timed = _TIMED.fullmatch(name)
    return timed is not None and int(timed[1]) < before_ms


def _key(number: int) -> str:
    return f"{_METADATA}/v{number}.metadata.json"
