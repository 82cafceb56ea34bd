"""The transaction of one session: a branch of each table that it has written.

    event         branches                              locks
    ----------    ----------------------------------    -------------------------------------
    first write   one is made, of the version that      a statement on its own: of the table and
     of a table   the statement reads                   its subscriptions, until the end
    statement     Spark writes it: a new version
    SAVEPOINT     their versions are noted, and how much was said
    ROLLBACK TO   cut back to them; later ones go
    COMMIT        carried into the tables               all, in order (``commit``)
    ROLLBACK      removed                               given back
    PREPARE       kept for somebody (``prepared``)      all, while that is written down

The transaction has a number from its first write on, or since somebody asked (txid_current()).
The publisher's log, conflict reports and pg_prepared_xacts show it. A statement that writes the
table itself has none: capture gives its commit one.

Of a statement that is a transaction by itself the branch is made under the locks, of the newest
version, so its commit meets nobody else's; if it brings no keys, nor values of a sequence, writes
one table, and has nothing to tell of it to those who decode, there is nothing to look at between
the statement and its commit, and it needs no branch (unless the files must say who wrote them:
``track_commit_timestamp``). Others hold no lock between two statements: a client that thinks stops
nobody, and a conflict is found at the commit.

Called by the backend of a session, from its thread. Source: PostgreSQL manual, 13.2, SAVEPOINT.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from wal2lake.apply.local.visible import unfinished_copies
from wal2lake.catalog import TableDef
from wal2lake.catalog.xids import xid_of
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake.branch.branches import Branch, place_of_branches
from wal2lake.lake.branch.changes import Action
from wal2lake.lake.capture.commits import updated_by
from wal2lake.lake.capture.messages import Emitted, More, OriginMark
from wal2lake.lake.capture.moves import MOST_ROWS, KeyMoves, MovedKey
from wal2lake.lake.partitions import instants
from wal2lake.local.commits.commit import (
    WrittenTable,
    commit_plainly,
    commit_tables,
    committed_by_spark,
    hold_tables,
    truncate_table,
    write_plainly,
)
from wal2lake.local.commits.prepared import Preparing, prepare
from wal2lake.local.commits.uniqueness import key_of, refuse_repeated
from wal2lake.local.commits.upkeep import tend
from wal2lake.local.concurrency.sequences import (
    Restarted,
    TransactionSequences,
)
from wal2lake.local.concurrency.snapshots import Snapshot
from wal2lake.local.node import EngineParts
from wal2lake.local.transaction.checks import refuse_violations
from wal2lake.local.transaction.generation import generate_added
from wal2lake.local.transaction.messages import (
    emit_transaction,
    is_read,
    kept,
    written_down,
)
from wal2lake.local.transaction.plainwrites import change_plainly
from wal2lake.model import Deferral, Oid
from wal2lake.pg import Check
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.publish.capture.statements import Statement
from wal2lake.sql.backend import TransactionKind
from wal2lake.sql.query.results import Rendering
from wal2lake.sql.query.translate import TableRef
from wal2lake.sql.query.writes import SparkWrite, about_null, identifying

_TIMESTAMPTZ = 1184


class DefinitionChanged(Exception):
    """A table has been altered between a statement's analysis and its locks: it is analysed
    again."""


def scratch(node: EngineParts) -> str:
    """Where the branches of all transactions of a node are."""
    return place_of_branches(node.settings.warehouse, node.catalog.system_identifier)


@dataclass(slots=True)
class _Branched:
    table: TableDef
    branch: Branch
    version: int
    """Version of the branch that the statements so far have made."""
    truncated: int | None = None
    """A TRUNCATE was among them: its options, and those of others."""
    moves: KeyMoves = field(default_factory=KeyMoves)
    updated: int = 0
    """How many rows the only statement so far has updated."""
    unjudged: bool = False
    """Keys may be there twice until the commit: the table's key is deferred."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A savepoint."""

    branches: dict[Oid, _Branched]
    """The branches as they were."""
    told: int
    sequences: dict[Oid, Restarted]
    modes: dict[Oid | None, bool]


