"""Finds out which part of the node would answer a statement, and asks it for its plan.

Takes an analysed statement; returns its plan. The privileges are checked as if the statement ran.
Called by ``lakebackend``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from wal2lake.commands.publication.dependents import check_writable
from wal2lake.engine.session.analysedstatements import QUERIES, AnalysedStatement
from wal2lake.engine.session.explain.planning import (
    catalog_plan,
    query_plan,
    write_plan,
)
from wal2lake.engine.session.explain.rendering import PlanNode
from wal2lake.engine.session.parametertypes import sample_values
from wal2lake.engine.session.tablenames import Used
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.local.access import check_tables
from wal2lake.local.node import Caller, EngineParts
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.grammar.explaining import ExplainOptions
from wal2lake.sql.grammar.lexer import command_name
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement
from wal2lake.sql.query.translate import BoundParameter, Resolver, translate_query
from wal2lake.sql.query.writes import translate_write
from wal2lake.sql.sysviews import SystemCatalog

_WRITES: Final = (CommandKind.INSERT, CommandKind.UPDATE, CommandKind.DELETE)


@dataclass(frozen=True, slots=True)
class StatementPlanner:
    """Plans statements of one session, as it sees the node now."""

    node: EngineParts
    """The node with what the transaction has defined."""
    context: SessionContext
    caller: Caller
    system: Callable[[], SystemCatalog]
    resolver: Callable[[Used], Resolver]

    def plan(
        self,
        query: AnalysedStatement,
        bound: tuple[BoundParameter, ...],
        options: ExplainOptions,
    ) -> PlanNode:
        """Return the plan of a statement."""
        statement, sql = query.statement, query.sql
        if not isinstance(statement, OtherStatement) or (
            statement.kind not in (*QUERIES, *_WRITES)
        ):
            raise FeatureNotSupportedError(
                f"EXPLAIN of {command_name(sql)} is not supported"
            )
        if query.system:
            return catalog_plan(self.system().relations(sql, bound, self.context))
        used = Used()
        resolve = cache(self.resolver(used))
        zone = self.context.parameters["TimeZone"]
        if statement.kind in QUERIES:
            translated = translate_query(sql, resolve, bound, zone)
            check_tables(self.node.catalog, self.caller, used)
            return query_plan(self.node, translated, options)
        write = translate_write(sql, resolve, bound, zone, next_values=sample_values)
        used[write.table.oid] = (write.table, write.needs)
        check_tables(self.node.catalog, self.caller, used)
        check_writable(self.node, write.table, write.verb)
        ref = resolve(write.table.namespace, write.table.name)
        return write_plan(self.node, write, ref, options)
