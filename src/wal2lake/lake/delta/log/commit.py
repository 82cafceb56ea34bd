"""Writes the next version of a table.

In: a table's store, the newest version, its files, what changes. Out: the commit and its checksum,
or nothing if another writer has committed first.

This is the only writer of tables: of rows, definitions and protocols, with every feature of the
protocol that ``protocol.features`` lists. Delta's own transaction takes some two hundred calls over
py4j and 60 CPU-milliseconds of the JVM, whatever the commit holds, and works with Spark alone
(decision 0027). A commit does four things: it numbers rows if the table tracks them,
takes the version's name, writes the checksum (``checksum``), and says that a checkpoint is due
(``checkpoints``). There is no conflict to resolve: the version that was read is the newest, or
nothing is written.

The name is taken by the store's ``put_if_absent``, on a file system link(2).
``DeltaTables.writing`` keeps out other writers of this process: Spark's Delta renames its commit
into place, and a rename would replace an existing commit.

Called by ``spark.delta.deltatables``. Sources: Delta transaction log protocol, "Delta Log Entries",
"Actions", "In-Commit Timestamps"; delta-spark 4.4 OptimisticTransaction.scala.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from wal2lake.errors import StorageError
from wal2lake.lake.delta.log.checksum import Totals, checksum_line
from wal2lake.lake.delta.log.firstversion import OWN_TIMES
from wal2lake.lake.delta.log.place import (
    LOG,
    Object,
    checksum_key,
    commit_key,
    content_of,
    dump,
    same_path,
)
from wal2lake.lake.delta.log.version import Version, state_of
from wal2lake.lake.delta.protocol.features import refuse_removal, writer_features
from wal2lake.lake.delta.protocol.rowids import (
    drops_numbers,
    numbered,
    numbers_rows,
    without_numbers,
)
from wal2lake.lake.port import Cursor
from wal2lake.lake.store import Store, is_object_store
from wal2lake.lake.tablefiles import DataFile, Replaced

Change = Mapping[str, Mapping[str, Any]]
"""A Delta action as JSON: its name, and the object below it."""


@dataclass(frozen=True, slots=True)
class NextVersion:
    """Changes that make the next version of a table."""

    changes: Sequence[Change]
    """``add`` and ``remove`` actions."""
    cursor: Cursor | None
    """None: a commit of the definition alone, that no batch makes."""
    operation: str
    """A word for readers of the table's history."""
    reads: bool = False
    """Whether the changes were made from the table's contents."""
    replaces: bool = False
    """Whether all rows of the table are removed."""
    metadata: Object | None = None
    """The table's new metadata; None: as it is."""
    protocol: Object | None = None
    """The table's new protocol; None: as it is."""

    @property
    def is_blind(self) -> bool:
        """Whether the commit only adds files, whatever the table has."""
        return (
            not self.reads
            and self.metadata is None
            and self.protocol is None
            and all("add" in change for change in self.changes)
        )


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version that has just been committed."""

    version: Version | None
    """None if its checksum could not be written; the next reader then derives it."""
    files: dict[str, DataFile] | None
    """None if the files of the version before were not known."""


def write_next(
    store: Store,
    version: Version,
    files: Mapping[str, DataFile] | None,
    commit: NextVersion,
) -> WrittenVersion | None:
    """Commit on exactly ``version``, whose files are ``files``; None: they are not known, which a
    commit that replaces all of them does not allow.

    None: it is no longer the newest version, and nothing was written. The version is durable on
    return. 0A000 if the table does not allow such a commit.
    """
    now = int(time.time() * 1000)
    number = version.state.version + 1
    described = _described(version, commit)
    changes, domain = _changes(described, files, commit, now)
    if any(change["remove"].get("dataChange", True) for change in _removes(changes)):
        refuse_removal(version.state.location, version.state.properties)
    token = _token(commit.cursor, now)
    own_time = None
    if described.metadata["configuration"].get(OWN_TIMES, "").lower() == "true":
        own_time = max(now, (version.committed_ms or 0) + 1)
    txn_id = str(uuid.uuid4())
    info = _commit_info(version, commit, now, own_time, txn_id)
    actions: list[Change] = [{"commitInfo": info}]
    if token is not None:
        actions.append({"txn": token})
    if commit.metadata is not None:
        actions.append({"metaData": commit.metadata})
    if commit.protocol is not None:
        actions.append({"protocol": commit.protocol})
    actions += changes
    if domain is not None:
        actions.append({"domainMetadata": domain})
    stamp = store.put_if_absent(commit_key(number), content_of(map(dump, actions)))
    if stamp is None:
        return None
    gone, new = _difference(files, changes)
    after = None if files is None else _after(files, gone, new)
    cursors = dict(described.state.cursors)
    if token is not None:
        cursors[token["appId"]] = token["version"]
    totals = _totals(version, gone, new)
    successor = None
    if totals is not None:
        successor = replace(
            described,
            state=replace(described.state, version=number, cursors=cursors),
            transactions=_with(described.transactions, token, "appId"),
            domains=_with(described.domains, domain, "domain"),
            totals=totals,
            stamp=stamp,
            committed_ms=own_time,
        )
    is_summed = _write_checksum(store, number, successor, txn_id, after)
    store.settle(LOG)
    return WrittenVersion(successor if is_summed else None, after)


def files_after(
    files: Mapping[str, DataFile], changes: Sequence[Change]
) -> dict[str, DataFile]:
    """Return the files of the next version."""
    return _after(files, *_difference(files, changes))


def _described(version: Version, commit: NextVersion) -> Version:
    """Return the version with the commit's definition."""
    if commit.metadata is None and commit.protocol is None:
        return version
    metadata = version.metadata if commit.metadata is None else commit.metadata
    protocol = version.protocol if commit.protocol is None else commit.protocol
    state = version.state
    described = state_of(
        state.location, metadata, state.version, state.cursors, version.domains
    )
    return replace(version, metadata=metadata, protocol=protocol, state=described)