class LocalTransaction:
    """From ``begin`` to ``commit`` or ``rollback``; nothing happens before the first write."""

    def __init__(
        self,
        node: EngineParts,
        kind: TransactionKind,
        check: Check = lambda: None,
        origin: Callable[[], OriginMark | None] = lambda: None,
    ) -> None:
        """``check`` raises once the running statement is to end; ``origin``: the session's."""
        self._origin = origin
        self.kind = kind
        self._node = node
        self._check = check
        self._place = f"{scratch(node)}/{uuid.uuid4().hex}"
        self._numbers = itertools.count(1)
        self._modes: dict[Oid | None, bool] = {}
        """SET CONSTRAINTS: whether the keys of tables are deferred; None: those of others."""
        self._branches: dict[Oid, _Branched] = {}
        self._told: list[Statement | Emitted] = []
        """All statements, by table, and messages, in their order."""
        self.sequences = self._sequences()
        self._restarted: dict[Oid, TableDef] = {}
        """Tables whose sequences were restarted."""
        self._marks: list[_Mark] = []
        self._snapshot: Snapshot | None = None
        self._locks = ExitStack()
        self.committed = False
        """Something of it is durable, and others see it."""
        self.assigned: int | None = None
        """Number of the transaction, from its first write on, or since somebody asked for it."""

    def number(self) -> int:
        """Return the number, as PostgreSQL's transaction ID; the first call assigns it."""
        if self.assigned is None:
            self.assigned = self._node.catalog.xids.take()
        return self.assigned

    def numbered(self, assign: bool) -> int | None:
        """Return the number; None if the transaction has none and ``assign`` is False."""
        return self.number() if assign else self.assigned

    def xid(self) -> int:
        """The 32 bits of ``number`` that logs and rows have."""
        return xid_of(self.number())

    @property
    def has_written(self) -> bool:
        """A commit would do something, or a rollback."""
        return bool(self._branches or self._told or self.sequences.has_restarted)

    @property
    def is_nested(self) -> bool:
        """It has savepoints."""
        return bool(self._marks)

    def emit(self, message: Emitted) -> None:
        """It is said at the commit."""
        self.number()
        self._told.append(message)

    @property
    def _messages(self) -> list[Emitted]:
        return [one for one in self._told if isinstance(one, Emitted)]

    def _sequences(self) -> TransactionSequences:
        node = self._node

        def copies(table: TableDef) -> list[tuple[Oid, Oid]]:
            state = node.tables.state(table.location)
            return unfinished_copies(node.catalog, state, table.oid)

        return TransactionSequences(node.catalog, node.sequences, copies, self._check)

    def restart_identity(self, tables: Sequence[TableDef]) -> None:
        """Restart the sequences of ``targets``, which are about to be truncated; others see it with
        the commit."""
        alone = self.kind is TransactionKind.STATEMENT
        self.sequences.restart(tables, self._locks if alone else None)
        self.number()
        self._restarted |= {table.oid: table for table in tables}

    def statement(self, *, repeatable: bool) -> Snapshot:
        """A statement begins: what it sees of tables that this transaction has not written.
        ``repeatable``: what the first one saw."""
        if self._snapshot is None or not repeatable:
            node = self._node
            self._snapshot = node.snapshots.take(node.catalog, node.tables)
        return self._snapshot

    def use(self, snapshot: Snapshot) -> None:
        """Read ``snapshot`` in all later statements."""
        self._snapshot = snapshot

    def ref(self, table: TableDef, snapshot: Snapshot) -> TableRef:
        """Resolve a table for a statement with that snapshot."""
        catalog = self._node.catalog
        known = self._branches.get(table.storage)
        if known is not None:
            table = catalog.table_at(table, known.branch.base)
            own = replace(table, location=known.branch.location)
            return TableRef(own, known.version)
        version = snapshot.of(table)
        # In this order: a definition is never older than the version that is visible.
        return TableRef(catalog.table_at(table, version), version)

    def targets(
        self,
        tables: Sequence[TableDef],
        snapshot: Snapshot,
        job_group: str,
        *,
        brings_keys: bool = False,
        moves: bool = False,
    ) -> list[TableDef]:
        """The tables as a statement has to write them: at their branches, or where they are."""
        alone = self.kind is TransactionKind.STATEMENT
        if alone:
            hold_tables(self._node, tables, self._locks, self._check)
            for table in tables:
                if self._node.catalog.table_by_oid(table.oid) != table:
                    raise DefinitionChanged(table.name)
            tracked = self._node.settings.apply.track_commit_timestamp
            says = bool(self._messages) or self._origin() is not None
            # Values of a sequence are taken before anything is committed.
            counts = any(one.sequence is not None for one in tables[0].columns)
            checked = (brings_keys and (tables[0].key or counts)) or tracked or says
            # What it moves is told with its commit.
            checked = checked or (moves and is_read(self._node))
            checked = checked or self._divides_by_instants(tables[0])
            checked = checked or bool(tables[0].checks or tables[0].generated)
            if len(tables) == 1 and not checked:
                return list(tables)
        for table in tables:
            if table.storage not in self._branches:
                branch = self._node.branches.open(
                    table.location,
                    None if alone else snapshot.of(table),
                    f"{self._place}-{next(self._numbers)}",
                    job_group,
                )
                self._branches[table.storage] = _Branched(table, branch, 0)
        return [
            replace(table, location=self._branches[table.storage].branch.location)
            for table in tables
        ]

    def _divides_by_instants(self, table: TableDef) -> bool:
        """Whether what Spark says of its files is not as it is to be said."""
        if all(column.type_oid != _TIMESTAMPTZ for column in table.columns):
            return False
        state = self._node.tables.state(table.location)
        return bool(instants(state.physical_fields))

    def run(self, write: SparkWrite, rendering: Rendering, job_group: str) -> int:
        """Execute a statement on a table of ``targets``; how many rows it has written.

        Raises 23505 if a key is there twice then; the session rolls back."""
        node = self._node
        branched = self._branches.get(write.table.storage)
        if branched is None and write.verb == "TRUNCATE":
            truncate_table(node, write.table, write.options)
            self.committed = True
            return 0
        if branched is None:
            changed = change_plainly(
                node,
                write,
                job_group,
                self._check,
                partial(commit_plainly, node, write.table),
            )
            if changed is not None:
                self.committed = True
                tend(node, write.table)
                return changed
            with committed_by_spark(node, write.table) as before:
                rows = self._execute(write, job_group)
            self.committed = True
            after = node.tables.state(write.table.location).version
            count = _count(
                rows, node.tables.actions(write.table.location, before + 1, after)
            )
            tend(node, write.table)
            return count
        if branched.unjudged and write.by_key:
            self._refuse_repeated(branched, write)
        moved: list[MovedKey] = []
        if write.moves and not branched.moves.too_many and is_read(node):
            moved = self._moved(write, job_group)
            branched.moves = branched.moves.then(moved)
        changed = change_plainly(
            node, write, job_group, self._check, partial(write_plainly, node)
        )
        rows = self._execute(write, job_group) if changed is None else []
        before, after = branched.version, node.branches.state(branched.branch).version
        commits = node.tables.actions(branched.branch.location, before + 1, after)
        replaced = {a["remove"]["path"] for c in commits for a in c if "remove" in a}
        added = [a["add"] for c in commits for a in c if "add" in a]
        added = [add for add in added if add["path"] not in replaced]
        if write.table.generated and added and changed is None:
            made = generate_added(node, write.table, branched.branch, before, added)
            added = list(made)
        branched.version = after
        updated = _updated(commits)
        if changed is not None and write.verb == "UPDATE":
            updated = changed
        branched.updated = updated if not before else 0
        truncates = write.options if write.verb == "TRUNCATE" else None
        if truncates is not None:
            branched.truncated = (branched.truncated or 0) | truncates
        if after != before or truncates is not None:
            self._note(branched, before, truncates, moved)
        if write.table.checks and added:
            state = node.branches.state(branched.branch)
            refuse_violations(write.table, state, added)
        brings_keys = write.brings_keys and write.table.key and after != before
        if brings_keys and self._defers(write.table):
            branched.unjudged = True
        elif brings_keys:
            found = node.keys.repeated(
                branched.branch, added, key_of(write.table), job_group
            )
            refuse_repeated(write.table, found, rendering)
        return _count(rows, commits) if changed is None else changed

    def set_constraints(
        self,
        tables: Collection[Oid] | None,
        rendering: Rendering,
        job_group: str,
        *,
        deferred: bool,
    ) -> None:
        """SET CONSTRAINTS, of the keys of these tables; None: of all. 23505 if one that is not
        deferred any more is there twice."""
        if tables is None:
            self._modes = {None: deferred}
        else:
            self._modes |= dict.fromkeys(tables, deferred)
        for branched in self._branches.values():
            if branched.unjudged and not self._defers(branched.table):
                found = self._repeated(branched, job_group)
                refuse_repeated(branched.table, found, rendering)
                branched.unjudged = False

    def _defers(self, table: TableDef) -> bool:
        """The key is judged at the commit, and this statement is not it."""
        initially = table.key_deferral is Deferral.DEFERRED
        mode = self._modes.get(table.oid, self._modes.get(None, initially))
        return (
            mode
            and table.key_deferral.deferrable
            and self.kind is not TransactionKind.STATEMENT
        )

    def _repeated(self, branched: _Branched, job_group: str) -> pa.RecordBatch | None:
        """A key that two rows have."""
        change = self._node.branches.net_change(branched.branch)
        return self._node.keys.repeated(
            branched.branch, change.added, key_of(branched.table), job_group
        )

    def _refuse_repeated(self, branched: _Branched, write: SparkWrite) -> None:
        """0A000: the statement finds its rows by their key, which two rows have."""
        job_group = f"keys {branched.branch.location}"
        if self._repeated(branched, job_group) is not None:
            raise FeatureNotSupportedError(
                f"{write.verb} with a subquery or other tables is not supported while"
                f' relation "{branched.table.name}" has rows with the same key',
                hint="Write the condition without a subquery, or make the keys of its"
                " rows different first.",
            )

    def _note(
        self,
        branched: _Branched,
        before: int,
        truncates: int | None,
        moved: Sequence[MovedKey],
    ) -> None:
        """Note the changes of a statement for subscribers that replay each of them."""
        self.number()
        catalog, branch = self._node.catalog, branched.branch
        # The log has tables by where their rows are.
        table = catalog.table_by_oid(branched.table.storage) or branched.table
        then = catalog.table_at(table, branch.base)
        own = replace(then, location=branch.location)
        after = branched.version
        self._told.append(Statement(own, before, after, truncates, tuple(moved)))

    def _execute(self, write: SparkWrite, job_group: str) -> list[pa.RecordBatch]:
        try:
            result = self._node.queries.run(write.sql, job_group=job_group)
        except UsageError as error:
            error.about = about_null(error, write.table)
            raise
        return [batch for batch in result.batches if batch.num_rows]

    def _moved(self, write: SparkWrite, job_group: str) -> list[MovedKey]:
        """The keys that an UPDATE is about to change, as capture reads them."""
        columns = identifying(write.table)
        sql = f"{write.moves} LIMIT {MOST_ROWS + 1}"
        found: list[MovedKey] = []
        for batch in self._node.queries.run(sql, job_group=job_group).batches:
            texts = [
                arrow_to_text(array, int(column.type_oid), column.typmod)
                for array, column in zip(batch.columns, columns * 2, strict=True)
            ]
            values = [[t if t is None else t.decode() for t in one] for one in texts]
            old, new = values[: len(columns)], values[len(columns) :]
            found += map(MovedKey, zip(*old, strict=True), zip(*new, strict=True))
        return found

    # ---- savepoints -----------------------------------------------------------------

    def savepoint(self, depth: int) -> None:
        """Note where the branches are."""
        del self._marks[depth - 1 :]
        branches = {key: replace(one) for key, one in self._branches.items()}
        mark = _Mark(
            branches, len(self._told), self.sequences.mark(), dict(self._modes)
        )
        self._marks.append(mark)

    def rollback_to(self, depth: int) -> None:
        """Cut the branches back to where they were."""
        mark = self._marks[depth - 1]
        del self._marks[depth:]
        del self._told[mark.told :]
        self.sequences.back_to(mark.sequences)
        self._modes = dict(mark.modes)
        for key, branched in list(self._branches.items()):
            known = mark.branches.get(key)
            if known is not None:
                self._node.branches.cut_back(branched.branch, known.version)
                self._branches[key] = replace(known)
            else:
                del self._branches[key]
                self._node.branches.drop(branched.branch)

    def release(self, depth: int) -> None:
        """Forget the mark; the work stays."""
        del self._marks[depth - 1 :]

    # ---- the end --------------------------------------------------------------------

    def commit(self, rendering: Rendering, job_group: str) -> None:
        """Make it durable and visible, or nothing of it."""
        try:
            written = self._written()
            messages, origin = kept(self._node, self._messages), self._origin()
            with ExitStack() as held:
                if self.sequences.has_restarted:
                    # A table that had no row is not among what was written.
                    tables = [*self._restarted.values(), *(w.table for w in written)]
                    hold_tables(self._node, tables, held, self._check)
                if written:
                    self._commit_tables(written, rendering, job_group, messages, origin)
                else:
                    with self.sequences.settled():
                        pass
            if not written:
                with written_down(self._node, self._told) as statements:
                    if messages or statements:
                        emit_transaction(
                            self._node, messages, origin, statements, self.xid()
                        )
            self.committed = self.committed or bool(written or messages)
        finally:
            self.rollback()
            self.assigned = None

    def _commit_tables(
        self,
        written: Sequence[WrittenTable],
        rendering: Rendering,
        job_group: str,
        messages: Sequence[Emitted],
        origin: OriginMark | None,
    ) -> None:
        with written_down(self._node, self._told) as statements:
            said = More(tuple(messages), origin, statements=statements, xid=self.xid())
            commit_tables(
                self._node,
                written,
                rendering,
                job_group,
                self._check,
                said,
                self.sequences.settled,
            )

    def prepare(self, who: Preparing) -> None:
        """Leave it to COMMIT PREPARED, or to nobody; it is not this session's any more."""
        try:
            restarts = self.sequences.has_restarted
            if restarts or self._origin() is not None:
                what = "restarted sequences" if restarts else "an origin"
                raise FeatureNotSupportedError(
                    f"cannot PREPARE a transaction that has {what}"
                )
            messages = kept(self._node, self._messages)
            prepare(
                self._node,
                who,
                self.xid(),
                self._written(),
                messages,
                self.sequences.settled,
            )
            self.committed = True
        finally:
            self.rollback()
            self.assigned = None

    def _written(self) -> list[WrittenTable]:
        # TRUNCATE of an empty table is one, too.
        return [
            WrittenTable(
                one.table,
                one.branch,
                change,
                one.truncated,
                one.moves.moved,
                one.updated,
                one.unjudged,
            )
            for one in self._branches.values()
            if one.version > 0 or one.truncated is not None
            if (change := self._node.branches.net_change(one.branch)).actions
            or one.truncated is not None
        ]

    def rollback(self) -> None:
        """Remove what is left of it."""
        branches: Collection[_Branched] = self._branches.values()
        try:
            self._locks.close()
        finally:
            for branched in branches:
                self._node.branches.drop(branched.branch)
            self._branches, self._marks, self._snapshot = {}, [], None
            self._told, self._restarted = [], {}
            self.sequences = self._sequences()


def _updated(commits: Sequence[Sequence[Action]]) -> int:
    """How many rows a statement has updated."""
    return sum(
        updated_by(a["commitInfo"]) for c in commits for a in c if "commitInfo" in a
    )


def _count(rows: Sequence[pa.RecordBatch], commits: Sequence[Sequence[Action]]) -> int:
    """How many rows a statement has written: its answer says so, or its commit."""
    if rows and "num_affected_rows" in rows[0].schema.names:
        return int(rows[0].column("num_affected_rows")[0].as_py())
    made = [a["commitInfo"] for c in commits for a in c if "commitInfo" in a]
    return sum(
        int(one.get("operationMetrics", {}).get("numOutputRows", 0)) for one in made
    )
