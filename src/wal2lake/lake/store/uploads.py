"""Writes objects of any size.

In: bytes, as pyarrow's Parquet writer gives them. Out: one object, which appears when it is
finished.

An object up to ``_PART_BYTES`` is one PUT, repeated by the store as any other. A larger one is sent
in parts while it is written, so that memory does not grow with it. A writer that is discarded, or
whose process dies, leaves parts that nobody sees; a rule of the bucket's life cycle removes them
("abort incomplete multipart uploads").

The bucket's fence is asked before parts are handed to the client and before the object is
completed, not before a repetition, which is the client's own. No version of a table names what is
completed too late.

Called by ``objects``. Source: S3, "Uploading and copying objects using multipart upload".
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError

from wal2lake.errors import StorageError
from wal2lake.lake.store.answers import answer_of, error_of
from wal2lake.lake.store.clients import Bucket
from wal2lake.lake.store.port import WrittenFile

_PART_BYTES: Final = 8 << 20
"""At least 5 MiB, S3's least; 10,000 parts of it are more than any data file."""

_PARTS_AT_ONCE: Final = 4
"""Parts that are under way, each in memory."""


class ObjectWriter:
    """Writes one object, as in ``port.StoreWriter``."""

    def __init__(
        self,
        *,
        place: str,
        path: str,
        bucket: Bucket,
        put: Callable[[bytes], object],
        delete: Callable[[], None],
    ) -> None:
        """``put`` and ``delete`` act on the object as a whole."""
        self._upload = _Upload(place, path, bucket)
        self._put = put
        self._delete = delete
        self.sink: Any = pa.PythonFile(self._upload, mode="w")

    def finish(self, *, durable: bool = True) -> WrittenFile:
        """Send the rest. Always durable."""
        self.sink.close()
        rest = self._upload.end()
        if rest is not None:
            self._put(rest)
        return WrittenFile(self._upload.size, time.time_ns() // 1_000_000)

    def discard(self) -> None:
        """Remove the object if it is there."""
        with suppress(OSError, pa.ArrowException):
            self.sink.close()
        with suppress(StorageError):
            self._delete()


class _Upload(io.RawIOBase):
    """A file of Python that keeps a part's bytes and sends them."""

    def __init__(self, place: str, path: str, bucket: Bucket) -> None:
        self._place = place
        self._path = path
        self._bucket = bucket
        self._kept = bytearray()
        self._parts: Any = None
        self.size = 0

    def writable(self) -> bool:
        """Tell pyarrow that bytes may be written."""
        return True

    def write(self, data: Any, /) -> int:
        """Keep bytes, or send them with those that were kept."""
        view = memoryview(data)
        self.size += view.nbytes
        self._kept += view
        if len(self._kept) > _PART_BYTES:
            self._send()
        return view.nbytes

    def end(self) -> bytes | None:
        """Return all bytes if none has been sent; else send the rest and complete the object."""
        if self._parts is None:
            return bytes(self._kept)
        self._send()
        self._bucket.admit()
        with self._failing():
            self._parts.close()
        return None

    def _send(self) -> None:
        self._bucket.admit()
        with self._failing():
            if self._parts is None:
                self._parts = obstore.open_writer(
                    self._bucket.uploading(),
                    self._path,
                    buffer_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            self._parts.write(bytes(self._kept))
        self._kept.clear()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn an error of obstore into a StorageError."""
        try:
            yield
        except (BaseError, OSError) as error:
            if self._bucket.command is not None and answer_of(error).refuses_keys:
                # For the next attempt of whoever writes: the parts are lost.
                self._bucket.command.refused()
            seconds = self._bucket.options.request_seconds
            raise error_of("write to file", self._place, error, seconds) from error
