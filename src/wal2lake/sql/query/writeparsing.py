"""Parses INSERT, UPDATE and DELETE, and refuses the clauses that have no rule.

Comes in: the text of a statement. Goes out: sqlglot's tree, and the word of the OVERRIDING clause.
Called by ``writes``, and to find the types of a statement's parameters.

Source: PostgreSQL manual, INSERT, UPDATE, DELETE.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError
from wal2lake.sql.grammar.lexer import TokenKind, tokens
from wal2lake.sql.query.translate import parse

_SUPPORTED_ARGUMENTS: Final = {
    exp.Insert: {"this", "expression", "default", "with_", "with"},
    exp.Update: {"this", "expressions", "where", "from_", "from", "with_", "with"},
    exp.Delete: {"this", "where", "using", "with_", "with"},
    exp.Table: {"this", "db", "catalog", "alias", "only"},
}
"""The arguments that a statement's tree may have.

sqlglot also parses clauses of other dialects, such as DELETE ... LIMIT 1. A clause that this module
does not read is refused, and not ignored in silence.
"""
_CLAUSE_NAMES: Final = {"conflict": "ON CONFLICT"}


def written_tree(sql: str) -> tuple[exp.Insert | exp.Update | exp.Delete, str]:
    """Parse a statement; return its tree and OVERRIDING's word. Raises 0A000 for other clauses."""
    sql, overriding = without_overriding(sql)
    tree = parse(sql)
    if overriding and not isinstance(tree, exp.Insert):
        raise SqlSyntaxError('syntax error at or near "overriding"')
    if not isinstance(tree, (exp.Insert, exp.Update, exp.Delete)):
        raise FeatureNotSupportedError(
            f"{tree.key.upper()} is not supported on lake tables"
        )
    _refuse_clauses(tree)
    return tree, overriding


def without_overriding(sql: str) -> tuple[str, str]:
    """Cut out the OVERRIDING clause, which sqlglot does not know; return the rest and its word.

    The word is system, user, or empty if there is no clause.
    """
    if "overriding" not in sql.lower():
        return sql, ""
    parts = list(tokens(sql))
    for first, second, third in zip(parts, parts[1:], parts[2:], strict=False):
        words = [
            token.kind is TokenKind.WORD and token.value
            for token in (first, second, third)
        ]
        if words[0] in ("values", "select"):
            break
        if words[0] == "overriding" and words[2] == "value":
            word = str(words[1])
            if word in ("system", "user"):
                return f"{sql[: first.start]}{sql[third.end :]}", word
    return sql, ""


def _refuse_clauses(tree: exp.Expression) -> None:
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    for part in (tree, target):
        supported = _SUPPORTED_ARGUMENTS.get(type(part), set())
        for name, value in part.args.items():
            if value and name not in supported:
                word = (
                    _CLAUSE_NAMES.get(name) or name.strip("_").replace("_", " ").upper()
                )
                raise FeatureNotSupportedError(
                    f"{word} is not supported in {tree.key.upper()} on lake tables",
                    hint="Leave the clause out; nothing has been changed.",
                )
