"""Infers the types of parameters for which the client gives no type.

The statement is analysed once with a NULL in place of each such parameter. The rule that gives a
literal the type of its context also records that type here. As in PostgreSQL, the first context
decides, and a parameter without a context is text.

Source: parse_param.c (variable_coerce_param_hook); manual, PREPARE.
"""

from __future__ import annotations

from typing import Any, Final, Self

from sqlglot import exp

_MARK: Final = "wal2lake_undetermined"


class Undetermined:
    """The type of one parameter, once it is known. Copies of a tree share the object."""

    __slots__ = ("oid",)

    def __init__(self) -> None:
        self.oid = 0
        """The type OID. 0: not known yet."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def placeholder(parameter: Undetermined) -> exp.Null:
    """The node that stands for the parameter in a tree."""
    node = exp.Null()
    node.meta[_MARK] = parameter
    return node


def undetermined_at(node: exp.Expression) -> Undetermined | None:
    """The parameter that the node stands for, or None."""
    parameter: Undetermined | None = node.meta.get(_MARK)
    return parameter


def determine(node: exp.Expression, oid: int) -> None:
    """Record the type if the node stands for a parameter without a type."""
    parameter = undetermined_at(node)
    if parameter is not None and not parameter.oid:
        parameter.oid = oid
