"""``SystemCatalog``: catalog queries answered by an embedded SQL engine, in milliseconds.

Comes in: a query with bound parameters, and the session that asks. Goes out: RowDescription's
fields, and an ``Outcome`` with encoded rows. One per process, shared by all sessions and
guarded by a lock, which each query holds while it runs; results are small.

The engine is an in-memory DuckDB, opened at the first query. ``plans`` registers relations under
internal names, and keeps the plans of queries. A query that reads a relation makes its rows again
if the schema or the subscriptions, whichever it shows, have changed; moving views are made again
for each query. Catalog functions are Python functions, which see the running query's session in
``Call``. Privileges are checked at each execution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import duckdb
import pyarrow as pa

from wal2lake.catalog import Catalog
from wal2lake.errors import (
    FeatureNotSupportedError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.sql.backend import Outcome, SessionContext
from wal2lake.sql.query.results import Rendering, columns_in
from wal2lake.sql.query.translate import BoundParameter
from wal2lake.sql.sysviews.declarations.relations import (
    INFORMATION_SCHEMA,
    PG_CATALOG,
    SystemRelation,
)
from wal2lake.sql.sysviews.functions.call import AnswerNeeded, Call, FunctionRequest
from wal2lake.sql.sysviews.functions.pg_proc import (
    FUNCTIONS,
    Function,
    internal_name,
)
from wal2lake.sql.sysviews.plans import QueryPlan, QueryPlans
from wal2lake.sql.sysviews.query import limits
from wal2lake.sql.sysviews.query.failures import converted, translated_error
from wal2lake.sql.sysviews.query.results import printable
from wal2lake.sql.sysviews.query.rewrite import (
    Translated,
    internal_relation,
    translate,
)
from wal2lake.sql.sysviews.rows.cluster import CLUSTER_ROWS
from wal2lake.sql.sysviews.rows.facts import SECRET, Facts, build_facts
from wal2lake.sql.sysviews.rows.information_schema import INFORMATION_ROWS
from wal2lake.sql.sysviews.rows.log import LOG_ROWS
from wal2lake.sql.sysviews.rows.problems import PROBLEM_ROWS, VERIFICATION_ROWS
from wal2lake.sql.sysviews.rows.publications import PUBLICATION_ROWS
from wal2lake.sql.sysviews.rows.publishing import PUBLISHING_ROWS
from wal2lake.sql.sysviews.rows.relations import RELATION_ROWS, Row
from wal2lake.sql.sysviews.rows.replication import (
    GUARDED,
    LIVE_ROWS,
    SUBSCRIPTION_ROWS,
    Moment,
    Replication,
    read_replication,
)
from wal2lake.sql.sysviews.rows.sequences import MOVING_SEQUENCES, SEQUENCE_ROWS
from wal2lake.sql.sysviews.source import CatalogSource
from wal2lake.wire.frontback import FieldDescription, Format

_SETTINGS: Final = {
    "threads": 1,
    "memory_limit": "256MB",
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}
"""Catalog queries are small; with one thread the Python functions run in the caller's thread. Any
client may query, so the engine reaches no file, no network and no variable of this process."""


_MOVING_ROWS: Final = {
    **LIVE_ROWS,
    **LOG_ROWS,
    **PUBLISHING_ROWS,
    **MOVING_SEQUENCES,
    **PROBLEM_ROWS,
}
"""Views whose rows are made for each query."""

_STATE_ROWS: Final = {**SUBSCRIPTION_ROWS, **VERIFICATION_ROWS}
"""Views whose rows change with the catalog's counter."""


def _moves(relation: SystemRelation) -> bool:
    """Whether the rows of a relation may differ between queries while the catalog is the same."""
    if relation.schema == INFORMATION_SCHEMA:
        return False
    return relation.name in _MOVING_ROWS or relation.name in GUARDED


class _Unknown(dict[FunctionRequest, object]):
    """Answers for a query that is only described: every answer is null."""

    def __contains__(self, request: object) -> bool:
        return True

    def __missing__(self, request: FunctionRequest) -> object:
        return None


def _refuse(request: FunctionRequest) -> None:
    raise FeatureNotSupportedError(f"{request.function}() is not supported here")


