"""Puts the catalog into the store, with the files beside it in the node's directory.

    keep()            if what matters has changed since the last image
    keep(now=True)    in any case, so that floors and published states are of this moment

One object is one image: a tar file with ``catalog.sqlite`` and the node's settings, password file,
certificates and the like, in their folders, as a backup has them. It has every secret that the
directory has.

Several processes of a node call this: each receiver before it counts a segment as stored, because
the segment may need definitions that were recorded with it, and the engine for what sessions
change. A lock in ``run/`` makes it one at a time, and a file there says what the last image has, so
that no image is made twice. After a crash, or without the file, one is made too many.

The names are put only if absent. A name that is taken means another directory with this claim, as
after a copy of the directory.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from wal2lake.archive import layout
from wal2lake.archive.claims import FILE as CLAIM_FILE
from wal2lake.archive.claims import NodeClaim, superseded
from wal2lake.catalog import Catalog
from wal2lake.changelog.files import storage_error
from wal2lake.errors import StorageError
from wal2lake.lake.store import Store
from wal2lake.settings import Settings

CATALOG: Final = "catalog.sqlite"

_STATE: Final = "archive.state"

_COPY: Final = "archive.copy"

_KEPT: Final = 3
"""Images that stay. One is needed; a guess of how many steps back somebody wants to look."""

_MOST_BYTES: Final = 1 << 20
"""Larger files of the directory are no settings, keys or certificates."""

_LOG: Final = "wal2lake.log"

_LEFT_OUT: Final = frozenset({"wal2lake.pid", CLAIM_FILE})


@dataclass(slots=True)
class _State:
    """Facts about the last image."""

    store: str = ""
    """Location of the store that has it."""
    token: str = ""
    """Token of the claim with which it was put."""
    number: int = 0
    counter: int = -1
    """The catalog's change counter when the digest was taken."""
    digest: str = ""
    files: str = ""


class CatalogArchive:
    """The images of one node's catalog. For one thread at a time."""

    def __init__(
        self, catalog: Catalog, settings: Settings, store: Store, claim: NodeClaim
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._store = store
        self._claim = claim
        self._is_there = False
        """True if this process has seen the last image in the store."""

    def keep(self, *, now: bool = False) -> bool:
        """Put an image if one is due, or ``now``; return whether one was put.

        On return the store has everything that matters of the catalog as it was at the call.
        Raises StorageError, Superseded.
        """
        with self._locked() as path:
            state = self._read(path)
            counter, files = self._catalog.change_counter, self._stamp_of_files()
            if not now and (state.counter, state.files) == (counter, files):
                return False
            digest = self._catalog.images.digest()
            if not now and (state.digest, state.files) == (digest, files):
                state.counter = counter
                self._write(path, state)
                return False
            # The number is spent even if no answer tells what became of the request.
            state.number += 1
            state.counter, state.digest = -1, ""
            self._write(path, state)
            self._put(state.number)
            state.counter, state.digest, state.files = counter, digest, files
            self._write(path, state)
            self._is_there = True
        return True

    def _put(self, number: int) -> None:
        generation = self._claim.generation
        name = layout.catalog_name(generation, number)
        self._store.make_folder(layout.CATALOGS)
        content = self._image()
        if self._store.put_if_absent(f"{layout.CATALOGS}/{name}", content) is None:
            raise superseded(self._store.location)
        self._store.settle(layout.CATALOGS)
        if self._store.read(f"{layout.CATALOGS}/{name}") != content:
            raise StorageError(
                f'image "{name}" in "{self._store.location}" is not what was stored',
                sqlstate="58030",
            )
        # Those before it leave only now that it is known to be one.
        for key in self._images()[:-_KEPT]:
            self._store.delete(f"{layout.CATALOGS}/{layout.catalog_name(*key)}")

    def _images(self) -> list[tuple[int, int]]:
        names = self._store.list_after(layout.CATALOGS)
        return sorted(key for key in map(layout.catalog_of, names) if key is not None)

    def _image(self) -> bytes:
        """Return an image of this moment."""
        content = io.BytesIO()
        # One name, which the lock guards: a crash leaves no more than one copy.
        copy = self._settings.run_directory / _COPY
        try:
            copy.unlink(missing_ok=True)
            with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
                self._catalog.images.copy_to(copy)
                tar.add(copy, CATALOG)
                for path in self._files():
                    tar.add(path, self._name(path))
            copy.unlink()
        except OSError as error:
            raise storage_error(
                "read directory", self._settings.directory, error
            ) from error
        return content.getvalue()

    def _files(self) -> list[Path]:
        """Return the files of the node's directory that go with the catalog, in its folders, too,
        but for those of tables and logs."""
        settings = self._settings
        apart = {
            settings.run_directory,
            settings.log_directory,
            Path(settings.warehouse),
            Path(self._store.location),
        }
        directory = settings.directory
        logs = directory / _LOG
        left_out = tuple(
            map(str, (settings.catalog_file, logs, settings.log_file or logs))
        )
        paths = []
        for place, folders, names in os.walk(directory):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and Path(place, name) not in apart
            ]
            paths += [
                Path(place, name)
                for name in names
                if not name.startswith(".") and not name.endswith(".tmp")
            ]
        return sorted(
            path
            for path in paths
            if not str(path).startswith(left_out)
            and not (path.parent == directory and path.name in _LEFT_OUT)
            and path.is_file()
            and not path.is_symlink()
            and path.stat().st_size <= _MOST_BYTES
        )

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._settings.directory))

    def _stamp_of_files(self) -> str:
        try:
            stamps = [
                (self._name(path), status.st_mtime_ns, status.st_size)
                for path in self._files()
                # Goes with the next image. The sweep at a start finds what an older one lacks.
                if path
                not in (
                    self._settings.registered_file,
                    self._settings.iceberg_registered_file,
                )
                for status in [path.stat()]
            ]
        except OSError as error:
            raise storage_error(
                "read directory", self._settings.directory, error
            ) from error
        return json.dumps(stamps)

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        path = self._settings.run_directory / _STATE
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error("open file", path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield path
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> _State:
        store, claim = self._store.location, self._claim
        try:
            state = _State(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            state = _State()
        is_known = (state.store, state.token) == (store, claim.token)
        if not is_known or not self._is_there:
            own = [
                n for generation, n in self._images() if generation == claim.generation
            ]
            if not is_known:
                state = _State(store, claim.token, max(own, default=0))
            elif state.number not in own:
                # Somebody has emptied the store.
                state = _State(store, claim.token, max((*own, state.number)))
            self._is_there = True
        return state

    def _write(self, path: Path, state: _State) -> None:
        # In place, because the lock is on the file. A torn one is taken for none.
        try:
            path.write_text(json.dumps(asdict(state)))
        except OSError as error:
            raise storage_error("write to file", path, error) from error
