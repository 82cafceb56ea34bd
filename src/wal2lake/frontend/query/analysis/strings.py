"""Rules of functions of text.

Comes in: a node and its operands. Goes out: an operand. Called by ``functions``, which has the
table of all rules. Where Spark does something else for some arguments (a negative length, a
place before the first character), those are refused.

Source: PostgreSQL manual 9.4, 9.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.frontend.query.values import casts
from wal2lake.frontend.query.values import types as t
from wal2lake.frontend.query.values.numeric import spark
from wal2lake.frontend.query.values.types import Operand, Type, plain

Arguments = dict[str, Any]
_TEXT: Final = plain(t.TEXT)


def constant_number(name: str, operand: Operand) -> int:
    """An argument that has to be a constant; raises 0A000."""
    node = operand.node
    sign = 1
    while isinstance(node, (exp.Neg, exp.Paren, exp.Cast)):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    if not isinstance(node, exp.Literal):
        raise t.refuse(f"{name}() with a number that is not constant")
    return sign * int(node.name)


def no_function(name: str, kind: Type) -> UndefinedObjectError:
    """PostgreSQL's words for arguments of a wrong type."""
    return UndefinedObjectError(
        f"function {name}({kind.name}) does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. You might need to"
        " add explicit type casts.",
    )


def text(name: str, operand: Operand, zone: str) -> exp.Expression:
    """An argument of type text; raises 42883 for another type."""
    operand = casts.as_known(operand, zone)
    if not operand.type.string:
        raise no_function(name, operand.type)
    return casts.text_of(operand, zone)


def textual(name: str, result: Type = _TEXT) -> Callable[..., Operand]:
    """A function of texts alone that Spark has as PostgreSQL has it."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        for key, operand in arguments.items():
            if isinstance(operand, Operand):
                node.set(key, text(name, operand, zone))
            elif isinstance(operand, list) and operand:
                raise t.refuse(f"this form of {name}()")
        return Operand(node, result)

    return rule


def length(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """length()."""
    operand = casts.as_known(arguments["this"], zone)
    if operand.type.oid != t.BYTEA:
        node.set("this", text("length", operand, zone))
    return Operand(node, plain(t.INT4))


def counted(name: str, key: str, least: int) -> Callable[..., Operand]:
    """Functions of a text and a constant number, the same from ``least`` on."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        for name_, operand in arguments.items():
            if not isinstance(operand, Operand):
                continue
            if name_ in (key, "length"):
                if constant_number(name, operand) < least:
                    raise t.refuse(f"{name}() with a number below {least}")
            else:
                node.set(name_, text(name, operand, zone))
        return Operand(node, _TEXT)

    return rule


def substring(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """substring(); PostgreSQL counts from 1, and knows places before it."""
    start, length = arguments.get("start"), arguments.get("length")
    node.set("this", text("substring", arguments["this"], zone))
    if start is not None and constant_number("substring", start) < 1:
        raise t.refuse("substring() from a place below 1")
    if length is not None and constant_number("substring", length) < 0:
        raise UsageError("negative substring length not allowed", sqlstate="22011")
    return Operand(node, _TEXT)


def joined(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """``||``."""
    left, right = arguments["this"], arguments["expression"]
    if not any(o.type.string or o.type.oid == t.UNKNOWN for o in (left, right)):
        if left.type.oid == right.type.oid == t.BYTEA:
            return Operand(exp.Paren(this=node), left.type)
        raise t.refuse(f"{left.type.name} || {right.type.name}")
    for key, operand in (("this", left), ("expression", right)):
        if operand.type.element is not None:
            raise t.refuse("|| of arrays")
        known = casts.as_known(operand, zone)
        node.set(key, casts.text_of(known, zone))
    return Operand(exp.Paren(this=node), _TEXT)


def concat(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """concat(), for which NULL is empty."""
    items = []
    for operand in arguments["expressions"]:
        known = casts.as_known(operand, zone)
        if known.type.oid == t.BOOL:
            raise t.refuse("concat() of boolean", "Cast it to text.")
        items.append(spark("coalesce(:x, '')", x=casts.text_of(known, zone)))
    return Operand(
        spark("concat(:x)", x=items[0])
        if len(items) == 1
        else exp.Anonymous(this="concat", expressions=items),
        _TEXT,
    )


def like(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """LIKE and ILIKE."""
    for key in ("this", "expression"):
        operand = casts.as_known(arguments[key], zone)
        if not operand.type.string:
            raise t.no_operator(operand.type, "~~", _TEXT)
        # bpchar keeps its blanks here.
        node.set(key, operand.node)
    return Operand(node, plain(t.BOOL))
