"""``parse_string``: the statements of a query string, by PostgreSQL's grammar.

Comes in: a query string. Goes out: its statements, or the first syntax error with its position in
the string. Called by the Backend for each string and each prepared statement of a client, before
anything of it runs.

VERIFY, REPAIR and WAIT FOR are not PostgreSQL's, so they are looked for by their first words, as a
walsender looks for replication commands. The parser gets white space in their place.

The library's scanner is changed at one place: it takes ``$1a`` for ``$1 a``, which PostgreSQL
refuses, and so do we.
"""

from __future__ import annotations

import re
from typing import Final

from wal2lake.errors import SqlSyntaxError, UsageError, Wal2LakeError
from wal2lake.sql.grammar.lexer import StatementText, split_statements, tokens
from wal2lake.sql.grammar.pgparse.depth import check_depth
from wal2lake.sql.grammar.pgparse.failures import failure
from wal2lake.sql.grammar.pgparse.library import Refusal, parse_bytes
from wal2lake.sql.grammar.pgparse.messages import fields
from wal2lake.sql.grammar.remembered import by_text

OWN_STATEMENTS: Final = ("verify", "repair", "wait")
"""The first words of statements that PostgreSQL 18 does not have."""

_OWN: Final = re.compile(rf"\b(?:{'|'.join(OWN_STATEMENTS)})\b", re.IGNORECASE)
_JUNK: Final = re.compile(r"\$[0-9]+[A-Za-z_\x80-\U0010ffff]")
_COMMENT: Final = re.compile(r"--|/\*")
_SPACE: Final = " \t\n\r\f\v"

_STATEMENTS, _PLACE, _LENGTH = 2, 2, 3
"""Fields of ParseResult and of RawStmt."""


def is_own(statement: str) -> bool:
    """Whether a statement is none of PostgreSQL's."""
    return _OWN.match(statement) is not None


def _parse(text: str) -> tuple[StatementText, ...]:
    if "\0" in text:
        # The library takes it for the end of the text.
        raise UsageError(
            'invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021"
        )
    own = _own_statements(text)
    rest = text
    for statement in own:
        end = statement.offset + len(statement.text)
        rest = rest[: statement.offset] + " " * len(statement.text) + rest[end:]
    check_depth(rest)
    raw = rest.encode()
    answer = parse_bytes(raw)
    junk = _parameter_with_junk(rest)
    if isinstance(answer, Refusal):
        error: Wal2LakeError = failure(answer)
        if junk is not None and junk.position < error.position:
            error = junk
        raise error
    if junk is not None:
        raise junk
    others = [_trimmed(rest, start, end) for start, end in _places(answer, raw)]
    return tuple(sorted([*own, *others], key=lambda statement: statement.offset))


parse_string: Final = by_text(_parse)
"""Return the statements of a query string, without empty ones.

Raises PostgreSQL's errors of the scanner and the grammar, with the position in the string, 54001
for a string that is too deep, and 22021 for one with a NUL."""


def _own_statements(text: str) -> list[StatementText]:
    if _OWN.search(text) is None:
        return []
    try:
        statements = split_statements(text)
    except SqlSyntaxError:
        # A quote or comment is open, which the library reports.
        return []
    return [statement for statement in statements if is_own(statement.text)]


def _parameter_with_junk(text: str) -> SqlSyntaxError | None:
    """The error of the scanner for ``$1a``; None if there is none, or another one before it."""
    if _JUNK.search(text) is None:
        return None
    try:
        for _ in tokens(text):
            pass
    except SqlSyntaxError as error:
        if error.message.startswith("trailing junk after parameter"):
            return error
    except UsageError:
        pass
    return None


def _places(tree: bytes, raw: bytes) -> list[tuple[int, int]]:
    """Start and end of each statement in characters; the tree has them in bytes."""
    places = []
    for number, statement in fields(memoryview(tree)):
        if number != _STATEMENTS:
            continue
        assert isinstance(statement, memoryview)
        parts = dict(fields(statement))
        start, length = parts.get(_PLACE, 0), parts.get(_LENGTH, 0)
        assert isinstance(start, int)
        assert isinstance(length, int)
        places.append((start, start + length if length else len(raw)))
    if raw.isascii():
        return places
    characters = {0: 0}
    before = 0
    for place in sorted({place for pair in places for place in pair}):
        characters[place] = characters[before] + len(raw[before:place].decode())
        before = place
    return [(characters[start], characters[end]) for start, end in places]


def _trimmed(text: str, start: int, end: int) -> StatementText:
    """A statement without the white space and comments around it."""
    piece = text[start:end]
    if _COMMENT.search(piece) is None:
        inner = piece.lstrip(_SPACE)
        return StatementText(inner.rstrip(_SPACE), end - len(inner))
    words = list(tokens(piece))
    # END stands behind the last token.
    first, last = words[0].start, words[-1].start
    return StatementText(piece[first:last], start + first)
