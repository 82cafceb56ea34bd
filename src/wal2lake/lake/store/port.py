"""The store port: the operations on the files of one table.

Comes in: keys, which are names relative to the store's root with ``/`` between folders, and bytes.
Goes out: bytes, names, stamps. Implemented by ``local`` and ``objects``; used by ``delta.log`` and
``retention``.

Why this way. A commit of Delta needs one operation that no file system and object store has under
the same name: a file that appears whole, and only if nobody else has made one of that name. So
``put_if_absent`` is an operation of the port, and each implementation uses what its storage has:
link(2), If-None-Match, a generation of zero. Durability differs, too. An object is durable once
its request is answered; a file needs fsync of itself and of its directory, and one fsync of the
directory serves several files. So the names of files count only after ``settle``.

Raises StorageError and its kin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

Stamp = tuple[int | str, ...]
"""Identity of a file's content: inode, modification time in nanoseconds and bytes of a local file;
entity tag and bytes of an object. Two files of one name in succession have different stamps."""

PROBE: Final = "_wal2lake_probe_"
"""Beginning of the names of objects that are made to try a store, and are removed at once. Delta's
readers skip them."""

_PIECE_BYTES: Final = 8 << 20
"""Bytes of a file that are in memory while it is copied."""

Range = tuple[int, int]
"""Offset of the first byte of a part of a file, and of the byte behind its last."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as a list of the store has it."""

    size: int
    """Bytes."""
    changed: float
    """The later of modification and status change, seconds since 1970 by the store's clock: a link
    that was made recently is recent, however old its content is."""
    written: float
    """Modification time."""
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a writer has finished."""

    size: int
    """Bytes."""
    modified_ms: int
    """Time of its last change, milliseconds since 1970."""


class StoreReader(Protocol):
    """Reads parts of one file; a context manager. Belongs to one thread."""

    @property
    def source(self) -> Any:
        """A pyarrow ``NativeFile``, from which any part can be read. OSError or StorageError if
        that fails."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the file."""
        ...

    @property
    def is_remote(self) -> bool:
        """True if each read costs a request unless it was fetched."""
        ...

    def fetch(self, ranges: Sequence[Range], most_bytes: int | None = None) -> None:
        """Get parts that are read next, in few requests; whatever was got before is forgotten, so
        no parts free the memory. Parts that have more than ``most_bytes`` are got while they are
        read, so many bytes at a time: they do not overlap, and each is read in pieces from its
        beginning. Does nothing for a file that is not remote."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class StoreWriter(Protocol):
    """Writes one file of any size, under a name that nobody else uses.

    Nobody may read the file before it is finished. Belongs to one thread.
    """

    @property
    def sink(self) -> Any:
        """A pyarrow ``NativeFile`` to which the content is written. OSError or StorageError if that
        fails."""
        ...

    def finish(self, *, durable: bool = True) -> WrittenFile:
        """Close the file. With ``durable`` it survives a power loss, under its name."""
        ...

    def discard(self) -> None:
        """Remove what was written, whether finished or not. A failure is ignored: no commit names
        the file."""
        ...


class Store(Protocol):
    """The files below one location. Every method may be called from any thread."""

    @property
    def location(self) -> str:
        """Path or URL of the store's root, without a slash at the end."""
        ...

    def make_folder(self, folder: str, *, with_root: bool = True) -> None:
        """Create a folder and those above it; without ``with_root`` only those below the store's
        root, which must be there. An object store has no folders."""
        ...

    def put_if_absent(
        self, key: str, content: bytes, *, durable: bool = True
    ) -> Stamp | None:
        """Create a file, whole, if there is none of that name; None: there is one.

        ``content`` is unique to the caller, as a commit is by its transaction's id. So a file that
        exists and has this content was made by this call, an answer of which was lost. ``durable``:
        the content survives a power loss once the folder has been settled; if not, the caller
        syncs it later. NoPutIfAbsent if the storage cannot do it: nothing was written.
        UnknownOutcome if the file may exist, or appear later.
        """
        ...

    def put(self, key: str, content: bytes, *, durable: bool = True) -> Stamp:
        """Create or replace a file: readers see the old content or the new one."""
        ...

    def open_writer(self, key: str) -> StoreWriter:
        """Return a writer of a new file. Folders are not created: a table's folder that is missing
        was dropped, and a new one would block the next table of that name."""
        ...

    def settle(self, folder: str) -> None:
        """Make the names in a folder survive a power loss: those that were created, replaced or
        deleted before."""
        ...

    def stamp(self, key: str) -> Stamp | None:
        """Return a file's stamp; None if there is no such file."""
        ...

    def read(self, key: str) -> bytes:
        """Return the content of a file. MissingFileError if there is none."""
        ...

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, or as many of them as the file has.
        MissingFileError if there is none."""
        ...

    def open_ranges(self, key: str, size: int | None = None) -> StoreReader:
        """Open a file to read parts of it. ``size``: its bytes if they are known, which saves a
        request. MissingFileError if there is none; if the size is known, when it is read."""
        ...

    def list_after(self, folder: str, name: str = "") -> list[str]:
        """Return the names of the files in a folder that are greater than ``name``, in ascending
        order; none if there is no such folder. Names compare as UTF-8; a name with a dot at its
        beginning may be a file that is being written."""
        ...

    def list_below(
        self,
        folder: str,
        enters: Callable[[str], bool],
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Entry]:
        """Return the files below a folder (empty: the root) by key, with those of the folders
        below it. ``enters`` is called once with the key of each of these, after the one above it,
        and says whether its files are wanted. Links to elsewhere are not followed, and are no
        files. ``check`` is called often and may raise."""
        ...

    @property
    def most_at_once(self) -> int:
        """Most files that one call of ``entries`` or ``delete_all`` should be for."""
        ...

    def entries(self, keys: Collection[str]) -> Mapping[str, Entry]:
        """Return the entries of those of the files that are there. Costs few requests if the keys
        are all names between the smallest and the greatest."""
        ...

    def seconds_ahead(self) -> float:
        """Return how far the clock by which the store tells times is ahead of this machine's, or
        less: by the time of a request, and a second."""
        ...

    def delete(self, key: str) -> None:
        """Remove a file; does nothing if there is none."""
        ...

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove files. They go in no order, and those that are not there are skipped."""
        ...

    def copy(self, key: str, source: Store, source_key: str) -> None:
        """Give a file of another store a name here, which no other file ever has; may be repeated.
        A directory links a file of this machine if it can, and makes the folders of the name,
        which count after ``settle``."""
        ...


def transfer(reader: StoreReader, writer: StoreWriter) -> None:
    """Read a file and write it elsewhere, in pieces."""
    try:
        for start in range(0, reader.size, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, reader.size)
            reader.fetch([(start, end)])
            writer.sink.write(reader.source.read_at(end - start, start))
        writer.finish(durable=False)
    except BaseException:
        writer.discard()
        raise
