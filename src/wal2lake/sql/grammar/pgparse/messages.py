"""``fields``: reads protobuf's wire format, one message at a time.

Comes in: the bytes of a message. Goes out: the number and the value of each field. A message in a
message is a value of bytes, which the caller reads in turn, so nothing here is recursive and a tree
of any depth can be read.

Source: protobuf's documentation of the encoding; pg_query.proto.
"""

from __future__ import annotations

from collections.abc import Iterator


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field: an integer, or bytes."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        if key & 7 == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
        elif key & 7 == 2:
            size, place = _varint(message, place)
            yield key >> 3, message[place : place + size]
            place += size
        else:
            raise ValueError(f"unexpected type of field {key & 7}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
