"""The texts of column defaults, as pg_get_expr() shows them.

Comes in: a column with the default that a statement gives it. Goes out: the column with the text
that PostgreSQL would show: constants with their types, operators in parentheses, the names of
value functions in capitals. A default of a followed source comes in that form already.

The expression is typed like that of a generated column (``publication.filters``). A default with
an expression that is not computed here keeps its text.

Source: cookDefault() in heap.c; get_const_expr() in ruleutils.c.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import pyarrow as pa

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.publication.filters import analyse_generation
from wal2lake.errors import Wal2LakeError
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.decode.conversion import Failures
from wal2lake.pgtypes.decode.inputs import has_input, read_as
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.expressions import assignable, deparse
from wal2lake.pgtypes.expressions.values import SUPPORTED
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.grammar import quote_identifier, quote_literal
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind
from wal2lake.sql.grammar.publishing.expressions import (
    RawExpression,
    RawExpressionKind,
    expression,
)
from wal2lake.sql.query.writes import check_default

_VALUE_FUNCTIONS: Final = frozenset(
    (
        *("current_date", "current_time", "current_timestamp", "current_user"),
        *("current_role", "current_catalog", "current_schema", "localtime"),
        *("localtimestamp", "session_user", "user"),
    )
)
"""Functions without parentheses that pg_get_expr() shows in capitals."""

_INTERVAL: Final = 1186

_PLAIN_ARRAY: Final = re.compile(r'\{[^\s"\\{}]*\}')
"""An array's text that its output function does not change, for most types of elements."""


def with_shown_default(column: ColumnDef, zone: str) -> ColumnDef:
    """Return the column with its default as PostgreSQL shows it."""
    if column.default is None or column.sequence is not None:
        return column
    if column.default.lower() in _VALUE_FUNCTIONS:
        return replace(column, default=column.default.upper())
    try:
        text = _shown(column, column.default, zone)
        shown = replace(column, default=text)
        if text == f"NULL::{format_type(column.type_oid)}":
            return replace(column, default=None)
        if text != column.default:
            check_default(shown, zone)
    except Wal2LakeError:
        # Whether the column can have such a default is checked elsewhere.
        return column
    return shown


def _shown(column: ColumnDef, text: str, zone: str) -> str:
    cursor = TokenCursor(text)
    raw = expression(cursor)
    if cursor.token.kind is not TokenKind.END:
        return text
    if column.type_oid not in SUPPORTED:
        return _shown_constant(column, raw) or text
    table = TableDef(INVALID_OID, "", "", INVALID_OID, (), (), "", None)
    tree, _ = analyse_generation(raw, table, zone, column.type_oid)
    if not assignable(tree.type_oid, column.type_oid):
        return text
    assigned = (column.type_oid, column.typmod)
    return deparse(tree, (), quote_identifier, assigned=assigned)


def _shown_constant(column: ColumnDef, raw: RawExpression) -> str | None:
    """A string constant of a type that no expression is computed with; None: it is none."""
    oid = int(column.type_oid)
    if raw.kind is not RawExpressionKind.STRING:
        return None
    pg_type = type_by_oid(oid)
    if pg_type is not None and pg_type.is_array and _PLAIN_ARRAY.fullmatch(raw.word):
        return f"{quote_literal(raw.word).strip()}::{format_type(column.type_oid)}"
    if oid == _INTERVAL:
        shown = str(interval_of(raw.word, column.typmod))
        kind = format_type(column.type_oid, column.typmod)
        return f"{quote_literal(shown).strip()}::{kind}"
    if not has_input(oid):
        return None
    failures = Failures()
    (value,) = read_as(pa.array([raw.word]), oid, column.typmod, failures).to_pylist()
    if value is None:
        return None
    return f"{quote_literal(value).strip()}::{format_type(column.type_oid)}"
