"""PostgreSQL's array and hstore literals to Arrow lists and maps.

Comes in: a BinaryArray of literals and a mapping of kind ARRAY or HSTORE. Goes out: a
Conversion. The scalar conversion of the element type, which is passed in, converts the elements
of a whole column at once. A bad element makes its row bad, with the element's reason. Called by
``text`` only.

A value with several dimensions, or with a lower bound other than 1, is bad (22023): a Spark array
could hold its elements but would lose its shape.

Source: PostgreSQL manual, section 8.15.6 "Array Input and Output Syntax".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.decode.conversion import (
    Conversion,
    Failures,
    Mask,
    packed,
    valid_mask,
)
from wal2lake.pgtypes.decode.literal import (
    Elements,
    LiteralStructure,
    mark,
    nested_arrays,
    split_arrays,
    split_hstores,
    unbalanced,
    unframed,
)
from wal2lake.pgtypes.mapping import TypeMapping

Convert = Callable[[pa.BinaryArray, TypeMapping], Conversion]

_MALFORMED_ARRAY = ("22P02", "malformed array literal")
_DIMENSIONS = (
    "22023",
    "multidimensional array cannot be stored as a one-dimensional array",
)
_LOWER_BOUND = ("22023", "array with a lower bound other than 1 cannot be stored")
_MALFORMED_HSTORE = ("22P02", "syntax error in hstore")


def decode_array(
    values: pa.BinaryArray, mapping: TypeMapping, convert: Convert
) -> Conversion:
    """Convert ``{...}`` to a list; ``convert`` is the elements' conversion."""
    assert mapping.element is not None
    failures = Failures()
    column = _Column(values)
    data, offsets = column.data, column.offsets
    empty = (np.diff(offsets) == 0) & ~column.null
    failures.add_rows(np.flatnonzero(empty), *_MALFORMED_ARRAY)
    bounds = column.present.copy()
    bounds[column.present] = data[offsets[:-1][column.present]] == ord("[")
    failures.add_rows(np.flatnonzero(bounds), *_LOWER_BOUND)
    column.drop(bounds)
    _drop_malformed(column, failures, b"{", b"}", _MALFORMED_ARRAY)
    nested = nested_arrays(column.data, column.offsets, column.marks)
    failures.add_rows(np.flatnonzero(nested), *_DIMENSIONS)
    column.drop(nested)
    split = partial(_split_array, delimiter=ord(mapping.delimiter))
    elements = _elements(column, failures, split, _MALFORMED_ARRAY)
    converted = convert(elements.flat, mapping.element)
    failures.extend(converted.failures, _row_of(elements))
    null = column.null | failures.mask(len(values))
    array = pa.ListArray.from_arrays(
        pa.array(elements.offsets),
        converted.array,
        type=mapping.arrow_type,
        mask=pa.array(null),
    )
    return failures.conclude(array)


def decode_hstore(
    values: pa.BinaryArray, mapping: TypeMapping, convert: Convert
) -> Conversion:
    """Convert ``"k"=>"v", "l"=>NULL`` to a map of text."""
    failures = Failures()
    column = _Column(values)
    _drop_malformed(column, failures, b'"', b'"Ll', _MALFORMED_HSTORE)
    elements = _elements(column, failures, _split_hstore, _MALFORMED_HSTORE)
    text = TypeMapping(mapping.kind, pa.string(), "STRING", "text")
    converted = convert(elements.flat, text)
    failures.extend(converted.failures, _row_of(elements))
    # A bad key is null in the conversion. Its row becomes null, but Arrow allows no null keys.
    places = np.arange(len(elements.flat))
    keys = pc.fill_null(converted.array.take(pa.array(places[::2])), "")
    items = converted.array.take(pa.array(places[1::2]))
    null = column.null | failures.mask(len(values))
    validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    entries = pa.StructArray.from_arrays(
        [keys, items],
        fields=[mapping.arrow_type.key_field, mapping.arrow_type.item_field],
    )
    array = pa.Array.from_buffers(
        mapping.arrow_type,
        len(values),
        [validity, pa.py_buffer(np.ascontiguousarray(elements.offsets // 2))],
        children=[entries],
    )
    return failures.conclude(array)


def _drop_malformed(
    column: _Column,
    failures: Failures,
    opening: bytes,
    closing: bytes,
    reason: tuple[str, str],
) -> None:
    """Empty malformed rows, which could make the splitting of other rows wrong."""
    bad = unframed(column.data, column.offsets, opening, closing)
    failures.add_rows(np.flatnonzero(bad), *reason)
    column.drop(bad)
    bad = unbalanced(column.marks, column.offsets)
    failures.add_rows(np.flatnonzero(bad), *reason)
    column.drop(bad)


def _split_array(column: _Column, delimiter: int) -> tuple[Elements, Mask]:
    return split_arrays(column.data, column.offsets, column.marks, delimiter)


def _split_hstore(column: _Column) -> tuple[Elements, Mask]:
    return split_hstores(column.data, column.offsets, column.marks)


def _elements(
    column: _Column,
    failures: Failures,
    split: Callable[[_Column], tuple[Elements, Mask]],
    reason: tuple[str, str],
) -> Elements:
    """Split the column, and repeat without the rows that are malformed.

    An error in a row can hide another error in the same row, but never in another row.
    """
    elements, bad = split(column)
    while bad.any():
        failures.add_rows(np.flatnonzero(bad), *reason)
        column.drop(bad)
        elements, bad = split(column)
    return elements


def _row_of(elements: Elements) -> npt.NDArray[np.int64]:
    counts = np.diff(elements.offsets)
    return np.repeat(np.arange(len(counts)), counts)


class _Column:
    """The literals that are still to be split; dropped ones are empty.

    ``present``: rows with a value of at least one byte. ``null``: rows that were null initially.
    """

    __slots__ = ("_marks", "_values", "data", "null", "offsets", "present")

    def __init__(self, values: pa.BinaryArray) -> None:
        valid = valid_mask(values)
        self.null: Mask = np.zeros(len(values), np.bool_) if valid is None else ~valid
        self._values = values
        self._load()

    def drop(self, rows: Mask) -> None:
        """Make rows empty."""
        if rows.any():
            self._values = pc.if_else(
                pa.array(rows), pa.scalar(None, self._values.type), self._values
            )
            self._load()

    def _load(self) -> None:
        self.data, self.offsets, _ = packed(self._values)
        self.present: Mask = np.diff(self.offsets) > 0
        self._marks: LiteralStructure | None = None

    @property
    def marks(self) -> LiteralStructure:
        """Quotes and escapes of the remaining rows."""
        if self._marks is None:
            self._marks = mark(self.data)
        return self._marks
