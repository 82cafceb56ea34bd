"""A column in binary format to typed Arrow: ``sent_to_arrow``.

Comes in: the values as Arrow binary, their type at the publisher, and the mapping of the target's
column. Goes out: a ``Conversion``, equal to that of the same values in text format. Runs inside
Spark's Python workers.

Why this way. Text format is the definition: every value has one canonical text, and the target
stores the conversion of that text. So a binary value is converted to its text and then like any
other, for every target type. For common types a kernel converts whole columns directly; values
that a kernel does not support are converted as text.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import UsageError
from wal2lake.pgtypes.decode.conversion import (
    Conversion,
    Failures,
    binary_array,
    packed,
    valid_mask,
    without,
)
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.mapping import ConversionKind, TypeMapping
from wal2lake.pgtypes.receive.arrays import decode_sent_arrays
from wal2lake.pgtypes.receive.kernels import kernel_for
from wal2lake.pgtypes.receive.remote import (
    NoDecoder,
    RemoteTypes,
    base_type,
    binary_is_text,
    element_type,
    reader_for,
)

_JSONB = 3802
_MALFORMED = ("22P03", "incorrect binary data format")


def sent_to_arrow(
    values: pa.BinaryArray, type_oid: int, types: RemoteTypes, mapping: TypeMapping
) -> Conversion:
    """Convert one column of binary values, like ``text_to_arrow``.

    ``type_oid`` is the publisher's. A type without decoder makes every value bad (0A000).
    """
    if binary_is_text(type_oid, types):
        return text_to_arrow(values, mapping)
    base = base_type(type_oid, types)
    if base == _JSONB:
        return _jsonb(values, types, mapping)
    element = element_type(base, types)
    if mapping.kind is ConversionKind.ARRAY and element is not None:
        return _arrays(values, base, element, types, mapping)
    # A kernel supports neither a declared length nor the input of another type.
    kernel = kernel_for(base, mapping) if _takes_any(mapping) else None
    if kernel is None:
        return _through_text(values, base, types, mapping)
    array, odd = kernel(values, mapping)
    if odd is None:
        return Conversion(array, None)
    return _repaired(array, values, np.flatnonzero(odd), base, types, mapping)


def decodes_whole(type_oid: int, types: RemoteTypes, mapping: TypeMapping) -> bool:
    """Return whether ``sent_to_arrow`` needs texts only for odd values. Then binary format is
    faster than text format."""
    if binary_is_text(type_oid, types):
        return True
    base = base_type(type_oid, types)
    if base == _JSONB:
        return True
    element = element_type(base, types)
    if mapping.kind is ConversionKind.ARRAY and element is not None:
        # An array with an element that is not valid text has no text for messages either.
        return (
            mapping.element is not None
            and not binary_is_text(element, types)
            and decodes_whole(element, types, mapping.element)
        )
    return _takes_any(mapping) and kernel_for(base, mapping) is not None


def _takes_any(mapping: TypeMapping) -> bool:
    return mapping.length is None and mapping.reads is None


def _arrays(
    values: pa.BinaryArray,
    type_oid: int,
    element: int,
    types: RemoteTypes,
    mapping: TypeMapping,
) -> Conversion:
    def convert(flat: pa.BinaryArray, of: TypeMapping) -> Conversion:
        return sent_to_arrow(flat, element, types, of)

    array, failures, odd = decode_sent_arrays(values, element, mapping, convert)
    if odd.any():
        # Single lists cannot be replaced, so each row is chosen from one of two columns.
        again = _through_text(without(values, ~odd), type_oid, types, mapping)
        failures.extend(again.failures, np.arange(len(values)))
        array = pc.if_else(pa.array(odd), again.array, array)
    return failures.conclude(array)


def sent_to_text(
    values: pa.BinaryArray, type_oid: int, types: RemoteTypes
) -> tuple[pa.BinaryArray, Failures]:
    """Return each value's canonical text; bad rows are null."""
    failures = Failures()
    if binary_is_text(type_oid, types):
        return values, failures
    try:
        reader = reader_for(type_oid, types)
    except NoDecoder as reason:
        valid = valid_mask(values)
        rows = np.arange(len(values)) if valid is None else np.flatnonzero(valid)
        failures.add_rows(rows, str(reason.sqlstate), reason.message)
        return pa.nulls(len(values), pa.binary()), failures
    texts: list[bytes | None] = []
    for row, data in enumerate(values.to_pylist()):
        text = None
        if data is not None:
            try:
                text = reader(data).encode()
            except UsageError as error:
                failures.add(row, str(error.sqlstate), error.message)
            except (struct.error, ValueError, OverflowError, RecursionError):
                failures.add(row, *_MALFORMED)
        texts.append(text)
    return pa.array(texts, pa.binary()), failures


