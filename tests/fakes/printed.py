"""Statements of which ``to_sql`` has the text, for tests of the grammar.

Comes in: SQL. Goes out: the statement, which is one of those that are printed: all but COPY.
"""

from __future__ import annotations

from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.access import AccessStatement
from wal2lake.sql.grammar.altering.alterstatements import AlterTableStatement
from wal2lake.sql.grammar.publishing.publicationstatements import PublicationStatement
from wal2lake.sql.grammar.statements import Statement

PrintedStatement = (
    Statement | AlterTableStatement | AccessStatement | PublicationStatement
)


def parse_printed(sql: str) -> PrintedStatement:
    """The statement that ``sql`` is."""
    statement = parse(sql)
    assert isinstance(statement, PrintedStatement)
    return statement
