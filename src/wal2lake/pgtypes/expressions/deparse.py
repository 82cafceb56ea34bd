"""An expression as text, as pg_get_expr() shows it.

Comes in: a tree and its columns' names. Goes out: text that PostgreSQL parses to the same
expression. PostgreSQL's subscribers use it in the COPY of the table. ``pretty`` omits parentheses
that are not needed.

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
    """Write an expression as text. ``quote`` is quote_identifier(). ``assigned`` has type and
    typmod of the column to which the value is assigned; the casts for the assignment are not
    shown, but cause their parentheses."""
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

    def put(self, expression: Expression) -> None:
        args = expression.args
        match expression.node:
            case ExpressionNode.COLUMN:
                assert isinstance(expression.value, int)
                self.text += self._quote(self._columns[expression.value])
            case ExpressionNode.CONST:
                self.text += _constant(expression)
            case ExpressionNode.OPERATOR if len(args) == 1:
                self._open(f"{expression.value} ")
                self.inner(args[0], expression)
                self._close()
            case ExpressionNode.OPERATOR:
                self._between(expression, f" {expression.value} ")
            case ExpressionNode.AND | ExpressionNode.OR:
                self._between(expression, f" {expression.node.name} ")
            case ExpressionNode.DISTINCT:
                self._between(expression, " IS DISTINCT FROM ")
            case ExpressionNode.NOT:
                self._open("NOT ")
                self.inner(args[0], expression)
                self._close()
            case ExpressionNode.TEST:
                self._open()
                self.inner(args[0], expression)
                self.text += f" {expression.value}"
                self._close()
            case ExpressionNode.ANY | ExpressionNode.ALL:
                self._quantified(expression)
            case ExpressionNode.FUNCTION:
                self._call(str(expression.value), args)
            case ExpressionNode.COLLATE:
                self._open()
                self.inner(args[0], expression)
                self.text += f" COLLATE {self._quote(str(expression.value))}"
                self._close()
            case (
                ExpressionNode.COALESCE
                | ExpressionNode.NULLIF
                | ExpressionNode.GREATEST
                | ExpressionNode.LEAST
            ):
                self._call(expression.node.name, args)
            case ExpressionNode.CAST:
                self._open()
                self.inner(args[0], expression)
                self._close()
                self.text += f"::{format_type(expression.type_oid, expression.typmod)}"
            case ExpressionNode.CASE:
                self._case(None, args)
            case ExpressionNode.CASE_OF:
                self._case(args[0], args[1:])

    def _quantified(self, expression: Expression) -> None:
        self._open()
        self.inner(expression.args[0], expression)
        self.text += f" {expression.value} {expression.node.name} ("
        if is_array(expression.args[1].type_oid):
            self.put(expression.args[1])
        else:
            self.text += "ARRAY["
            self._list(expression.args[1:])
            self.text += "]"
        self.text += ")"
        self._close()

    def _between(self, expression: Expression, word: str) -> None:
        self._open()
        for i, arg in enumerate(expression.args):
            self.text += word if i else ""
            self.inner(arg, expression)
        self._close()

    def _open(self, word: str = "") -> None:
        self.text += word if self._pretty else f"({word}"

    def _close(self) -> None:
        self.text += "" if self._pretty else ")"

    def hidden(self, cast: Expression, shown: Expression) -> None:
        """Write an expression inside of implicit casts at the top, down to ``shown``."""
        (arg,) = cast.args
        plain = not self._pretty or _is_simple(arg, cast)
        self.text += "" if plain else "("
        if arg is shown:
            self.put(arg)
        else:
            self.hidden(arg, shown)
        self.text += "" if plain else ")"

    def inner(self, expression: Expression, parent: Expression) -> None:
        """get_rule_expr_paren()."""
        if not self._pretty or _is_simple(expression, parent):
            self.put(expression)
            return
        self.text += "("
        self.put(expression)
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


def _is_simple(expression: Expression, parent: Expression) -> bool:
    """isSimpleNode(): return whether an expression needs no parentheses inside of ``parent``."""
    connectives = (ExpressionNode.AND, ExpressionNode.OR)
    match expression.node:
        case ExpressionNode.OPERATOR if parent.node is ExpressionNode.OPERATOR:
            words = [str(x.value) for x in (expression, parent) if len(x.args) == 2]
            if len(words) < 2 or any(word not in (*_LOW, *_HIGH) for word in words):
                return False
            inner, outer = (word in _HIGH for word in words)
            return (
                inner and not outer if inner != outer else expression is parent.args[0]
            )
        case ExpressionNode.OPERATOR | ExpressionNode.TEST | ExpressionNode.DISTINCT:
            return parent.node in (*connectives, ExpressionNode.NOT)
        case ExpressionNode.AND | ExpressionNode.NOT:
            return parent.node in connectives
        case ExpressionNode.OR:
            return parent.node is ExpressionNode.OR
        case ExpressionNode.ANY | ExpressionNode.ALL | ExpressionNode.COLLATE:
            return False
        case ExpressionNode.CAST if (
            expression.type_oid in TEXTS and expression.args[0].type_oid in TEXTS
        ):
            # The cast computes nothing.
            return expression.typmod >= 0 or _is_simple(expression.args[0], expression)
    return True


def _constant(expression: Expression) -> str:
    name = format_type(expression.type_oid, expression.typmod)
    if expression.value is None:
        return f"NULL::{name}"
    text = str(expression.value)
    if expression.type_oid == _BOOL:
        return text
    if expression.type_oid == _INT4 and not text.startswith("-"):
        return text
    is_number = expression.type_oid == _NUMERIC and text[0].isdigit() and "." in text
    if is_number and expression.typmod < 0:
        return text
    shown = text if is_number else _literal(text)
    return f"{shown}::{name}"


def _literal(text: str) -> str:
    """simple_quote_literal(): backslashes are literal."""
    return "'" + text.replace("'", "''") + "'"