class SystemCatalog:
    """Answers catalog queries. Thread-safe; queries take turns."""

    def __init__(self, source: CatalogSource) -> None:
        """Open nothing before the first query."""
        self._source = source
        self._lock = threading.Lock()
        self._connection: Any = None
        self._plans: QueryPlans | None = None
        self._counter: int | None = None
        self._schema: tuple[object, ...] | None = None
        self._facts: Facts | None = None
        self._replication: Replication | None = None
        self._schema_version = 0
        self._state_version = 0
        self._call: Call | None = None
        self._calls = 0
        """Number of calls of catalog functions."""
        self._running: int | None = None

    def over(self, catalog: Catalog) -> SystemCatalog:
        """Return another object for the same node with the facts of this catalog."""
        return SystemCatalog(self._source.over(catalog))

    def describe(
        self, sql: str, parameters: Sequence[BoundParameter], context: SessionContext
    ) -> tuple[FieldDescription, ...]:
        """Return the result's columns without running the query."""
        key = sql, tuple(parameters)
        query = translate(*key)
        with self._lock:
            return self._planned(key, query, context)[0].fields

    def relations(
        self, sql: str, parameters: Sequence[BoundParameter], context: SessionContext
    ) -> list[str]:
        """Return the names of the relations that the query reads, without running it."""
        key = sql, tuple(parameters)
        query = translate(*key)
        with self._lock:
            self._planned(key, query, context)
        return sorted(relation.name for relation in query.relations)

    def execute(
        self,
        sql: str,
        parameters: Sequence[BoundParameter],
        context: SessionContext,
        formats: Sequence[Format] = (),
        perform: Callable[[FunctionRequest], object] = _refuse,
    ) -> Outcome:
        """Run the query; the outcome has one batch with all rows.

        ``perform`` carries out the requests of its functions when the lock is free: afterwards, or
        before the query runs again with the answer. Moving views are read once, so that an effect
        of the query does not remove the rows that caused it."""
        key = sql, tuple(parameters)
        # Before the lock, as it takes long for a long text.
        query = translate(*key)
        answers: dict[FunctionRequest, object] = {}
        read: dict[str, pa.Table] = {}
        while True:
            try:
                return self._execute(
                    key, query, context, formats, perform, answers, read
                )
            except AnswerNeeded as needed:
                answers[needed.request] = perform(needed.request)

    def _execute(
        self,
        key: Hashable,
        query: Translated,
        context: SessionContext,
        formats: Sequence[Format],
        perform: Callable[[FunctionRequest], object],
        answers: Mapping[FunctionRequest, object],
        read: dict[str, pa.Table],
    ) -> Outcome:
        with self._lock:
            self._running = context.pid
            try:
                plan, moment = self._planned(key, query, context)
                fields = plan.fields
                for relation in query.relations:
                    self._ensure(relation, moment, read)
                plans = self._open()
                # What is called meanwhile has no effect, and its answer is not kept.
                self._call, before = self._call_of(moment, _Unknown()), self._calls
                self._guarded(
                    query,
                    lambda: plans.prepare(plan, lambda: self._calls > before),
                )
                self._call = call = self._call_of(moment, answers)
                for clause, count in query.counts:
                    value = self._guarded(query, partial(plans.value, count))
                    limits.refuse_negative(clause, value)
                table = self._guarded(query, lambda: plans.run(plan))
                with converted():
                    table = printable(table, fields, formats, call)
            finally:
                self._running = None
        for request in call.requests:
            perform(request)
        rendering = Rendering.of(context.parameters)
        with converted():
            batch = columns_in(table, fields, formats, rendering)
        return Outcome("SELECT", fields, iter((batch,)))

    def query(
        self,
        sql: str,
        parameters: Sequence[BoundParameter],
        context: SessionContext,
    ) -> tuple[tuple[FieldDescription, ...], list[tuple[str | None, ...]]]:
        """Run the query and return rows in PostgreSQL's text format, for callers without a wire."""
        outcome = self.execute(sql, parameters, context)
        rows: list[tuple[str | None, ...]] = []
        for batch in outcome.batches:
            columns = [
                [None if v is None else v.decode() for v in column]
                for column in batch.columns
            ]
            rows.extend(zip(*columns, strict=True) if columns else [()] * batch.rows)
        assert outcome.fields is not None
        return outcome.fields, rows

    def cancel(self, pid: int) -> None:
        """End the running query if it is this session's; called from another thread."""
        if self._running == pid and self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Close the engine; a later query opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._plans = None
            self._call = None

    # ---- one query, under the lock -------------------------------------------------------

    def _planned(
        self, key: Hashable, query: Translated, context: SessionContext
    ) -> tuple[QueryPlan, Moment]:
        """Return the plan of a query, and the facts that it runs with. ``key`` identifies it.

        Raises an error if the session may not read one of the query's relations."""
        plans = self._open()
        facts, replication = self._refresh()
        moment = Moment(facts, replication, self._source, context)
        for relation in query.relations:
            _check_readable(relation, moment)
        self._call = self._call_of(moment, _Unknown())
        plan = self._guarded(query, lambda: plans.plan(key, query))
        if query.misplaced is not None:
            raise UsageError(query.misplaced, sqlstate="42809")
        return plan, moment

    def _call_of(
        self, moment: Moment, answers: Mapping[FunctionRequest, object]
    ) -> Call:
        now = datetime.now(UTC)
        return Call(moment.facts, self._source, moment.context, now, answers=answers)

    def _open(self) -> QueryPlans:
        if self._plans is None:
            connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
            connection.execute("set TimeZone = 'UTC'")
            connection.execute("set lock_configuration = true")
            for (name, count), function in FUNCTIONS.items():
                _register(connection, internal_name(name, count), count, function, self)
            self._connection, self._plans = connection, QueryPlans(connection, _moves)
        return self._plans

    def _refresh(self) -> tuple[Facts, Replication]:
        """Read the source if its counter has changed; increase the version of what differs."""
        counter = self._source.change_counter
        if (
            self._facts is not None
            and self._replication is not None
            and counter == self._counter
        ):
            return self._facts, self._replication
        source = self._source
        schema = (
            tuple(source.roles()),
            tuple(source.namespaces()),
            tuple(source.tables()),
            tuple(source.comments()),
            tuple(source.role_members()),
            source.database_acl(),
            tuple(source.publications()),
            tuple(source.sequences()),
            tuple(source.indexes()),
        )
        if schema != self._schema:
            self._facts = build_facts(*schema)
            self._schema = schema
            self._schema_version += 1
        replication = read_replication(source, schema[2])
        if replication != self._replication:
            self._replication = replication
            self._state_version += 1
        self._counter = counter
        assert self._facts is not None and self._replication is not None
        return self._facts, self._replication

    def _ensure(
        self, relation: SystemRelation, moment: Moment, read: dict[str, pa.Table]
    ) -> None:
        """Make a relation's rows unless the engine has the current ones."""
        rows, version = self._rows(relation, moment)
        plans = self._open()
        held = plans.registered(relation)
        if version is not None:
            if held.version != version:
                plans.hold(relation, held.form.table(rows()), version)
            return
        name = internal_relation(relation)
        if name not in read:
            read[name] = held.form.table(rows())
        plans.hold(relation, read[name], None)

    def _rows(
        self, relation: SystemRelation, moment: Moment
    ) -> tuple[Callable[[], Iterable[Row]], int | None]:
        """Return a function that makes a relation's rows, and the version of the rows; None: each
        query has its own rows."""
        name = relation.name
        if relation.schema == INFORMATION_SCHEMA:
            maker = INFORMATION_ROWS.get(name) or SEQUENCE_ROWS.get(name)
        else:
            maker = (
                RELATION_ROWS.get(name)
                or CLUSTER_ROWS.get(name)
                or PUBLICATION_ROWS.get(name)
                or SEQUENCE_ROWS.get(name)
            )
            moving = _MOVING_ROWS.get(name)
            if moving is not None:
                return (lambda: moving(moment)), None
            state = _STATE_ROWS.get(name)
            if state is not None and name in GUARDED and not moment.sees_all(name):
                return (lambda: state(moment.guarded())), None
            if state is not None:
                return (lambda: state(moment.state)), self._state_version
        if maker is None or relation.schema not in (PG_CATALOG, INFORMATION_SCHEMA):
            return tuple, 0
        return (lambda: maker(moment.facts)), self._schema_version

    def _guarded(self, query: Translated, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except duckdb.Error as error:
            failure = None if self._call is None else self._call.failure
            raise failure or translated_error(error, query.calls) from None


# The engine looks at a typed function's own parameters to count its arguments.
_ARITIES: Final[tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...]] = (
    lambda run: lambda: run(),
    lambda run: lambda a: run(a),
    lambda run: lambda a, b: run(a, b),
    lambda run: lambda a, b, c: run(a, b, c),
)


def _register(
    connection: Any, name: str, count: int, function: Function, owner: SystemCatalog
) -> None:
    """Register a catalog function with the engine."""
    implementation = function.implementation

    def run(*arguments: Any) -> Any:
        call = owner._call
        assert call is not None
        owner._calls += 1
        try:
            return implementation(call, *arguments)
        except Wal2LakeError as error:
            call.failure = error
            raise

    untyped = "ANY" in function.parameters
    connection.create_function(
        name,
        run if untyped and count else _ARITIES[count](run),
        None if untyped else list(function.parameters),
        function.returns,
        null_handling="special",
        side_effects=function.changes,
    )


def _check_readable(relation: SystemRelation, moment: Moment) -> None:
    """Raise 42501 if only superusers may read the relation."""
    if (relation.schema, relation.name) not in SECRET:
        return
    if not moment.facts.authority.is_superuser(moment.role):
        word = "view" if relation.kind == "v" else "table"
        raise UsageError(
            f"permission denied for {word} {relation.name}", sqlstate="42501"
        )