def _changes(
    version: Version,
    files: Mapping[str, DataFile] | None,
    commit: NextVersion,
    now: int,
) -> tuple[list[Change], Object | None]:
    """Return the actions on files, and the domain of row tracking if it changes."""
    changes = list(commit.changes)
    if commit.replaces:
        assert files is not None
        gone = [
            Replaced(file, None).remove(now, data_change=True)
            for file in files.values()
        ]
        for action in gone:
            # Delta leaves them out, too: no reader needs statistics of a whole table's removal.
            action.pop("stats", None)
        changes = [*({"remove": action} for action in gone), *changes]
    features = writer_features(version.protocol)
    if numbers_rows(features, version.state.properties):
        return numbered(changes, version.domains, version.state.version + 1)
    if drops_numbers(features, version.state.properties):
        changes = without_numbers(changes)
    return changes, None


def _removes(changes: Sequence[Change]) -> Iterator[Change]:
    return (change for change in changes if "remove" in change)


def _token(cursor: Cursor | None, now: int) -> dict[str, Any] | None:
    if cursor is None:
        return None
    return {"appId": cursor.app_id, "version": cursor.version, "lastUpdated": now}


def _commit_info(
    version: Version, commit: NextVersion, now: int, own_time: int | None, txn_id: str
) -> Object:
    cursor = commit.cursor
    name, parameters = "SET TBLPROPERTIES", {}
    if cursor is not None:
        name = "STREAMING UPDATE"
        parameters = {
            "outputMode": "Complete" if commit.replaces else "Append",
            "queryId": cursor.app_id,
            "epochId": str(cursor.version),
        }
    elif commit.metadata is not None:
        parameters = {"properties": dump(commit.metadata["configuration"])}
    return {
        **({} if own_time is None else {"inCommitTimestamp": own_time}),
        "timestamp": now if own_time is None else own_time,
        "operation": name,
        "operationParameters": parameters,
        "readVersion": version.state.version,
        "isolationLevel": "Serializable",
        "isBlindAppend": commit.is_blind,
        "operationMetrics": {},
        "userMetadata": commit.operation,
        "engineInfo": "wal2lake",
        "txnId": txn_id,
    }


def _write_checksum(
    store: Store,
    number: int,
    version: Version | None,
    txn_id: str,
    files: Mapping[str, DataFile] | None,
) -> bool:
    """Write the checksum of the version that has been committed; False if that fails, or if
    ``version`` is None because its numbers are not known. It is committed nevertheless."""
    with suppress(StorageError):
        if not is_object_store(store.location):
            # Remove first what an undone commit of the same number left. In an object store no
            # commit is undone, and a removal would be one more request for each.
            store.delete(checksum_key(number))
        if version is None:
            return False
        line = checksum_line(
            version.metadata,
            version.protocol,
            txn_id,
            version.totals,
            transactions=version.transactions,
            domains=version.domains,
            files=None if files is None else files.values(),
            committed_ms=version.committed_ms,
        )
        store.put(checksum_key(number), content_of([line]))
        return True
    return False


def _with(
    present: Sequence[Object], newer: Object | None, key: str
) -> tuple[Object, ...]:
    """Return the actions in force when a newer one of its ``key`` has been committed."""
    if newer is None:
        return tuple(present)
    return (*(action for action in present if action[key] != newer[key]), newer)


def _difference(
    files: Mapping[str, DataFile] | None, changes: Sequence[Change]
) -> tuple[dict[str, DataFile], dict[str, DataFile]]:
    """Return the files that go and those that come, by their keys. A file that gets another
    deletion vector, or another fact in the log, does both."""
    gone: dict[str, DataFile] = {}
    others = []
    for change in _removes(changes):
        key = str(change["remove"]["path"])
        if files is None:
            gone[key] = DataFile(change["remove"])
        elif key in files:
            gone[key] = files[key]
        else:
            others.append(same_path(key))
    if files and others:
        # Another spelling of a path is the same file.
        by_path = {same_path(key): file for key, file in files.items()}
        respelled_files = (by_path[path] for path in others if path in by_path)
        gone |= {file.key: file for file in respelled_files}
    new = {}
    for change in changes:
        if "add" in change:
            file = DataFile(change["add"])
            new[file.key] = file
            if files is not None and file.key in files:
                gone[file.key] = files[file.key]
    return gone, new


def _after(
    files: Mapping[str, DataFile],
    gone: Mapping[str, DataFile],
    new: Mapping[str, DataFile],
) -> dict[str, DataFile]:
    after = dict(files)
    for key in gone:
        del after[key]
    after.update(new)
    return after


def _totals(
    version: Version, gone: Mapping[str, DataFile], new: Mapping[str, DataFile]
) -> Totals | None:
    """Return the numbers of the next version; None if one of a file that goes is not known."""
    if any("size" not in file.action for file in gone.values()):
        return None
    return version.totals.after(gone.values(), new.values())
