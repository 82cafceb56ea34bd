"""The images of rows: the bytes that record_send() writes, made of Arrow columns.

Comes in: columns of a batch and their forms. Goes out: a binary Arrow array with the image of each
row. Called by ``rowhashes``.

    image   number of columns (4 bytes), then for each column:
    column  OID of its type (4), length of the value (4; -1: NULL), the value in binary format

The image is injective: different rows have different images, because each value has its length in
front of it and NULL is a length of its own. All integers are big-endian.

Neighbouring columns of fixed width are written as one matrix of bytes together with the header of
the column behind them, and the parts of all rows are joined by Arrow, so there is no loop over
rows. A fixed column that has NULLs is a part of its own, with a length for each row.

Source: record_send() in src/backend/utils/adt/rowtypes.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wal2lake.pgtypes import arrow_to_text
from wal2lake.pgtypes.encode.binary import fixed_numbers
from wal2lake.pgtypes.encode.text import plain_text
from wal2lake.verify.forms import ColumnForm, ValueForm

Matrix = NDArray[np.uint8]

_HEADER: Final = 8
"""Bytes before each value."""


def row_images(columns: Sequence[pa.Array], forms: Sequence[ColumnForm]) -> pa.Array:
    """Return the image of each row. The columns are as long as each other, and there is one."""
    rows = len(columns[0])
    parts: list[pa.Array] = []
    fixed: list[Matrix] = [_repeated(len(columns).to_bytes(4, "big"), rows)]
    for column, form in zip(columns, forms, strict=True):
        if form.value.width is None:
            values = _bytes_of(column, form)
            fixed.append(_headers(form, values))
            parts.append(_joined(fixed))
            parts.append(values.fill_null(b"") if values.null_count else values)
            fixed = []
            continue
        matrix = _fixed(column, form, form.value.width)
        if column.null_count:
            if fixed:
                parts.append(_joined(fixed))
                fixed = []
            parts.append(_with_nulls(column, form, matrix))
            continue
        fixed.append(matrix)
    if fixed:
        parts.append(_joined(fixed))
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, b"")


def _repeated(value: bytes, rows: int) -> Matrix:
    return np.broadcast_to(np.frombuffer(value, np.uint8), (rows, len(value)))


def _joined(matrices: Sequence[Matrix]) -> pa.Array:
    """Join matrices of the same number of rows into one binary array."""
    matrix = np.concatenate(matrices, axis=1)
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return _binary(rows, offsets, matrix)


def _binary(rows: int, offsets: NDArray[np.int32], data: Matrix) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


# ---- values of fixed width -------------------------------------------------------------


def _fixed(column: pa.Array, form: ColumnForm, width: int) -> Matrix:
    """Return the headers and values; those of NULLs mean nothing."""
    rows = len(column)
    header = form.value.oid.to_bytes(4, "big") + width.to_bytes(4, "big")
    matrix = np.empty((rows, _HEADER + width), np.uint8)
    matrix[:, :_HEADER] = np.frombuffer(header, np.uint8)
    numbers = _numbers(column, form)
    matrix[:, _HEADER:] = numbers.view(np.uint8).reshape(rows, width)
    return matrix


def _numbers(column: pa.Array, form: ColumnForm) -> NDArray[Any]:
    """Return the big-endian values."""
    numbers, _ = fixed_numbers(column, form.value.oid)
    if form.value is ValueForm.FLOAT:
        numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(">f8")
    return np.ascontiguousarray(numbers)


def _with_nulls(column: pa.Array, form: ColumnForm, matrix: Matrix) -> pa.Array:
    """Return headers and values of a column that has NULLs, which have a header only."""
    rows, width = matrix.shape
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    null = form.value.oid.to_bytes(4, "big") + b"\xff" * 4
    matrix[~valid, :_HEADER] = np.frombuffer(null, np.uint8)
    kept = np.ones((rows, width), np.bool_)
    kept[~valid, _HEADER:] = False
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.where(valid, width, _HEADER), out=offsets[1:])
    return _binary(rows, offsets, matrix[kept])


# ---- values of any length --------------------------------------------------------------


def _bytes_of(column: pa.Array, form: ColumnForm) -> pa.Array:
    """Return the values as a binary array."""
    if form.value is ValueForm.BYTES:
        return column.cast(pa.binary())
    # All digits that are stored are compared, whatever the column's declaration.
    typmod = -1 if form.digits is not None else form.typmod
    if not pa.types.is_nested(column.type):
        texts = plain_text(column, form.type_oid, typmod)
        if texts is not None:
            return texts
    return pa.array(arrow_to_text(column, form.type_oid, typmod), pa.binary())


def _headers(form: ColumnForm, values: pa.Array) -> Matrix:
    rows = len(values)
    words = np.empty((rows, 2), ">u4")
    words[:, 0] = form.value.oid
    lengths = pc.binary_length(values)
    if values.null_count:
        lengths = lengths.fill_null(-1)
    words[:, 1] = lengths.to_numpy(zero_copy_only=False).astype(np.uint32)
    return words.view(np.uint8).reshape(rows, _HEADER)
