"""Keeps the changes of each statement of a transaction until the transaction is in the log.

A table's commit is the difference that a transaction makes: a row that was inserted and then
updated is one that came, and which table was written first nobody knows. PostgreSQL tells every
change of every statement, in their order. So while there is a slot, a transaction of several
statements, or with messages among them, writes them down before it commits, from the branches that
it has written (``lake.branch``); its commit's word names the file, and capture takes that in place
of the difference. The difference is always there: it is taken if the file is not (a crash, a backup
that has none), and of a transaction that changes more than ``MOST_ROWS`` rows.

    for each run of rows of one table, TRUNCATE, or message
        u64    length of what follows
        Arrow's IPC stream, whose schema has ``_RELATION``: the table's columns of then, as JSON,
        and ``_TRUNCATES``: the options of a TRUNCATE, which has no rows. A message has neither,
        and one row: prefix, content

One file a transaction, whole or not there. Called by the front door (``keep``) and by capture.
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
    ComparisonMemory,
    Emitted,
    More,
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
"""In one transaction, which is read again and held in memory for this: a guess."""

_RELATION: Final = b"wal2lake.relation"
_TRUNCATES: Final = b"wal2lake.truncates"

_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement's changes of one table."""

    table: TableDef
    """The table as the transaction sees it; ``location`` is that of its branch."""
    before: int
    """The branch's version."""
    after: int
    truncates: int | None = None
    """It is a TRUNCATE, with these options."""
    moved: tuple[MovedKey, ...] = ()
    """Rows whose key it has changed."""


class Statements:
    """Statements of one node. Thread-safe."""

    def __init__(
        self, directory: Path, tables: TablePort, memory: ComparisonMemory
    ) -> None:
        """The directory is made with its first file."""
        self._directory = directory
        self._tables = tables
        self._memory = memory
        self._left = self._names()

    def keep(self, told: Sequence[Statement | Emitted]) -> str | None:
        """Write down what a transaction has done and said, durably; the name of the file. None:
        the difference says the same, or it is too much."""
        if len(told) < 2 or all(isinstance(one, Emitted) for one in told):
            return None
        commits = [
            [] if isinstance(one, Emitted) else list(self._commits(one)) for one in told
        ]
        changes = (
            # A file that nobody has counted may be a large one.
            most_changes(one, lambda _: MOST_ROWS + 1)
            for found in commits
            for one in found
        )
        if sum(changes) > MOST_ROWS:
            return None
        data = bytearray()
        for one, found in zip(told, commits, strict=True):
            if isinstance(one, Emitted):
                _append(data, one)
                continue
            for change in self._changes(one, found):
                _append(data, change)
        return self._write(data) if data else None

    def read(self, name: str) -> list[Change | Emitted] | None:
        """Return the entries that ``keep`` has written; None: they are not there."""
        try:
            data = memoryview((self._directory / name).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read file", self._directory / name, error) from error
        return list(_changes_in(data))

    def drop(self, names: Iterable[str]) -> None:
        """Nobody will ask for them any more."""
        for name in names:
            remove(self._directory / name)

    def drop_left(self) -> None:
        """Remove the entries of transactions that an earlier engine has not committed: the others
        are captured."""
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

    def _commits(self, one: Statement) -> Iterator[TableCommit]:
        """Yield the commits of its branch; a TRUNCATE is not read."""
        if one.truncates is not None:
            return
        found = self._tables.actions(one.table.location, one.before + 1, one.after)
        for version, actions in enumerate(found, one.before + 1):
            yield replace(read_commit(version, actions), more=More(moved=one.moved))

    def _changes(
        self, one: Statement, commits: Sequence[TableCommit]
    ) -> Iterator[Change]:
        table = one.table
        if one.truncates is not None:
            state = self._tables.state_at(table.location, one.after)
            yield relation_of(table, state), one.truncates
        for commit in commits:
            state = self._tables.state_at(table.location, commit.version)
            relation = relation_of(table, state)
            # Between statements a deferred key may be there twice.
            late = table.key_deferral.deferrable
            key = [] if late else key_of(table, relation)
            for batch in row_changes(state, commit, relation, key, self._memory):
                yield relation, batch


def count_of(changes: Iterable[Change | Emitted]) -> int:
    """How many there are."""
    return sum(
        one[1].num_rows
        if not isinstance(one, Emitted) and not isinstance(one[1], int)
        else 1
        for one in changes
    )


def _append(data: bytearray, one: Change | Emitted) -> None:
    marks = {}
    if isinstance(one, Emitted):
        batch = pa.RecordBatch.from_pylist([one._asdict()])
    else:
        relation, change = one
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
    found = sink.getvalue()
    data += _LENGTH.pack(found.size)
    data += found


def _changes_in(data: memoryview) -> Iterator[Change | Emitted]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        with pa.ipc.open_stream(data[at : at + length]) as stream:
            marks = stream.schema.metadata or {}
            if _RELATION not in marks:
                yield from (Emitted(**row) for row in stream.read_all().to_pylist())
            elif _TRUNCATES in marks:
                yield _from_json(marks[_RELATION]), int(marks[_TRUNCATES])
            else:
                relation = _from_json(marks[_RELATION])
                for batch in stream:
                    yield relation, batch.replace_schema_metadata()
        at += length


def _to_json(relation: Relation) -> bytes:
    found = {
        "relid": relation.relid,
        "namespace": relation.namespace,
        "name": relation.name,
        "identity": relation.identity.value,
        "columns": [[c.name, c.type_oid, c.typmod, c.is_key] for c in relation.columns],
    }
    return json.dumps(found, separators=(",", ":")).encode()


def _from_json(text: bytes) -> Relation:
    found: dict[str, Any] = json.loads(text)
    return Relation(
        Oid(found["relid"]),
        found["namespace"],
        found["name"],
        ReplicaIdentity(found["identity"]),
        tuple(Column(n, Oid(t), m, k) for n, t, m, k in found["columns"]),
    )
