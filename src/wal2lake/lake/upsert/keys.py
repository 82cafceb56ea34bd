"""Numbers the keys of a batch, and finds the rows of those keys in the table's files.

Comes in: key columns of events, and of the table's files. Goes out: a number for each distinct
key, ascending with the key, and the places of those that are stored. Null is a value like any
other. Values that are equal by their type are one key if the caller requests it.

Arrow looks up few keys: each value of a column gets a number, and the numbers of a row are
combined into one, column by column. DuckDB joins all others, because keys may have any types, and
there may be many. A DuckDB database and its five queries take 20 CPU-milliseconds, which was more
than everything else in a batch of a few rows. Only key columns are read by either; other columns
are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.upsert.memory import TooLarge
from wal2lake.pgtypes.equality import Loose, alike, alike_scans

Index = npt.NDArray[np.int64]

_PROBE_BYTES: Final = 64 << 20
"""Bytes of the table's keys that are looked up in one query. It bounds memory, and the queries
are few enough that building their hash tables does not matter."""

_MEMORY_LIMIT: Final = "1GB"
"""Memory of one batch's database, which spills beyond it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where keys are stored; a key that the table holds twice occurs twice."""

    key: Index
    file: Index
    """Position in the list of files."""
    row: Index
    """Row number in that file."""

    @staticmethod
    def joined(parts: Sequence[Places]) -> Places:
        """Concatenate places."""
        none = Places(*(np.zeros(0, np.int64),) * 3)
        columns = ((p.key, p.file, p.row) for p in (none, *parts))
        return Places(*map(np.concatenate, zip(*columns, strict=True)))


_FEW: Final = 262_144
"""Most keys that are looked up on one core. For one column, a table of a million rows takes 20 ms.
Of 150,000 numbers this takes 30 to 40 ms, and the join 60 to 70; of a million 480 and 270."""


class BatchKeys(Protocol):
    """The distinct keys of one batch."""

    numbers: Index
    """For each key of the input, its number."""
    count: int
    """Number of distinct keys."""
    sought: Index | None
    """The distinct keys in the order of their numbers, if they are few integers; otherwise
    None."""

    def locate(self, scans: Iterable[pa.Table]) -> Places:
        """Find the keys in the table's files.

        Each scan holds some of a file's rows: their key columns ``k0``.. in the types of the
        batch's key columns, with ``file`` and ``row``.
        """
        ...


def distinct(numbers: Index) -> list[int]:
    """Return the distinct ones of small numbers, ascending. NumPy's ``unique`` builds a hash table,
    which took a third of a batch of many rows."""
    numbers_in_use: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return numbers_in_use


Looseness = Mapping[int, Loose]
"""Key columns in which equal values may differ, by their position."""

_NONE: Final[Looseness] = MappingProxyType({})


def open_keys(
    columns: Sequence[pa.ChunkedArray],
    directory: str,
    *,
    bitwise: bool = False,
    loose: Looseness = _NONE,
) -> AbstractContextManager[BatchKeys]:
    """Number the keys. ``columns``: the key's columns, one row for each key of the events.

    Keys that do not fit into memory are spilled below ``directory``. ``bitwise``: the floating
    point numbers 0 and -0 are two keys; NaN is one. ``loose``: columns that are compared as their
    types compare.
    """
    columns = alike(columns, loose)
    compared = [_bits(c) if bitwise else c for c in columns]
    if len(columns[0]) <= _FEW and all(map(_equals_by_bytes, compared)):
        # Bits of floating point numbers are integers, too, but not values of the table.
        searched = len(columns) == 1 and pa.types.is_integer(columns[0].type)
        few = _FewKeys(compared, searched=searched, bitwise=bitwise, loose=loose)
        return nullcontext(few)
    return _JoinedKeys(compared, directory, bitwise=bitwise, loose=loose)


