"""A store in a directory of this machine.

In: keys, bytes. Out: files. A file is written under a temporary name, fsynced, and then gets its
name: by link(2), which fails if the name exists, or by rename(2), which replaces. link(2) is the
mutual exclusion that Delta's protocol requires of the writers of a version. A file system without
hard links gets a look and a rename, as Delta's own commits do everywhere: writers of one process
exclude each other by a lock, those of others do not.

A temporary name begins with a dot and ends with 32 hexadecimal digits and ``.tmp``;
``delta.durability`` removes those that a crash has left.

Sources: link(2), rename(2), fsync(2).
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import StorageError
from wal2lake.lake.store.errors import MissingFileError, storage_error
from wal2lake.lake.store.port import (
    Entry,
    Range,
    Stamp,
    Store,
    WrittenFile,
    transfer,
)

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a file system without hard links."""

_NO_LINK_THERE: Final = _NO_LINKS | {errno.EXDEV, errno.EMLINK}
"""Errors of a link to another file system, too: the file is copied instead."""


class LocalStore:
    """The files below a directory, as in ``port.Store``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_private = False
        """True: other users of the machine may not enter directories that are created here."""

    @property
    def location(self) -> str:
        """Return the directory's path."""
        return str(self.root)

    def make_folder(self, folder: str, *, with_root: bool = True) -> None:
        """Create a directory and those above it."""
        path = self.root / folder
        mode = 0o700 if self.is_private else 0o777
        try:
            if with_root:
                self.root.mkdir(mode, parents=True, exist_ok=True)
            for above in reversed(Path(folder).parents[:-1]):
                (self.root / above).mkdir(mode, exist_ok=True)
            path.mkdir(mode, exist_ok=True)
        except OSError as error:
            raise storage_error("create directory", path, error) from error

    def put_if_absent(
        self, key: str, content: bytes, *, durable: bool = True
    ) -> Stamp | None:
        """Create a file by link(2)."""
        path = self.root / key
        try:
            return _place(path, content, _take_name, durable=durable)
        except FileExistsError:
            return None
        except OSError as error:
            raise storage_error("write to file", path, error) from error

    def put(self, key: str, content: bytes, *, durable: bool = True) -> Stamp:
        """Create or replace a file by rename(2)."""
        path = self.root / key
        try:
            return _place(path, content, os.replace, durable=durable)
        except OSError as error:
            raise storage_error("write to file", path, error) from error

    def open_writer(self, key: str) -> LocalWriter:
        """Open a file under its final name."""
        return LocalWriter(self.root / key)

    def settle(self, folder: str) -> None:
        """Fsync the directory."""
        sync_path(self.root / folder)

    def stamp(self, key: str) -> Stamp | None:
        """Return inode, modification time and size."""
        try:
            return _stamp_of((self.root / key).stat())
        except OSError:
            # As a missing file: an unreadable directory is reported when a file in it is read.
            return None

    def read(self, key: str) -> bytes:
        """Read a whole file."""
        path = self.root / key
        try:
            return path.read_bytes()
        except OSError as error:
            raise _read_error(path, error) from error

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        """Read a part of a file."""
        path = self.root / key
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise _read_error(path, error) from error

    def open_ranges(self, key: str, size: int | None = None) -> PlainReader:
        """Open a file."""
        path = self.root / key
        try:
            return PlainReader(pa.OSFile(str(path), "rb"))
        except OSError as error:
            raise _read_error(path, error) from error

    def list_after(self, folder: str, name: str = "") -> list[str]:
        """List a directory's files. Folders in it are left out."""
        path = self.root / folder
        try:
            with os.scandir(path) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if entry.name > name and not entry.is_dir()
                )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("open directory", path, error) from error

    def list_below(
        self,
        folder: str,
        enters: Callable[[str], bool],
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Entry]:
        """Walk through the directories."""
        files: dict[str, Entry] = {}
        waiting = [f"{folder}/" if folder else ""]
        while waiting:
            check()
            here = waiting.pop()
            for item in _scan(self.root / here):
                key = f"{here}{item.name}"
                try:
                    if item.is_dir():
                        if enters(key) and not item.is_symlink():
                            waiting.append(f"{key}/")
                    elif item.is_file(follow_symlinks=False):
                        files[key] = _entry_of(item.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise storage_error("stat file", self.root / key, error) from error
        return files

    most_at_once: Final = 1

    def entries(self, keys: Collection[str]) -> dict[str, Entry]:
        """Look at each file, and at no link's target."""
        entries = {}
        for key in keys:
            path = self.root / key
            try:
                entries[key] = _entry_of(path.lstat())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise storage_error("stat file", path, error) from error
        return entries

    def seconds_ahead(self) -> float:
        """Return 0: the clock is this machine's."""
        return 0.0

    def delete(self, key: str) -> None:
        """Remove a file."""
        path = self.root / key
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove file", path, error) from error

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove one file after the other."""
        for key in keys:
            self.delete(key)

    def copy(self, key: str, source: Store, source_key: str) -> None:
        """Link the file, or copy it to another file system."""
        if isinstance(source, LocalStore):
            _link(source.root / source_key, self.root / key)
            return
        self.make_folder(key.rpartition("/")[0])
        with source.open_ranges(source_key) as reader:
            transfer(reader, self.open_writer(key))


class PlainReader:
    """Reads a file without requests, as in ``port.StoreReader``."""

    is_remote: Final = False

    def __init__(self, source: Any) -> None:
        """``source``: an open ``NativeFile``."""
        self.source: Any = source

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        size: int = self.source.size()
        return size

    def fetch(self, ranges: Sequence[Range], most_bytes: int | None = None) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the file."""
        self.source.close()

    def __enter__(self) -> PlainReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LocalWriter:
    """Writes a file of this machine, as in ``port.StoreWriter``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.sink: Any = pa.OSFile(str(path), "wb")
        except OSError as error:
            raise storage_error("write to file", path, error) from error

    def finish(self, *, durable: bool = True) -> WrittenFile:
        """Close the file; fsync it, then its directory."""
        try:
            self.sink.close()
            if durable:
                sync_path(self._path)
                sync_path(self._path.parent)
            status = self._path.stat()
        except OSError as error:
            raise storage_error("write to file", self._path, error) from error
        return WrittenFile(status.st_size, status.st_mtime_ns // 1_000_000)

    def discard(self) -> None:
        """Close and remove the file."""
        with suppress(OSError, pa.ArrowException):
            self.sink.close()
        with suppress(OSError):
            self._path.unlink()


def sync_path(path: Path) -> None:
    """Fsync a file or a directory. One that is missing is skipped: either VACUUM has removed the
    file since the commit named it, or it never existed, which readers report with its name."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f'could not fsync file "{path}": {error.strerror}', sqlstate="58030"
        ) from error


