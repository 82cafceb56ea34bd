"""The typed tree of an expression, and its form in the catalog.

Comes in: an analysed expression. Goes out: its JSON, and the reverse. It is the equivalent of
PostgreSQL's pg_node_tree: casts are explicit, operators resolved. A column is a number, the index
of its name in a list that is stored with the tree, so that a rename changes only the list.

Source: primnodes.h; readfuncs.c, outfuncs.c.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class ExpressionNode(Enum):
    """Kinds of expressions, with ``value`` and ``args`` of each."""

    COLUMN = "column"
    """``value``: its index in the list of columns."""
    CONST = "const"
    """``value``: canonical text; None: NULL."""
    OPERATOR = "operator"
    """``value``: its name; one or two args."""
    FUNCTION = "function"
    """``value``: its name."""
    CAST = "cast"
    """Cast to ``type_oid`` and ``typmod``."""
    AND = "and"
    OR = "or"
    NOT = "not"
    TEST = "test"
    """``value``: IS NULL, IS NOT TRUE ..."""
    DISTINCT = "distinct"
    """IS DISTINCT FROM."""
    ANY = "any"
    """``value``: the operator. The first arg is compared with each of the others, or with the
    items of one constant array."""
    ALL = "all"
    """Like ANY, but true only if all comparisons are."""
    COALESCE = "coalesce"
    GREATEST = "greatest"
    LEAST = "least"
    COLLATE = "collate"
    """``value``: the collation's name."""
    NULLIF = "nullif"
    CASE = "case"
    """Conditions and results alternately, then the result of ELSE."""
    CASE_OF = "case of"
    """CASE x WHEN: x, comparisons with x and results alternately, then the result of ELSE."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One node."""

    node: ExpressionNode
    type_oid: int
    args: tuple[Expression, ...] = ()
    value: str | int | None = None
    typmod: int = -1

    def depth(self) -> int:
        """Return the depth of the tree."""
        return 1 + max((arg.depth() for arg in self.args), default=0)

    def columns(self) -> Iterator[int]:
        """Yield the number of each column reference, with repetitions."""
        if self.node is ExpressionNode.COLUMN:
            assert isinstance(self.value, int)
            yield self.value
        for arg in self.args:
            yield from arg.columns()


def encode(expression: Expression) -> str:
    """Encode an expression for the catalog."""
    return json.dumps(_written(expression), separators=(",", ":"))


def decode(text: str) -> Expression:
    """Decode the text of ``encode``."""
    return _read(json.loads(text))


def _written(expression: Expression) -> list[object]:
    args = [_written(arg) for arg in expression.args]
    return [
        expression.node.value,
        expression.type_oid,
        expression.typmod,
        expression.value,
        args,
    ]


def _read(members: list[object]) -> Expression:
    node, type_oid, typmod, value, args = members
    assert isinstance(type_oid, int) and isinstance(typmod, int)
    assert value is None or isinstance(value, (str, int))
    assert isinstance(args, list)
    return Expression(
        ExpressionNode(node), type_oid, tuple(map(_read, args)), value, typmod
    )