def _equals_by_bytes(column: pa.ChunkedArray) -> bool:
    """Whether values are equal exactly if Arrow finds the same bytes (0.0 and -0.0 are not)."""
    kind = column.type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
    )


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floating point numbers as the integers with their bits; NaN is one value."""
    kind = column.type
    if not pa.types.is_floating(kind):
        return column
    whole = column.combine_chunks()
    whole = pc.if_else(pc.is_nan(whole), pa.scalar(math.nan, kind), whole)
    bits = whole.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return pa.chunked_array([bits])


class _FewKeys:
    """Keys of a batch, located by Arrow with one set for each column; see ``BatchKeys``."""

    def __init__(
        self,
        columns: Sequence[pa.ChunkedArray],
        *,
        searched: bool = False,
        bitwise: bool = False,
        loose: Looseness = _NONE,
    ) -> None:
        """``columns`` as they are compared; ``searched``: the only column may be ``sought``."""
        self._bitwise = bitwise
        self._loose = loose
        self._values = [_ascending(column) for column in columns]
        self._rows: list[Index] = []
        """For each column but the first: the distinct prefixes of keys up to this column. A
        prefix is the number of the shorter prefix and the number of the column's value, paired."""
        numbers = _find(columns[0], self._values[0])
        for column, values in zip(columns[1:], self._values[1:], strict=True):
            pairs = _pair(numbers, _find(column, values), len(values))
            rows, numbers = np.unique(pairs, return_inverse=True)
            self._rows.append(rows)
        self.numbers: Index = numbers
        self.count = len(self._rows[-1] if self._rows else self._values[0])
        self.sought: Index | None = None
        first = self._values[0]
        if searched and not first.null_count:
            self.sought = first.to_numpy().astype(np.int64)

    def locate(self, scans: Iterable[pa.Table]) -> Places:
        """Locate the keys, as ``BatchKeys`` describes."""
        parts = []
        for probe in _grouped(alike_scans(scans, self._loose)):
            here = np.arange(probe.num_rows)
            numbers = self._find(probe, 0, here)
            here, numbers = here[numbers >= 0], numbers[numbers >= 0]
            for place, rows in enumerate(self._rows, 1):
                # Look up the next column only for rows that match so far.
                values = self._find(probe, place, here)
                pairs = _pair(numbers, values, len(self._values[place]))
                positions = np.minimum(np.searchsorted(rows, pairs), len(rows) - 1)
                same = (values >= 0) & (rows[positions] == pairs)
                here, numbers = here[same], positions[same]
            places = (probe.column(name).to_numpy()[here] for name in ("file", "row"))
            parts.append(Places(numbers, *places))
        return Places.joined(parts)

    def _find(self, probe: pa.Table, place: int, here: Index) -> Index:
        column = probe.column(f"k{place}")
        if len(here) < len(column):
            column = column.take(pa.array(here))
        return _find(_bits(column) if self._bitwise else column, self._values[place])


def _ascending(column: pa.ChunkedArray) -> pa.Array:
    """Return the distinct values in ascending order, null at the end."""
    distinct = column.unique()
    return distinct.take(pc.sort_indices(distinct))


def _find(column: pa.ChunkedArray, values: pa.Array) -> Index:
    """Each value's number; -1 if it is none of these."""
    matches = pc.index_in(column, value_set=values)
    numbers: Index = pc.fill_null(matches, -1).to_numpy().astype(np.int64)
    return numbers


def _pair(first: Index, second: Index, seconds: int) -> Index:
    """Combine two numbers into one that sorts by the first; ``seconds`` exceeds every second
    number."""
    return first * seconds + second


class _JoinedKeys:
    """Keys of a batch, located by a join in DuckDB; see ``BatchKeys``. A context manager that
    owns the database."""

    def __init__(
        self,
        columns: Sequence[pa.ChunkedArray],
        directory: str,
        *,
        bitwise: bool = False,
        loose: Looseness = _NONE,
    ) -> None:
        """``columns`` as they are compared; see ``open_keys``."""
        self._loose = loose
        self.sought: Index | None = None
        self._bitwise = bitwise
        self._names = [f"k{i}" for i in range(len(columns))]
        self._database = duckdb.connect(
            ":memory:",
            config={"memory_limit": _MEMORY_LIMIT, "temp_directory": directory},
        )
        listed = ", ".join(self._names)
        table = pa.table(dict(zip(self._names, columns, strict=True)))
        # Without nulls = is enough, and faster.
        equal = (
            "=" if not any(c.null_count for c in columns) else "is not distinct from"
        )
        self._same = " and ".join(f"given.{k} {equal} keys.{k}" for k in self._names)
        table = table.append_column("place", pa.array(np.arange(table.num_rows)))
        self._database.register("given", table)
        self._execute(
            f"create temp table keys as select row_number() over (order by {listed}) - 1"
            f" as number, {listed} from (select distinct {listed} from given)"
        )
        pairs = self._rows(f"select place, number from given join keys on {self._same}")
        self._database.unregister("given")
        self.numbers: Index = np.empty(table.num_rows, np.int64)
        self.numbers[pairs["place"]] = pairs["number"]
        self.count = int(
            self._database.sql("select count(*) from keys").fetchall()[0][0]
        )

    def locate(self, scans: Iterable[pa.Table]) -> Places:
        """Locate the keys, as ``BatchKeys`` describes."""
        parts = []
        for probe in _grouped(alike_scans(scans, self._loose)):
            self._database.register("given", self._as_compared(probe))
            rows = self._rows(
                f"select number, file, row from given join keys on {self._same}"
            )
            parts.append(Places(rows["number"], rows["file"], rows["row"]))
            self._database.unregister("given")
        return Places.joined(parts)

    def _as_compared(self, table: pa.Table) -> pa.Table:
        """Return floating point columns as they are compared."""
        if not self._bitwise:
            return table
        return pa.table(
            [_bits(column) for column in table.columns], names=table.column_names
        )

    def _rows(self, query: str) -> dict[str, Any]:
        rows: dict[str, Any] = self._execute(query).fetchnumpy()
        return rows

    def _execute(self, query: str) -> duckdb.DuckDBPyConnection:
        try:
            return self._database.execute(query)
        except duckdb.OutOfMemoryException as error:
            raise TooLarge from error

    def __enter__(self) -> _JoinedKeys:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()


def _grouped(scans: Iterable[pa.Table]) -> Iterator[pa.Table]:
    group: list[pa.Table] = []
    size = 0
    for scan in scans:
        group.append(scan)
        size += scan.nbytes
        if size >= _PROBE_BYTES:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)
