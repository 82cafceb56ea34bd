"""Parses INSERT, UPDATE and DELETE, and refuses the clauses that have no rule.

Comes in: the text of a statement. Goes out: sqlglot's tree, and the clauses that
sqlglot does not know.
Called by ``writes``, and to find the types of a statement's parameters.

Source: PostgreSQL manual, INSERT, UPDATE, DELETE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError
from wal2lake.sql.grammar.lexer import TokenKind, tokens
from wal2lake.sql.query.changes.returning import ReturningNames
from wal2lake.sql.query.translate import parse

_SUPPORTED_ARGUMENTS: Final = {
    exp.Insert: {
        *("this", "expression", "default", "with_", "with", "returning"),
        "conflict",
    },
    exp.Update: {
        *("this", "expressions", "where", "from_", "from", "with_", "with"),
        "returning",
    },
    exp.Delete: {"this", "where", "using", "with_", "with", "returning"},
    exp.Table: {"this", "db", "catalog", "alias", "only"},
}
"""The arguments that a statement's tree may have.

sqlglot also parses clauses of other dialects, such as DELETE ... LIMIT 1. A clause that this module
does not read is refused, and not ignored in silence.
"""


@dataclass(frozen=True, slots=True)
class WrittenStatement:
    """A statement, with the clauses that sqlglot does not know apart."""

    tree: exp.Insert | exp.Update | exp.Delete
    overriding: str
    """The word of the OVERRIDING clause; empty if there is none."""
    names: ReturningNames
    """The names of RETURNING WITH (OLD AS ..., NEW AS ...)."""


def written_tree(sql: str) -> WrittenStatement:
    """Parse a statement. Raises 0A000 for clauses that have no rule."""
    sql, overriding = without_overriding(sql)
    sql, names = without_returning_names(sql)
    tree = parse(sql)
    if overriding and not isinstance(tree, exp.Insert):
        raise SqlSyntaxError('syntax error at or near "overriding"')
    if not isinstance(tree, (exp.Insert, exp.Update, exp.Delete)):
        raise FeatureNotSupportedError(
            f"{tree.key.upper()} is not supported on lake tables"
        )
    _refuse_clauses(tree)
    return WrittenStatement(tree, overriding, names)


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


def without_returning_names(sql: str) -> tuple[str, ReturningNames]:
    """Cut WITH (...) after RETURNING out of a statement; return the rest and the names.

    Raises 42601 for another list of names.
    """
    if "returning" not in sql.lower():
        return sql, ReturningNames()
    parts = list(tokens(sql))
    words = [part.value for part in parts]
    for i, part in enumerate(parts):
        if part.is_word("returning") and words[i + 1 : i + 3] == ["with", "("]:
            break
    else:
        return sql, ReturningNames()
    names: dict[str, str] = {}
    position = i + 3
    while True:
        image, as_, name, after = [*words[position : position + 4], *[""] * 4][:4]
        if image not in ("old", "new") or as_ != "as" or after not in (",", ")"):
            near = next((w for w in words[position : position + 1]), "")
            raise SqlSyntaxError(f'syntax error at or near "{near}"')
        if image in names:
            raise SqlSyntaxError(f"{image.upper()} cannot be specified multiple times")
        names[image] = name
        position += 4
        if after == ")":
            break
    rest = f"{sql[: parts[i + 1].start]}{sql[parts[position - 1].end :]}"
    return rest, ReturningNames(**names)


def _refuse_clauses(tree: exp.Expression) -> None:
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    for part in (tree, target):
        supported = _SUPPORTED_ARGUMENTS.get(type(part), set())
        for name, value in part.args.items():
            if value and name not in supported:
                word = name.strip("_").replace("_", " ").upper()
                raise FeatureNotSupportedError(
                    f"{word} is not supported in {tree.key.upper()} on lake tables",
                    hint="Leave the clause out; nothing has been changed.",
                )
