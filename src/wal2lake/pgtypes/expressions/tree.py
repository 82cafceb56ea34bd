"""The typed tree of a row filter, and how the catalog keeps it.

Comes in: an analysed expression. Goes out: the same as JSON, and back. What PostgreSQL calls
pg_node_tree: casts are explicit, operators resolved. A column is a number, the place of its name in
a list that is kept beside the tree, so that a renamed column changes the list alone.

Source: primnodes.h; readfuncs.c, outfuncs.c.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class ExpressionNode(Enum):
    """Kinds of expressions; ``value`` and ``args`` of each."""

    COLUMN = "column"
    """``value``: its place in the list of columns."""
    CONST = "const"
    """``value``: canonical text; None: NULL."""
    OPERATOR = "operator"
    """``value``: its name; one or two args."""
    FUNCTION = "function"
    """``value``: its name."""
    CAST = "cast"
    """To ``type_oid`` and ``typmod``."""
    AND = "and"
    OR = "or"
    NOT = "not"
    TEST = "test"
    """``value``: IS NULL, IS NOT TRUE ..."""
    DISTINCT = "distinct"
    """IS DISTINCT FROM."""
    ANY = "any"
    """``value``: the operator; the first arg against each of the others, or against the items of
    one constant array."""
    ALL = "all"
    """The same, all of them."""
    COALESCE = "coalesce"
    GREATEST = "greatest"
    LEAST = "least"
    COLLATE = "collate"
    """``value``: the collation's name."""
    NULLIF = "nullif"
    CASE = "case"
    """Conditions and results in turn, and the result of ELSE."""
    CASE_OF = "case of"
    """CASE x WHEN: x, then comparisons with it and results in turn, and the result of ELSE."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One node."""

    node: ExpressionNode
    type_oid: int
    args: tuple[Expression, ...] = ()
    value: str | int | None = None
    typmod: int = -1

    def depth(self) -> int:
        """How many nodes are below each other at most."""
        return 1 + max((arg.depth() for arg in self.args), default=0)

    def columns(self) -> Iterator[int]:
        """The columns in it, each as often as it stands there."""
        if self.node is ExpressionNode.COLUMN:
            assert isinstance(self.value, int)
            yield self.value
        for arg in self.args:
            yield from arg.columns()


def encode(expression: Expression) -> str:
    """For the catalog."""
    return json.dumps(_written(expression), separators=(",", ":"))


def decode(text: str) -> Expression:
    """Decode the text of ``encode``."""
    return _read(json.loads(text))


def _written(one: Expression) -> list[object]:
    args = [_written(arg) for arg in one.args]
    return [one.node.value, one.type_oid, one.typmod, one.value, args]


def _read(found: list[object]) -> Expression:
    node, type_oid, typmod, value, args = found
    assert isinstance(type_oid, int) and isinstance(typmod, int)
    assert value is None or isinstance(value, (str, int))
    assert isinstance(args, list)
    return Expression(
        ExpressionNode(node), type_oid, tuple(map(_read, args)), value, typmod
    )
