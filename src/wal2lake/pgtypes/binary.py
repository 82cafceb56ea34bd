"""The binary form of single values, as each type's send function writes it.

Each writer stands above its reader. Comes in: a value's canonical text (``encode.binary`` writes
whole columns of fixed-width types). Goes out: bytes, and the reverse. Called by ``encode.binary``
and ``params``.

All integers are big-endian. Dates and timestamps count from 2000-01-01. Readers refuse
the bytes that the type's receive function would refuse (22P03).

Sources: numeric_send/_recv, timestamp_send, date_send, uuid_send, jsonb_send, array_send,
charsend in src/backend/utils/adt.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Sequence

from wal2lake.errors import UsageError

DATE_EPOCH = 10_957
"""2000-01-01 in days since 1970."""
TIMESTAMP_EPOCH = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
DATE_INFINITY = (1 << 31) - 1
"""date 'infinity'; -infinity is its bitwise complement."""
TIMESTAMP_INFINITY = (1 << 63) - 1

_NUMERIC = re.compile(r"(-?)(\d*)(?:\.(\d*))?\Z", re.ASCII)
_NUMERIC_HEAD = struct.Struct("!HhHH")
"""Number of digits, weight of the first digit, sign, dscale."""
_POSITIVE, _NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = (
    0x0000,
    0x4000,
    0xC000,
    0xD000,
    0xF000,
)
_NUMERIC_WORDS = {"NaN": _NAN, "Infinity": _INFINITY, "-Infinity": _MINUS_INFINITY}
_INFINITY_DSCALE = 0x20
"""The scale that numeric_send reads from the header of an infinity. It has no meaning."""
_MAX_DSCALE = 0x3FFF
_ARRAY_HEAD = struct.Struct("!iii")
"""Dimensions, has-null flag, element type."""
_ARRAY_DIMENSION = struct.Struct("!ii")
"""Length, lower bound."""
_MAX_DIMENSIONS = 6
_INT2 = 21


def incorrect_format() -> UsageError:
    """Build the error of a receive function for invalid bytes."""
    return UsageError("incorrect binary data format", sqlstate="22P03")


def numeric_to_binary(text: str) -> bytes:
    """Encode numeric's canonical text as base-10000 digits."""
    special = _NUMERIC_WORDS.get(text)
    if special is not None:
        dscale = 0 if special == _NAN else _INFINITY_DSCALE
        return _NUMERIC_HEAD.pack(0, 0, special, dscale)
    match = _NUMERIC.match(text)
    if match is None:
        raise incorrect_format()
    whole, fraction = match[2], match[3] or ""
    padded = "0" * (-len(whole) % 4) + whole + fraction + "0" * (-len(fraction) % 4)
    groups = [int(padded[offset : offset + 4]) for offset in range(0, len(padded), 4)]
    weight = (len(whole) + 3) // 4 - 1
    while groups and groups[0] == 0:
        del groups[0]
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        return _NUMERIC_HEAD.pack(0, 0, _POSITIVE, len(fraction))
    sign = _NEGATIVE if match[1] else _POSITIVE
    head = _NUMERIC_HEAD.pack(len(groups), weight, sign, len(fraction))
    return head + struct.pack(f"!{len(groups)}h", *groups)


def numeric_from_binary(data: bytes) -> str:
    """Decode a numeric; digits beyond dscale are truncated, as in numeric_recv."""
    if len(data) < _NUMERIC_HEAD.size:
        raise incorrect_format()
    count, weight, sign, dscale = _NUMERIC_HEAD.unpack_from(data)
    for text, special in _NUMERIC_WORDS.items():
        if sign == special:
            return text
    body = data[_NUMERIC_HEAD.size :]
    is_valid = sign in (_POSITIVE, _NEGATIVE) and dscale <= _MAX_DSCALE
    if not is_valid or len(body) != 2 * count:
        raise incorrect_format()
    groups = struct.unpack(f"!{count}h", body)
    if any(not 0 <= group <= 9999 for group in groups):
        raise incorrect_format()
    digits = "".join(f"{group:04d}" for group in groups)
    point = 4 * (weight + 1)
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point, "0")
    whole = digits[:point].lstrip("0") or "0"
    fraction = digits[point:][:dscale].ljust(dscale, "0")
    shown = f"{whole}.{fraction}" if dscale else whole
    negative = sign == _NEGATIVE and shown.strip("0.")
    return f"-{shown}" if negative else shown


def uuid_to_binary(text: str) -> bytes:
    """Encode a uuid as 16 bytes."""
    return bytes.fromhex(text.replace("-", ""))


def uuid_from_binary(data: bytes) -> str:
    """Decode a uuid to lower case with hyphens."""
    if len(data) != 16:
        raise incorrect_format()
    return str(uuid.UUID(bytes=data))


