"""Refuses a column definition that has more than one source of values (SQLSTATE 42601).

A column takes its values from a default, an identity or a generation expression. Comes in: the
column as read so far, and the word that begins the next clause. Goes out: nothing, or PostgreSQL's
error. Called by ``table`` while it reads a column. Source: transformColumnDefinition() in
parse_utilcmd.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import SqlSyntaxError
from wal2lake.sql.grammar.lexer import Token, syntax_error
from wal2lake.sql.grammar.statements import ColumnClause

_DEFAULT_AND_GENERATION: Final = "both default and generation expression specified"
_IDENTITY_AND_GENERATION: Final = "both identity and generation expression specified"


def check_one_source(table: str, column: ColumnClause, word: Token) -> None:
    """Raise if a DEFAULT or identity clause would be the column's second source of values."""
    is_default = word.is_word("default")
    if column.generated is not None:
        text = _DEFAULT_AND_GENERATION if is_default else _IDENTITY_AND_GENERATION
    elif column.sequence is None:
        return
    elif column.sequence.identity:
        text = "multiple identity specifications"
        text = "both default and identity specified" if is_default else text
    else:
        text = "multiple default values specified"
    raise _several_sources(text, table, column, word)


def check_generation(
    table: str, column: ColumnClause, word: Token, *, has_default: bool
) -> None:
    """Raise if a generation expression would be the column's second source of values.

    ``has_default`` is true for a column with DEFAULT and for a serial column.
    """
    if column.generated is not None:
        text = "multiple generation clauses specified"
    elif column.sequence is not None and column.sequence.identity:
        text = _IDENTITY_AND_GENERATION
    elif has_default:
        text = _DEFAULT_AND_GENERATION
    else:
        return
    raise _several_sources(text, table, column, word)


def _several_sources(
    text: str, table: str, column: ColumnClause, word: Token
) -> SqlSyntaxError:
    return syntax_error(
        f'{text} for column "{column.name}" of table "{table}"', word.start
    )
