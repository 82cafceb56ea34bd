"""The lease's object: read, replaced only as it was read, timed by the store.

In: records. Out: the record that is stored with its version (entity tag, or Google's generation)
and the time of its writing.

A replacement is a conditional PUT: ``If-Match`` with the entity tag for S3 and Azure,
``x-goog-if-generation-match`` for Google. As with put-if-absent (``objects``), an answer may be
lost after the store has replaced the object, and a repetition is then refused because of this
start's own work. So after each refusal the object is read: with the content that was sent it was
replaced; with the version that was to be replaced it was not, and the request is repeated;
otherwise somebody else was first. No two contents are the same, because each has a number.

A store that ignores the condition would give two nodes the lease, so a node's start proves first
that a replacement of another version is refused.

Source: S3, "How to prevent object overwrites with conditional writes"; object_store 0.14,
``PutMode::Update``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from wal2lake.errors import StorageError
from wal2lake.lake.store.answers import answer_of, error_of
from wal2lake.lake.store.clients import Bucket
from wal2lake.lake.store.errors import MissingFileError, NoPutIfAbsent
from wal2lake.lake.store.lease.bootclock import clock
from wal2lake.lake.store.lease.record import KEY, LEASE_PROOF, LeaseRecord, parse_lease
from wal2lake.lake.store.objects import StoreAttempts

if TYPE_CHECKING:
    from obstore import UpdateVersion

_Result = TypeVar("_Result")

_REFUSALS: Final = (AlreadyExistsError, PreconditionError, FileNotFoundError)
"""Answers to a condition that does not hold. The last one: there is nothing to replace."""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """The lease as the store has it."""

    content: bytes
    version: UpdateVersion
    written: float
    """Time of its writing by the store's clock, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class WrittenLease:
    """A lease that has just been written."""

    version: UpdateVersion
    sent_at: float
    """Time of this machine (``clock``) before which the store has not written it."""


class LeaseObject:
    """The object below one warehouse. Thread-safe."""

    def __init__(self, location: str, bucket: Bucket, prefix: str) -> None:
        self.place = f"{location}/{KEY}"
        self.bucket = bucket
        self._prefix = prefix
        self._path = self._below(KEY)

    @property
    def request_seconds(self) -> float:
        """Most time of one request."""
        return self.bucket.options.request_seconds

    def parse(self, stored: StoredLease) -> LeaseRecord:
        """Return the record."""
        return parse_lease(stored.content, self.place)

    def read(self) -> StoredLease | None:
        """Return the lease; None if there is none."""

        def read() -> StoredLease:
            answer = obstore.get(self.bucket.client, self._path)
            content = bytes(answer.bytes())
            meta = answer.meta
            return StoredLease(
                content, _version(meta), meta["last_modified"].timestamp()
            )

        try:
            return self._repeat("read", self._path, read)
        except MissingFileError:
            return None

    def write(
        self, record: LeaseRecord, over: StoredLease | UpdateVersion | None
    ) -> WrittenLease | None:
        """Write the lease over a version; ``over`` None: create it. None: it is another version by
        now. StorageError if no answer told."""
        version = over.version if isinstance(over, StoredLease) else over
        content = record.render()
        attempts = StoreAttempts(self.bucket)
        begun = clock()
        while True:
            self.bucket.prepare()
            sent_at = clock()
            try:
                written = self._put(self._path, content, version)
                return WrittenLease(written, sent_at)
            except _REFUSALS as error:
                failed: Exception = error
                stored = self.read()
                if stored is not None and stored.content == content:
                    return WrittenLease(stored.version, begun)
                if stored is not None and stored.version != version:
                    return None
                if stored is None and version is not None:
                    return None
            except (BaseError, OSError) as error:
                failed = error
                if not attempts.may_help(answer_of(error)):
                    raise self._error("write", self._path, error) from error
            if not attempts.pause():
                raise self._error("write", self._path, failed) from failed

    def age_of(self, lease: StoredLease) -> float:
        """Return the seconds since the lease was written, by the store's clock."""
        path = self._probe_path()

        def look() -> float:
            self.bucket.client.put(path, b"clock")
            meta = self.bucket.client.head(path)
            return float(meta["last_modified"].timestamp())

        try:
            return self._repeat("write", path, look) - lease.written
        finally:
            self._discard(path)

    def prove(self) -> None:
        """Require that a replacement of another version is refused."""
        path = self._probe_path()

        def make() -> tuple[Any, Any]:
            put = self.bucket.client.put
            return put(path, b"first"), put(path, b"second")

        try:
            first, _ = self._repeat("write", path, make)
            try:
                self._repeat(
                    "write", path, lambda: self._put(path, b"third", _version(first))
                )
            except _Refused:
                return
        finally:
            self._discard(path)
        raise NoPutIfAbsent(
            f'the object store at "{self.place}" ignores conditional writes',
            detail="It replaced another version of an object than the one that a request with"
            " If-Match names. Two nodes could take the warehouse.",
            hint="Use a store, or a version of it, that supports conditional writes with"
            " If-Match.",
        )

    def _put(
        self, path: str, content: bytes, version: UpdateVersion | None
    ) -> UpdateVersion:
        return _version(
            obstore.put(
                self.bucket.client,
                path,
                content,
                mode="create" if version is None else version,
                use_multipart=False,
            )
        )

    def _repeat(self, action: str, path: str, call: Callable[[], _Result]) -> _Result:
        """Call until there is a whole answer, within the time for attempts."""
        attempts = StoreAttempts(self.bucket)
        while True:
            try:
                return call()
            except PreconditionError as error:
                raise _Refused from error
            except FileNotFoundError as error:
                raise self._error(action, path, error) from error
            except (BaseError, OSError) as error:
                if not attempts.may_help(answer_of(error)) or not attempts.pause():
                    raise self._error(action, path, error) from error

    def _error(self, action: str, path: str, error: Exception) -> StorageError:
        words = {"read": "read file", "write": "write to file"}
        place = f"{self.place.removesuffix(KEY)}{path.removeprefix(self._below(''))}"
        return error_of(words[action], place, error, self.request_seconds)

    def _discard(self, path: str) -> None:
        with suppress(BaseError, OSError):
            self.bucket.client.delete(path)

    def _probe_path(self) -> str:
        return self._below(f"{LEASE_PROOF}{uuid.uuid4().hex}")

    def _below(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key


class _Refused(Exception):
    """The condition of a request does not hold."""


def _version(meta: Any) -> UpdateVersion:
    version: UpdateVersion = {}
    if meta["e_tag"] is not None:
        version["e_tag"] = meta["e_tag"]
    if meta["version"] is not None:
        version["version"] = meta["version"]
    return version
