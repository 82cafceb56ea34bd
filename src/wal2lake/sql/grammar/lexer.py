"""Splits SQL text into tokens, and a query string into statements.

Comes in: text as a client sent it. Goes out: ``Token`` values with positions and decoded values
(folded names, strings without quotes and escapes), or the ``StatementText`` values of a query
string. The lexer knows PostgreSQL's lexical rules and no grammar. Splitting into statements needs
the shapes of tokens and not their values, so it refuses only a quote or comment that is never
closed. A statement with a malformed number is still one statement; the parser reports the number.

    names      unquoted: ASCII letters folded, cut at 63 bytes; "quoted", U&"..." with \\XXXX
    strings    '...', E'...' with backslashes, $tag$...$tag$, U&'...', N'...'; constants on
               several lines are one constant if only white space with a newline separates them
    numbers    12, 1_000, 0x1F, 0o17, 0b1, 1.5, .5, 1e5; trailing letters are an error
    others     $1, b'01', x'1F', operators (a run of operator characters, with PostgreSQL's
               rule about a trailing + or -), comments -- and /* nested */

The scan is one compiled pattern with possessive quantifiers, so its time is linear in the length
of the text even if the text is hostile.

Sources: src/backend/parser/scan.l, parser.c (U& escapes); manual, section 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.sql.grammar.quoting import fold, truncate_identifier


class TokenKind(Enum):
    """The kinds of tokens. Comments and white space are not tokens."""

    WORD = "word"
    """An unquoted identifier or keyword; ``value`` is folded."""
    QUOTED = "quoted"
    """A quoted identifier; ``value`` is as written, without the quotes."""
    STRING = "string"
    """A string constant; ``value`` is decoded."""
    INTEGER = "integer"
    """A numeric constant without point or exponent; ``value`` is as written."""
    FLOAT = "float"
    """Any other numeric constant; ``value`` is as written."""
    BITS = "bits"
    """b'01' or x'1F'; ``value`` is the lower-case letter and the digits."""
    PARAMETER = "parameter"
    """$1; ``value`` is the number."""
    OPERATOR = "operator"
    """A run of operator characters, or := => <= and so on."""
    MARK = "mark"
    """One of , ( ) [ ] . : ; and ``::`` ``..`` ``:=``."""
    END = "end"
    """After the last token; ``text`` is empty."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token. ``text`` is as written; ``start`` is 0-based, in characters."""

    kind: TokenKind
    value: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position behind the token's last character."""
        return self.start + len(self.text)

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these unquoted words."""
        return self.kind is TokenKind.WORD and self.value in words

    def is_mark(self, mark: str) -> bool:
        """Whether the token is this punctuation mark or operator."""
        return self.kind in (TokenKind.MARK, TokenKind.OPERATOR) and self.value == mark


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement of a query string, without its semicolon and outer white space."""

    text: str
    offset: int
    """The statement's first character in the query string, 0-based."""


_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
_INTEGER: Final = r"0[xX](?:_?[0-9A-Fa-f])++|0[oO](?:_?[0-7])++|0[bB](?:_?[01])++"
_DIGITS: Final = r"[0-9](?:_?[0-9])*+"

