"""Declared lengths of text columns.

In: a text column, the ``Length``. Out: the values as PostgreSQL's input function would store
them, null for refused values; refusals go to the ``Failures``. Called by the conversion of text if
the mapping has a length.

Source: PostgreSQL manual, 8.3, 8.10; varchar_input(), bpchar_input(), bit_in(), varbit_in().
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.decode.conversion import Failures, Mask, without
from wal2lake.pgtypes.registry.lengths import Length

_TOO_LONG = "22001"
_LENGTH_MISMATCH = "22026"


def fitted(array: pa.StringArray, length: Length, failures: Failures) -> pa.StringArray:
    """Return the array with every value fitted to the declared length."""
    if length.bits:
        return _bits(array, length, failures)
    count = pc.utf8_length(array)
    over = _mask(pc.greater(count, length.limit))
    if over.any():
        cut = pc.utf8_slice_codeunits(array, 0, length.limit)
        rest = pc.utf8_slice_codeunits(array, length.limit)
        spaces = pc.equal(pc.utf8_rtrim(rest, characters=" "), "")
        refused = over & ~_mask(spaces)
        failures.add_rows(
            np.flatnonzero(refused),
            _TOO_LONG,
            f"value too long for type {length.type_name}",
        )
        array = without(cut, refused)
    if length.fixed:
        array = pc.utf8_rpad(array, width=length.limit, padding=" ")
    return array


def _bits(array: pa.StringArray, length: Length, failures: Failures) -> pa.StringArray:
    count = pc.fill_null(pc.utf8_length(array), 0).to_numpy(zero_copy_only=False)
    refused: Mask = count != length.limit if length.fixed else count > length.limit
    refused &= array.is_valid().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(refused):
        if length.fixed:
            failures.add(
                int(row),
                _LENGTH_MISMATCH,
                f"bit string length {count[row]} does not match type {length.type_name}",
            )
        else:
            failures.add(
                int(row),
                _TOO_LONG,
                f"bit string too long for type {length.type_name}",
            )
    return without(array, refused) if refused.any() else array


def _mask(flags: pa.BooleanArray) -> Mask:
    mask: Mask = pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
    return mask
