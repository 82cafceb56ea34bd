"""Fills the columns that the publisher does not send, as an INSERT would.

Comes in: for each such column with a default a ``Fill``, which the caller has evaluated for the
batch (``ColumnDefaults``). Goes out: arrays of it. Called inside Spark's Python workers by staging
and by the initial copy.

The caller also takes the values of sequences, one for each row, and they are lost if the batch
fails. Each part of the batch is given its first value.

PostgreSQL evaluates a default for each row that is inserted; now() is the time at which the
subscriber's transaction began, and a batch is one transaction here. So one value is enough for all
rows, except for volatile functions. A default that cannot be evaluated stops the first row that
needs it.

Source: worker.c (slot_fill_defaults), copyfrom.c.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import UsageError
from wal2lake.model import Oid


class Volatile(Enum):
    """A function that has another value for each row."""

    UUID = "gen_random_uuid()"
    RANDOM = "random()"


@dataclass(frozen=True, slots=True)
class Fill:
    """A column's default. Exactly one of ``value``, ``volatile``, ``error`` and ``sequence`` is
    set."""

    value: pa.Array | None = None
    """One value for all rows, in the column's stored type."""
    volatile: Volatile | None = None
    error: tuple[str, str] | None = None
    """SQLSTATE and message if the default cannot be evaluated."""
    sequence: Oid | None = None
    """Sequence that gives each row a value of its own."""
    first: int | None = None
    """The next row's value of the sequence, once the values have been taken."""
    step: int = 1


Fills = Mapping[str, Fill]
"""Defaults by column."""


class ColumnDefaults(Protocol):
    """Evaluates defaults, for any thread; an error of a default is in its ``Fill``."""

    def __call__(self, relid: Oid, columns: Collection[str]) -> Fills:
        """Return the present defaults of those of the table's columns that have one."""
        ...

    def numbered(self, fills: Fills, rows: int) -> Fills:
        """Return the same defaults with values of sequences taken for so many rows; no other
        session gets these values."""
        ...

    def restarting(self, sequences: Collection[Oid]) -> AbstractContextManager[None]:
        """Return a context in which no other session takes values of these sequences. If it ends
        without an error, transactions that took values before must be repeated (40001)."""
        ...


class _NoDefaults:
    """Stands for a table without defaults."""

    def __call__(self, relid: Oid, columns: Collection[str]) -> Fills:
        """Return no defaults."""
        return {}

    def numbered(self, fills: Fills, rows: int) -> Fills:
        """Return the same defaults."""
        return fills

    def restarting(self, sequences: Collection[Oid]) -> AbstractContextManager[None]:
        """Return an empty context."""
        return nullcontext()


NO_DEFAULTS: Final[ColumnDefaults] = _NoDefaults()


def have_sequences(fills: Fills) -> bool:
    """Whether a default takes values of a sequence."""
    return any(fill.sequence is not None for fill in fills.values())


def behind(fills: Fills, rows: int) -> Fills:
    """Return the defaults for the rows after the first ``rows``."""
    if not rows or not have_sequences(fills):
        return fills
    return {
        name: fill
        if fill.first is None
        else replace(fill, first=fill.first + rows * fill.step)
        for name, fill in fills.items()
    }


_DIGITS: Final = [i for i in range(36) if i not in (8, 13, 18, 23)]
"""Positions in a UUID's text that are not hyphens."""


def _uuids(count: int) -> pa.Array:
    """Return random UUIDs of version 4."""
    raw = np.frombuffer(os.urandom(16 * count), np.uint8).reshape(count, 16).copy()
    raw[:, 6] = raw[:, 6] & 0x0F | 0x40
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80
    digits = np.frombuffer(raw.tobytes().hex().encode(), np.uint8)
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _DIGITS] = digits.reshape(count, 32)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(36)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(text.tobytes())
    )


def _numbers(first: int, step: int, count: int, kind: pa.DataType) -> pa.Array:
    """Return ``first``, ``first + step`` ... in an integer column's type; 22003 if one does not
    fit.

    If a TRUNCATE restarts the sequence, numbers count backwards from it. Numbers of rows that it
    removes may be out of the type's range, and are clipped.
    """
    start = (first + (1 << 63)) % (1 << 64) - (1 << 63)
    numbers = start + step * np.arange(count)
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = (limits.min, None) if step > 0 else (None, limits.max)
    numbers = np.clip(numbers, low, high)
    try:
        return pa.array(numbers, pa.int64()).cast(kind)
    except pa.ArrowInvalid:
        name = {16: "smallint", 32: "integer"}.get(limits.bits, "bigint")
        raise UsageError(f"{name} out of range", sqlstate="22003") from None


def filled(
    fill: Fill | None, rows: npt.NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """Return an array as long as ``rows``: the default in the marked rows, null elsewhere, and
    null everywhere if there is no default."""
    count = int(rows.sum())
    if fill is None or fill.error is not None or not count:
        return pa.nulls(len(rows), kind)
    if fill.volatile is Volatile.UUID:
        values = _uuids(count)
    elif fill.volatile is Volatile.RANDOM:
        seed = int.from_bytes(os.urandom(16))
        values = pa.array(np.random.default_rng(seed).random(count), pa.float64())
    elif fill.first is not None:
        values = _numbers(fill.first, fill.step, count, kind)
    else:
        assert fill.value is not None
        values = fill.value.take(pa.array(np.zeros(count, np.int64)))
    values = values.cast(kind)
    if count == len(rows):
        return values
    place = pa.array(np.cumsum(rows) - 1, mask=~rows)
    return pc.take(values, place)
