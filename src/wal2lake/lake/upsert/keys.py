"""Keys of a batch as small numbers, and where the table holds them.

Comes in: key columns of events, and of the table's files. Goes out: a number for each
distinct key, ascending with the key, and the places of those that are stored. Null is a value like
any other; values that are equal by their type are one, where the caller says so.

Few keys are looked up by Arrow: each value of a column gets a number, and the numbers of a row
become one, column by column. The others DuckDB joins, for keys may have any types, and there may be
many; but a database and its five queries take 20 CPU-milliseconds, which was more than all the rest
of a batch of a few rows. Only key columns go through either: values that nobody compares stay where
they are.
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
"""Keys of the table that are looked up in one query: a bound of memory, and few enough
queries that building their hash tables does not count."""

_MEMORY_LIMIT: Final = "1GB"
"""Memory of one batch's database, which spills beyond it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where keys are stored; a key that the table has twice is here twice."""

    key: Index
    file: Index
    """Position in the list of files given."""
    row: Index
    """Row number in that file."""

    @staticmethod
    def joined(parts: Sequence[Places]) -> Places:
        """All of them, one after the other."""
        none = Places(*(np.zeros(0, np.int64),) * 3)
        columns = ((p.key, p.file, p.row) for p in (none, *parts))
        return Places(*map(np.concatenate, zip(*columns, strict=True)))


_FEW: Final = 20_000
"""Keys that are looked up on one core: of one column, a table of a million takes it 20 ms."""


class BatchKeys(Protocol):
    """The distinct keys of one batch."""

    numbers: Index
    """For each key given, its number."""
    count: int
    """How many distinct keys there are."""
    sought: Index | None
    """The distinct keys in the order of their numbers, if they are few integers; else None."""

    def locate(self, scans: Iterable[pa.Table]) -> Places:
        """Find the keys in the table's files.

        Each scan is some of a file's rows: their key columns ``k0``.. in the types given
        before, with ``file`` and ``row``.
        """
        ...


Looseness = Mapping[int, Loose]
"""Columns of a key in which equal values may differ, by their place."""

_NONE: Final[Looseness] = MappingProxyType({})


def open_keys(
    columns: Sequence[pa.ChunkedArray],
    directory: str,
    *,
    bitwise: bool = False,
    loose: Looseness = _NONE,
) -> AbstractContextManager[BatchKeys]:
    """``columns``: the key's columns, as long as all events' keys together.
    What does not fit into memory is spilled below ``directory``. ``bitwise``: of floating
    point numbers 0 and -0 are two keys; NaN is one. ``loose``: columns that are compared as
    their types compare."""
    columns = alike(columns, loose)
    compared = [_bits(c) if bitwise else c for c in columns]
    if len(columns[0]) <= _FEW and all(map(_compares, compared)):
        # Bits are integers, but not those that the table has.
        searched = len(columns) == 1 and pa.types.is_integer(columns[0].type)
        few = _FewKeys(compared, searched=searched, bitwise=bitwise, loose=loose)
        return nullcontext(few)
    return _JoinedKeys(compared, directory, bitwise=bitwise, loose=loose)


def _compares(column: pa.ChunkedArray) -> bool:
    """Are values equal where Arrow finds the same bytes? (0.0 and -0.0 are not.)"""
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
    """Floating point numbers as the integers with their bits; NaN is one."""
    kind = column.type
    if not pa.types.is_floating(kind):
        return column
    whole = column.combine_chunks()
    whole = pc.if_else(pc.is_nan(whole), pa.scalar(math.nan, kind), whole)
    bits = whole.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return pa.chunked_array([bits])


class _FewKeys:
    """Sets in Arrow, one for each column; see ``BatchKeys``."""

    def __init__(
        self,
        columns: Sequence[pa.ChunkedArray],
        *,
        searched: bool = False,
        bitwise: bool = False,
        loose: Looseness = _NONE,
    ) -> None:
        """``columns`` as they are compared; ``searched``: the one column may be ``sought``."""
        self._bitwise = bitwise
        self._loose = loose
        self._values = [_ascending(column) for column in columns]
        self._rows: list[Index] = []
        """For each column but the first: the rows that there are of it and those before, by the
        number of the row before it and the number of its own value, as one."""
        numbers = _find(columns[0], self._values[0])
        for column, values in zip(columns[1:], self._values[1:], strict=True):
            pairs = _paired(numbers, _find(column, values), len(values))
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
        found = []
        for probe in _grouped(alike_scans(scans, self._loose)):
            here = np.arange(probe.num_rows)
            numbers = self._find(probe, 0, here)
            here, numbers = here[numbers >= 0], numbers[numbers >= 0]
            for place, rows in enumerate(self._rows, 1):
                # Of the next column only those matter that have been found so far.
                values = self._find(probe, place, here)
                pairs = _paired(numbers, values, len(self._values[place]))
                at = np.minimum(np.searchsorted(rows, pairs), len(rows) - 1)
                same = (values >= 0) & (rows[at] == pairs)
                here, numbers = here[same], at[same]
            places = (probe.column(name).to_numpy()[here] for name in ("file", "row"))
            found.append(Places(numbers, *places))
        return Places.joined(found)

    def _find(self, probe: pa.Table, place: int, here: Index) -> Index:
        column = probe.column(f"k{place}")
        if len(here) < len(column):
            column = column.take(pa.array(here))
        return _find(_bits(column) if self._bitwise else column, self._values[place])


def _ascending(column: pa.ChunkedArray) -> pa.Array:
    """The distinct values, null at the end."""
    distinct = column.unique()
    return distinct.take(pc.sort_indices(distinct))


def _find(column: pa.ChunkedArray, values: pa.Array) -> Index:
    """Each value's number; -1 if it is none of these."""
    found = pc.index_in(column, value_set=values)
    numbers: Index = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return numbers


def _paired(first: Index, second: Index, seconds: int) -> Index:
    """Two numbers as one, in the order of the first; there are ``seconds`` of the second."""
    return first * seconds + second


class _JoinedKeys:
    """Keys of a batch, located by a join; ``BatchKeys`` explains it. A context manager: it holds a
    DuckDB database."""

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
        # Without nulls = is enough, and it is faster.
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
        found = self._rows(f"select place, number from given join keys on {self._same}")
        self._database.unregister("given")
        self.numbers: Index = np.empty(table.num_rows, np.int64)
        self.numbers[found["place"]] = found["number"]
        self.count = int(
            self._database.sql("select count(*) from keys").fetchall()[0][0]
        )

    def locate(self, scans: Iterable[pa.Table]) -> Places:
        """Locate the keys, as ``BatchKeys`` describes."""
        found = []
        for probe in _grouped(alike_scans(scans, self._loose)):
            self._database.register("given", self._exact(probe))
            rows = self._rows(
                f"select number, file, row from given join keys on {self._same}"
            )
            found.append(Places(rows["number"], rows["file"], rows["row"]))
            self._database.unregister("given")
        return Places.joined(found)

    def _exact(self, table: pa.Table) -> pa.Table:
        """Floating point columns as they are compared."""
        if not self._bitwise:
            return table
        return pa.table(
            [_bits(column) for column in table.columns], names=table.column_names
        )

    def _rows(self, query: str) -> dict[str, Any]:
        found: dict[str, Any] = self._execute(query).fetchnumpy()
        return found

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
