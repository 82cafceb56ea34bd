"""Values with parts: ranges, multiranges, composites, hstore and vectors, to text.

Comes in: the bytes and the decoder of the parts (for composites, the decoders of the types that
the value names). Goes out: the literal as the type's output function writes it. Called by
``remote``; arrays are in ``pgtypes.binary``, because parameters use them, too.

Sources: range_send, range_deparse and range_bound_escape in rangetypes.c; multirange_send;
record_send and record_out in rowtypes.c; hstore_send and hstore_out in
contrib/hstore/hstore_io.c; int2vectorout.
"""

from __future__ import annotations

from collections.abc import Callable

from wal2lake.pgtypes.binary import incorrect_format
from wal2lake.pgtypes.receive.value.cursor import ValueCursor, decoded
from wal2lake.pgtypes.receive.value.scalar import Reader

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE = 0x01, 0x02, 0x04
_LOWER_INFINITE, _UPPER_INFINITE = 0x08, 0x10
_KNOWN_FLAGS = 0x1F
_SPACE = " \t\n\v\f\r"
_IN_RANGES = frozenset('"\\()[],' + _SPACE)
_IN_RECORDS = frozenset('"\\(),' + _SPACE)


def _escaped(text: str, special: frozenset[str]) -> str:
    """Quote a text if necessary, with quotes and backslashes doubled."""
    if text and not any(c in special for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'


def range_reader(bound: Reader) -> Reader:
    """Return a reader of ranges: a byte of flags, then the finite bounds."""

    def read(data: bytes) -> str:
        cursor = ValueCursor(data)
        flags = cursor.number("B")
        if flags & ~_KNOWN_FLAGS:
            raise incorrect_format()
        if flags & _EMPTY:
            cursor.end()
            return "empty"
        lower = "" if flags & _LOWER_INFINITE else _bound(cursor, bound)
        upper = "" if flags & _UPPER_INFINITE else _bound(cursor, bound)
        cursor.end()
        opening = "[" if flags & _LOWER_INCLUSIVE else "("
        closing = "]" if flags & _UPPER_INCLUSIVE else ")"
        return f"{opening}{lower},{upper}{closing}"

    return read


def _bound(cursor: ValueCursor, bound: Reader) -> str:
    data = cursor.sized()
    if data is None:
        raise incorrect_format()
    return _escaped(bound(data), _IN_RANGES)


def multirange_reader(read_range: Reader) -> Reader:
    """Return a reader of multiranges: Int32 number of ranges, each with its length."""

    def read(data: bytes) -> str:
        cursor = ValueCursor(data)
        shown = []
        for _ in range(cursor.number("I")):
            part = cursor.sized()
            if part is None:
                raise incorrect_format()
            shown.append(read_range(part))
        cursor.end()
        return "{" + ",".join(shown) + "}"

    return read


def record_reader(of: Callable[[int], Reader]) -> Reader:
    """Return a reader of composites: Int32 number of columns, each with type OID, length and
    bytes."""

    def read(data: bytes) -> str:
        cursor = ValueCursor(data)
        shown = []
        for _ in range(cursor.number("I")):
            reader = of(cursor.number("I"))
            value = cursor.sized()
            shown.append("" if value is None else _escaped(reader(value), _IN_RECORDS))
        cursor.end()
        return "(" + ",".join(shown) + ")"

    return read


def vector_reader(element: Reader) -> Reader:
    """Return a reader of int2vector or oidvector: an array with lower bound 0, printed without
    braces."""

    def read(data: bytes) -> str:
        cursor = ValueCursor(data)
        dimensions = cursor.number("i")
        cursor.take(8)
        if not dimensions:
            cursor.end()
            return ""
        count, _ = cursor.number("i"), cursor.number("i")
        if dimensions != 1 or count < 0:
            raise incorrect_format()
        shown = []
        for _ in range(count):
            value = cursor.sized()
            if value is None:
                raise incorrect_format()
            shown.append(element(value))
        cursor.end()
        return " ".join(shown)

    return read


def read_hstore(data: bytes) -> str:
    """Int32 number of pairs, then key and value of each with their lengths."""
    cursor = ValueCursor(data)
    shown = []
    for _ in range(cursor.number("I")):
        key, value = cursor.sized(), cursor.sized()
        if key is None:
            raise incorrect_format()
        right = "NULL" if value is None else _hstore_quoted(value)
        shown.append(f"{_hstore_quoted(key)}=>{right}")
    cursor.end()
    return ", ".join(shown)


def _hstore_quoted(data: bytes) -> str:
    text = decoded(data).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
