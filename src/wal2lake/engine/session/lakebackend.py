"""The backend of a client session: routes each statement to the part that answers it.

    statement                          answered by
    -------------------------------    ------------------------------------------------
    SELECT over system views, or       the embedded SQL engine (sysviews), milliseconds
      without any table
    SELECT over lake tables            Spark, at the published vector of each table; simple
                                       ones the table's files (answers)
    INSERT UPDATE DELETE TRUNCATE      commands.tables.dml, through Spark
    CREATE DROP ALTER GRANT ...        commands.tables, commands.roles,
                                       commands.subscription, commands.publication

A query is prepared without running it: Spark analyses it with the parameters as NULLs of
their types, which gives Describe its columns.

The current user's privileges count (SET ROLE's, or the session's). They are checked once names are
resolved and before anything runs. Describe needs none, as in PostgreSQL.

Source: sql.backend (the port that this implements).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from wal2lake.catalog import TableDef
from wal2lake.commands import calls, publication, roles
from wal2lake.commands import subscription as subscriptions
from wal2lake.commands.maintenance import ANSWERS, MaintenanceStatement, maintain
from wal2lake.commands.publication.dependents import check_writable
from wal2lake.commands.tables import altertable
from wal2lake.commands.tables import table as tables
from wal2lake.commands.tables.dml import run_dml, truncate
from wal2lake.commands.tables.past import AsOf, PastVersions, refuse_to_write
from wal2lake.engine.rows.answers import ValueFormats, answered
from wal2lake.engine.rows.filtered import FilteredRead
from wal2lake.engine.rows.returned import ReturnedRows
from wal2lake.engine.session.analysedstatements import (
    QUERIES,
    AnalysedStatement,
    analysed_again,
    described_write,
    is_of_catalogs,
)
from wal2lake.engine.session.blockdefinitions import BlockDefinitions
from wal2lake.engine.session.constraintmodes import set_constraints
from wal2lake.engine.session.copies import copied_in, copy_outcome
from wal2lake.engine.session.explain import (
    StatementPlanner,
    explained,
    plan_fields,
    prepared_query,
)
from wal2lake.engine.session.filledtables import create_as, places_in_query
from wal2lake.engine.session.parametertypes import (
    bound_parameters,
    parameter_types,
    stated_types,
)
from wal2lake.engine.session.sessionroles import SessionRoles
from wal2lake.engine.session.sessionsnapshots import SessionSnapshots
from wal2lake.engine.session.tablenames import Used, table_names
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.local.access import check_tables
from wal2lake.local.commits.commit import wait_for_standbys
from wal2lake.local.commits.prepared import Preparing, finish_prepared
from wal2lake.local.concurrency.activeorigins import SessionOrigin
from wal2lake.local.concurrency.sequencevalues import SessionSequences
from wal2lake.local.concurrency.snapshots import Snapshot
from wal2lake.local.node import Caller, EngineParts
from wal2lake.local.transaction.definitions import refuse_mixture
from wal2lake.local.transaction.emittedmessages import emit, empty_transaction
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.local.transaction.rowwrites import ChangedRows
from wal2lake.local.transaction.writtenchecks import values_hidden
from wal2lake.pg import Check
from wal2lake.sql.backend import (
    Outcome,
    Parameter,
    Prepared,
    SessionContext,
    TransactionKind,
)
from wal2lake.sql.grammar import StatementText, parse, parse_string
from wal2lake.sql.grammar.constraints import is_set_constraints
from wal2lake.sql.grammar.copying import CopyFrom, CopyOptions, CopyTo
from wal2lake.sql.grammar.explaining import Explain
from wal2lake.sql.grammar.lexer import command_name
from wal2lake.sql.grammar.statements import (
    CommandKind,
    DropTable,
    OtherStatement,
    TruncateTable,
)
from wal2lake.sql.grammar.tableas import CreateTableAs
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.sql.query.results import Rendering, fields_of, plain_fields
from wal2lake.sql.query.translate import (
    BoundParameter,
    Resolver,
    SparkQuery,
    translate_query,
)
from wal2lake.sql.query.writes import translate_write
from wal2lake.sql.sysviews import FunctionRequest, SystemCatalog
from wal2lake.wire.frontback import FieldDescription, Format

_WRITES: Final = (CommandKind.INSERT, CommandKind.UPDATE, CommandKind.DELETE)

_DEFINITIONS: Final = {
    **tables.COMMANDS,
    **altertable.COMMANDS,
    **roles.COMMANDS,
}

_OF_REPLICATION: Final = {**subscriptions.COMMANDS, **publication.COMMANDS}

_OF_BLOCKS: Final = {**_OF_REPLICATION, **tables.OF_BLOCKS}
"""Commands that a transaction block can roll back."""


class LakeBackend:
    """The backend of one session. The port documents callers and order."""

    _numbers = itertools.count(1)

    def __init__(
        self, node: EngineParts, system: SystemCatalog, context: SessionContext
    ) -> None:
        """``node`` and ``system`` are shared by all sessions."""
        self._node = node
        self._system = system
        self._context = context
        self._running: str | None = None
        self._cancelled = threading.Event()
        """Set when the running statement is cancelled, for parts that check during waits."""
        self._origin = SessionOrigin(node.origins, context.pid)
        self._sequences = SessionSequences(
            node.sequences, lambda: self._transaction.sequences
        )
        self._renew()
        self.snapshots = SessionSnapshots(node, context, lambda: self._transaction)
        self._definitions = BlockDefinitions(node, system)
        self._guard = threading.Lock()
        self._roles = SessionRoles(node.catalog, context)

    # ---- the port ----------------------------------------------------------------

    def parse_string(self, sql: str) -> Sequence[StatementText]:
        """Parse a query string by PostgreSQL's grammar."""
        return parse_string(sql)

    def prepare(self, sql: str, param_oids: Sequence[int]) -> AnalysedStatement:
        """Parse a statement; errors about names come from ``fields`` or ``execute``."""
        statement = parse(sql)
        oids = stated_types(sql, statement, param_oids)
        if isinstance(statement, CreateTableAs):
            with places_in_query(statement):
                oids = list(self.prepare(statement.query, oids).param_oids)
        if isinstance(statement, Explain):
            query = prepared_query(statement, lambda q: self.prepare(q, oids))
            oids = list(query.param_oids)
            return AnalysedStatement(sql, statement, oids, self.describe, False)
        nulls = tuple(BoundParameter(None, oid) for oid in oids)
        system = is_of_catalogs(
            sql,
            statement,
            lambda: self._translated(sql, nulls, self._resolver(self._caller())),
        )
        if 0 in oids:
            resolver, zone = self._resolver, self._context.parameters["TimeZone"]
            oids = parameter_types(
                sql, statement, oids, lambda: resolver(self._caller()), zone, system
            )
        return AnalysedStatement(sql, statement, oids, self.describe, system)

    def execute(
        self,
        prepared: Prepared,
        parameters: Sequence[Parameter],
        result_formats: Sequence[Format],
    ) -> Outcome:
        """Execute a prepared statement."""
        assert isinstance(prepared, AnalysedStatement)
        # A cancel is repeated, so one that came just before is not lost.
        self._cancelled.clear()
        caller = self._caller()
        bound = bound_parameters(parameters, prepared.param_oids)
        statement = prepared.statement
        if isinstance(statement, OtherStatement):
            wanted = ValueFormats(result_formats)
            return self._run_other(caller, prepared, statement, bound, wanted)
        if isinstance(statement, Explain):
            return self._explain(caller, prepared, statement, parameters)
        if isinstance(statement, CopyTo):
            return copy_outcome(
                self._view.catalog,
                caller,
                statement,
                lambda sql, options: self._copied_rows(caller, sql, options),
            )
        if isinstance(statement, CopyFrom):
            return self._copy_in(caller, statement)
        if isinstance(statement, TruncateTable):
            self._definitions.refuse_writes()
            return Outcome(self._truncate(caller, statement))
        if isinstance(statement, CreateTableAs):
            return Outcome(self._create_as(caller, prepared, statement, bound))
        # Earlier writes of the query string are committed first, as DDL cannot be rolled back.
        if not caller.in_block:
            self._commit_so_far()
            caller = self._caller()
        if isinstance(statement, MaintenanceStatement):
            return maintain(self._node, caller, statement)
        self._refuse_in_read_only(command_name(prepared.sql))
        kind = type(statement)
        if caller.in_block:
            if kind not in _OF_BLOCKS:
                raise subscriptions.block_not_supported(command_name(prepared.sql))
            return Outcome(self._define(caller, _OF_BLOCKS[kind], statement))
        command = _OF_REPLICATION.get(kind) or _DEFINITIONS[kind]
        with self._job() as group, empty_transaction(self._node, caller.check):
            caller = replace(caller, job_group=group)
            return Outcome(command(self._node, caller, statement))

    def _define(
        self,
        caller: Caller,
        command: Callable[[EngineParts, Caller, Any], str],
        statement: Any,
    ) -> str:
        """Run a command whose effect waits for the commit of the transaction."""
        kind = type(statement)
        replicates = kind in _OF_REPLICATION
        if replicates and self._transaction.has_written:
            raise refuse_mixture()
        with self._job() as group:
            tag = self._definitions.run(
                replace(caller, job_group=group),
                command,
                statement,
                publishes=kind in publication.COMMANDS or kind is DropTable,
                replicates=replicates,
            )
        self._transaction.see(self._definitions.view)
        self._transaction.number()
        return tag

    def _create_as(
        self,
        caller: Caller,
        prepared: AnalysedStatement,
        statement: CreateTableAs,
        bound: tuple[BoundParameter, ...],
    ) -> str:
        self._begin_filling(command_name(prepared.sql))
        return create_as(
            lambda: self._view,
            caller,
            statement,
            lambda sql: self.prepare(sql, prepared.param_oids),
            lambda made: self._define(caller, tables.create_table, made),
            lambda sql: self._write(self._caller(), sql, bound, ()).tag,
        )

    def begin(self, kind: TransactionKind) -> None:
        """Set the kind: an open implicit transaction becomes a block, or ends with what follows."""
        if kind is TransactionKind.STATEMENT and self._transaction.has_written:
            return
        self._transaction.kind = kind

    def commit(self) -> None:
        """Commit all tables, or none."""
        self._cancelled.clear()
        self.snapshots.withdraw()
        try:
            self._commit_so_far()
        except BaseException:
            self.rollback()
            raise
        committed = self._transaction.committed
        self.rollback()
        if committed:
            self._wait_for_standbys()

    def prepare_transaction(self, gid: str) -> None:
        """PREPARE TRANSACTION."""
        self._cancelled.clear()
        self.snapshots.withdraw()
        caller = self._caller()
        try:
            self._definitions.refuse_prepare()
            with self._job() as group:
                preparing = Preparing(
                    gid, caller.role.oid, self._rendering(), group, caller.check
                )
                self._transaction.prepare(preparing)
        finally:
            self.rollback()
        self._wait_for_standbys()

    def finish_prepared(self, gid: str, *, commit: bool) -> None:
        """COMMIT PREPARED, ROLLBACK PREPARED."""
        self._cancelled.clear()
        caller = self._caller()
        finish_prepared(self._node, gid, caller.role, caller.check, commit=commit)
        self._wait_for_standbys()

    def _wait_for_standbys(self) -> None:
        context = self._context
        level = context.parameters["synchronous_commit"]
        wait_for_standbys(self._node, level, context.notice, self._check_cancelled)

    def rollback(self) -> None:
        """Discard uncommitted changes, and release the locks."""
        self.snapshots.withdraw()
        try:
            self._transaction.rollback()
        finally:
            self._renew()
            self._definitions.end()

    def import_snapshot(self, name: str) -> None:
        """Let the transaction's later statements read an exported snapshot."""
        self.snapshots.use_exported(name)

    def savepoint(self, depth: int) -> None:
        """Set a savepoint in the transaction and the definitions."""
        self._transaction.savepoint(depth)
        self._definitions.savepoint(depth)

    def rollback_to(self, depth: int) -> None:
        """Return the transaction and the definitions to a savepoint."""
        self._transaction.rollback_to(depth)
        self._definitions.rollback_to(depth)

    def release(self, depth: int) -> None:
        """Forget a savepoint."""
        self._transaction.release(depth)
        self._definitions.release(depth)

    def _renew(self) -> None:
        self._transaction = LocalTransaction(
            self._node,
            TransactionKind.STATEMENT,
            self._check_cancelled,
            lambda: self._origin.mark,
        )

    def _commit_so_far(self) -> None:
        transaction, definitions = self._transaction, self._definitions
        if definitions.has_definitions:
            with self._job() as group:
                write = partial(transaction.commit, self._rendering(), group)
                definitions.commit(
                    self._check_cancelled,
                    transaction.xid,
                    write if transaction.has_written else None,
                )
            definitions.end()
        elif transaction.has_written:
            with self._job() as group:
                transaction.commit(self._rendering(), group)

    def become(self, role: str | None, *, authorization: bool) -> bool:
        """Change the session's role; ``SessionRoles`` has the rules."""
        return self._roles.become(role, authorization=authorization)

    def discard_sequences(self) -> None:
        """DISCARD SEQUENCES."""
        self._sequences.forget()

    def cancel(self) -> None:
        """End the running statement, wherever it runs."""
        self._cancelled.set()
        self._definitions.cancel(self._context.pid)
        with self._guard:
            group = self._running
        if group is not None:
            self._node.queries.cancel(group)

    def drop_temporary(self) -> None:
        """Drop the session's temporary slots."""
        if self._node.publishing is not None:
            self._node.publishing.slots.drop_temporary(self._context.pid)

    def close(self) -> None:
        """End the session. An open transaction has been rolled back already."""
        self._origin.end()
        self.drop_temporary()

    # ---- statements -----------------------------------------------------------------

    def describe(
        self, prepared: AnalysedStatement
    ) -> Sequence[FieldDescription] | None:
        """Return the result's columns without running the statement; None without a result."""
        statement = prepared.statement
        if isinstance(statement, OtherStatement) and statement.kind in _WRITES:
            resolver, zone = self._resolver, self._context.parameters["TimeZone"]
            return described_write(
                prepared.sql,
                prepared.param_oids,
                lambda: resolver(self._caller()),
                zone,
            )
        if not isinstance(statement, OtherStatement) or statement.kind not in QUERIES:
            if isinstance(statement, Explain):
                return plan_fields(statement)
            return ANSWERS.get(type(statement))
        nulls = tuple(BoundParameter(None, oid) for oid in prepared.param_oids)
        if prepared.system:
            return self._definitions.seen().describe(prepared.sql, nulls, self._context)
        query = self._translated(prepared.sql, nulls, self._resolver(self._caller()))
        return plain_fields(query) or fields_of(
            self._node.queries.describe(query.sql), query
        )

    def _run_other(
        self,
        caller: Caller,
        prepared: AnalysedStatement,
        statement: OtherStatement,
        bound: tuple[BoundParameter, ...],
        wanted: ValueFormats,
    ) -> Outcome:
        if statement.kind in QUERIES:
            if prepared.system:
                return self._definitions.seen().execute(
                    prepared.sql,
                    bound,
                    self._context,
                    wanted.formats,
                    perform=lambda request: self._perform(caller, request),
                )
            return self._query(caller, prepared.sql, bound, wanted)
        if statement.kind in _WRITES:
            self._refuse_in_read_only(statement.kind.name)
            self._definitions.refuse_writes()
            return self._write(caller, prepared.sql, bound, wanted.formats)
        if statement.kind is CommandKind.SET and is_set_constraints(prepared.sql):
            job, rendering = self._job(), self._rendering()
            return Outcome(
                set_constraints(
                    self._view, caller, self._transaction, prepared.sql, job, rendering
                )
            )
        raise FeatureNotSupportedError(
            f"{statement.command} is not supported by this version"
        )

    def _explain(
        self,
        caller: Caller,
        prepared: AnalysedStatement,
        statement: Explain,
        parameters: Sequence[Parameter],
    ) -> Outcome:
        resolver, seen = partial(self._resolver, caller), self._definitions.seen
        return explained(
            statement,
            StatementPlanner(self._view, self._context, caller, seen, resolver),
            bound_parameters(parameters, prepared.param_oids),
            lambda sql: self.prepare(sql, prepared.param_oids),
            lambda query: self.execute(query, parameters, ()),
        )

    def _copied_rows(self, caller: Caller, sql: str, options: CopyOptions) -> Outcome:
        query = self.prepare(sql, ())
        copied = query.statement
        if not (isinstance(copied, OtherStatement) and copied.kind in QUERIES):
            raise FeatureNotSupportedError("COPY query must be a SELECT")
        wanted = ValueFormats(copied=options.format)
        if query.system:
            wanted = ValueFormats(wanted.of(len(query.fields or ())))
        return self._run_other(caller, query, copied, (), wanted)

    def _copy_in(self, caller: Caller, statement: CopyFrom) -> Outcome:
        self._begin_filling("COPY FROM")
        return copied_in(
            self._view,
            self._transaction,
            self.snapshots.of_statement(),
            self._sequences.of_statement(caller.check),
            caller,
            statement,
            self._rendering(),
            self._context.parameters.raw("client_encoding"),
        )

    def _begin_filling(self, verb: str) -> None:
        self._refuse_in_read_only(verb)
        self._definitions.refuse_writes()
        if self._transaction.kind is TransactionKind.STATEMENT:
            self._transaction.kind = TransactionKind.PIPELINE

    def _perform(self, caller: Caller, request: FunctionRequest) -> object:
        """Run a function that a system query has called."""
        if request.function == "pg_export_snapshot":
            return self.snapshots.export()
        if request.function == "pg_logical_emit_message":
            self._definitions.refuse_writes()
            arguments: Sequence[Any] = request.arguments[1:]
            return emit(self._node, self._transaction.emit, *arguments)
        if request.function not in calls.READS:
            self._refuse_in_read_only(f"{request.function}()")
        if not caller.in_block and request.function not in calls.NUMBERS:
            self._commit_so_far()
        if request.function in calls.MAKE_SLOTS and self._transaction.assigned:
            raise UsageError(
                "cannot create logical replication slot in transaction that has performed"
                " writes",
                sqlstate="25001",
            )
        node = self._view if request.function in calls.SEQUENCES else self._node
        return calls.perform(node, caller, request.function, request.arguments)

    def _write(
        self,
        caller: Caller,
        sql: str,
        bound: tuple[BoundParameter, ...],
        formats: Sequence[Format],
    ) -> Outcome:
        once = partial(self._write_once, caller, sql, bound, formats)
        return analysed_again(self._transaction, once)

    def _write_once(
        self,
        caller: Caller,
        sql: str,
        bound: tuple[BoundParameter, ...],
        formats: Sequence[Format],
        reanalysed: bool,
    ) -> Outcome:
        zone = self._context.parameters["TimeZone"]
        transaction, used = self._transaction, Used()
        node, snapshot = self._view, self.snapshots.of_statement()
        with self._job() as group, self._sequences.of_statement(caller.check) as values:

            def target(table: TableDef, brings_keys: bool, moves: bool) -> TableDef:
                return transaction.targets(
                    [table], snapshot, group, brings_keys=brings_keys, moves=moves
                )[0]

            resolver = self._resolver(caller, used, snapshot, newest=reanalysed)
            write = translate_write(sql, resolver, bound, zone, target, values)
            used[write.table.oid] = (write.table, write.needs)
            check_tables(node.catalog, caller, used)
            check_writable(node, write.table, write.verb)

            rows = ReturnedRows(node, formats, self._rendering())

            def run(write: SparkWrite) -> int:
                def take(changed: ChangedRows) -> None:
                    values.finish(changed.proposed)
                    rows.take(write, changed, group)

                with values_hidden(node, caller, write.table):
                    count = transaction.run(write, self._rendering(), group, take)
                values.finish(count)
                return count

            return rows.outcome(run_dml(node, write, run), write)

    def _truncate(self, caller: Caller, statement: TruncateTable) -> str:
        self._refuse_in_read_only("TRUNCATE TABLE")
        once = partial(truncate, self._view, caller, statement, self._transaction)
        return analysed_again(
            self._transaction,
            lambda _: once(
                self.snapshots.of_statement(), self._job(), self._rendering()
            ),
        )

    def _query(
        self,
        caller: Caller,
        sql: str,
        bound: tuple[BoundParameter, ...],
        wanted: ValueFormats,
    ) -> Outcome:
        used = Used()
        # Two ways may resolve a name; ``cache`` keeps notices about its table from repeating.
        resolve = cache(self._resolver(caller, used))
        source: SparkQuery | FilteredRead | None = None
        if wanted.copied is not None:
            zone = self._context.parameters["TimeZone"]
            source = FilteredRead.of(self._node.tables, sql, resolve, zone)
        if source is None:
            source = self._translated(sql, bound, resolve)
        check_tables(self._view.catalog, caller, used)
        with ExitStack() as held:
            group = held.enter_context(self._job())
            # Until the last row the resolver keeps the snapshot, and so the versions' files.
            held.callback(resolve.cache_clear)
            return answered(
                self._node,
                source,
                wanted,
                self._rendering(),
                group,
                held,
                self._check_cancelled,
            )

    def _translated(
        self, sql: str, bound: tuple[BoundParameter, ...], resolver: Resolver
    ) -> SparkQuery:
        zone = self._context.parameters["TimeZone"]
        return translate_query(sql, resolver, bound, zone)

    def _refuse_in_read_only(self, verb: str) -> None:
        if self._context.parameters["transaction_read_only"] == "on":
            raise UsageError(
                f"cannot execute {verb} in a read-only transaction", sqlstate="25006"
            )
        refuse_to_write(AsOf.of(self._context.parameters), verb)

    @property
    def _view(self) -> EngineParts:
        """The node with what the transaction has defined."""
        return self._definitions.view

    @property
    def _in_block(self) -> bool:
        return self._transaction.kind is TransactionKind.BLOCK

    def _rendering(self) -> Rendering:
        return Rendering.of(self._context.parameters)

    # ---- names and jobs ----------------------------------------------------------------

    def _caller(self) -> Caller:
        context = self._context
        same = context.session_user == context.current_user
        return Caller(
            self._roles.named(context.current_user),
            context.notice,
            self._roles.search_path(),
            self._in_block,
            None if same else self._roles.named(context.session_user),
            context.parameters["TimeZone"],
            lambda: 1024 * context.parameters.number("logical_decoding_work_mem"),
            self._check_cancelled,
            context.pid,
            self._origin,
            self._sequences,
            block=self._definitions.block,
            lock_timeout_ms=lambda: context.parameters.number("lock_timeout"),
            number=self._transaction.numbered,
            holds_snapshot=lambda: self.snapshots.is_kept,
        )

    def fresh_check(self) -> Check:
        """Return the check that ends waits, for a statement that begins now and runs elsewhere."""
        self._cancelled.clear()
        return self._check_cancelled

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            # The session replaces this error by one that names the reason.
            raise UsageError("canceling statement", sqlstate="57014")

    def _resolver(
        self,
        caller: Caller,
        used: Used | None = None,
        snapshot: Snapshot | None = None,
        *,
        newest: bool = False,
    ) -> Resolver:
        """Return a resolver of table names, with the rules of ``table_names``."""
        # A description must not repeat the notices of the execution.
        notice = caller.notice if used is not None else lambda _: None
        past = PastVersions.seen(self._node, self._context.parameters, notice)
        begin = self.snapshots.of_statement if snapshot is None else lambda: snapshot
        return table_names(
            self._view, self._transaction, caller, begin, past, used, newest=newest
        )

    @contextmanager
    def _job(self) -> Iterator[str]:
        """Yield a statement's job group, which ``cancel`` uses while the statement runs."""
        group = f"session-{self._context.pid}-{next(self._numbers)}"
        with self._guard:
            self._running = group
        try:
            yield group
        finally:
            with self._guard:
                if self._running == group:
                    self._running = None
