"""A row filter as text, as pg_get_expr() shows it.

Comes in: a tree and its columns' names. Goes out: text that PostgreSQL reads as the same
expression: the subscribers of PostgreSQL put it into the COPY of the table.

Source: get_rule_expr(), get_const_expr() in ruleutils.c, without pretty parentheses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from wal2lake.pgtypes.expressions.tree import Expression, Node
from wal2lake.pgtypes.expressions.values import is_array
from wal2lake.pgtypes.registry.pg_type import format_type

_BOOL, _INT4, _NUMERIC = 16, 23, 1700
_INDENT: Final = 4


def deparse(
    expression: Expression, columns: Sequence[str], quote: Callable[[str], str]
) -> str:
    """``quote`` is quote_identifier()."""
    writer = _Writer(columns, quote)
    writer.put(expression)
    return writer.text


class _Writer:
    def __init__(self, columns: Sequence[str], quote: Callable[[str], str]) -> None:
        self.text = ""
        self._columns = columns
        self._quote = quote
        self._level = 0

    def put(self, one: Expression) -> None:
        args = one.args
        match one.node:
            case Node.COLUMN:
                assert isinstance(one.value, int)
                self.text += self._quote(self._columns[one.value])
            case Node.CONST:
                self.text += _constant(one)
            case Node.OPERATOR if len(args) == 1:
                self.text += f"({one.value} "
                self.put(args[0])
                self.text += ")"
            case Node.OPERATOR:
                self._between(args, f" {one.value} ")
            case Node.AND | Node.OR:
                self._between(args, f" {one.node.name} ")
            case Node.DISTINCT:
                self._between(args, " IS DISTINCT FROM ")
            case Node.NOT:
                self.text += "(NOT "
                self.put(args[0])
                self.text += ")"
            case Node.TEST:
                self.text += "("
                self.put(args[0])
                self.text += f" {one.value})"
            case Node.ANY | Node.ALL:
                self.text += "("
                self.put(args[0])
                self.text += f" {one.value} {one.node.name} ("
                if is_array(args[1].type_oid):
                    self.put(args[1])
                else:
                    self.text += "ARRAY["
                    self._list(args[1:])
                    self.text += "]"
                self.text += "))"
            case Node.FUNCTION:
                self._call(str(one.value), args)
            case Node.COLLATE:
                self.text += "("
                self.put(args[0])
                self.text += f" COLLATE {self._quote(str(one.value))})"
            case Node.COALESCE | Node.NULLIF | Node.GREATEST | Node.LEAST:
                self._call(one.node.name, args)
            case Node.CAST:
                self.text += "("
                self.put(args[0])
                self.text += f")::{format_type(one.type_oid, one.typmod)}"
            case Node.CASE:
                self._case(None, args)
            case Node.CASE_OF:
                self._case(args[0], args[1:])

    def _between(self, args: Sequence[Expression], word: str) -> None:
        self.text += "("
        for i, arg in enumerate(args):
            self.text += word if i else ""
            self.put(arg)
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
