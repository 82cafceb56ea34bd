"""Parameters to which a client gives no type: the statement around them does.

A statement is analysed once with a NULL in the place of each; whoever gives a literal the type of
its context notes the type here. The first context decides, as in PostgreSQL, and what is in no
context is text.

Source: parse_param.c (variable_coerce_param_hook); manual, PREPARE.
"""

from __future__ import annotations

from typing import Any, Final, Self

from sqlglot import exp

_MARK: Final = "wal2lake_undetermined"


class Undetermined:
    """One parameter's type, once it is known. It stays itself in copies of a tree."""

    __slots__ = ("oid",)

    def __init__(self) -> None:
        self.oid = 0
        """0: nothing has said it yet."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def placeholder(of: Undetermined) -> exp.Null:
    """What stands for it in a tree."""
    node = exp.Null()
    node.meta[_MARK] = of
    return node


def undetermined_at(node: exp.Expression) -> Undetermined | None:
    """The parameter that the node stands for."""
    found: Undetermined | None = node.meta.get(_MARK)
    return found


def determine(node: exp.Expression, oid: int) -> None:
    """If the node stands for a parameter of no type yet, that is its type."""
    found = undetermined_at(node)
    if found is not None and not found.oid:
        found.oid = oid
