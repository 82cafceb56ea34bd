"""Where the statements of a query string begin and end, and their words.

In: SQL text as a client sent it. Out: statements with their offsets; tokens. It knows
PostgreSQL's lexical rules (quotes, E'' strings, dollar quotes, nested comments) and no grammar.
Called by the session for every query string, so the scan is one compiled pattern with possessive
quantifiers: linear in the text, also for hostile ones.

Source: src/backend/parser/scan.l; PostgreSQL manual, section 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import SqlSyntaxError


class TokenKind(Enum):
    """What a token is; comments and white space are none."""

    WORD = "word"
    """An unquoted identifier or keyword; ``value`` is in lower case."""
    QUOTED = "quoted"
    """A quoted identifier, without its quotes."""
    STRING = "string"
    """A string constant; ``value`` is what it stands for."""
    NUMBER = "number"
    """A numeric constant."""
    SEMICOLON = "semicolon"
    """The end of a statement."""
    OTHER = "other"
    """Any other single character, a parameter, a bit string."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``text`` as written, from ``start``."""

    kind: TokenKind
    value: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement without its semicolon; ``offset`` in characters of the string."""

    text: str
    offset: int


_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"

_PATTERN: Final = re.compile(
    rf"""
      (?P<space>   [ \t\n\r\f\v]++ | --[^\n\r]*+ )
    | (?P<comment> /\* )
    | (?P<escape>  [eE]'[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+(?P<escape_end>')? )
    | (?P<bits>    [bBxX]'[^']*+(?P<bits_end>')? )
    | (?P<string>  (?:[nN]|[uU]&)?'[^']*+(?:''[^']*+)*+(?P<string_end>')? )
    | (?P<quoted>  (?:[uU]&)?"[^"]*+(?:""[^"]*+)*+(?P<quoted_end>")? )
    | (?P<dollar>  \$(?:[{_LETTER}][{_LETTER}0-9]*+)?\$ )
    | (?P<param>   \$[0-9]++ )
    | (?P<word>    [{_LETTER}][{_LETTER}0-9$]*+ )
    | (?P<number>  (?:[0-9][0-9_]*+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)? )
    | (?P<end>     ; )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)

_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")

_ESCAPE: Final = re.compile(
    r"''|\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))",
    re.DOTALL,
)
_ESCAPED_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def tokens(sql: str) -> Iterator[Token]:
    """The tokens of a text; raises SqlSyntaxError for what is never closed."""
    at = 0
    while at < len(sql):
        match = _PATTERN.match(sql, at)
        assert match is not None
        at = match.end()
        name, text, start = match.lastgroup, match[0], match.start()
        if name == "space":
            continue
        if name == "comment":
            at = _end_of_comment(sql, start)
        elif name in ("string_end", "string"):
            if match["string_end"] is None:
                raise _unterminated("quoted string", sql, start)
            body = text[text.index("'") + 1 : -1]
            yield Token(TokenKind.STRING, body.replace("''", "'"), text, start)
        elif name in ("escape_end", "escape"):
            if match["escape_end"] is None:
                raise _unterminated("quoted string", sql, start)
            yield Token(TokenKind.STRING, _unescape(text[2:-1]), text, start)
        elif name in ("bits_end", "bits"):
            if match["bits_end"] is None:
                kind = "bit" if text[0] in "bB" else "hexadecimal"
                raise _unterminated(f"{kind} string literal", sql, start)
            yield Token(TokenKind.OTHER, text, text, start)
        elif name in ("quoted_end", "quoted"):
            if match["quoted_end"] is None:
                raise _unterminated("quoted identifier", sql, start)
            body = text[text.index('"') + 1 : -1]
            yield Token(TokenKind.QUOTED, body.replace('""', '"'), text, start)
        elif name == "dollar":
            close = sql.find(text, at)
            if close < 0:
                raise _unterminated("dollar-quoted string", sql, start)
            at = close + len(text)
            body = sql[match.end() : close]
            yield Token(TokenKind.STRING, body, sql[start:at], start)
        elif name == "word":
            yield Token(TokenKind.WORD, text.lower(), text, start)
        elif name == "number":
            yield Token(TokenKind.NUMBER, text, text, start)
        elif name == "end":
            yield Token(TokenKind.SEMICOLON, text, text, start)
        else:
            yield Token(TokenKind.OTHER, text, text, start)


def split(sql: str) -> list[Statement]:
    """The statements of a query string, empty ones left out; raises SqlSyntaxError."""
    statements: list[Statement] = []
    start: int | None = None
    end = 0
    for token in tokens(sql):
        if token.kind is TokenKind.SEMICOLON:
            if start is not None:
                statements.append(Statement(sql[start:end], start))
            start = None
            continue
        if start is None:
            start = token.start
        end = token.start + len(token.text)
    if start is not None:
        statements.append(Statement(sql[start:end], start))
    return statements


def _end_of_comment(sql: str, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise _unterminated("/* comment", sql, start)


def _unterminated(what: str, sql: str, start: int) -> SqlSyntaxError:
    error = SqlSyntaxError(f'unterminated {what} at or near "{sql[start:]}"')
    error.position = start + 1
    return error


def _unescape(body: str) -> str:
    def replace(match: re.Match[str]) -> str:
        octal, hexadecimal, short, long, letter = match.groups()
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if code := hexadecimal or short or long:
            number = int(code, 16)
            return chr(number) if number < 0x110000 else "\ufffd"
        if letter:
            return _ESCAPED_LETTERS.get(letter, letter)
        return "'"

    return _ESCAPE.sub(replace, body)
