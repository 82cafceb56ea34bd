"""Parses the option lists of utility statements: ``(name [value], ...)``.

Comes in: a cursor behind the parenthesis. Goes out: options with their values as written, and
readers of values that refuse what PostgreSQL refuses.

Source: gram.y, utility_option_list; defGetBoolean() and defGetString() in define.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.errors import SqlSyntaxError
from wal2lake.pgtypes.keywords import RESERVED
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind


@dataclass(frozen=True, slots=True)
class OptionText:
    """A value as written."""

    text: str
    is_integer: bool


@dataclass(frozen=True, slots=True)
class UtilityOption:
    """One option. Its name is in lower case unless it was quoted."""

    name: str
    value: OptionText | None
    start: int


def utility_option(cursor: TokenCursor) -> UtilityOption:
    """Parse utility_option_elem: a name, with a value or without."""
    token = cursor.token
    if token.is_word("analyze", "analyse"):
        cursor.next()
        return UtilityOption("analyze", _value(cursor), token.start)
    if token.kind is TokenKind.WORD and token.value in RESERVED:
        raise cursor.unexpected()
    return UtilityOption(cursor.label(), _value(cursor), token.start)


def boolean_of(option: UtilityOption) -> bool:
    """defGetBoolean()."""
    if option.value is None:
        return True
    word = option.value.text.lower()
    if option.value.is_integer:
        if word in ("0", "1"):
            return word == "1"
    elif word in ("true", "on"):
        return True
    elif word in ("false", "off"):
        return False
    raise SqlSyntaxError(f"{option.name} requires a Boolean value")


def string_of(option: UtilityOption) -> str:
    """defGetString()."""
    if option.value is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    return option.value.text


def _value(cursor: TokenCursor) -> OptionText | None:
    token = cursor.token
    if token.is_mark(",") or token.is_mark(")"):
        return None
    sign = ""
    for mark in ("+", "-"):
        if cursor.take_mark(mark):
            sign = mark.replace("+", "")
            token = cursor.token
            if token.kind not in (TokenKind.INTEGER, TokenKind.FLOAT):
                raise cursor.unexpected()
    if token.kind is TokenKind.INTEGER:
        return OptionText(sign + cursor.next().value, True)
    if token.kind is TokenKind.FLOAT:
        return OptionText(sign + cursor.next().value, False)
    if token.kind in (TokenKind.QUOTED, TokenKind.STRING) or (
        token.kind is TokenKind.WORD
        and (token.value in ("true", "false", "on") or token.value not in RESERVED)
    ):
        return OptionText(cursor.next().value, False)
    raise cursor.unexpected()