_PATTERN: Final = re.compile(
    rf"""
      (?P<space>    [ \t\n\r\f\v]++ | --[^\n\r]*+ )
    | (?P<comment>  /\* )
    | (?P<escape>   [eE]'[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+(?P<escape_end>')? )
    | (?P<bits>     [bBxX]'[^']*+(?P<bits_end>')? )
    | (?P<unicode>  [uU]&'[^']*+(?:''[^']*+)*+(?P<unicode_end>')? )
    | (?P<string>   [nN]?'[^']*+(?:''[^']*+)*+(?P<string_end>')? )
    | (?P<uquoted>  [uU]&"[^"]*+(?:""[^"]*+)*+(?P<uquoted_end>")? )
    | (?P<quoted>   "[^"]*+(?:""[^"]*+)*+(?P<quoted_end>")? )
    | (?P<dollar>   \$(?:[{_LETTER}][{_LETTER}0-9]*+)?\$ )
    | (?P<param>    \$[0-9]++(?P<param_junk>[{_LETTER}][{_LETTER}0-9$]*+)? )
    | (?P<word>     [{_LETTER}][{_LETTER}0-9$]*+ )
    | (?P<number>   (?:{_INTEGER}
                       |(?:{_DIGITS}(?P<point>\.(?!\.)(?:{_DIGITS})?)?
                          |(?P<bare>\.{_DIGITS}))
                        (?P<exponent>[eE][+-]?{_DIGITS})?)
                    (?P<number_junk>[{_LETTER}][{_LETTER}0-9$]*+)? )
    | (?P<mark>     ::|:=|\.\.|[,()\[\].:;] )
    | (?P<operator> [-+*/<>=~!@\#%^&|`?]++ )
    | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)

_CLOSED: Final = {
    "escape": "quoted string",
    "string": "quoted string",
    "unicode": "quoted string",
    "quoted": "quoted identifier",
    "uquoted": "quoted identifier",
}
"""The shapes that a quote closes, each with the name that error messages give it."""

_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
_CONTINUATION: Final = re.compile(
    r"(?:[ \t\f\v]|--[^\n\r]*+)*[\n\r](?:\s|--[^\n\r]*+)*'"
)
_STRING_CONTINUATION: Final = re.compile(r"[^']*+(?:''[^']*+)*+(')?")
_ESCAPE_CONTINUATION: Final = re.compile(
    r"[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+(')?", re.DOTALL
)


def syntax_error(
    text: str,
    start: int,
    near: str | None = None,
    *,
    sqlstate: str | None = None,
    detail: str | None = None,
    hint: str | None = None,
) -> SqlSyntaxError:
    """A 42601 at ``start`` in the text; ``near`` is added in PostgreSQL's words."""
    if near is not None:
        text = f'{text} at or near "{near}"' if near else f"{text} at end of input"
    error = SqlSyntaxError(text, sqlstate=sqlstate, detail=detail, hint=hint)
    error.position = start + 1
    return error


def tokens(sql: str) -> Iterator[Token]:
    """Yield the tokens of a text, END last. Raises SqlSyntaxError for a malformed token."""
    end = 0
    last = 0
    while end < len(sql):
        start = end
        shape, match, end = _next_shape(sql, start)
        if shape in ("space", "comment"):
            continue
        token, end = _token(sql, shape, match, end)
        last = end
        yield token
    yield Token(TokenKind.END, "", "", last)


def split_statements(sql: str) -> list[StatementText]:
    """The statements of a query string, without empty ones.

    Raises SqlSyntaxError for a quote or comment that is never closed.
    """
    statements: list[StatementText] = []
    statement_start: int | None = None
    end = statement_end = 0
    while end < len(sql):
        start = end
        shape, match, end = _next_shape(sql, start)
        if shape in ("space", "comment"):
            continue
        if match[0] == ";":
            if statement_start is not None:
                statements.append(
                    StatementText(sql[statement_start:statement_end], statement_start)
                )
            statement_start = None
            continue
        if statement_start is None:
            statement_start = start
        statement_end = end
    if statement_start is not None:
        statements.append(
            StatementText(sql[statement_start:statement_end], statement_start)
        )
    return statements


def _next_shape(sql: str, start: int) -> tuple[str, re.Match[str], int]:
    """The alternative of the pattern that matches at ``start``, its match, and its end."""
    match = _PATTERN.match(sql, start)
    assert match is not None
    # The group that closes last is the outer one, which is the alternative that matched.
    shape = match.lastgroup or ""
    end = match.end()
    if shape in _CLOSED:
        if match[f"{shape}_end"] is None:
            raise _unterminated(_CLOSED[shape], sql, start)
    elif shape == "bits":
        if match["bits_end"] is None:
            base = "bit" if sql[start] in "bB" else "hexadecimal"
            raise _unterminated(f"{base} string literal", sql, start)
    elif shape == "comment":
        end = end_of_comment(sql, start)
    elif shape == "dollar":
        close = sql.find(match[0], end)
        if close < 0:
            raise _unterminated("dollar-quoted string", sql, start)
        end = close + len(match[0])
    elif shape == "operator":
        end = start + len(_operator(match[0]))
    return shape, match, end


def _token(sql: str, shape: str, match: re.Match[str], end: int) -> tuple[Token, int]:
    """The token of a shape, and its end. A string may continue on the next line."""
    start = match.start()
    text = sql[start:end]
    kind, value = TokenKind.WORD, text
    match shape:
        case "word":
            value = truncate_identifier(fold(text))
        case "mark":
            kind = TokenKind.MARK
        case "operator":
            kind = TokenKind.OPERATOR
        case "number":
            kind = TokenKind.INTEGER
            if match["number_junk"] is not None or sql[end : end + 1] == "_":
                junk = text if match["number_junk"] is not None else text + "_"
                raise syntax_error("trailing junk after numeric literal", start, junk)
            if match["point"] or match["bare"] or match["exponent"]:
                kind = TokenKind.FLOAT
        case "param":
            kind, value = TokenKind.PARAMETER, text[1:]
            if match["param_junk"] is not None:
                raise syntax_error("trailing junk after parameter", start, text)
        case "bits":
            kind = TokenKind.BITS
            value = text[0].lower() + text[2:-1]
        case "quoted" | "uquoted":
            kind = TokenKind.QUOTED
            body = text[text.index('"') + 1 : -1].replace('""', '"')
            if not body:
                raise syntax_error("zero-length delimited identifier", start, text)
            value = truncate_identifier(
                _unicode(body, start) if shape == "uquoted" else body
            )
        case "dollar":
            kind = TokenKind.STRING
            value = text[len(match[0]) : -len(match[0])]
        case "string" | "escape" | "unicode":
            kind = TokenKind.STRING
            parts = [text[text.index("'") + 1 : -1]]
            end = _continue_string(sql, end, shape == "escape", parts, start)
            text = sql[start:end]
            body = "".join(parts)
            if shape == "escape":
                value = _unescape(body, start + 2)
            else:
                value = body.replace("''", "'")
                if shape == "unicode":
                    value = _unicode(value, start)
        case _:
            raise syntax_error("syntax error", start, text)
    return Token(kind, value, text, start), end


def _unterminated(token_name: str, sql: str, start: int) -> SqlSyntaxError:
    return syntax_error(f"unterminated {token_name}", start, sql[start:])


def _continue_string(
    sql: str, end: int, escapes: bool, parts: list[str], start: int
) -> int:
    """Append the pieces of a string constant on following lines; return their end."""
    pattern = _ESCAPE_CONTINUATION if escapes else _STRING_CONTINUATION
    while (gap := _CONTINUATION.match(sql, end)) is not None:
        piece = pattern.match(sql, gap.end())
        assert piece is not None
        if piece[1] is None:
            raise _unterminated("quoted string", sql, start)
        parts.append(piece[0][:-1])
        end = piece.end()
    return end


def end_of_comment(sql: str, start: int) -> int:
    """The place behind a comment that may have others in it; raises 42601 if it is not closed."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise _unterminated("/* comment", sql, start)


def _operator(text: str) -> str:
    """The first operator of a run of operator characters.

    A comment ends the operator. A trailing + or - is not part of the operator unless the
    operator has a character that no operator of the SQL standard has.
    """
    for opening in ("/*", "--"):
        comment = text.find(opening)
        if comment > 0:
            text = text[:comment]
    if len(text) > 1 and text[-1] in "+-" and not set(text[:-1]) & set("~!@#%^&|`?"):
        text = text.rstrip("+-") or text[0]
    return text


# ---- escapes ------------------------------------------------------------------------

_ESCAPE: Final = re.compile(
    r"''|\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})"
    r"|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))",
    re.DOTALL,
)
_ESCAPED_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unescape(body: str, start: int) -> str:
    """The value of an E'' string. Bytes written as numbers must form valid UTF-8."""
    if "\\" not in body:
        return body.replace("''", "'")
    out = bytearray()
    end = 0
    high: int | None = None
    for match in _ESCAPE.finditer(body):
        between = body[end : match.start()]
        if high is not None and (between or not (match[3] or match[4])):
            raise _bad_surrogate(start + match.start(), match[0])
        out += between.encode()
        end = match.end()
        octal, hexadecimal, short, long, letter = match.groups()
        if octal or hexadecimal:
            out.append(int(octal, 8) & 0xFF if octal else int(hexadecimal, 16))
        elif short or long:
            code = int(short or long, 16)
            high = _add_code(out, code, high, start + match.start(), match[0])
        elif letter in ("u", "U"):
            error = syntax_error(
                "invalid Unicode escape",
                start + match.start(),
                hint="Unicode escapes must be \\uXXXX or \\UXXXXXXXX.",
                sqlstate="22025",
            )
            raise error
        elif letter:
            out += _ESCAPED_LETTERS.get(letter, letter).encode()
        else:
            out += b"'"
    if high is not None:
        raise _bad_surrogate(start + len(body), "'")
    out += body[end:].encode()
    return _decode(bytes(out))


def _add_code(
    out: bytearray, code: int, high: int | None, start: int, near: str
) -> int | None:
    """Append a character, or return the first half of a surrogate pair."""
    if high is not None:
        if not 0xDC00 <= code <= 0xDFFF:
            raise _bad_surrogate(start, near)
        code = 0x10000 + ((high & 0x3FF) << 10) + (code & 0x3FF)
    elif 0xD800 <= code <= 0xDBFF:
        return code
    elif 0xDC00 <= code <= 0xDFFF:
        raise _bad_surrogate(start, near)
    if not 0 < code < 0x110000:
        raise syntax_error("invalid Unicode escape value", start, near)
    out += chr(code).encode()
    return None


def _bad_surrogate(start: int, near: str) -> SqlSyntaxError:
    return syntax_error("invalid Unicode surrogate pair", start, near)


def _decode(raw: bytes) -> str:
    zero = raw.find(b"\0")
    if zero >= 0:
        raise _bad_encoding(b"\0")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _bad_encoding(raw[error.start : error.end]) from None


def _bad_encoding(raw: bytes) -> UsageError:
    hex_bytes = " ".join(f"0x{byte:02x}" for byte in raw)
    return UsageError(
        f'invalid byte sequence for encoding "UTF8": {hex_bytes}', sqlstate="22021"
    )


_UNICODE: Final = re.compile(r"\\(?:(\\)|([0-9A-Fa-f]{4})|\+([0-9A-Fa-f]{6})|(.?))")


def _unicode(body: str, start: int) -> str:
    """The value of a U& string or name whose escape character is a backslash."""
    out = bytearray()
    end = 0
    high: int | None = None
    for match in _UNICODE.finditer(body):
        between = body[end : match.start()]
        place = start + 3 + match.start()
        if high is not None and (between or not (match[2] or match[3])):
            raise syntax_error("invalid Unicode surrogate pair", place)
        out += between.encode()
        end = match.end()
        if match[1]:
            out += b"\\"
        elif code := match[2] or match[3]:
            high = _add_code(out, int(code, 16), high, place, match[0])
        else:
            raise syntax_error(
                "invalid Unicode escape",
                place,
                hint="Unicode escapes must be \\XXXX or \\+XXXXXX.",
            )
    if high is not None:
        raise syntax_error("invalid Unicode surrogate pair", start + 3 + len(body))
    out += body[end:].encode()
    return out.decode()


# ---- parameters --------------------------------------------------------------------------


def parameter_count(text: str) -> int:
    """The highest number of a parameter outside of strings; 0 if there is none."""
    if "$" not in text:
        return 0
    parameters = (t for t in _tokens_or_none(text) if t.kind is TokenKind.PARAMETER)
    return max((int(token.value) for token in parameters), default=0)


def command_name(sql: str) -> str:
    """The statement's name in messages: ``CREATE TABLE``, ``COMMENT``."""
    first, second = (token.value.upper() for token in islice(tokens(f"{sql} ; ;"), 2))
    return f"{first} {second}" if first in ("CREATE", "ALTER", "DROP") else first


_ARRAYS_OF_OIDS: Final = re.compile(
    r"\b(oid|reg(?:class|proc(?:edure)?|type|role|namespace|oper(?:ator)?))\s*\[\s*\]",
    re.IGNORECASE,
)


def readable_by_sqlglot(text: str) -> str:
    """The same statement, written so that sqlglot reads it.

    sqlglot takes ``$1,$2`` for the start of a dollar-quoted string, fails when it looks for the
    end of such a string behind ``''``, and does not know ``oid[]``. So a space is put behind each
    parameter and at the end of the text, and ``oid[]`` becomes ``_oid``, the array type's name.
    """
    if "$" not in text and _ARRAYS_OF_OIDS.search(text) is None:
        return text
    pieces: list[str] = []
    copied_end, parameters = 0, False
    for token in _tokens_or_none(text):
        if token.kind is TokenKind.PARAMETER:
            pieces += [text[copied_end : token.end], " "]
            copied_end, parameters = token.end, True
        elif token.kind is TokenKind.WORD:
            array = _ARRAYS_OF_OIDS.match(text, token.start)
            if array is not None:
                pieces += [text[copied_end : token.start], "_", array[1]]
                copied_end = array.end()
    return "".join([*pieces, text[copied_end:], " " if parameters else ""])


def _tokens_or_none(text: str) -> list[Token]:
    """The tokens of a text; none if the text is malformed, which the parser then reports."""
    try:
        return list(tokens(text))
    except SqlSyntaxError:
        return []
