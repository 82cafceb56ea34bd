"""Keeps the changes of each statement of a transaction until the transaction is in the log.

A table's commit is the net difference of a transaction: a row that was inserted and then updated
appears as one inserted row, and the order of changes to different tables is lost. PostgreSQL sends
every change of every statement, in order. So while there is a slot, a transaction of several
statements, or of statements and messages, writes them to a file before it commits, from the
branches that it has written (``lake.branch``). The commit names the file, and capture reads the
file instead of the difference. Capture takes the difference if the file is missing (a crash, a
backup without the files), and for a transaction that changes more than ``MOST_ROWS`` rows.

    for each run of rows of one table, TRUNCATE, or message
        u64    length of the stream
        Arrow's IPC stream, whose schema has ``_RELATION``: the table's columns at the time, as
        JSON, and ``_TRUNCATES``: the options of a TRUNCATE, which has no rows. A message has
        neither, and one row: prefix, content

There is one file for each transaction, complete or missing. Called by sessions (``keep``) and by
capture.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from wal2lake.catalog import TableDef
from wal2lake.changelog.files import (
    remove,
    storage_error,
    sync_directory,
    write_temporary,
)
from wal2lake.lake import TablePort
from wal2lake.lake.capture import (
    CommitRemarks,
    ComparisonMemory,
    Emitted,
    MovedKey,
    TableCommit,
    most_changes,
    read_commit,
    row_changes,
)
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity
from wal2lake.publish.capture.relations import key_of, relation_of
from wal2lake.publish.capture.writer import Change

MOST_ROWS: Final = 100_000
"""Maximum rows of one transaction, which are held in memory. Chosen arbitrarily."""

_RELATION: Final = b"wal2lake.relation"
_TRUNCATES: Final = b"wal2lake.truncates"

_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement's changes of one table."""

    table: TableDef
    """The table as the transaction sees it. ``location`` is its branch's."""
    before: int
    """Version of the branch before the statement."""
    after: int
    truncates: int | None = None
    """Options of a TRUNCATE; None for other statements."""
    moved: tuple[MovedKey, ...] = ()
    """Rows whose key the statement has changed."""


class Statements:
    """Statements of one node. Thread-safe."""

    def __init__(
        self, directory: Path, tables: TablePort, memory: ComparisonMemory
    ) -> None:
        """The directory is created with its first file."""
        self._directory = directory
        self._tables = tables
        self._memory = memory
        self._left = self._names()

    def keep(self, entries: Sequence[Statement | Emitted]) -> str | None:
        """Write a transaction's statements and messages to a file, durably. Return the file's name;
        None if the difference has the same information, or there are too many rows."""
        if len(entries) < 2 or all(isinstance(entry, Emitted) for entry in entries):
            return None
        commits = [
            [] if isinstance(entry, Emitted) else list(self._commits(entry))
            for entry in entries
        ]
        changes = (
            # A file without a row count may be large.
            most_changes(entry, lambda _: MOST_ROWS + 1)
            for commits_of_entry in commits
            for entry in commits_of_entry
        )
        if sum(changes) > MOST_ROWS:
            return None
        data = bytearray()
        for entry, commits_of_entry in zip(entries, commits, strict=True):
            if isinstance(entry, Emitted):
                _append(data, entry)
                continue
            for change in self._changes(entry, commits_of_entry):
                _append(data, change)
        return self._write(data) if data else None

    def read(self, name: str) -> list[Change | Emitted] | None:
        """Return the entries that ``keep`` has written; None if the file is missing."""
        try:
            data = memoryview((self._directory / name).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read file", self._directory / name, error) from error
        return list(_changes_in(data))

    def drop(self, names: Iterable[str]) -> None:
        """Remove files that are not needed any more."""
        for name in names:
            remove(self._directory / name)

    def drop_left(self) -> None:
        """Remove the files of an earlier engine's uncommitted transactions. Files of committed ones
        have been captured."""
        self.drop(self._left)
        self._left = []

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self._directory.iterdir()]
        except OSError:
            return []

    def _write(self, data: bytearray) -> str:
        name = uuid.uuid4().hex
        path = self._directory / name
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_temporary(path, memoryview(data)).rename(path)
            sync_directory(self._directory)
        except OSError as error:
            raise storage_error("write to file", path, error) from error
        return name

    def _commits(self, statement: Statement) -> Iterator[TableCommit]:
        """Yield the commits of a statement's branch; none for a TRUNCATE."""
        if statement.truncates is not None:
            return
        actions_by_version = self._tables.actions(
            statement.table.location, statement.before + 1, statement.after
        )
        for version, actions in enumerate(actions_by_version, statement.before + 1):
            yield replace(
                read_commit(version, actions),
                remarks=CommitRemarks(moved=statement.moved),
            )

    def _changes(
        self, statement: Statement, commits: Sequence[TableCommit]
    ) -> Iterator[Change]:
        table = statement.table
        if statement.truncates is not None:
            state = self._tables.state_at(table.location, statement.after)
            yield relation_of(table, state), statement.truncates
        for commit in commits:
            state = self._tables.state_at(table.location, commit.version)
            relation = relation_of(table, state)
            # Between statements, two rows may have the same deferred key.
            is_deferred = table.key_deferral.deferrable
            key = [] if is_deferred else key_of(table, relation)
            for batch in row_changes(state, commit, relation, key, self._memory):
                yield relation, batch


def count_of(changes: Iterable[Change | Emitted]) -> int:
    """Count the changes."""
    return sum(
        change[1].num_rows
        if not isinstance(change, Emitted) and not isinstance(change[1], int)
        else 1
        for change in changes
    )


def _append(data: bytearray, entry: Change | Emitted) -> None:
    marks = {}
    if isinstance(entry, Emitted):
        batch = pa.RecordBatch.from_pylist([entry._asdict()])
    else:
        relation, change = entry
        marks[_RELATION] = _to_json(relation)
        if isinstance(change, int):
            marks[_TRUNCATES] = b"%d" % change
            batch = pa.RecordBatch.from_pydict({})
        else:
            batch = change
    sink = pa.BufferOutputStream()
    schema = batch.schema.with_metadata(marks)
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch.replace_schema_metadata(marks))
    buffer = sink.getvalue()
    data += _LENGTH.pack(buffer.size)
    data += buffer


def _changes_in(data: memoryview) -> Iterator[Change | Emitted]:
    offset = 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        with pa.ipc.open_stream(data[offset : offset + length]) as stream:
            marks = stream.schema.metadata or {}
            if _RELATION not in marks:
                yield from (Emitted(**row) for row in stream.read_all().to_pylist())
            elif _TRUNCATES in marks:
                yield _from_json(marks[_RELATION]), int(marks[_TRUNCATES])
            else:
                relation = _from_json(marks[_RELATION])
                for batch in stream:
                    yield relation, batch.replace_schema_metadata()
        offset += length


def _to_json(relation: Relation) -> bytes:
    description = {
        "relid": relation.relid,
        "namespace": relation.namespace,
        "name": relation.name,
        "identity": relation.identity.value,
        "columns": [[c.name, c.type_oid, c.typmod, c.is_key] for c in relation.columns],
    }
    return json.dumps(description, separators=(",", ":")).encode()


def _from_json(text: bytes) -> Relation:
    description: dict[str, Any] = json.loads(text)
    return Relation(
        Oid(description["relid"]),
        description["namespace"],
        description["name"],
        ReplicaIdentity(description["identity"]),
        tuple(Column(n, Oid(t), m, k) for n, t, m, k in description["columns"]),
    )
