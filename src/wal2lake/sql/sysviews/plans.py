"""Plans of catalog queries, kept for the next execution of the same text.

Comes in: the embedded engine's connection, and queries that ``rewrite`` has translated. Goes out: a
query's fields, and its rows as an Arrow table. ``SystemCatalog`` calls this under its lock.

Monitoring clients send the same few texts again and again. Parsing and planning such a text costs
the engine several times what its execution costs, so a query that comes again becomes a prepared
statement of the engine. A query that comes once is not worth that. The rows of a relation are
registered in one of two forms:

    rows change with the catalog     an Arrow table, registered again with other rows. The engine
                                     plans by the number of rows. A plan keeps the old rows, so
                                     statements that read the relation are prepared again.
    rows are made for each query     an object that exports whatever rows it holds when a query
                                     runs (``MovingRows``). It is registered once.

A query's fields stay valid as long as the engine is open: the columns of relations are declared.

A plan must not contain an answer. The engine evaluates a call of constants when it plans, for
instance ``'public.t'::regclass``, and the plan then has the OID of that moment. Such a query is
planned again by each execution (``Translated.lasts``). So is a query whose preparation has called a
catalog function for any other reason.
"""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from wal2lake.sql.grammar.remembered import LONGEST
from wal2lake.sql.sysviews.arrow_table import ArrowForm
from wal2lake.sql.sysviews.declarations.relations import SystemRelation
from wal2lake.sql.sysviews.query.results import fields_of
from wal2lake.sql.sysviews.query.rewrite import Translated, internal_relation
from wal2lake.wire.frontback import FieldDescription

_PLANS: Final = 128
"""Limit of kept plans. psql, pgcli, drivers and exporters together send fewer texts."""

_COPY_WARNING: Final = "Arrow output on a DB-API result makes an extra copy"
"""The engine warns about results of prepared statements; results of catalog queries are small."""


class MovingRows:
    """Rows in the form in which the engine reads registered objects. Each query replaces them."""

    __slots__ = ("_schema", "table")

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.table: pa.Table = schema.empty_table()

    def __arrow_c_schema__(self) -> object:
        """Export the columns: the engine asks when it plans a query."""
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows: the engine asks each time a query runs."""
        return self.table.__arrow_c_stream__(requested_schema)


class RegisteredRelation:
    """A system relation under its name in the engine, with its present rows."""

    __slots__ = ("_connection", "_moving", "_name", "form", "version")

    def __init__(self, connection: Any, relation: SystemRelation, moves: bool) -> None:
        self._connection = connection
        self._name = internal_relation(relation)
        self.form = ArrowForm(relation)
        self.version: int | None = None
        """Version of the facts that the rows were made from; None: no later query may use them."""
        self._moving: MovingRows | None = None
        if moves:
            self._moving = MovingRows(self.form.schema)
            connection.register(self._name, self._moving)
        else:
            self.hold(self.form.table(()), None)

    @property
    def moves(self) -> bool:
        """Whether the rows are made for each query."""
        return self._moving is not None

    def hold(self, table: pa.Table, version: int | None) -> None:
        """Replace the rows. Plans of queries do not see other rows of a relation that does not
        move."""
        self.version = version
        if self._moving is None:
            self._connection.register(self._name, table)
        else:
            self._moving.table = table


@dataclass(slots=True)
class QueryPlan:
    """A query that the engine has bound, and perhaps prepared."""

    query: Translated
    fields: tuple[FieldDescription, ...]
    relation: Any
    """The engine's relation, which is planned by each run."""
    lasts: bool
    """Whether the query may be prepared."""
    is_repeated: bool = False
    """Whether the query has run before."""
    statement: str | None = None
    """Name of the prepared statement."""


class QueryPlans:
    """The registered relations and the plans of one connection of the engine."""

    def __init__(
        self, connection: Any, moves: Callable[[SystemRelation], bool]
    ) -> None:
        """``moves``: whether a relation's rows are made for each query."""
        self._connection = connection
        self._moves = moves
        self._relations: dict[str, RegisteredRelation] = {}
        self._plans: OrderedDict[Hashable, QueryPlan] = OrderedDict()
        self._numbers = itertools.count(1)
        warnings.filterwarnings("ignore", _COPY_WARNING, UserWarning)

    def __len__(self) -> int:
        return len(self._plans)

    def registered(self, relation: SystemRelation) -> RegisteredRelation:
        """Return the relation as the engine has it; the first call registers it without rows."""
        name = internal_relation(relation)
        registration = self._relations.get(name)
        if registration is None:
            moves = self._moves(relation)
            registration = RegisteredRelation(self._connection, relation, moves)
            self._relations[name] = registration
        return registration

    def hold(
        self, relation: SystemRelation, table: pa.Table, version: int | None
    ) -> None:
        """Replace a relation's rows; ``version`` as in ``RegisteredRelation``."""
        registered = self.registered(relation)
        if not registered.moves:
            for plan in self._plans.values():
                if relation in plan.query.relations:
                    self._deallocate(plan)
        registered.hold(table, version)

    def plan(self, key: Hashable, query: Translated) -> QueryPlan:
        """Return the plan of a query, which ``key`` identifies. Raises the engine's errors."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
            return plan
        for relation in query.relations:
            self.registered(relation)
        bound = self._connection.sql(query.sql)
        fields = fields_of(query.outputs, bound.columns, bound.types)
        plan = QueryPlan(query, fields, bound, query.lasts)
        if len(query.sql) > LONGEST:
            plan.lasts = False
            return plan
        self._plans[key] = plan
        if len(self._plans) > _PLANS:
            self._deallocate(self._plans.popitem(last=False)[1])
        return plan

    def prepare(self, plan: QueryPlan, has_called: Callable[[], bool]) -> None:
        """Prepare a query that has run before, unless its plan has an answer in it.

        ``has_called``: whether the engine has called a function since ``prepare`` was called."""
        if not (plan.lasts and plan.is_repeated) or plan.statement is not None:
            return
        name = f"plan_{next(self._numbers)}"
        try:
            self._connection.execute(f"prepare {name} as {plan.query.sql}")
        except duckdb.InterruptException:
            raise
        except duckdb.Error:
            # Each execution reports the error, which may depend on the state of the node.
            plan.lasts = False
            return
        plan.statement = name
        if has_called():
            self._deallocate(plan)
            plan.lasts = False

    def run(self, plan: QueryPlan) -> pa.Table:
        """Execute a query with the rows that its relations hold now."""
        plan.is_repeated = True
        if plan.statement is None:
            return plan.relation.to_arrow_table()
        return self._connection.execute(f"execute {plan.statement}").to_arrow_table()

    def value(self, sql: str) -> object:
        """Return the value of a query that has one row and one column."""
        rows: Sequence[Sequence[object]] = self._connection.sql(sql).fetchall()
        return rows[0][0]

    def _deallocate(self, plan: QueryPlan) -> None:
        name, plan.statement = plan.statement, None
        if name is not None:
            self._connection.execute(f"deallocate {name}")
