"""Built-in types without parts: one binary value to its canonical text.

Comes in: the output of the type's send function. Goes out: the output of its output function
(TimeZone UTC, DateStyle ISO, IntervalStyle postgres, extra_float_digits 1 or more,
bytea_output hex). ``READERS`` has the types by OID. Called by ``columns``, ``nested`` and,
for parameters, by ``pgtypes.params``.

Two kinds of types are missing, because the bytes do not determine their text: money, which depends
on lc_monetary, and the reg* types, which are names in the publisher's catalog.

Sources: the send functions in src/backend/utils/adt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from wal2lake.errors import UsageError
from wal2lake.model import Lsn
from wal2lake.pgtypes.binary import (
    char_from_binary,
    incorrect_format,
    jsonb_from_binary,
    numeric_from_binary,
    uuid_from_binary,
)
from wal2lake.pgtypes.encode.float import FLOAT4, FLOAT8, float_text
from wal2lake.pgtypes.receive.value.cursor import ValueCursor, decoded
from wal2lake.pgtypes.receive.value.datetime import (
    read_date,
    read_interval,
    read_time,
    read_timestamp,
    read_timestamptz,
    read_timetz,
)
from wal2lake.pgtypes.receive.value.geometric import (
    read_box,
    read_circle,
    read_line,
    read_lseg,
    read_path,
    read_point,
    read_polygon,
)
from wal2lake.pgtypes.receive.value.network import (
    read_cidr,
    read_inet,
    read_macaddr,
    read_macaddr8,
)
from wal2lake.pgtypes.receive.value.textsearch import read_tsquery, read_tsvector

Reader = Callable[[bytes], str]


def _unpack(layout: str) -> Callable[[bytes], int | float]:
    form = struct.Struct(layout)

    def unpack(data: bytes) -> int | float:
        if len(data) != form.size:
            raise incorrect_format()
        (number,) = form.unpack(data)
        return number  # type: ignore[no-any-return]

    return unpack


def _integer(layout: str) -> Reader:
    unpack = _unpack(layout)
    return lambda data: str(unpack(data))


def _bool(data: bytes) -> str:
    return "t" if _unpack("!B")(data) else "f"


def _float4(data: bytes) -> str:
    number = float(_unpack("!f")(data))
    with np.errstate(invalid="ignore"):
        return float_text(number, str(np.float32(number)), FLOAT4).decode()


def _float8(data: bytes) -> str:
    number = float(_unpack("!d")(data))
    return float_text(number, repr(number), FLOAT8).decode()


def _bits(data: bytes) -> str:
    cursor = ValueCursor(data)
    length = cursor.number("i")
    body = cursor.take(cursor.left)
    if length < 0 or len(body) != (length + 7) // 8:
        raise incorrect_format()
    shown = f"{int.from_bytes(body):0{8 * len(body)}b}" if body else ""
    return shown[:length]


def _tid(data: bytes) -> str:
    cursor = ValueCursor(data)
    block, offset = cursor.number("I"), cursor.number("H")
    cursor.end()
    return f"({block},{offset})"


def _jsonpath(data: bytes) -> str:
    if data[:1] != b"\x01":
        raise UsageError(
            f"unsupported jsonpath version number: {data[0] if data else 0}",
            sqlstate="XX000",
        )
    return decoded(data[1:])


def _snapshot(data: bytes) -> str:
    """Int32 number of xids, Int64 xmin, xmax and the xids."""
    cursor = ValueCursor(data)
    count = cursor.number("i")
    first, last = cursor.number("q"), cursor.number("q")
    running = ",".join(str(cursor.number("q")) for _ in range(count))
    cursor.end()
    return f"{first}:{last}:{running}"


READERS: Mapping[int, Reader] = MappingProxyType(
    {
        16: _bool,
        17: lambda data: "\\x" + data.hex(),
        18: char_from_binary,
        19: decoded,
        20: _integer("!q"),
        21: _integer("!h"),
        23: _integer("!i"),
        25: decoded,
        26: _integer("!I"),
        27: _tid,
        28: _integer("!I"),
        29: _integer("!I"),
        114: decoded,
        142: decoded,
        600: read_point,
        601: read_lseg,
        602: read_path,
        603: read_box,
        604: read_polygon,
        628: read_line,
        650: read_cidr,
        700: _float4,
        701: _float8,
        705: decoded,
        718: read_circle,
        774: read_macaddr8,
        829: read_macaddr,
        869: read_inet,
        1042: decoded,
        1043: decoded,
        1082: read_date,
        1083: read_time,
        1114: read_timestamp,
        1184: read_timestamptz,
        1186: read_interval,
        1266: read_timetz,
        1560: _bits,
        1562: _bits,
        1700: numeric_from_binary,
        1790: decoded,
        2950: uuid_from_binary,
        2970: _snapshot,
        3220: lambda data: str(Lsn(int(_unpack("!Q")(data)))),
        3614: read_tsvector,
        3615: read_tsquery,
        3802: lambda data: decoded(jsonb_from_binary(data)),
        4072: _jsonpath,
        5038: _snapshot,
        5069: _integer("!Q"),
    }
)
"""Readers by pg_type.oid."""

TEXT_TYPES: frozenset[int] = frozenset((19, 25, 114, 142, 1042, 1043, 1790))
"""Types whose binary form is their text."""