def _through_text(
    values: pa.BinaryArray, type_oid: int, types: RemoteTypes, mapping: TypeMapping
) -> Conversion:
    texts, failures = sent_to_text(values, type_oid, types)
    converted = text_to_arrow(texts, mapping)
    if not failures:
        return converted
    failures.extend(converted.failures, np.arange(len(values)))
    return failures.conclude(converted.array)


def _repaired(
    array: pa.Array,
    values: pa.BinaryArray,
    odd: np.ndarray,
    type_oid: int,
    types: RemoteTypes,
    mapping: TypeMapping,
) -> Conversion:
    """Return ``array`` with the odd rows converted as text."""
    again = _through_text(values.take(pa.array(odd)), type_oid, types, mapping)
    mask = np.zeros(len(values), np.bool_)
    mask[odd] = True
    array = pc.replace_with_mask(array, pa.array(mask), again.array)
    failures = Failures()
    failures.extend(again.failures, odd)
    return failures.conclude(array)


def _jsonb(
    values: pa.BinaryArray, types: RemoteTypes, mapping: TypeMapping
) -> Conversion:
    """Convert jsonb: remove the version byte of all values at once if each has version 1."""
    data, offsets, null = packed(values)
    present = np.ones(len(values), np.bool_) if null is None else ~null
    starts = offsets[:-1][present]
    if (np.diff(offsets)[present] == 0).any() or (data[starts] != 1).any():
        return _through_text(values, _JSONB, types, mapping)
    texts = np.ones(len(data), np.bool_)
    texts[starts] = False
    shorter = np.zeros(len(offsets), np.int32)
    shorter[1:] = np.cumsum(np.diff(offsets) - present)
    return text_to_arrow(binary_array(data[texts], shorter, null), mapping)


def combined(text: Conversion, binary: Conversion, is_binary: np.ndarray) -> Conversion:
    """Combine the conversions of a column with some rows in binary format.

    Each conversion has null, and no failure, where the other has the value.
    """
    array = pc.if_else(pa.array(is_binary), binary.array, text.array)
    failures = Failures()
    for part in (text, binary):
        failures.extend(part.failures, np.arange(len(array)))
    return failures.conclude(array)


def split(
    values: pa.BinaryArray, is_binary: np.ndarray
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Return (text values, binary values), each null where the value is in the other."""
    return without(values, is_binary), without(values, ~is_binary)


def convert_sent(
    values: pa.BinaryArray,
    is_binary: np.ndarray | None,
    type_oid: int,
    types: RemoteTypes,
    mapping: TypeMapping,
) -> Conversion:
    """Convert a column of the publisher's values, some of which may be in binary format."""
    if is_binary is None or not is_binary.any():
        return text_to_arrow(values, mapping)
    valid = valid_mask(values)
    text_rows = ~is_binary if valid is None else ~is_binary & valid
    if not text_rows.any():
        return sent_to_arrow(values, type_oid, types, mapping)
    as_text, as_binary = split(values, is_binary)
    return combined(
        text_to_arrow(as_text, mapping),
        sent_to_arrow(as_binary, type_oid, types, mapping),
        is_binary,
    )
