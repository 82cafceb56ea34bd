"""Ranges and multiranges to their binary format.

Comes in: canonical text, and a function that writes the bounds' type. Goes out: the output of
range_send and multirange_send. Called by ``encode.binary``.

The bounds of all values are written together, as one column.

Sources: range_send, multirange_send in src/backend/utils/adt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence

import pyarrow as pa

from wal2lake.pgtypes.binary import length_prefixed

Values = list[bytes | None]

_EMPTY, _LOWER_IN, _UPPER_IN, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16

_BOUND = r'((?:"(?:[^"\\]|\\.|"")*"|[^",\[\]()])*)'
_RANGE = re.compile(rf"([\[(]){_BOUND},{_BOUND}([\])])", re.DOTALL)
_QUOTED = re.compile(r'\\(.)|"(")|"', re.DOTALL)


def ranges_to_binary(
    texts: Sequence[bytes | None],
    bounds: Callable[[pa.Array], Values],
    *,
    several: bool,
) -> Values:
    """Convert each text, None to None. ``bounds`` converts a column of bounds as text;
    ``several``: the values are multiranges."""
    parsed = [[] if text is None else _RANGE.findall(text.decode()) for text in texts]
    sides = [
        _unquoted(side) if side else None
        for parts in parsed
        for part in parts
        for side in part[1:3]
    ]
    sent = iter(bounds(pa.array(sides, pa.string())))
    rows: Values = []
    for text, parts in zip(texts, parsed, strict=True):
        written = [
            _range(opening, next(sent), next(sent), closing)
            for opening, _, _, closing in parts
        ]
        if text is None:
            rows.append(None)
        elif several:
            prefixed = b"".join(map(length_prefixed, written))
            rows.append(struct.pack("!i", len(written)) + prefixed)
        else:
            rows.append(written[0] if written else bytes((_EMPTY,)))
    return rows


def _range(
    opening: str, lower: bytes | None, upper: bytes | None, closing: str
) -> bytes:
    flags = 0
    flags |= _NO_LOWER if lower is None else _LOWER_IN if opening == "[" else 0
    flags |= _NO_UPPER if upper is None else _UPPER_IN if closing == "]" else 0
    sent = (length_prefixed(bound) for bound in (lower, upper) if bound is not None)
    return bytes((flags,)) + b"".join(sent)


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda match: match[1] or match[2] or "", text)
