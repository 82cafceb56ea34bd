"""Values that are equal by their type but not identical. Pure.

Comes in: the columns that identify a row, a primary key's or all. Goes out: the same columns with
equal values made identical, in Arrow (``alike``) or as Spark SQL (``alike_sql``), with the same
result.

Called by code that searches keys: of a statement, of a copy, of a batch of apply. Also called for
tables without a key if an UPDATE or DELETE finds no identical row: PostgreSQL compares with the
type's ``=``, so if a table is also written locally, the publisher's 1.0 may mean a row with 1.00.

Covered are 0.0 and -0.0, the digits behind the decimal point of numbers that are stored as text
(numeric, jsonb, numrange, nummultirange), intervals, the case of citext, trailing spaces of a char
without a length, and arrays of these. Not covered: composite types, arrays stored as text (except
of numeric and citext), collations.

The results are only compared; they are neither ordered nor stored. Statistics of files do not have
them.

Sources: execReplication.c (tuples_equal); interval_cmp_value() in timestamp.c;
tests/postgres/test_equal_values.py compares with PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.pgtypes.spark_ddl import identifier


class Looseness(Enum):
    """Reasons why equal values may differ."""

    SIGNED_ZERO = "0.0, -0.0"
    SCALE = "1.0, 1.00"
    CASE = "a, A"
    SPACES = "char"
    SPAN = "1 day, 24 hours"


@dataclass(frozen=True, slots=True)
class Loose:
    """A column in which equal values may differ."""

    why: Looseness
    of_elements: bool = False
    """True if the type is an array's element type."""


class Stored(Protocol):
    """A column as it is stored in the lake."""

    @property
    def name(self) -> str:
        """The column's name."""
        ...

    @property
    def spark_ddl(self) -> str:
        """Spark's name of its type."""
        ...

    @property
    def pg_type_oid(self) -> int:
        """OID of its PostgreSQL type; 0: none."""
        ...

    @property
    def pg_typmod(self) -> int:
        """The type modifier; -1: none."""
        ...

    @property
    def pg_type_name(self) -> str | None:
        """Name of a type that is not built in."""
        ...


_BPCHAR: Final = 1042
_INTERVAL: Final = 1186
_SCALED: Final = frozenset((1700, 3802, 3906, 4532))
"""numeric, jsonb, numrange, nummultirange: types whose text has numbers outside of quotes."""
_NUMERIC_ARRAY: Final = 1231


def loose_columns(fields: Sequence[Stored], key: Sequence[int]) -> Mapping[int, Loose]:
    """Return the columns at ``key`` in which equal values may differ, by their place in ``key``."""
    kinds = ((place, _loose(fields[i])) for place, i in enumerate(key))
    return {place: kind for place, kind in kinds if kind is not None}


def _loose(field: Stored) -> Loose | None:
    ddl, oid = field.spark_ddl.lower(), int(field.pg_type_oid)
    if ddl.startswith("array<"):
        pg_type = type_by_oid(oid)
        element = 0 if pg_type is None else int(pg_type.element_oid)
        reason = _looseness(ddl[len("array<") : -1], element, field.pg_typmod)
        return reason and Loose(reason, of_elements=True)
    if ddl == "string" and oid == _NUMERIC_ARRAY:
        return Loose(Looseness.SCALE)
    name = (field.pg_type_name or "").rpartition(".")[2].replace('"', "")
    if ddl == "string" and name in ("citext", "citext[]"):
        return Loose(Looseness.CASE)
    why = _looseness(ddl, oid, field.pg_typmod)
    return why and Loose(why)


def _looseness(ddl: str, oid: int, typmod: int) -> Looseness | None:
    if ddl in ("float", "double"):
        return Looseness.SIGNED_ZERO
    if ddl != "string":
        return None
    if oid in _SCALED:
        return Looseness.SCALE
    if oid == _INTERVAL:
        return Looseness.SPAN
    return Looseness.SPACES if oid == _BPCHAR and typmod == -1 else None


# ---- in Arrow --------------------------------------------------------------------------


def alike(
    columns: Sequence[pa.ChunkedArray], loose: Mapping[int, Loose]
) -> list[pa.ChunkedArray]:
    """Return the columns with equal values made identical."""
    return [
        column if place not in loose else _alike(column, loose[place])
        for place, column in enumerate(columns)
    ]


def alike_scans(
    scans: Iterable[pa.Table], loose: Mapping[int, Loose]
) -> Iterator[pa.Table]:
    """Make equal values identical in the columns ``k<i>`` of tables; other columns stay."""
    for scan in scans:
        for place, kind in loose.items():
            index = scan.schema.get_field_index(f"k{place}")
            scan = scan.set_column(index, f"k{place}", _alike(scan.column(index), kind))
        yield scan


def _alike(column: pa.ChunkedArray, loose: Loose) -> pa.ChunkedArray:
    kind = column.type
    if not loose.of_elements:
        return _values_alike(column, loose.why)
    arrays = [_elements_alike(chunk, loose.why) for chunk in column.chunks]
    return pa.chunked_array(arrays, kind)


def _elements_alike(array: pa.ListArray, why: Looseness) -> pa.ListArray:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = pa.chunked_array([array.flatten()])
    made = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        _values_alike(values, why).combine_chunks(),
        mask=array.is_null(),
    )
    return made.cast(array.type)


