"""Parses serial types and the sequence options of identity columns.

Comes in: a cursor at a column's type, or behind AS IDENTITY. Goes out: the integer type of a serial
column; the start and increment of a sequence. Called by ``table``.

Source: gram.y, SeqOptList; transformColumnDefinition() in parse_utilcmd.c, init_params() in
sequence.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.model import Oid
from wal2lake.pgtypes.keywords import quote_identifier, quote_literal
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind

SEQUENCE_BITS: Final[Mapping[Oid, int]] = {Oid(21): 15, Oid(23): 31, Oid(20): 63}
"""The number of bits of the greatest value, by the type of the sequence."""

_SERIALS: Final = {
    "smallserial": Oid(21),
    "serial2": Oid(21),
    "serial": Oid(23),
    "serial4": Oid(23),
    "bigserial": Oid(20),
    "serial8": Oid(20),
}


def serial_type(cursor: TokenCursor, column: str) -> Oid | None:
    """Take a serial type and return its integer type; None if no serial type comes next."""
    integer_type = _SERIALS.get(
        cursor.token.value if cursor.token.is_word(*_SERIALS) else ""
    )
    if integer_type is None or cursor.ahead(1).is_mark("."):
        return None
    cursor.next()
    if cursor.token.is_mark("["):
        raise FeatureNotSupportedError("array of serial is not implemented")
    return integer_type


def sequence_options(cursor: TokenCursor, type_oid: Oid) -> tuple[int, int]:
    """[(START [WITH] n INCREMENT [BY] n ...)]: the start and the increment.

    CACHE, NO CYCLE, NO MINVALUE and NO MAXVALUE are accepted and ignored; other options raise
    0A000.
    """
    start, increment = None, 1
    if cursor.take_mark("("):
        while not cursor.take_mark(")"):
            if cursor.take("start"):
                cursor.take("with")
                start = _integer(cursor)
            elif cursor.take("increment"):
                cursor.take("by")
                increment = _integer(cursor)
                if increment == 0:
                    raise UsageError("INCREMENT must not be zero", sqlstate="22023")
            elif cursor.at_words("cache"):
                cursor.next()
                _integer(cursor)
            elif not any(
                cursor.take("no", word) for word in ("cycle", "minvalue", "maxvalue")
            ):
                raise FeatureNotSupportedError(
                    "options of sequences but START and INCREMENT are not supported on"
                    " lake tables"
                )
    end = 1 << SEQUENCE_BITS[type_oid]
    least, greatest = (1, end - 1) if increment > 0 else (-end, -1)
    if start is None:
        start = 1 if increment > 0 else -1
    if start < least:
        raise UsageError(
            f"START value ({start}) cannot be less than MINVALUE ({least})",
            sqlstate="22023",
        )
    if start > greatest:
        raise UsageError(
            f"START value ({start}) cannot be greater than MAXVALUE ({greatest})",
            sqlstate="22023",
        )
    return start, increment


def _integer(cursor: TokenCursor) -> int:
    negative = cursor.take_mark("-")
    token = cursor.next()
    if token.kind is not TokenKind.INTEGER:
        raise cursor.unexpected(token)
    return -int(token.value) if negative else int(token.value)


def nextval(schema: str, name: str) -> str:
    """A serial column's default, as pg_get_expr() prints it."""
    sequence = quote_identifier(name)
    if schema != "public":
        sequence = f"{quote_identifier(schema)}.{sequence}"
    return f"nextval({quote_literal(sequence)}::regclass)"
