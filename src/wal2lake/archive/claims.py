"""Says which directory is the node: claims with ascending numbers, each put only if it is absent.

    claims/<generation>.json     in the store: system identifier, token, time, host
    archive.json                 in the node's directory: the same, and the store's location

A node's first claim has generation 1; ``wal2lake init --from`` takes the next one. A directory
whose claim is not the newest any more is *superseded*: it puts nothing more into the store, so
nothing more is confirmed to its publishers. The check comes before each position counts, and each
generation has names of its own, so a check that was a moment too early does no harm but one: a
position may be confirmed that the successor has not got. The successor's receiver then finds a slot
above the end of its log and says so, rather than going on behind a gap.

The file in the directory is written before the object: after a crash between the two the same
claim is put again, and a claim is found again by its token.

This is about the log and the catalog. Two engines that write the same tables are another matter.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from wal2lake.archive import layout
from wal2lake.changelog.files import storage_error, sync_directory, write_temporary
from wal2lake.errors import ConfigurationError, Retry, StorageError, reason_of
from wal2lake.lake.store import Store

FILE: Final = "archive.json"
"""Name of the file in the node's directory."""


class Superseded(StorageError):
    """Another directory has become this node (55000); this one must not go on."""

    sqlstate = "55000"
    retry = Retry.NEVER


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """The claim of one directory."""

    generation: int
    system_identifier: int
    token: str
    made_at: str
    host: str

    def encode(self) -> bytes:
        """Return the object's content."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, content: bytes, place: str) -> NodeClaim:
        """Read an object's content. Raises StorageError (XX001)."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            raise StorageError(
                f'file "{place}" is damaged',
                sqlstate="XX001",
                hint='Set "store" of [log] to an empty prefix.',
            ) from None

    @classmethod
    def new(cls, generation: int, system_identifier: int) -> NodeClaim:
        """Make a claim of this machine, with a token of its own."""
        return cls(
            generation,
            system_identifier,
            secrets.token_hex(16),
            datetime.now(UTC).isoformat(timespec="seconds"),
            socket.gethostname(),
        )


class Claims:
    """The claims in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def generations(self) -> list[int]:
        """Return the numbers of all claims, ascending."""
        names = self._store.list_after(layout.CLAIMS)
        return sorted(n for n in map(layout.claimed, names) if n is not None)

    def newest(self) -> NodeClaim | None:
        """Return the claim that counts; None: there is none."""
        generations = self.generations()
        if not generations:
            return None
        key = f"{layout.CLAIMS}/{layout.claim_name(generations[-1])}"
        return NodeClaim.decode(self._store.read(key), f"{self._store.location}/{key}")

    def put(self, claim: NodeClaim) -> bool:
        """Put a claim, durably. False: another directory has this generation."""
        self._store.make_folder(layout.CLAIMS)
        key = f"{layout.CLAIMS}/{layout.claim_name(claim.generation)}"
        content = claim.encode()
        if self._store.put_if_absent(key, content) is None:
            return self._store.read(key) == content
        self._store.settle(layout.CLAIMS)
        return True

    def check(self, claim: NodeClaim) -> None:
        """Raise Superseded if a newer claim than ``claim`` was put."""
        name = layout.claim_name(claim.generation)
        later = self._store.list_after(layout.CLAIMS, name)
        if any(layout.claimed(key) is not None for key in later):
            raise superseded(self._store.location)


def superseded(location: str) -> Superseded:
    """Build the error of a directory that is not the node any more."""
    return Superseded(
        f'another directory goes on as this node from "{location}"',
        detail="What this node receives from now on is neither stored nor confirmed.",
        hint="Stop this node, and remove its directory. Or, if it was restored from a backup and is"
        ' the only one, set "store" of [log] to an empty prefix.',
    )


class ClaimFile:
    """The claim in a node's directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def read(self, location: str) -> NodeClaim | None:
        """Return the claim to a location; None: there is none, or one to another location."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read file", self._path, error) from error
        try:
            record = json.loads(content)
            if record.pop("location") != location:
                return None
        except (ValueError, KeyError, AttributeError, TypeError):
            raise StorageError(
                f'file "{self._path}" is damaged',
                sqlstate="XX001",
                hint="If no other directory is this node, restore the file from a backup, or set"
                ' "store" of [log] to an empty prefix.',
            ) from None
        return NodeClaim.decode(json.dumps(record).encode(), str(self._path))

    def write(self, location: str, claim: NodeClaim) -> None:
        """Write the claim, durably."""
        content = json.dumps({"location": location, **asdict(claim)}, indent=1)
        try:
            write_temporary(self._path, content.encode()).rename(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise storage_error("write to file", self._path, error) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude the node's other processes."""
        directory = self._path.parent
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigurationError(
                f'could not open directory "{directory}": {reason_of(error)}'
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def claim_of_node(directory: Path, store: Store, system_identifier: int) -> NodeClaim:
    """Return the claim of a node's directory, which is made if the store has none.

    Raises Superseded, and ConfigurationError if the store belongs to another node."""
    file, claims = ClaimFile(directory), Claims(store)
    with file.locked():
        claim = file.read(store.location)
        if claim is None or claim.system_identifier != system_identifier:
            newest = claims.newest()
            if newest is not None and newest.system_identifier != system_identifier:
                raise ConfigurationError(
                    f'"{store.location}" has the log of another node',
                    detail=f"That node's system identifier is {newest.system_identifier}, this"
                    f" one's {system_identifier}.",
                    hint='Set "store" of [log] to a prefix of this node alone.',
                )
            if newest is not None:
                raise superseded(store.location)
            claim = NodeClaim.new(1, system_identifier)
            file.write(store.location, claim)
        if not claims.put(claim):
            raise superseded(store.location)
    claims.check(claim)
    return claim