def char_to_binary(text: str) -> bytes:
    """Encode a "char" as one byte; '' is NUL, ``\\ooo`` a byte above 127."""
    if len(text) == 4 and text[0] == "\\":
        return bytes([int(text[1:], 8)])
    return text.encode()[:1] or b"\0"


def char_from_binary(data: bytes) -> str:
    """Decode a "char"."""
    if len(data) != 1:
        raise incorrect_format()
    byte = data[0]
    if byte == 0:
        return ""
    return chr(byte) if byte < 128 else f"\\{byte:03o}"


def jsonb_to_binary(text: bytes) -> bytes:
    """Encode a jsonb as a version byte and text."""
    return b"\x01" + text


def jsonb_from_binary(data: bytes) -> bytes:
    """Decode a jsonb; PostgreSQL has only version 1."""
    if data[:1] != b"\x01":
        raise UsageError(
            f"unsupported jsonb version number {data[0] if data else 0}",
            sqlstate="XX000",
        )
    return data[1:]


def array_to_binary(element_oid: int, elements: Sequence[bytes | None]) -> bytes:
    """Encode a one-dimensional array with lower bound 1; an empty array has no dimension."""
    if not elements:
        return _ARRAY_HEAD.pack(0, 0, element_oid)
    parts = [
        _ARRAY_HEAD.pack(1, int(None in elements), element_oid),
        _ARRAY_DIMENSION.pack(len(elements), 1),
    ]
    for element in elements:
        parts.append(length_prefixed(element))
    return b"".join(parts)


def vector_to_binary(element_oid: int, text: str) -> bytes:
    """Encode an int2vector or oidvector: an array with lower bound 0, which has a dimension even
    if it is empty."""
    width = "!ih" if element_oid == _INT2 else "!iI"
    size = struct.calcsize(width) - 4
    numbers = [int(word) for word in text.split()]
    head = _ARRAY_HEAD.pack(1, 0, element_oid) + _ARRAY_DIMENSION.pack(len(numbers), 0)
    return head + b"".join(struct.pack(width, size, number) for number in numbers)


def length_prefixed(value: bytes | None) -> bytes:
    """Encode a value as Int32 length and bytes; length -1 is NULL."""
    if value is None:
        return b"\xff\xff\xff\xff"
    return struct.pack("!i", len(value)) + value


def array_from_binary(
    data: bytes, element_oid: int, element: Callable[[bytes], str], delimiter: str
) -> str:
    """Decode a binary array of any number of dimensions to its literal."""
    if len(data) < _ARRAY_HEAD.size:
        raise incorrect_format()
    dimensions, flags, sent_oid = _ARRAY_HEAD.unpack_from(data)
    if not 0 <= dimensions <= _MAX_DIMENSIONS or flags not in (0, 1):
        raise incorrect_format()
    if sent_oid != element_oid:
        raise UsageError(
            f"binary data has array element type {sent_oid} instead of expected "
            f"{element_oid}",
            sqlstate="42804",
        )
    offset = _ARRAY_HEAD.size
    lengths, bounds, total = [], [], 1
    for _ in range(dimensions):
        if len(data) < offset + _ARRAY_DIMENSION.size:
            raise incorrect_format()
        length, bound = _ARRAY_DIMENSION.unpack_from(data, offset)
        offset += _ARRAY_DIMENSION.size
        if length < 0:
            raise incorrect_format()
        lengths.append(length)
        bounds.append(bound)
        total *= length
        if total > len(data):
            raise incorrect_format()
    total = total if dimensions else 0
    texts: list[str] = []
    for _ in range(total):
        if len(data) < offset + 4:
            raise incorrect_format()
        (size,) = struct.unpack_from("!i", data, offset)
        offset += 4
        if size < -1 or len(data) < offset + max(size, 0):
            raise incorrect_format()
        if size == -1:
            texts.append("NULL")
            continue
        texts.append(_quoted(element(data[offset : offset + size]), delimiter))
        offset += size
    if offset != len(data):
        raise incorrect_format()
    if not texts:
        return "{}"
    prefix = ""
    if any(bound != 1 for bound in bounds):
        pairs = zip(bounds, lengths, strict=True)
        prefix = "".join(f"[{low}:{low + n - 1}]" for low, n in pairs) + "="
    return prefix + _braces(texts, lengths, delimiter)


def _braces(texts: list[str], lengths: list[int], delimiter: str) -> str:
    if len(lengths) == 1:
        return "{" + delimiter.join(texts) + "}"
    step = len(texts) // lengths[0]
    inner = (
        _braces(texts[start : start + step], lengths[1:], delimiter)
        for start in range(0, len(texts), step)
    )
    return "{" + delimiter.join(inner) + "}"


_SPECIAL = '"\\{} \t\n\v\f\r'


def _quoted(text: str, delimiter: str) -> str:
    plain = text and text.upper() != "NULL" and delimiter not in text
    if plain and not any(c in _SPECIAL for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
