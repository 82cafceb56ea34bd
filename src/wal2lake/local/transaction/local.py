"""The transaction of one session: a branch of each table that it has written.

    event         branches                              locks
    ----------    ----------------------------------    -------------------------------------
    first write   one is made, from the version that    autocommit: of the table and its
     of a table   the statement reads                   subscriptions, until the end
    statement     Spark writes it: a new version
    SAVEPOINT     versions and messages are noted
    ROLLBACK TO   cut back to them; later ones go
    COMMIT        carried into the tables               all, in order (``commit``)
    ROLLBACK      removed                               released
    PREPARE       kept (``prepared``)                   all, while the record is written

The transaction has a number from its first write on, or since a call of txid_current(). The
publisher's log, conflict reports and pg_prepared_xacts show it. A statement that writes the table
itself has no number: capture assigns one to its commit.

An autocommit statement takes the locks first and branches from the newest version, so its commit
cannot conflict. It needs no branch at all if it adds no keys and no values of a sequence, writes
one table, and has nothing to record for decoding clients: then nothing has to be checked between
the statement and its commit. (With ``track_commit_timestamp`` files must name their writer, so a
branch is needed.) Other transactions hold no lock between two statements: a slow client blocks
nobody, and a conflict is detected at the commit.

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
from wal2lake.lake import instants
from wal2lake.lake.branch import Action
from wal2lake.lake.capture import (
    MOST_ROWS,
    CommitRemarks,
    Emitted,
    KeyMoves,
    MovedKey,
    OriginMark,
    updated_by,
)
from wal2lake.lake.spark import Branch, place_of_branches
from wal2lake.local.access import refuse_fed
from wal2lake.local.commits.commit import (
    CommittedDefinitions,
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
from wal2lake.local.commits.upkeep import compact_if_due
from wal2lake.local.concurrency.sequencevalues import (
    Restarted,
    TransactionSequences,
)
from wal2lake.local.concurrency.snapshots import Snapshot
from wal2lake.local.ports import HasSettings, LocalCommits
from wal2lake.local.transaction.emittedmessages import (
    decodable_messages,
    emit_transaction,
    has_slots,
    recorded_statements,
)
from wal2lake.local.transaction.generation import generate_added
from wal2lake.local.transaction.plainwrites import Commit, change_plainly
from wal2lake.local.transaction.rowwrites import (
    ChangedRows,
    Take,
    change_rows,
    keys_to_move,
    moved_keys,
)
from wal2lake.local.transaction.upserts import upsert_rows
from wal2lake.local.transaction.writtenchecks import refuse_violations
from wal2lake.model import Deferral, Oid
from wal2lake.pg import Check
from wal2lake.publish.capture.statementchanges import Statement
from wal2lake.sql.backend import TransactionKind
from wal2lake.sql.query.changes.stored import SparkWrite, about_null
from wal2lake.sql.query.results import Rendering
from wal2lake.sql.query.translate import TableRef

_TIMESTAMPTZ = 1184


class DefinitionChanged(Exception):
    """Raised if a table was altered between a statement's analysis and its locks.

    The statement is analysed again."""


def scratch(node: HasSettings) -> str:
    """Return the location of the branches of all transactions of a node."""
    return place_of_branches(node.settings.warehouse, node.catalog.system_identifier)


@dataclass(slots=True)
class _Branched:
    table: TableDef
    branch: Branch
    version: int
    """The branch's version after the statements so far."""
    truncated: int | None = None
    """The combined options of the TRUNCATEs so far; None without one."""
    moves: KeyMoves = field(default_factory=KeyMoves)
    updated: int = 0
    """Number of rows updated by the only statement so far."""
    unjudged: bool = False
    """True if the table's key is deferred, so that duplicates may exist until the commit."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A savepoint."""

    branches: dict[Oid, _Branched]
    """Copies of the branches at the savepoint."""
    events: int
    sequences: dict[Oid, Restarted]
    modes: dict[Oid | None, bool]


