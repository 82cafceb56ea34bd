"""The parameters ($1) of a statement: which there are, and a text that any parser can read.

Comes in: a statement's text. Goes out: numbers; the text with each parameter set off. Pure.
Called by the backend and by the translations, whose parser takes ``$1,$2`` for the start of a
dollar-quoted string.

Source: PostgreSQL manual, 4.1.2.4 (a tag cannot begin with a digit), 4.2.2.
"""

from __future__ import annotations

from wal2lake.errors import SqlSyntaxError
from wal2lake.frontend.grammar.lexer import Token, TokenKind, tokens


def parameter_count(text: str) -> int:
    """The highest parameter's number; 0 if there is none. Not those inside of strings."""
    return max((int(token.value) for token in _parameters(text)), default=0)


def set_off(text: str) -> str:
    """The same statement with a space behind each parameter."""
    for token in reversed(_parameters(text)):
        text = f"{text[: token.end]} {text[token.end :]}"
    return text


def _parameters(text: str) -> list[Token]:
    if "$" not in text:
        return []
    try:
        return [token for token in tokens(text) if token.kind is TokenKind.PARAMETER]
    except SqlSyntaxError:
        # Who parses it will say so.
        return []
