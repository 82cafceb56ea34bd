"""Types of a statement's parameters that the client leaves open; and parameters as text.

Takes a query or a write as text, and the OIDs that the client states; returns the OID of each
parameter. A write that names a missing table or column, or has an unsupported clause, is refused
here, since the client might be unable to send its values as the types found so far. Errors of other
statements are reported when the statement is described or run. Parameters without a type by then
are text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from wal2lake.catalog import ColumnDef
from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes.params import binary_param_to_text
from wal2lake.sql.backend import Parameter
from wal2lake.sql.grammar.copying import CopyFrom, CopyTo
from wal2lake.sql.grammar.lexer import parameter_count
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement
from wal2lake.sql.query.changes.stored import SequenceRange
from wal2lake.sql.query.translate import BoundParameter, Resolver, translate_query
from wal2lake.sql.query.values.undetermined import Undetermined
from wal2lake.sql.query.writeparsing import written_tree
from wal2lake.sql.query.writes import translate_write
from wal2lake.sql.sysviews.query.rewrite import determine_parameters
from wal2lake.wire.frontback import Format

_TEXT_OID: Final = 25

_NO_SUCH_NAME: Final = ("42P01", "42703")

_WRITES: Final = (CommandKind.INSERT, CommandKind.UPDATE, CommandKind.DELETE)


def sample_values(column: ColumnDef, count: int | None) -> SequenceRange:
    """Return made-up sequence values for an analysis, which takes none."""
    return SequenceRange(1, 1, 1 if count is None else count, "")


def stated_types(sql: str, statement: object, oids: Sequence[int]) -> list[int]:
    """Return the OID that the client states for each parameter of the statement; 0: none."""
    # As in PostgreSQL, the query of a COPY is analysed only when it runs.
    used = 0 if isinstance(statement, CopyTo | CopyFrom) else parameter_count(sql)
    return [*oids, *[0] * (used - len(oids))]


def parameter_types(
    sql: str,
    statement: object,
    oids: Sequence[int],
    resolver: Callable[[], Resolver],
    zone: str,
    system: bool,
) -> list[int]:
    """Return each parameter's OID. ``oids``: 0 if not stated; ``system``: a catalog query."""
    cells = [Undetermined() for _ in oids]
    parameters = tuple(
        BoundParameter(None, oid, None if oid else cell)
        for oid, cell in zip(oids, cells, strict=True)
    )
    writes = isinstance(statement, OtherStatement) and statement.kind in _WRITES
    if writes:
        written_tree(sql)
    try:
        if system:
            determine_parameters(sql, parameters)
        elif writes:
            translate_write(
                sql, resolver(), parameters, zone, next_values=sample_values
            )
        elif isinstance(statement, OtherStatement):
            translate_query(sql, resolver(), parameters, zone)
    except Wal2LakeError as error:
        if writes and error.sqlstate in _NO_SUCH_NAME:
            raise
    return [oid or cell.oid or _TEXT_OID for oid, cell in zip(oids, cells, strict=True)]


def bound_parameters(
    parameters: Sequence[Parameter], oids: Sequence[int]
) -> tuple[BoundParameter, ...]:
    """Return the values that a client has sent, as text, with their types."""
    return tuple(
        BoundParameter(_text_of(p, oid), oid)
        for p, oid in zip(parameters, oids, strict=True)
    )


def _text_of(parameter: Parameter, type_oid: int) -> str | None:
    if parameter.value is None:
        return None
    if parameter.format == Format.BINARY:
        return binary_param_to_text(type_oid, parameter.value)
    return parameter.value.decode()
