"""A store in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

In: keys, bytes. Out: objects. An object appears whole, under its name, and is durable once its
request is answered.

Put-if-absent is a conditional PUT: ``If-None-Match: *`` for S3 and Azure,
``x-goog-if-generation-match: 0`` for Google. A server that does not know the condition ignores it,
and two writers would make the same version of a table. So the first conditional PUT of a process
in a bucket is preceded by a probe: an object that is created twice, where the second request must
be refused.

Attempts. A request that found no whole answer is repeated with growing pauses of random length
(full jitter, so that writers that were refused together do not come back together). Reading,
listing, replacing and deleting may be repeated freely. A conditional PUT may have been carried out
although its answer was lost or said 500; its repetition is then refused because of the object that
it made itself. So after each refusal the object is read: with the caller's content it is the
caller's, with other content somebody was first, and if there is none (S3 answers 409 while two
conditional requests are under way) the request is repeated.

Each request that changes something is preceded by the bucket's ``fence``, which raises in a node
that may have lost its lease on the warehouse. A command for credentials runs before the fence, so
that only the request itself takes time after it.

Sources: S3, "How to prevent object overwrites with conditional writes", "Error responses";
object_store 0.14, ``PutMode::Create``.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from wal2lake.errors import StorageError
from wal2lake.lake.store.answers import (
    StoreAnswer,
    answer_of,
    error_of,
    is_beyond_the_end,
)
from wal2lake.lake.store.clients import Bucket
from wal2lake.lake.store.errors import MissingFileError, NoPutIfAbsent, UnknownOutcome
from wal2lake.lake.store.port import PROBE, Entry, Stamp, Store, transfer
from wal2lake.lake.store.reading import ObjectReader
from wal2lake.lake.store.uploads import ObjectWriter

_Result = TypeVar("_Result")

_MOST_COPIED: Final = 5 << 30
"""Most bytes of an object that S3 copies by one request."""

_FEW: Final = 8
"""Objects that are asked for one by one. A list has 1,000 in one answer, but of all names that lie
between."""

_MOST_REFUSALS: Final = 3
"""Attempts of one operation with credentials that a command gives anew."""

_KEPT_SECONDS: Final = 0.12
"""Least pause after credentials were refused: obstore asks for others at most once in 100 ms."""


class ObjectStore:
    """The objects below a prefix of a bucket, as in ``port.Store``."""

    def __init__(self, location: str, bucket: Bucket, prefix: str) -> None:
        self._location = location
        self._bucket = bucket
        self._client = bucket.client
        self._prefix = prefix

    @property
    def location(self) -> str:
        """Return the URL of the prefix."""
        return self._location

    def make_folder(self, folder: str, *, with_root: bool = True) -> None:
        """Do nothing: keys have no folders."""

    def settle(self, folder: str) -> None:
        """Do nothing: an object is durable once its request is answered."""

    def put_if_absent(
        self, key: str, content: bytes, *, durable: bool = True
    ) -> Stamp | None:
        """Create an object by a conditional PUT."""
        self._prove()
        return self._create(key, content)

    def _create(self, key: str, content: bytes) -> Stamp | None:
        path, attempts = self._path(key), StoreAttempts(self._bucket)
        is_known = True
        while True:
            self._check_fence(is_known)
            try:
                created = obstore.put(
                    self._client, path, content, mode="create", use_multipart=False
                )
                return _stamp(created["e_tag"], len(content))
            except (AlreadyExistsError, PreconditionError) as error:
                failed: Exception = error
                existing = self._read_made(key)
                if existing is not None:
                    stamp, present = existing
                    return stamp if present == content else None
            except (BaseError, OSError) as error:
                failed = error
                answer = answer_of(error)
                is_known = is_known and answer.is_known
                if not attempts.may_help(answer):
                    described = self._error("write to file", key, error)
                    raise (described if is_known else _unknown(described)) from error
            if attempts.pause():
                continue
            described = self._error("write to file", key, failed)
            if is_known:
                raise described from failed
            raise _unknown(described) from failed

    def _check_fence(self, is_known: bool) -> None:
        """Call the fence. ``is_known``: false if an earlier attempt may have been carried out."""
        try:
            self._bucket.admit()
        except StorageError as error:
            if is_known:
                raise
            raise _unknown(error) from error

    def put(self, key: str, content: bytes, *, durable: bool = True) -> Stamp:
        """Create or replace an object."""
        path = self._path(key)

        def put() -> Any:
            self._bucket.admit()
            return obstore.put(self._client, path, content, use_multipart=False)

        written = self._repeat("write to file", key, put)
        return _stamp(written["e_tag"], len(content))

    def open_writer(self, key: str) -> ObjectWriter:
        """Return a writer that sends a small object at once, a large one in parts."""
        return ObjectWriter(
            place=f"{self._location}/{key}",
            path=self._path(key),
            bucket=self._bucket,
            put=lambda content: self.put(key, content),
            delete=lambda: self.delete(key),
        )

    def stamp(self, key: str) -> Stamp | None:
        """Return entity tag and size."""
        path = self._path(key)
        try:
            meta = self._repeat(
                "read file", key, lambda: obstore.head(self._client, path)
            )
        except MissingFileError:
            return None
        return _stamp(meta["e_tag"], meta["size"])

    def read(self, key: str) -> bytes:
        """Read a whole object."""
        return self._read(key)[1]

    def _read(self, key: str) -> tuple[Stamp, bytes]:
        path = self._path(key)

        def read() -> tuple[Stamp, bytes]:
            answer = obstore.get(self._client, path)
            content = bytes(answer.bytes())
            return _stamp(answer.meta["e_tag"], answer.meta["size"]), content

        return self._repeat("read file", key, read)

    def _read_made(self, key: str) -> tuple[Stamp, bytes] | None:
        """Read the object because of which a request was refused; None if there is none."""
        try:
            return self._read(key)
        except MissingFileError:
            return None
        except StorageError as error:
            raise _unknown(error) from error

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        """Read a part of an object."""
        return bytes(self._read_range(key, offset, size))

    def _read_range(self, key: str, offset: int, size: int) -> Any:
        """Read a part of an object without a copy, into an object with the buffer protocol."""
        path = self._path(key)

        def read() -> Any:
            try:
                return obstore.get_range(self._client, path, start=offset, length=size)
            except BaseError as error:
                if is_beyond_the_end(error):
                    return b""
                raise

        return self._repeat("read file", key, read)

    def open_ranges(self, key: str, size: int | None = None) -> ObjectReader:
        """Return a reader that asks for ranges."""
        if size is None:
            path = self._path(key)
            meta = self._repeat(
                "read file", key, lambda: obstore.head(self._client, path)
            )
            size = int(meta["size"])
        return ObjectReader(
            size, lambda start, end: self._read_range(key, start, end - start)
        )

    def list_after(self, folder: str, name: str = "") -> list[str]:
        """List a folder's objects, from the one after ``name`` on."""
        path = self._path(folder)

        def list_all() -> list[str]:
            pages = obstore.list(
                self._client,
                path or None,
                offset=f"{path}/{name}".lstrip("/") if name else None,
            )
            return [meta["path"] for page in pages for meta in page]

        start = len(path) + 1 if path else 0
        names = [listed[start:] for listed in self._repeat("list", folder, list_all)]
        return sorted(listed for listed in names if "/" not in listed and listed > name)

    def list_below(
        self,
        folder: str,
        enters: Callable[[str], bool],
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Entry]:
        """List all objects below the folder at once, 1,000 in each request."""
        wanted: dict[str, bool] = {"": True, folder: True}

        def is_wanted(key: str) -> bool:
            if key not in wanted:
                wanted[key] = is_wanted(key.rpartition("/")[0]) and enters(key)
            return wanted[key]

        def list_all() -> dict[str, Entry]:
            return {
                key: entry
                for key, entry in self._listed(folder, check)
                if is_wanted(key.rpartition("/")[0])
            }

        return self._repeat("list", folder, list_all)

    def _listed(
        self, folder: str, check: Callable[[], None], after: str | None = None
    ) -> Iterator[tuple[str, Entry]]:
        """Yield the objects below a folder with their keys, in the order of the names."""
        path, start = self._path(folder), len(self._prefix) + bool(self._prefix)
        offset = None if after is None else self._path(after)
        for page in obstore.list(self._client, path or None, offset=offset):
            check()
            for meta in page:
                if not path or meta["path"].startswith(f"{path}/"):
                    yield meta["path"][start:], _entry_of(meta)

    most_at_once: Final = 1000

    def entries(self, keys: Collection[str]) -> dict[str, Entry]:
        """Ask for each of few objects; list all names between the first and the last of many."""
        if len(keys) <= _FEW:
            return {
                key: entry for key in keys if (entry := self._entry(key)) is not None
            }
        wanted, last = frozenset(keys), max(keys)
        # A list begins after a name, so the first object is asked for.
        first = min(keys)

        def list_between() -> dict[str, Entry]:
            entries = {}
            for key, entry in self._listed("", lambda: None, first):
                if key > last:
                    break
                if key in wanted:
                    entries[key] = entry
            return entries

        between = self._repeat("list", "", list_between)
        of_first = self._entry(first)
        return between if of_first is None else {first: of_first, **between}

    def _entry(self, key: str) -> Entry | None:
        path = self._path(key)
        try:
            return _entry_of(
                self._repeat("read file", key, lambda: obstore.head(self._client, path))
            )
        except MissingFileError:
            return None

    def seconds_ahead(self) -> float:
        """Compare the time of an object that is made for that."""
        key = f"{PROBE}{uuid.uuid4().hex}"
        try:
            self.put(key, b"clock")
            # The object is a little older.
            now = time.time()
            entry = self._entry(key)
        finally:
            with suppress(StorageError):
                self.delete(key)
        if entry is None:
            raise MissingFileError(f'there is no file "{self._location}/{key}"')
        return entry.written - now

    def delete(self, key: str) -> None:
        """Remove an object."""
        path = self._path(key)
        with suppress(MissingFileError):
            self._repeat("remove file", key, partial(self._remove, path))

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove up to 1,000 objects by one request, where the store can."""
        for start in range(0, len(keys), self.most_at_once):
            part = keys[start : start + self.most_at_once]
            paths = [self._path(key) for key in part]
            try:
                self._repeat("remove file", part[0], partial(self._remove, paths))
            except MissingFileError:
                # A store that says so has left others.
                for key in part:
                    self.delete(key)

    def _remove(self, paths: str | list[str]) -> None:
        self._bucket.admit()
        obstore.delete(self._client, paths)

    def copy(self, key: str, source: Store, source_key: str) -> None:
        """Let the store copy the object, or send it again if it cannot."""
        with source.open_ranges(source_key) as reader:
            if (
                not isinstance(source, ObjectStore)
                or source._bucket is not self._bucket
                or not self._bucket.copies_whole
                or reader.size > _MOST_COPIED
            ):
                transfer(reader, self.open_writer(key))
                return
        old, new = source._path(source_key), self._path(key)

        def copy() -> None:
            self._bucket.admit()
            obstore.copy(self._client, old, new)

        self._repeat("copy file", key, copy)

    # ---- conditions -----------------------------------------------------------------

    def _prove(self) -> None:
        """Require once for each bucket that a conditional PUT is refused if it has to be."""
        if self._bucket.proven:
            return
        with self._bucket.proving:
            if self._bucket.proven:
                return
            key = f"{PROBE}{uuid.uuid4().hex}"
            try:
                self._create(key, b"first")
                refused = self._create(key, b"second") is None
            finally:
                with suppress(StorageError):
                    self.delete(key)
            if not refused:
                raise NoPutIfAbsent(
                    f'the object store at "{self._location}" ignores conditional writes',
                    detail="It replaced an object that a request with If-None-Match may"
                    " only create. Two writers of a table would overwrite each other.",
                    hint="Use a store, or a version of it, that supports conditional writes.",
                )
            self._bucket.proven = True

    # ---- attempts -------------------------------------------------------------------

    def _repeat(self, action: str, key: str, call: Callable[[], _Result]) -> _Result:
        """Call until there is a whole answer, within the time for attempts."""
        attempts = StoreAttempts(self._bucket)
        while True:
            try:
                return call()
            except FileNotFoundError as error:
                raise self._error(action, key, error) from error
            except (BaseError, OSError) as error:
                if not attempts.may_help(answer_of(error)) or not attempts.pause():
                    raise self._error(action, key, error) from error

    def _error(self, action: str, key: str, error: Exception) -> StorageError:
        seconds = self._bucket.options.request_seconds
        return error_of(action, f"{self._location}/{key}", error, seconds)

    def _path(self, key: str) -> str:
        return "/".join(part for part in (self._prefix, key) if part)


class StoreAttempts:
    """Pauses between the attempts of one operation."""

    def __init__(self, bucket: Bucket) -> None:
        self._options = options = bucket.options
        self._command = bucket.command
        self._refusals = 0
        self._pause = options.pause_seconds
        self._least = 0.0
        self._end = time.monotonic() + options.attempts_seconds

    def may_help(self, answer: StoreAnswer) -> bool:
        """Whether another attempt after this answer may help. If it refuses the credentials of a
        command, others are asked for."""
        if self._command is None or not answer.refuses_keys:
            return answer.again
        self._refusals += 1
        self._least = _KEPT_SECONDS
        self._command.refused()
        return self._refusals <= _MOST_REFUSALS

    def pause(self) -> bool:
        """Wait before the next attempt; False if there is no time for one."""
        seconds = max(random.uniform(0, self._pause), self._least)
        if time.monotonic() + seconds >= self._end:
            return False
        time.sleep(seconds)
        self._pause = min(2 * self._pause, self._options.longest_pause_seconds)
        return True


def _unknown(error: StorageError) -> UnknownOutcome:
    return UnknownOutcome(
        error.message,
        detail="The object store may have written the object, or may still do so.",
        original=error.original,
    )


def _entry_of(meta: Any) -> Entry:
    written = meta["last_modified"].timestamp()
    return Entry(meta["size"], written, written, _stamp(meta["e_tag"], meta["size"]))


def _stamp(e_tag: str | None, size: int) -> Stamp:
    # Azure's lists have the tag without quotation marks.
    return (e_tag or "").strip('"'), size