class LocalTransaction:
    """A transaction from BEGIN to COMMIT or ROLLBACK; nothing happens before the first write."""

    def __init__(
        self,
        node: LocalCommits,
        kind: TransactionKind,
        check: Check = lambda: None,
        origin: Callable[[], OriginMark | None] = lambda: None,
    ) -> None:
        """``check`` raises if the running statement shall end; ``origin``: the session's."""
        self._origin = origin
        self.kind = kind
        self._node = node
        self._view = node
        """The node with the definitions of the transaction."""
        self._check = check
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._modes: dict[Oid | None, bool] = {}
        """Modes of SET CONSTRAINTS by table: is the key deferred? None: for all other tables."""
        self._branches: dict[Oid, _Branched] = {}
        self._events: list[Statement | Emitted] = []
        """All statements, by table, and messages, in order."""
        self.sequences = self._sequences()
        self._restarted: dict[Oid, TableDef] = {}
        """Tables whose sequences the transaction has restarted."""
        self._marks: list[_Mark] = []
        self._snapshot: Snapshot | None = None
        self._locks = ExitStack()
        self.committed = False
        """True if a part of the transaction is durable and visible."""
        self.assigned: int | None = None
        """Number of the transaction, from its first write or a request for the number on."""

    def number(self) -> int:
        """Return the number, PostgreSQL's transaction ID; the first call assigns it."""
        if self.assigned is None:
            self.assigned = self._node.catalog.xids.take()
        return self.assigned

    def numbered(self, assign: bool) -> int | None:
        """Return the number; None if the transaction has none and ``assign`` is False."""
        return self.number() if assign else self.assigned

    def xid(self) -> int:
        """Return the low 32 bits of ``number``, which logs and rows have."""
        return xid_of(self.number())

    def see(self, view: LocalCommits) -> None:
        """Find tables and sequences in ``view`` from now on, with what the transaction defines."""
        if self._view is not view:
            self._view = view
            self.sequences.see(view.catalog)

    @property
    def has_written(self) -> bool:
        """True if a commit or a rollback would do something."""
        return bool(self._branches or self._events or self.sequences.has_restarted)

    @property
    def is_nested(self) -> bool:
        """True if the transaction has savepoints."""
        return bool(self._marks)

    def emit(self, message: Emitted) -> None:
        """Record a message, which is logged at the commit."""
        self.number()
        self._events.append(message)

    @property
    def _messages(self) -> list[Emitted]:
        return [event for event in self._events if isinstance(event, Emitted)]

    def _sequences(self) -> TransactionSequences:
        node = self._node

        def copies(table: TableDef) -> list[tuple[Oid, Oid]]:
            state = node.tables.state(table.location)
            return unfinished_copies(node.catalog, state, table.oid)

        return TransactionSequences(node.catalog, node.sequences, copies, self._check)

    def restart_identity(self, tables: Sequence[TableDef]) -> None:
        """Restart the sequences of tables that are about to be truncated.

        Others see the restart after the commit."""
        alone = self.kind is TransactionKind.STATEMENT
        self.sequences.restart(tables, self._locks if alone else None)
        self.number()
        self._restarted |= {table.oid: table for table in tables}

    @property
    def has_snapshot(self) -> bool:
        """Whether a statement of this transaction has taken a snapshot, or one is imported."""
        return self._snapshot is not None

    def statement(self, *, repeatable: bool) -> Snapshot:
        """Return the snapshot for tables that this transaction has not written.

        ``repeatable``: the snapshot of the first statement."""
        if self._snapshot is None or not repeatable:
            view = self._view
            self._snapshot = view.snapshots.take(view.catalog, view.tables)
        return self._snapshot

    def use(self, snapshot: Snapshot) -> None:
        """Read ``snapshot`` in all later statements."""
        self._snapshot = snapshot

    def ref(self, table: TableDef, snapshot: Snapshot) -> TableRef:
        """Resolve a table for a statement with that snapshot."""
        catalog = self._view.catalog
        branched = self._branches.get(table.storage)
        if branched is not None:
            table = catalog.table_at(table, branched.branch.base)
            own = replace(table, location=branched.branch.location)
            return TableRef(own, branched.version)
        version = snapshot.of(table)
        # In this order, so that the definition is not older than the visible version.
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
        """Return the tables as a statement has to write them: on branches, or directly."""
        for table in tables:
            refuse_fed(self._view.catalog, table, f'change table "{table.name}"')
        alone = self.kind is TransactionKind.STATEMENT
        if alone:
            hold_tables(self._node, tables, self._locks, self._check)
            for table in tables:
                if self._node.catalog.table_by_oid(table.oid) != table:
                    raise DefinitionChanged(table.name)
            tracked = self._node.settings.apply.track_commit_timestamp
            has_events = bool(self._messages) or self._origin() is not None
            # Values of a sequence must be taken before anything is committed.
            takes_values = any(
                column.sequence is not None for column in tables[0].columns
            )
            checked = (
                (brings_keys and (tables[0].key or takes_values))
                or tracked
                or has_events
            )
            # Moved keys are recorded in the commit.
            checked = checked or (moves and has_slots(self._node))
            checked = checked or self._has_instant_partitions(tables[0])
            checked = checked or bool(tables[0].checks or tables[0].generated)
            if len(tables) == 1 and not checked:
                return list(tables)
        for table in tables:
            if table.storage not in self._branches:
                branch = self._node.branches.open(
                    table.location,
                    None if alone else snapshot.of(table),
                    f"{scratch(self._node)}/{self._name}-{next(self._numbers)}",
                    job_group,
                )
                self._branches[table.storage] = _Branched(table, branch, 0)
        return [
            replace(table, location=self._branches[table.storage].branch.location)
            for table in tables
        ]

    def _has_instant_partitions(self, table: TableDef) -> bool:
        """True if timestamptz columns partition the table: Spark writes them without the zone."""
        if all(column.type_oid != _TIMESTAMPTZ for column in table.columns):
            return False
        state = self._node.tables.state(table.location)
        return bool(instants(state.physical_fields))

    def run(
        self,
        write: SparkWrite,
        rendering: Rendering,
        job_group: str,
        take: Take = lambda changed: None,
    ) -> int:
        """Execute a statement on a table of ``targets``; returns the number of rows written.

        ``take`` is given the rows of a statement with RETURNING before they are written.
        Raises 23505 for a duplicate key; the session then rolls back."""
        branched = self._branches.get(write.table.storage)
        if branched is None:
            return self._run_directly(write, job_group, take)
        return self._run_on_branch(branched, write, rendering, job_group, take)

    def load(
        self,
        write: SparkWrite,
        rendering: Rendering,
        job_group: str,
        commit: Callable[[], int],
    ) -> int:
        """Add rows to a table of ``targets`` in a block; returns their number.

        ``commit``: commits their files to the branch. Raises 23505 for a duplicate key."""
        branched = self._branches[write.table.storage]
        return self._run_on_branch(
            branched, write, rendering, job_group, lambda rows: None, commit
        )

    def _run_directly(self, write: SparkWrite, job_group: str, take: Take) -> int:
        """Execute an autocommit statement that needs no branch, as a commit of the table."""
        node = self._node
        if write.verb == "TRUNCATE":
            truncate_table(node, write.table, write.options)
            self.committed = True
            return 0
        changed = self._change(
            write, job_group, partial(commit_plainly, node, write.table), take
        )
        if changed is not None:
            self.committed = True
            compact_if_due(node, write.table)
            return changed
        with committed_by_spark(node, write.table) as before:
            rows = self._execute(write, job_group)
        self.committed = True
        after = node.tables.state(write.table.location).version
        count = _count(
            rows, node.tables.actions(write.table.location, before + 1, after)
        )
        compact_if_due(node, write.table)
        return count

    def _change(
        self, write: SparkWrite, job_group: str, commit: Commit, take: Take
    ) -> int | None:
        """Execute a statement whose rows the node writes itself; None if Spark must."""
        node, check = self._node, self._check
        if write.by_rows is None:
            return change_plainly(node, write, job_group, check, commit)
        by_rows, conflict = write.by_rows, write.by_rows.conflict
        if conflict is None:
            return change_rows(node, write, by_rows, job_group, check, commit, take)
        return upsert_rows(
            node, write, by_rows, conflict, job_group, check, commit, take
        )

    def _run_on_branch(
        self,
        branched: _Branched,
        write: SparkWrite,
        rendering: Rendering,
        job_group: str,
        take: Take,
        load: Callable[[], int] | None = None,
    ) -> int:
        node = self._node
        if branched.unjudged and write.by_key:
            self._refuse_repeated(branched, write)
        moved: list[MovedKey] = []
        if (
            write.moves
            and write.by_rows is None
            and not branched.moves.too_many
            and has_slots(node)
        ):
            moved = keys_to_move(node, write, job_group, MOST_ROWS + 1)
            branched.moves = branched.moves.then(moved)

        upserted = 0

        def keep(rows: ChangedRows) -> None:
            nonlocal moved, upserted
            upserted = rows.updated
            if not branched.moves.too_many and has_slots(node):
                moved = moved_keys(write, rows, MOST_ROWS + 1)
                branched.moves = branched.moves.then(moved)
            take(rows)

        if load is None:
            changed = self._change(write, job_group, partial(write_plainly, node), keep)
        else:
            changed = load()
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
        updated = updated or upserted
        branched.updated = updated if not before else 0
        truncates = write.options if write.verb == "TRUNCATE" else None
        if truncates is not None:
            branched.truncated = (branched.truncated or 0) | truncates
        if after != before or truncates is not None:
            self._note(branched, before, truncates, moved)
        if write.table.checks and added and load is None:
            state = node.branches.state(branched.branch)
            refuse_violations(write.table, state, added)
        brings_keys = write.brings_keys and write.table.key and after != before
        if brings_keys and self._defers(write.table):
            branched.unjudged = True
        elif brings_keys:
            repeated = node.keys.repeated(
                branched.branch, added, key_of(write.table), job_group
            )
            refuse_repeated(write.table, repeated, rendering)
        return _count(rows, commits) if changed is None else changed

    def set_constraints(
        self,
        tables: Collection[Oid] | None,
        rendering: Rendering,
        job_group: str,
        *,
        deferred: bool,
    ) -> None:
        """SET CONSTRAINTS for the keys of these tables; None for all tables.

        23505 if a key that is no longer deferred has duplicates."""
        if tables is None:
            self._modes = {None: deferred}
        else:
            self._modes |= dict.fromkeys(tables, deferred)
        for branched in self._branches.values():
            if branched.unjudged and not self._defers(branched.table):
                repeated = self._repeated(branched, job_group)
                refuse_repeated(branched.table, repeated, rendering)
                branched.unjudged = False

    def _defers(self, table: TableDef) -> bool:
        """True if the table's key is checked at the commit instead of after the statement."""
        initially = table.key_deferral is Deferral.DEFERRED
        mode = self._modes.get(table.oid, self._modes.get(None, initially))
        return (
            mode
            and table.key_deferral.deferrable
            and self.kind is not TransactionKind.STATEMENT
        )

    def _repeated(self, branched: _Branched, job_group: str) -> pa.RecordBatch | None:
        """Return a key that two rows of the branch have, or None."""
        change = self._node.branches.net_change(branched.branch)
        return self._node.keys.repeated(
            branched.branch, change.added, key_of(branched.table), job_group
        )

    def _refuse_repeated(self, branched: _Branched, write: SparkWrite) -> None:
        """Raise 0A000: the statement finds its rows by a key that several rows have."""
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
        """Record a statement's changes, for subscribers that replay each statement."""
        self.number()
        catalog, branch = self._view.catalog, branched.branch
        # The log identifies a table by its storage.
        table = catalog.table_by_oid(branched.table.storage) or branched.table
        then = catalog.table_at(table, branch.base)
        own = replace(then, location=branch.location)
        after = branched.version
        self._events.append(Statement(own, before, after, truncates, tuple(moved)))

    def _execute(self, write: SparkWrite, job_group: str) -> list[pa.RecordBatch]:
        try:
            result = self._node.queries.run(write.sql, job_group=job_group)
        except UsageError as error:
            error.about = about_null(error, write.table)
            raise
        return [batch for batch in result.batches if batch.num_rows]

    # ---- savepoints -----------------------------------------------------------------

    def savepoint(self, depth: int) -> None:
        """Note the branches' versions."""
        del self._marks[depth - 1 :]
        branches = {key: replace(branched) for key, branched in self._branches.items()}
        mark = _Mark(
            branches, len(self._events), self.sequences.mark(), dict(self._modes)
        )
        self._marks.append(mark)

    def rollback_to(self, depth: int) -> None:
        """Cut the branches back to their versions at the savepoint."""
        mark = self._marks[depth - 1]
        del self._marks[depth:]
        del self._events[mark.events :]
        self.sequences.back_to(mark.sequences)
        self._modes = dict(mark.modes)
        for key, branched in list(self._branches.items()):
            earlier = mark.branches.get(key)
            if earlier is not None:
                self._node.branches.cut_back(branched.branch, earlier.version)
                self._branches[key] = replace(earlier)
            else:
                del self._branches[key]
                self._node.branches.drop(branched.branch)

    def release(self, depth: int) -> None:
        """Forget the savepoint; the changes stay."""
        del self._marks[depth - 1 :]

    # ---- the end of the transaction -------------------------------------------------

    def commit(
        self,
        rendering: Rendering,
        job_group: str,
        definitions: CommittedDefinitions | None = None,
    ) -> None:
        """Make the transaction durable and visible with its definitions, or discard it."""
        try:
            written = self._written(definitions)
            messages, origin = (
                decodable_messages(self._node, self._messages),
                self._origin(),
            )
            with ExitStack() as held:
                if self.sequences.has_restarted:
                    # A restarted table without rows is not among the written tables.
                    tables = [*self._restarted.values(), *(w.table for w in written)]
                    hold_tables(self._node, tables, held, self._check)
                if written:
                    self._commit_tables(
                        written, rendering, job_group, messages, origin, definitions
                    )
                else:
                    with self.sequences.settled():
                        if definitions is not None:
                            definitions.commit(None, ())
            if not written:
                with recorded_statements(self._node, self._events) as statements:
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
        definitions: CommittedDefinitions | None,
    ) -> None:
        with recorded_statements(self._node, self._events) as statements:
            metadata = CommitRemarks(
                tuple(messages), origin, statements=statements, xid=self.xid()
            )
            commit_tables(
                self._node,
                written,
                rendering,
                job_group,
                self._check,
                metadata,
                self.sequences.settled,
                definitions,
            )

    def prepare(self, preparing: Preparing) -> None:
        """Hand the transaction over to COMMIT PREPARED; this session forgets it."""
        try:
            restarts = self.sequences.has_restarted
            if restarts or self._origin() is not None:
                reason = "restarted sequences" if restarts else "an origin"
                raise FeatureNotSupportedError(
                    f"cannot PREPARE a transaction that has {reason}"
                )
            messages = decodable_messages(self._node, self._messages)
            prepare(
                self._node,
                preparing,
                self.xid(),
                self._written(),
                messages,
                self.sequences.settled,
            )
            self.committed = True
        finally:
            self.rollback()
            self.assigned = None

    def _written(
        self, definitions: CommittedDefinitions | None = None
    ) -> list[WrittenTable]:
        # A TRUNCATE of an empty table counts as a write.
        return [
            WrittenTable(
                branched.table,
                branched.branch,
                change,
                branched.truncated,
                branched.moves.moved,
                branched.updated,
                branched.unjudged,
            )
            for branched in self._branches.values()
            if branched.version > 0 or branched.truncated is not None
            if (change := self._node.branches.net_change(branched.branch)).actions
            or branched.truncated is not None
            if definitions is None or not definitions.drops(branched.table.location)
        ]

    def rollback(self) -> None:
        """Remove the branches and release the locks."""
        branches: Collection[_Branched] = self._branches.values()
        try:
            self._locks.close()
        finally:
            for branched in branches:
                self._node.branches.drop(branched.branch)
            self._branches, self._marks, self._snapshot = {}, [], None
            self._events, self._restarted = [], {}
            self._view = self._node
            self.sequences = self._sequences()


def _updated(commits: Sequence[Sequence[Action]]) -> int:
    """Return the number of rows that a statement has updated."""
    return sum(
        updated_by(a["commitInfo"]) for c in commits for a in c if "commitInfo" in a
    )


def _count(rows: Sequence[pa.RecordBatch], commits: Sequence[Sequence[Action]]) -> int:
    """Return the number of rows that a statement has written, from its result or its commit."""
    if rows and "num_affected_rows" in rows[0].schema.names:
        return int(rows[0].column("num_affected_rows")[0].as_py())
    infos = [a["commitInfo"] for c in commits for a in c if "commitInfo" in a]
    return sum(
        int(info.get("operationMetrics", {}).get("numOutputRows", 0)) for info in infos
    )
