"""Geometric types: one binary value to text. Called through ``scalar``.

Each is a few float8 numbers; a path and a polygon begin with the number of points.

Source: the send and out functions in src/backend/utils/adt/geo_ops.c.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from wal2lake.pgtypes.binary import incorrect_format
from wal2lake.pgtypes.encode.float import FLOAT8, float_text
from wal2lake.pgtypes.receive.value.cursor import ValueCursor


def _numbers(data: bytes, count: int) -> list[str]:
    if len(data) != 8 * count:
        raise incorrect_format()
    return [
        float_text(number, repr(number), FLOAT8).decode()
        for number in struct.unpack(f"!{count}d", data)
    ]


def _points(data: bytes, count: int) -> list[str]:
    numbers = _numbers(data, 2 * count)
    return [f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True)]


def _of_points(count: int, shown: str) -> Callable[[bytes], str]:
    return lambda data: shown.format(",".join(_points(data, count)))


def _of_numbers(shown: str) -> Callable[[bytes], str]:
    return lambda data: shown.format(*_numbers(data, 3))


read_point = _of_points(1, "{}")
read_lseg = _of_points(2, "[{}]")
read_box = _of_points(2, "{}")
read_line = _of_numbers("{{{},{},{}}}")
read_circle = _of_numbers("<({},{}),{}>")


def read_path(data: bytes) -> str:
    """Byte: closed; Int32 number of points."""
    cursor = ValueCursor(data)
    closed, count = cursor.number("B"), cursor.number("i")
    points = ",".join(_points(cursor.take(cursor.left), count))
    return f"({points})" if closed else f"[{points}]"


def read_polygon(data: bytes) -> str:
    """Int32 number of points."""
    cursor = ValueCursor(data)
    count = cursor.number("i")
    return f"({','.join(_points(cursor.take(cursor.left), count))})"
