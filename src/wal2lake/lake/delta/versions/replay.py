"""Reads a version of a table by replaying its log, as every reader of Delta can.

In: a table's store, a version. Out: a ``Version`` with all of its files: the newest complete
checkpoint at or below it, and the commits behind that. This is how a version is read whose
checksum file is missing or incomplete: another writer made it, or a crash left it torn.

A log with a gap is refused with an error that names the version, never guessed. A checkpoint that
cannot be read is passed over for an older one.

Called by ``known``, ``checkpoints`` and ``spark.delta.deltatables``. Source: Delta transaction log
protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import StorageError, UndefinedObjectError
from wal2lake.lake.delta.log.checksum import Totals
from wal2lake.lake.delta.log.place import LOG, Object, commit_key, same_path
from wal2lake.lake.delta.log.version import (
    Version,
    newest_number,
    read_actions,
    state_of,
)
from wal2lake.lake.delta.versions.checkpointfiles import (
    complete_checkpoints,
    read_checkpoint,
)
from wal2lake.lake.store import Store
from wal2lake.lake.tablefiles import DataFile

_MOST_COMMITS: Final = 200
"""Most commits that are read on from a version that is known; a checkpoint is nearer then."""

_ABSENT: Final[Object] = {
    "schemaString": '{"type":"struct","fields":[]}',
    "partitionColumns": [],
    "configuration": {},
}
"""Parts of a definition that some writers leave out when they are empty."""


@dataclass(slots=True)
class Replay:
    """A version as the actions up to it describe it."""

    protocol: Object | None = None
    metadata: Object | None = None
    transactions: dict[str, Object] = field(default_factory=dict)
    domains: dict[str, Object] = field(default_factory=dict)
    live: dict[str, DataFile] = field(default_factory=dict)
    """Files by their paths, which writers may have encoded in different ways."""
    tombstones: dict[tuple[str, str], Object] = field(default_factory=dict)
    """``remove`` actions by path and deletion vector."""
    committed_ms: int | None = None

    def apply(self, actions: Iterable[Mapping[str, Mapping[str, Any]]]) -> None:
        """Apply the actions of a commit, or of a checkpoint."""
        added: list[Object] = []
        self.committed_ms = None
        for action in actions:
            for kind, value in action.items():
                if kind == "add":
                    added.append(value)
                else:
                    self._apply(kind, value)
        for add in added:
            path = same_path(add["path"])
            self.live[path] = DataFile(add)
            self.tombstones.pop((path, _vector(add)), None)

    def _apply(self, kind: str, value: Object) -> None:
        if kind == "remove":
            path = same_path(value["path"])
            self.live.pop(path, None)
            self.tombstones[path, _vector(value)] = value
        elif kind == "metaData":
            self.metadata = value
        elif kind == "protocol":
            self.protocol = value
        elif kind == "txn":
            # As a checkpoint has it: no writer writes the null.
            self.transactions[str(value["appId"])] = value
        elif kind == "domainMetadata":
            self.domains.pop(str(value["domain"]), None)
            if not value["removed"]:
                self.domains[str(value["domain"])] = value
        elif kind == "commitInfo":
            self.committed_ms = value.get("inCommitTimestamp")

    def version(self, location: str, store: Store, number: int) -> Version:
        """Return the version that has been reached."""
        if self.metadata is None or self.protocol is None:
            raise _unreadable(
                location, number, "It has neither a definition nor a protocol."
            )
        metadata = {**_ABSENT, **self.metadata}
        cursors = {
            name: int(transaction["version"])
            for name, transaction in self.transactions.items()
        }
        domains = tuple(self.domains.values())
        stamp = store.stamp(commit_key(number))
        if stamp is None:
            raise _unreadable(location, number, "Its commit is gone.")
        return Version(
            state_of(location, metadata, number, cursors, domains),
            metadata,
            self.protocol,
            tuple(self.transactions.values()),
            domains,
            Totals.of(self.live.values()),
            stamp,
            self.committed_ms,
        )

    @property
    def files(self) -> dict[str, DataFile]:
        """The files of the version, by their keys."""
        return {file.key: file for file in self.live.values()}


def replay(location: str, store: Store, number: int) -> Replay:
    """Replay the log up to a version. StorageError (58P01) if the log does not have it."""
    names = store.list_after(LOG)
    if not names:
        raise no_table(location)
    reached, result = -1, Replay()
    for checkpoint in complete_checkpoints(names):
        if checkpoint.version > number:
            continue
        try:
            result = Replay()
            result.apply(read_checkpoint(store, checkpoint))
            reached = checkpoint.version
            break
        except (StorageError, OSError, ValueError, KeyError, pa.ArrowException):
            result = Replay()
    if reached == number:
        # A checkpoint does not have the time that its version's commit states.
        for action in read_actions(store, number):
            if "commitInfo" in action:
                result.committed_ms = action["commitInfo"].get("inCommitTimestamp")
    for version in range(reached + 1, number + 1):
        try:
            actions = read_actions(store, version)
        except (StorageError, ValueError) as error:
            raise _unreadable(
                location, number, f"Its log's version {version} cannot be read."
            ) from error
        if not actions:
            raise _unreadable(
                location, number, f"Its log does not have version {version}."
            )
        result.apply(actions)
    return result


def continued(
    store: Store, base: Version, files: Mapping[str, DataFile], number: int
) -> Replay | None:
    """Read on from a version whose files are known, without a checkpoint; the result has no
    tombstones. None if the log does not tell: the version has been undone, or is too far back."""
    first = base.state.version + 1
    if not 0 <= number - first < _MOST_COMMITS:
        return None
    if store.stamp(commit_key(base.state.version)) != base.stamp:
        return None
    result = Replay(
        base.protocol,
        base.metadata,
        {str(transaction["appId"]): transaction for transaction in base.transactions},
        {str(domain["domain"]): domain for domain in base.domains},
        {same_path(key): file for key, file in files.items()},
    )
    try:
        for version in range(first, number + 1):
            actions = read_actions(store, version)
            if not actions:
                return None
            result.apply(actions)
    except (StorageError, ValueError):
        return None
    return result


def newest_of(location: str, store: Store) -> int:
    """Return the number of the newest version. UndefinedObjectError (42P01) if there is none."""
    number = newest_number(store)
    if number is None:
        raise no_table(location)
    return number


def no_table(location: str) -> UndefinedObjectError:
    """Build the error of a place without a table."""
    return UndefinedObjectError(
        f'there is no Delta table at "{location}"',
        sqlstate="42P01",
        hint="Put the directory back. Or drop the table and make it anew; ALTER"
        " SUBSCRIPTION ... REFRESH PUBLICATION makes and copies one of a"
        ' subscription. If all tables have been moved, set "warehouse" of [spark]'
        " in wal2lake.toml to where they are now, and restart the node.",
    )


def _unreadable(location: str, number: int, detail: str) -> StorageError:
    return StorageError(
        f'could not read version {number} of the table at "{location}"',
        sqlstate="58P01",
        detail=detail,
    )


def _vector(file: Object) -> str:
    """Return what tells a file's deletion vector from others of the file."""
    vector = file.get("deletionVector")
    if vector is None:
        return ""
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"
