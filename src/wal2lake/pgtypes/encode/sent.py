"""A column of PostgreSQL's text to its binary format: ``text_to_binary``.

Comes in: one column from the log, Arrow binary with canonical text. Goes out: the output of the
type's send function for each value, as Arrow binary. Called by pgoutput, whose clients may request
binary values.

Columns of types whose binary form is their text, and of fixed width, are converted at once; others
by ``encode.binary``. Types that are not supported stay text, because a receiver accepts both.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes.encode.binary import (
    FIXED,
    ITS_OWN_TEXT,
    arrow_to_binary,
    fixed_numbers,
)
from wal2lake.pgtypes.registry.pg_type import type_by_oid

_JSONB = 3802
_WITH_BOUNDS = ("[", "{{")
"""Beginnings of the text of an array with bounds of its own, or with several dimensions."""


def text_to_binary(values: pa.Array, type_oid: int) -> pa.Array | None:
    """Convert values to binary, null to null; None: at least one value cannot be converted.

    ``values`` are binary with canonical text in UTF-8 (DateStyle ISO, TimeZone UTC).
    """
    if type_oid in ITS_OWN_TEXT:
        return values
    if type_oid == _JSONB:
        prefix = pa.scalar(b"\x01", pa.binary())
        return pc.binary_join_element_wise(prefix, values, pa.scalar(b"", pa.binary()))
    try:
        texts = values.cast(pa.string())
        if type_oid in FIXED:
            return _fixed(texts, type_oid)
        pg_type = type_by_oid(type_oid)
        if pg_type is not None and pg_type.is_array and _has_bounds(texts):
            return None
        converted = pa.array(arrow_to_binary(texts, type_oid), pa.binary())
    except Wal2LakeError:
        return None
    # Binary elements may be longer than their text, and an Arrow array has less than 2 GiB.
    return None if isinstance(converted, pa.ChunkedArray) else converted


def _fixed(texts: pa.Array, type_oid: int) -> pa.Array:
    numbers, valid = fixed_numbers(texts, type_oid)
    width = numbers.dtype.itemsize
    sizes = np.where(valid, width, 0)
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    whole = valid.all()
    data = (numbers if whole else numbers[valid]).tobytes()
    validity = None if whole else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(),
        len(numbers),
        [validity, pa.py_buffer(offsets), pa.py_buffer(data)],
    )


def _has_bounds(texts: pa.Array) -> bool:
    matches = [pc.any(pc.starts_with(texts, start)).as_py() for start in _WITH_BOUNDS]
    return any(matches)