_ZEROS: Final = r'("(?:[^"\\]|\\.)*")|(\.[0-9]*[1-9])0*|\.0+'
"""Matches quoted text; digits behind a point, without trailing zeros; zeros only."""


def _values_alike(column: pa.ChunkedArray, why: Looseness) -> pa.ChunkedArray:
    match why:
        case Looseness.SIGNED_ZERO:
            return pc.add(column, pa.scalar(0.0, column.type))
        case Looseness.SCALE:
            return pc.replace_substring_regex(column, _ZEROS, r"\1\2")
        case Looseness.CASE:
            return pc.utf8_lower(column)
        case Looseness.SPACES:
            return pc.utf8_rtrim(column, characters=" ")
        case Looseness.SPAN:
            return _spans(column)


_FIELDS: Final = (
    r"^(?:(?P<y>[-+]?\d+) years? ?)?(?:(?P<mon>[-+]?\d+) mons? ?)?"
    r"(?:(?P<d>[-+]?\d+) days? ?)?"
    r"(?:(?P<sign>[-+]?)(?P<h>\d+):(?P<min>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d+))?)?$"
)
"""Matches an interval's text, except ``infinity``."""

_DAY: Final = 86_400_000_000
"""Microseconds."""


def _spans(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert intervals to days and remaining microseconds, as a month counts as 30 days and a day
    as 24 hours. The total in microseconds would not fit in a bigint."""
    parts = pc.extract_regex(column, _FIELDS)

    def number(name: str, digits: int = 1) -> npt.NDArray[Any]:
        text = pc.fill_null(pc.struct_field(parts, name), "")
        text = pc.utf8_rpad(pc.utf8_ltrim(text, "+"), digits, "0")
        values: npt.NDArray[Any] = pc.cast(text, pa.int64()).to_numpy()
        return values

    negative = pc.equal(pc.fill_null(pc.struct_field(parts, "sign"), ""), "-")
    sign = np.where(negative.to_numpy(), -1, 1)
    # The sign applies to each part, because the lowest interval has no positive counterpart.
    clock = sign * number("f", 6)
    clock += sign * ((number("h") * 60 + number("min")) * 60 + number("s")) * 1_000_000
    days = (number("y") * 12 + number("mon")) * 30 + number("d") + clock // _DAY
    texts = pc.binary_join_element_wise(
        pa.array(days).cast(pa.string()), pa.array(clock % _DAY).cast(pa.string()), " "
    )
    return pc.if_else(pc.is_valid(parts), texts, column)


# ---- in Spark --------------------------------------------------------------------------


def alike_sql(value: str, loose: Loose | None) -> str:
    """Return Spark SQL for ``alike`` of one value in Spark SQL. None: the value itself."""
    if loose is None:
        return value
    if loose.of_elements:
        return f"transform({value}, e -> {_value_sql('e', loose.why)})"
    return _value_sql(value, loose.why)


_ZEROS_SQL: Final = _ZEROS.replace(')*"', ')*+"')
"""Possessive, because backtracking of Java's expressions overflows the stack on long texts."""


def alike_key(fields: Sequence[Stored], names: Sequence[str]) -> list[str]:
    """Return Spark SQL for ``alike`` of the columns with these names."""
    by_name = {field.name: field for field in fields}
    return [alike_sql(identifier(name), _loose(by_name[name])) for name in names]


def _value_sql(value: str, why: Looseness) -> str:
    match why:
        case Looseness.SIGNED_ZERO:
            return f"({value} + cast(0 as float))"
        case Looseness.SCALE:
            return f"regexp_replace({value}, r'{_ZEROS_SQL}', '$1$2')"
        case Looseness.CASE:
            return f"lower({value})"
        case Looseness.SPACES:
            return f"rtrim({value})"
        case Looseness.SPAN:
            return _span_sql(value)


def _span_sql(value: str) -> str:
    def number(pattern: str, group: int = 1) -> str:
        digits = f"regexp_extract(v, r'{pattern}', {group})"
        return f"cast(if({digits} = '', '0', {digits}) as bigint)"

    def count(unit: str) -> str:
        return number(r"([-+]?\d+) " + unit)

    def clock(group: int) -> str:
        return number(r"(\d+):(\d\d):(\d\d)", group)

    days = f"({count('year')} * 12 + {count('mon')}) * 30 + {count('day')}"
    seconds = f"(({clock(1)} * 60 + {clock(2)}) * 60 + {clock(3)})"
    fraction = r"cast(rpad(regexp_extract(v, r'\.(\d+)', 1), 6, '0') as bigint)"
    sign = r"if(v rlike r'-\d+:', -1L, 1L)"
    micros = f"{sign} * {seconds} * 1000000 + {sign} * {fraction}"
    text = (
        f"concat(cast(p.d + p.u div {_DAY} - if(p.u % {_DAY} < 0, 1L, 0L) as string),"
        f" ' ', cast(pmod(p.u, {_DAY}) as string))"
    )
    parts = f"named_struct('d', {days}, 'u', {micros})"
    span = f"transform(array({parts}), p -> {text})[0]"
    return f"transform(array({value}), v -> if(v like '%infinity', v, {span}))[0]"
