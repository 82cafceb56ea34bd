"""Parses DEFERRABLE and INITIALLY behind a PRIMARY KEY.

Comes in: a cursor behind the constraint. Goes out: a ``Deferral``. Called by ``table``.

Source: gram.y, ConstraintAttr and ConstraintAttributeSpec; parse_utilcmd.c,
transformConstraintAttrs().
"""

from __future__ import annotations

from wal2lake.errors import SqlSyntaxError
from wal2lake.model import Deferral
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import Token, syntax_error


def deferral(cursor: TokenCursor, *, of_table: bool) -> Deferral:
    """Parse the deferral clauses behind a constraint.

    A column constraint may not repeat a clause. A table constraint may repeat a clause if both
    mean the same.
    """
    deferrable: bool | None = None
    deferred: bool | None = None
    while True:
        word = cursor.token
        if cursor.take("not", "deferrable"):
            if deferrable is not None and not (of_table and not deferrable):
                raise _repeated(word, "DEFERRABLE/NOT DEFERRABLE", of_table)
            deferrable = False
        elif cursor.take("deferrable"):
            if deferrable is not None and not (of_table and deferrable):
                raise _repeated(word, "DEFERRABLE/NOT DEFERRABLE", of_table)
            deferrable = True
        elif cursor.take("initially"):
            now = cursor.take("immediate")
            if not now:
                cursor.expect("deferred")
            if deferred is not None and not (of_table and deferred is not now):
                raise _repeated(word, "INITIALLY IMMEDIATE/DEFERRED", of_table)
            deferred = not now
        else:
            break
        if deferred and deferrable is False:
            raise syntax_error(
                "constraint declared INITIALLY DEFERRED must be DEFERRABLE", word.start
            )
    if deferred:
        return Deferral.DEFERRED
    return Deferral.IMMEDIATE if deferrable else Deferral.NO


def misplaced(cursor: TokenCursor) -> SqlSyntaxError | None:
    """The error for a deferral clause that comes next and follows no constraint, or None."""
    word = cursor.token
    clause = None
    if cursor.at_words("not", "deferrable"):
        clause = "NOT DEFERRABLE"
    elif word.is_word("deferrable"):
        clause = "DEFERRABLE"
    elif word.is_word("initially"):
        clause = f"INITIALLY {cursor.ahead(1).value.upper()}"
    if clause is None:
        return None
    return syntax_error(f"misplaced {clause} clause", word.start)


def _repeated(word: Token, clauses: str, of_table: bool) -> SqlSyntaxError:
    if of_table:
        return syntax_error("conflicting constraint properties", word.start)
    return syntax_error(f"multiple {clauses} clauses not allowed", word.start)
