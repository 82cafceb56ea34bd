"""A row filter as text, as pg_get_expr() shows it.

Comes in: a tree and its columns' names. Goes out: text that PostgreSQL reads as the same
expression: the subscribers of PostgreSQL put it into the COPY of the table. ``pretty`` leaves out
parentheses that a reader does not need.

Source: get_rule_expr(), get_const_expr(), isSimpleNode() in ruleutils.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from wal2lake.pgtypes.expressions.operators import TEXTS
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.values import is_array
from wal2lake.pgtypes.registry.pg_type import format_type

_BOOL, _INT4, _NUMERIC = 16, 23, 1700
_INDENT: Final = 4


def deparse(
    expression: Expression,
    columns: Sequence[str],
    quote: Callable[[str], str],
    *,
    pretty: bool = False,
    assigned: tuple[int, int] | None = None,
) -> str:
    """``quote`` is quote_identifier(). ``assigned``: the type and typmod of the column that the
    value goes to; the casts that this takes are not shown, but have their parentheses."""
    writer = _Writer(columns, quote, pretty)
    casts = []
    if assigned is not None:
        kind, typmod = assigned
        if kind != expression.type_oid:
            casts.append(Expression(ExpressionNode.CAST, kind, (expression,)))
        if typmod >= 0:
            inner = casts[-1] if casts else expression
            casts.append(Expression(ExpressionNode.CAST, kind, (inner,), typmod=typmod))
    if casts:
        writer.hidden(casts[-1], expression)
    else:
        writer.put(expression)
    return writer.text


class _Writer:
    def __init__(
        self, columns: Sequence[str], quote: Callable[[str], str], pretty: bool
    ) -> None:
        self.text = ""
        self._pretty = pretty
        self._columns = columns
        self._quote = quote
        self._level = 0

    def put(self, one: Expression) -> None:
        args = one.args
        match one.node:
            case ExpressionNode.COLUMN:
                assert isinstance(one.value, int)
                self.text += self._quote(self._columns[one.value])
            case ExpressionNode.CONST:
                self.text += _constant(one)
            case ExpressionNode.OPERATOR if len(args) == 1:
                self._open(f"{one.value} ")
                self.inner(args[0], one)
                self._close()
            case ExpressionNode.OPERATOR:
                self._between(one, f" {one.value} ")
            case ExpressionNode.AND | ExpressionNode.OR:
                self._between(one, f" {one.node.name} ")
            case ExpressionNode.DISTINCT:
                self._between(one, " IS DISTINCT FROM ")
            case ExpressionNode.NOT:
                self._open("NOT ")
                self.inner(args[0], one)
                self._close()
            case ExpressionNode.TEST:
                self._open()
                self.inner(args[0], one)
                self.text += f" {one.value}"
                self._close()
            case ExpressionNode.ANY | ExpressionNode.ALL:
                self._open()
                self.inner(args[0], one)
                self.text += f" {one.value} {one.node.name} ("
                if is_array(args[1].type_oid):
                    self.put(args[1])
                else:
                    self.text += "ARRAY["
                    self._list(args[1:])
                    self.text += "]"
                self.text += ")"
                self._close()
            case ExpressionNode.FUNCTION:
                self._call(str(one.value), args)
            case ExpressionNode.COLLATE:
                self._open()
                self.inner(args[0], one)
                self.text += f" COLLATE {self._quote(str(one.value))}"
                self._close()
            case (
                ExpressionNode.COALESCE
                | ExpressionNode.NULLIF
                | ExpressionNode.GREATEST
                | ExpressionNode.LEAST
            ):
                self._call(one.node.name, args)
            case ExpressionNode.CAST:
                self._open()
                self.inner(args[0], one)
                self._close()
                self.text += f"::{format_type(one.type_oid, one.typmod)}"
            case ExpressionNode.CASE:
                self._case(None, args)
            case ExpressionNode.CASE_OF:
                self._case(args[0], args[1:])

    def _between(self, one: Expression, word: str) -> None:
        self._open()
        for i, arg in enumerate(one.args):
            self.text += word if i else ""
            self.inner(arg, one)
        self._close()

    def _open(self, word: str = "") -> None:
        self.text += word if self._pretty else f"({word}"

    def _close(self) -> None:
        self.text += "" if self._pretty else ")"

    def hidden(self, cast: Expression, shown: Expression) -> None:
        """Print an expression inside of an implicit cast at the top, down to what is ``shown``."""
        (arg,) = cast.args
        plain = not self._pretty or _is_simple(arg, cast)
        self.text += "" if plain else "("
        if arg is shown:
            self.put(arg)
        else:
            self.hidden(arg, shown)
        self.text += "" if plain else ")"

    def inner(self, one: Expression, parent: Expression) -> None:
        """get_rule_expr_paren()."""
        if not self._pretty or _is_simple(one, parent):
            self.put(one)
            return
        self.text += "("
        self.put(one)
        self.text += ")"

    def _call(self, name: str, args: Sequence[Expression]) -> None:
        self.text += f"{name}("
        self._list(args)
        self.text += ")"

    def _list(self, args: Sequence[Expression]) -> None:
        for i, arg in enumerate(args):
            self.text += ", " if i else ""
            self.put(arg)

    def _case(self, of: Expression | None, rest: Sequence[Expression]) -> None:
        self._line("CASE")
        self._level += _INDENT
        if of is not None:
            self.text += " "
            self.put(of)
        for when, then in zip(rest[:-1:2], rest[1:-1:2], strict=True):
            self._line("WHEN ")
            self.put(when if of is None else when.args[1])
            self.text += " THEN "
            self.put(then)
        self._line("ELSE ")
        self.put(rest[-1])
        self._level -= _INDENT
        self._line("END")

    def _line(self, word: str) -> None:
        self.text = self.text.rstrip(" ") + "\n" + " " * self._level + word


_LOW, _HIGH = "+-", "*/%"


def _is_simple(one: Expression, parent: Expression) -> bool:
    """Whether it needs no parentheses inside of ``parent``, which has none of its own."""
    connectives = (ExpressionNode.AND, ExpressionNode.OR)
    match one.node:
        case ExpressionNode.OPERATOR if parent.node is ExpressionNode.OPERATOR:
            words = [str(x.value) for x in (one, parent) if len(x.args) == 2]
            if len(words) < 2 or any(word not in (*_LOW, *_HIGH) for word in words):
                return False
            inner, outer = (word in _HIGH for word in words)
            return inner and not outer if inner != outer else one is parent.args[0]
        case ExpressionNode.OPERATOR | ExpressionNode.TEST | ExpressionNode.DISTINCT:
            return parent.node in (*connectives, ExpressionNode.NOT)
        case ExpressionNode.AND | ExpressionNode.NOT:
            return parent.node in connectives
        case ExpressionNode.OR:
            return parent.node is ExpressionNode.OR
        case ExpressionNode.ANY | ExpressionNode.ALL | ExpressionNode.COLLATE:
            return False
        case ExpressionNode.CAST if (
            one.type_oid in TEXTS and one.args[0].type_oid in TEXTS
        ):
            # Nothing is computed.
            return one.typmod >= 0 or _is_simple(one.args[0], one)
    return True


def _constant(one: Expression) -> str:
    name = format_type(one.type_oid, one.typmod)
    if one.value is None:
        return f"NULL::{name}"
    text = str(one.value)
    if one.type_oid == _BOOL:
        return text
    if one.type_oid == _INT4 and not text.startswith("-"):
        return text
    is_number = one.type_oid == _NUMERIC and text[0].isdigit() and "." in text
    if is_number and one.typmod < 0:
        return text
    shown = text if is_number else _literal(text)
    return f"{shown}::{name}"


def _literal(text: str) -> str:
    """simple_quote_literal(): backslashes stand for themselves."""
    return "'" + text.replace("'", "''") + "'"
