"""Parses CREATE TABLE AS and SELECT ... INTO.

    CREATE TABLE [IF NOT EXISTS] name [(column, ...)] [WITH (...)] AS query [WITH [NO] DATA]
    [WITH ...] SELECT ... INTO [TABLE] name ...

Takes: a cursor behind the table's name, or the text of a SELECT. Gives: a ``CreateTableAs`` value,
whose query is text.

Source: gram.y, CreateAsStmt and into_clause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import Token, TokenKind, tokens
from wal2lake.sql.grammar.options import storage_parameters
from wal2lake.sql.grammar.statements import QualifiedName


@dataclass(frozen=True, slots=True)
class CreateTableAs:
    """CREATE TABLE AS, or SELECT INTO."""

    table: QualifiedName
    columns: tuple[str, ...]
    """Names of the first columns; the others have the query's."""
    query: str
    query_start: int = field(default=0, compare=False)
    """The first character of the query, 0-based, in characters of the statement."""
    if_not_exists: bool = False
    with_data: bool = True
    parameters: tuple[tuple[str, str], ...] = ()
    """Storage parameters, with names and values as Delta writes them."""


def table_as(
    cursor: TokenCursor, table: QualifiedName, *, if_not_exists: bool
) -> CreateTableAs | None:
    """Parse the rest of a CREATE TABLE AS; None, and nothing is taken, if it is a CREATE TABLE."""
    if not _has_query(cursor):
        return None
    columns: tuple[str, ...] = ()
    if cursor.take_mark("("):
        columns = cursor.commas(cursor.name)
        cursor.expect_mark(")")
    parameters: tuple[tuple[str, str], ...] = ()
    if cursor.take("with"):
        parameters = storage_parameters(cursor)
    cursor.expect("as")
    if cursor.token.is_word("execute"):
        raise FeatureNotSupportedError("CREATE TABLE AS EXECUTE is not supported")
    start = cursor.token.start
    rest = []
    while cursor.token.kind is not TokenKind.END:
        rest.append(cursor.next())
    end, with_data = _data_clause(rest)
    return CreateTableAs(
        table,
        columns,
        cursor.text[start:end],
        start,
        if_not_exists,
        with_data,
        parameters,
    )


def _has_query(cursor: TokenCursor) -> bool:
    """Whether AS follows, behind at most a list of names and the storage parameters."""
    distance = 0
    for opening in ("(", "with"):
        token = cursor.ahead(distance)
        if opening == "with" and token.is_word("with"):
            distance += 1
            token = cursor.ahead(distance)
        elif opening == "with":
            continue
        if token.is_mark("("):
            distance = _behind_parentheses(cursor, distance)
    return cursor.ahead(distance).is_word("as")


def _behind_parentheses(cursor: TokenCursor, distance: int) -> int:
    depth = 0
    while True:
        token = cursor.ahead(distance)
        if token.kind is TokenKind.END:
            return distance
        depth += token.is_mark("(") - token.is_mark(")")
        distance += 1
        if not depth:
            return distance


def _data_clause(rest: list[Token]) -> tuple[int, bool]:
    """Return the end of the query, and False if it is followed by WITH NO DATA."""
    words = [token.value if token.kind is TokenKind.WORD else "" for token in rest]
    for clause, with_data in (
        (["with", "data"], True),
        (["with", "no", "data"], False),
    ):
        if words[-len(clause) :] == clause and len(rest) > len(clause):
            return rest[-len(clause) - 1].end, with_data
    return rest[-1].end if rest else 0, True


def select_into(text: str) -> CreateTableAs | None:
    """Return the table and the query of a SELECT ... INTO; None for any other query."""
    if "into" not in text.lower():
        return None
    depth = 0
    for before, token in pairwise(tokens(text)):
        depth += before.is_mark("(") - before.is_mark(")")
        is_name = before.is_word("as") or before.is_mark(".")
        if depth == 0 and token.is_word("into") and not is_name:
            return _without_into(text, token)
    return None


def _without_into(text: str, into: Token) -> CreateTableAs:
    # Blanks take the place of the clause, so places in the query are places in the text.
    cursor = TokenCursor(" " * into.end + text[into.end :])
    for word in ("temporary", "temp", "local", "global", "unlogged"):
        if cursor.token.is_word(word):
            kind = "unlogged" if word == "unlogged" else "temporary"
            raise FeatureNotSupportedError(f"{kind} tables are not supported")
    cursor.take("table")
    table = cursor.qualified_name()
    end = cursor.previous_end()
    query = text[: into.start] + " " * (end - into.start) + text[end:]
    return CreateTableAs(table, (), query)
