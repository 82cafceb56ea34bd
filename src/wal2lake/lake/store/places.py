"""Says where a location is: on this machine, or in an object store.

In: a path or URL. Out: a local path, or the store of the files below it; single files by their
own path or URL, in storages without a store, too.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from wal2lake.errors import StorageError
from wal2lake.lake.store.foreign import (
    ForeignWriter,
    open_foreign,
    read_foreign,
    remove_foreign,
)
from wal2lake.lake.store.local import LocalStore
from wal2lake.lake.store.options import StoreOptions, process_options
from wal2lake.lake.store.port import Store, StoreReader, StoreWriter

_SCHEMES: Final = frozenset({"s3", "gs", "abfss"})


def local_path(location: str) -> Path | None:
    """Return the path of a ``file:`` URL or plain path; None for any other scheme."""
    if location.startswith("/"):
        return Path(location)
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None


def is_object_store(location: str) -> bool:
    """Whether a location is the URL of an object store that this room knows."""
    return location.partition("://")[0] in _SCHEMES


def has_store(location: str) -> bool:
    """Whether this room has a store for a location: ``store_at`` returns it."""
    return local_path(location) is not None or is_object_store(location)


def store_at(location: str, options: StoreOptions | None = None) -> Store | None:
    """Return the store of the files below a location; None for another scheme, as of HDFS.
    ``options``: of an object store's client; None for those of this process."""
    root = local_path(location)
    if root is not None:
        return LocalStore(root)
    if not is_object_store(location):
        return None
    # obstore takes 80 ms to import, which each Python worker of Spark would pay.
    from wal2lake.lake.store.clients import bucket_at
    from wal2lake.lake.store.objects import ObjectStore

    scheme, _, rest = location.partition("://")
    name, _, prefix = rest.partition("/")
    bucket = bucket_at(scheme, name, options or process_options())
    return ObjectStore(location.rstrip("/"), bucket, prefix.strip("/"))


def open_writer(location: str, name: str) -> StoreWriter:
    """Return a writer of a new file in a folder."""
    store = store_at(location)
    if store is None:
        return ForeignWriter(f"{location.rstrip('/')}/{name}")
    return store.open_writer(name)


def open_reader(path: str, size: int | None = None) -> StoreReader:
    """Open a file to read parts of it, as ``Store.open_ranges``."""
    store, name = _store_of(path)
    if store is None:
        return open_foreign(path)
    return store.open_ranges(name, size)


def read_part(path: str, offset: int, size: int) -> bytes:
    """Return ``size`` bytes of a file from ``offset`` on, or as many as it has."""
    store, name = _store_of(path)
    if store is None:
        return read_foreign(path, offset, size)
    return store.read_range(name, offset, size)


def remove_file(path: str) -> None:
    """Remove a file that no commit names; a failure is ignored."""
    store, name = _store_of(path)
    if store is None:
        remove_foreign(path)
        return
    with suppress(StorageError):
        store.delete(name)


def _store_of(path: str) -> tuple[Store | None, str]:
    """Return the store of a file's folder, and the file's name there."""
    local = local_path(path)
    if local is not None:
        return LocalStore(local.parent), local.name
    folder, _, name = path.rpartition("/")
    return store_at(folder), name