def _place(
    path: Path,
    content: bytes,
    give_name: Callable[[Path, Path], None],
    *,
    durable: bool,
) -> Stamp:
    """Write a temporary file and give it its name."""
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with written.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        status = written.stat()
        try:
            give_name(written, path)
        except FileExistsError:
            # NFS may have made the link and lost the answer, and answers the repeated request.
            if not os.path.samestat(path.stat(), status):
                raise
    finally:
        with suppress(FileNotFoundError):
            written.unlink()
    return _stamp_of(status)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            return list(listed)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error("open directory", folder, error) from error


def _entry_of(status: os.stat_result) -> Entry:
    changed = max(status.st_mtime, status.st_ctime)
    return Entry(status.st_size, changed, status.st_mtime, _stamp_of(status))


def _link(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINK_THERE:
                raise
            written = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
            shutil.copyfile(source, written)
            written.rename(target)
    except OSError as error:
        raise storage_error("write to file", target, error) from error


def _take_name(written: Path, path: Path) -> None:
    """Give a file a name that must be free; FileExistsError if it is not."""
    try:
        os.link(written, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, "file exists", str(path)) from error
        written.rename(path)


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_error(path: Path, error: OSError) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            f'could not open file "{path}": No such file or directory'
        )
    return storage_error("read file", path, error)
