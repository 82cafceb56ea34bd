"""Files in storages that only pyarrow reaches, as HDFS. Delta writes the logs of tables there.

In: URLs. Out: files that are written, read in part, removed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import fs

from wal2lake.lake.store.errors import storage_error
from wal2lake.lake.store.local import PlainReader
from wal2lake.lake.store.port import WrittenFile


class ForeignWriter:
    """Writes a file, as in ``port.StoreWriter``. Durable as the storage makes it."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._files, self._path = fs.FileSystem.from_uri(url)
            self.sink: Any = self._files.open_output_stream(self._path)
        except OSError as error:
            raise storage_error("write to file", url, error) from error

    def finish(self, *, durable: bool = True) -> WrittenFile:
        """Close the file."""
        try:
            self.sink.close()
            size = self._files.get_file_info(self._path).size
        except OSError as error:
            raise storage_error("write to file", self._url, error) from error
        return WrittenFile(size, time.time_ns() // 1_000_000)

    def discard(self) -> None:
        """Close and remove the file."""
        with suppress(OSError, pa.ArrowException):
            self.sink.close()
        remove_foreign(self._url)


def open_foreign(url: str) -> PlainReader:
    """Open a file to read parts of it."""
    try:
        files, path = fs.FileSystem.from_uri(url)
        return PlainReader(files.open_input_file(path))
    except OSError as error:
        raise storage_error("read", url, error) from error


def read_foreign(url: str, offset: int, size: int) -> bytes:
    """Return a part of a file."""
    try:
        files, path = fs.FileSystem.from_uri(url)
        with files.open_input_file(path) as file:
            file.seek(offset)
            return bytes(file.read(size))
    except OSError as error:
        raise storage_error("read file", url, error) from error


def remove_foreign(url: str) -> None:
    """Remove a file; a failure is ignored."""
    with suppress(OSError, pa.ArrowException):
        files, path = fs.FileSystem.from_uri(url)
        files.delete_file(path)
