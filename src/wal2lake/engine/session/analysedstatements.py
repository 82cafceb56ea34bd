"""Statements that are analysed: prepared ones, the results of writes before they run, and another
analysis if a table has changed.

Called by ``lakebackend``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from wal2lake.engine.rows.returned import returned_fields
from wal2lake.engine.session.parametertypes import sample_values
from wal2lake.errors import FeatureNotSupportedError, Wal2LakeError
from wal2lake.lake import CommitConflict
from wal2lake.local.transaction.local import DefinitionChanged, LocalTransaction
from wal2lake.sql.grammar.parser import ParsedStatement
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement
from wal2lake.sql.query.translate import BoundParameter, Resolver
from wal2lake.sql.query.writes import translate_write
from wal2lake.sql.sysviews import QueryRoute, calls_functions, route_of
from wal2lake.wire.frontback import FieldDescription

QUERIES: Final = (CommandKind.SELECT, CommandKind.VALUES, CommandKind.TABLE)

_ANALYSES: Final = 5
"""Limit of analyses of one statement, if its tables are altered again and again."""

T = TypeVar("T")


def described_write(
    sql: str, oids: Sequence[int], resolver: Callable[[], Resolver], zone: str
) -> tuple[FieldDescription, ...] | None:
    """Return the fields of a statement's RETURNING; None without one."""
    if "returning" not in sql.lower():
        return None
    nulls = tuple(BoundParameter(None, oid) for oid in oids)
    write = translate_write(sql, resolver(), nulls, zone, next_values=sample_values)
    returning = None if write.by_rows is None else write.by_rows.returning
    return None if returning is None else returned_fields(returning)


def is_of_catalogs(
    sql: str, statement: ParsedStatement, translate: Callable[[], object]
) -> bool:
    """Whether the embedded SQL engine answers a statement.

    ``translate``: analyses the query as one on lake tables."""
    if not isinstance(statement, OtherStatement) or statement.kind not in QUERIES:
        return False
    route = route_of(sql)
    if route is not QueryRoute.EITHER:
        return route is QueryRoute.CATALOGS
    try:
        translate()
    except FeatureNotSupportedError:
        # The lake's analysis has no rules for the query.
        return calls_functions(sql)
    except Wal2LakeError:
        # The analysis reports the error as PostgreSQL does.
        return False
    return False


@dataclass(slots=True)
class AnalysedStatement:
    """A prepared statement (the port's ``Prepared``)."""

    sql: str
    statement: ParsedStatement
    param_oids: Sequence[int]
    describe: Callable[[AnalysedStatement], Sequence[FieldDescription] | None]
    system: bool
    """Whether the embedded SQL engine answers it."""
    _fields: Sequence[FieldDescription] | None = field(default=None)
    _described: bool = False

    @property
    def fields(self) -> Sequence[FieldDescription] | None:
        """The result's fields, computed when first read."""
        if not self._described:
            self._fields = self.describe(self)
            self._described = True
        return self._fields


def analysed_again(transaction: LocalTransaction, statement: Callable[[bool], T]) -> T:
    """Run a statement; if a table was altered between analysis and locks, analyse it again.

    PostgreSQL does the same. The argument of ``statement`` is True then."""
    for attempt in range(_ANALYSES):
        try:
            return statement(attempt > 0)
        except DefinitionChanged:
            if transaction.has_written:
                break
            transaction.rollback()
    raise CommitConflict(
        "could not serialize access due to concurrent update",
        detail="A table is being altered.",
        hint="The transaction might succeed if retried.",
    )
