"""A column of PostgreSQL's text to its binary format: ``text_to_binary``.

Comes in: one column as the log has it, Arrow binary with canonical text. Goes out: what the
type's send function would write for each value, as Arrow binary. Called by pgoutput, whose
clients may ask for binary values.

Types that are their own text, and those of fixed width, go a column at a time; the others as
``encode.binary`` writes them. What is not known here stays text: a receiver takes both.
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
"""An array whose text begins so has bounds of its own, or several dimensions."""


def text_to_binary(values: pa.Array, type_oid: int) -> pa.Array | None:
    """The same values in binary, null for null; None: they cannot be given so, all or one.

    ``values``: binary, canonical text in UTF-8 (DateStyle ISO, TimeZone UTC).
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
        known = type_by_oid(type_oid)
        if known is not None and known.is_array and _has_bounds(texts):
            return None
        found = pa.array(arrow_to_binary(texts, type_oid), pa.binary())
    except Wal2LakeError:
        return None
    # Elements may have more bytes than their text, and one array has less than 2 GiB.
    return None if isinstance(found, pa.ChunkedArray) else found


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
    found = [pc.any(pc.starts_with(texts, one)).as_py() for one in _WITH_BOUNDS]
    return any(found)
