"""42601: a column's values come from more than one place.

In: a column as far as it has been read, and the word that begins one more clause. Out: nothing, or
PostgreSQL's error. Source: transformColumnDefinition() in parse_utilcmd.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import SqlSyntaxError
from wal2lake.frontend.grammar.lexer import Token, syntax_error
from wal2lake.frontend.grammar.statements import ColumnClause

_DEFAULT_AND_GENERATION: Final = "both default and generation expression specified"
_IDENTITY_AND_GENERATION: Final = "both identity and generation expression specified"


def check_one_source(table: str, column: ColumnClause, word: Token) -> None:
    """Of DEFAULT and of an identity."""
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
    raise _several(text, table, column, word)


def check_generation(
    table: str, column: ColumnClause, word: Token, *, has_default: bool
) -> None:
    """Of a generation expression; ``has_default``: as serial columns have."""
    if column.generated is not None:
        text = "multiple generation clauses specified"
    elif column.sequence is not None and column.sequence.identity:
        text = _IDENTITY_AND_GENERATION
    elif has_default:
        text = _DEFAULT_AND_GENERATION
    else:
        return
    raise _several(text, table, column, word)


def _several(
    text: str, table: str, column: ColumnClause, word: Token
) -> SqlSyntaxError:
    return syntax_error(
        f'{text} for column "{column.name}" of table "{table}"', word.start
    )
