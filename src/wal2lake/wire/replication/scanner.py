"""The tokens of replication commands.

They differ from SQL's: keywords are in upper case only, there are no comments and no ``E''``, and
an LSN is a token. Tokens are scanned on demand of the parser, so that the first of two errors is
reported.

Source: src/backend/replication/repl_scanner.l. A doubled ``"`` inside of a quoted identifier stands
for one, as since the minor releases of August 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import InternalError, SqlSyntaxError

COMMANDS: Final = frozenset(
    {
        "ALTER_REPLICATION_SLOT",
        "BASE_BACKUP",
        "CREATE_REPLICATION_SLOT",
        "DROP_REPLICATION_SLOT",
        "IDENTIFY_SYSTEM",
        "READ_REPLICATION_SLOT",
        "SHOW",
        "START_REPLICATION",
        "TIMELINE_HISTORY",
        "UPLOAD_MANIFEST",
    }
)
"""Keywords that begin a replication command."""

KEYWORDS: Final = COMMANDS | {
    "EXPORT_SNAPSHOT",
    "LOGICAL",
    "NOEXPORT_SNAPSHOT",
    "PHYSICAL",
    "RESERVE_WAL",
    "SLOT",
    "TEMPORARY",
    "TIMELINE",
    "TWO_PHASE",
    "USE_SNAPSHOT",
    "WAIT",
}

NAME_BYTES: Final = 63
"""NAMEDATALEN - 1: longer identifiers are truncated."""

_MAX_UINT32: Final = (1 << 32) - 1
_MAX_UINT64: Final = (1 << 64) - 1


class ReplicationTokenKind(Enum):
    """Kinds of tokens."""

    KEYWORD = "keyword"
    IDENT = "identifier"
    STRING = "string"
    NUMBER = "number"
    """0 to 2**32 - 1."""
    LSN = "lsn"
    """A number of 64 bits."""
    CHARACTER = "character"
    """Any other character, by itself."""
    END = "end"


@dataclass(frozen=True, slots=True)
class ReplicationToken:
    """A token. ``text`` is the content of an identifier or string, or the keyword or character."""

    kind: ReplicationTokenKind
    text: str = ""
    number: int = 0


_SPACE: Final = re.compile(r"[ \t\n\r\f\v]*")
_LSN: Final = re.compile(r"([0-9A-Fa-f]+)/([0-9A-Fa-f]+)")
_NUMBER: Final = re.compile(r"[0-9]+")
# Any character beyond ASCII may be part of an identifier.
_IDENT: Final = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_UPPER: Final = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}


def tokens(text: str) -> Iterator[ReplicationToken]:
    """Yield the tokens up to END; raises SqlSyntaxError at an unterminated quote."""
    position = 0
    while True:
        position = _spaces_end(text, position)
        if position == len(text):
            yield ReplicationToken(ReplicationTokenKind.END)
            return
        if text[position] in "\"'":
            content, position = _quoted(text, position)
            yield (
                ReplicationToken(ReplicationTokenKind.STRING, content)
                if text[position - 1] == "'"
                else ReplicationToken(ReplicationTokenKind.IDENT, truncated(content))
            )
        elif match := _LSN.match(text, position):
            # An identifier or a number is only a prefix of an LSN, and the longest match wins.
            position = match.end()
            high, low = (_wrapped(int(half, 16)) for half in match.groups())
            yield ReplicationToken(ReplicationTokenKind.LSN, number=high << 32 | low)
        elif match := _NUMBER.match(text, position):
            position = match.end()
            yield ReplicationToken(
                ReplicationTokenKind.NUMBER, number=_wrapped(_decimal(match[0]))
            )
        elif match := _IDENT.match(text, position):
            position = match.end()
            word = match[0]
            yield (
                ReplicationToken(ReplicationTokenKind.KEYWORD, word)
                if word in KEYWORDS
                else ReplicationToken(ReplicationTokenKind.IDENT, folded(word))
            )
        else:
            position += 1
            yield ReplicationToken(ReplicationTokenKind.CHARACTER, text[position - 1])


def is_replication_command(text: str) -> bool:
    """Return whether the text begins with a replication command's keyword; otherwise it is SQL."""
    match = _IDENT.match(text, _spaces_end(text, 0))
    return match is not None and match[0] in COMMANDS


def folded(word: str) -> str:
    """Fold the case of an unquoted identifier, and truncate it."""
    return truncated(word.translate(_UPPER))


def truncated(name: str) -> str:
    """Truncate an identifier to the length of a name."""
    return name.encode("utf-8", "surrogatepass")[:NAME_BYTES].decode("utf-8", "ignore")


def quoted_ident(name: str) -> str:
    """Quote an identifier for this grammar."""
    return _in_quotes(name, '"')


def quoted_string(text: str) -> str:
    """Quote a string for this grammar, where a backslash has no special meaning."""
    return _in_quotes(text, "'")


def _in_quotes(text: str, quote: str) -> str:
    if "\0" in text:
        raise InternalError("a command cannot hold a NUL byte")
    return quote + text.replace(quote, quote * 2) + quote


def _spaces_end(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _quoted(text: str, position: int) -> tuple[str, int]:
    """Return the content of a quoted token, and the position behind it."""
    quote, parts, start = text[position], [], position + 1
    while (stop := text.find(quote, start)) >= 0:
        parts.append(text[start:stop])
        if text[stop + 1 : stop + 2] != quote:
            return quote.join(parts), stop + 1
        start = stop + 2
    raise SqlSyntaxError("unterminated quoted string")


def _decimal(digits: str) -> int:
    # int() refuses thousands of digits; twenty are too many already.
    significant = digits.lstrip("0")
    return int(significant or "0") if len(significant) <= 20 else _MAX_UINT64


def _wrapped(number: int) -> int:
    """Wrap a number as strtoul() and an assignment to 32 bits do."""
    return min(number, _MAX_UINT64) & _MAX_UINT32
