"""Row filters on a table's files: what a subscriber copies is what the stream would have brought.

Values as a file has them, and their texts as the log has them, give the same answers and the same
errors (those of texts are compared with PostgreSQL's beside ``postgres/``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.publication_script import FILTERS, MORE

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.publication.filters import analyse
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Oid
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.expressions import Filter, StoredFilter
from wal2lake.pgtypes.expressions.vectors import vector
from wal2lake.sql.grammar.copying.filtered import filtered_rows

_NAN = float("nan")
_INF = float("inf")

COLUMNS: dict[str, tuple[int, int, Any, list[Any]]] = {
    "b": (16, -1, pa.bool_(), [True, False]),
    "i2": (21, -1, pa.int16(), [1, -1, 0, 32767, -32768]),
    "i4": (23, -1, pa.int32(), [1, -1, 0, 5, 2147483647]),
    "i8": (20, -1, pa.int64(), [1, -7, 5000000000, 9223372036854775807, 0]),
    "n": (
        1700,
        ((12 << 16) | 3) + 4,
        pa.decimal128(12, 3),
        [Decimal("1.500"), Decimal("-1.5"), Decimal("0.1"), Decimal(1), Decimal(0)],
    ),
    "u": (1700, -1, pa.string(), ["1.50", "NaN", "Infinity", "-0.5", "1"]),
    "r": (700, -1, pa.float32(), [1.5, 0.1, _NAN, -_INF, 1.0, 0.0]),
    "d": (701, -1, pa.float64(), [1.5, 0.1, _NAN, _INF, 1.0, 1e300]),
    "t": (25, -1, pa.string(), ["x", "", "xé", "it's", "x ", "y\nx"]),
    "v": (1043, 12, pa.string(), ["x", "y", "ä", "x  "]),
    "c": (1042, 9, pa.string(), ["x    ", "b    ", "     ", "a b  "]),
    "da": (
        1082,
        -1,
        pa.date32(),
        [date(2020, 1, 2), date(1, 1, 1), date(1999, 12, 31), date(9999, 12, 31)],
    ),
    "ts": (
        1114,
        -1,
        pa.timestamp("us"),
        [
            datetime(2020, 1, 2),
            datetime(2020, 1, 2, 3, 4, 5, 678000),
            datetime(1, 1, 1),
            datetime(9999, 12, 31, 23, 59, 59, 999999),
        ],
    ),
    "tz": (
        1184,
        -1,
        pa.timestamp("us", "UTC"),
        [
            datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
            datetime(1883, 1, 1, tzinfo=UTC),
            datetime(1999, 12, 31, 23, 59, 59, 900000, tzinfo=UTC),
        ],
    ),
    "uu": (2950, -1, pa.string(), ["6b29fc40-ca47-1067-b31d-00dd010662da"]),
    "ba": (17, -1, pa.binary(), [b"\x00\xff", b"", b"\x00"]),
    "js": (114, -1, pa.string(), ['{"a": "x"}', "1", '{"a":{"b" : 1.0}, "k": null}']),
    "jb": (
        3802,
        -1,
        pa.string(),
        ['{"a": "x", "k": 1.50}', "[7]", '{"l": ["a", "b"]}'],
    ),
}

TABLE = TableDef(
    Oid(30000),
    "public",
    "f",
    Oid(10),
    tuple(ColumnDef(n, Oid(oid), mod) for n, (oid, mod, _, _) in COLUMNS.items()),
    (),
    "/f",
)

VECTORS = (
    "i4 > 1 and i8 <= 5000000000",
    "i2 <> i8 or i4 is null",
    "i4 in (1, 5)",
    "i4 in (1, null)",
    "i8 not in (1, null, 0)",
    "not i4 in (1, 0)",
    "i4 % 3 = 2",
    "mod(i8, 7) <> 0",
    "i2 % 2::int2 = -1::int2",
    "3 > i4",
    "t = 'x'",
    "t < v",
    "v >= t",
    "t in ('x', 'y')",
    "c = 'x'",
    "c = c and c = v",
    "c in ('x', 'b  ')",
    "t between 'a' and 'y'",
    "b",
    "not b",
    "b = (i4 > 0)",
    "b < true",
    "b is true",
    "b is not true",
    "b is false",
    "b is not false",
    "(i4 > 0) is unknown",
    "(i4 > 0) is not unknown",
    "js is null or u is not null",
    "i4 = any ('{1, 5, null}')",
    "t collate \"C\" > 'x'",
    "da > '2000-01-01'",
    "da in ('2020-01-02', 'infinity')",
    "da < '-infinity' or da < 'infinity'",
    "ts >= '2020-01-02 03:04:05.678'",
    "ts = ts",
    "tz < '2000-01-01 00:00:00+00'",
    "ba >= '\\x00'",
    "n > 0.1",
    "n = 1.50",
    "n < 99999999",
    "n in (1.5, 1)",
    "n = n",
    "i4 is distinct from 1",
    "t like 'x%'",
    "t like '%x' or v not like '%x%'",
    "t like '' or t like '%%'",
    "c like 'x' or c like 'x    '",
    "v like 'é%' or t like '%é'",
    "t like '%\n%'",
    "t is not distinct from v",
    "1 < 2",
)


def _filter(text: str) -> tuple[Any, tuple[str, ...]]:
    asked = filtered_rows(f"select i4 from only public.f where ({text})")
    assert asked is not None and asked.unfiltered == "select i4 from only public.f "
    return analyse(asked.condition, TABLE, "UTC")


def _rows() -> pa.RecordBatch:
    """Each value beside several of the other columns', and NULLs."""
    count = 60
    arrays = {}
    for place, (name, (_, _, arrow, values)) in enumerate(COLUMNS.items()):
        known = [*values, None]
        chosen = [
            known[(row * (place % 5 + 1) + row // 7) % len(known)]
            for row in range(count)
        ]
        arrays[name] = pa.array(chosen, arrow)
    return pa.RecordBatch.from_pydict(arrays)


def _texts(batch: pa.RecordBatch, names: tuple[str, ...]) -> list[pa.Array]:
    return [
        pa.array(arrow_to_text(batch.column(name), *COLUMNS[name][:2]), pa.binary())
        for name in names
    ]


def _compare(text: str) -> StoredFilter:
    expression, names = _filter(text)
    streamed, stored = Filter(expression, names), StoredFilter(expression, names)
    rows = _rows()
    for number in range(rows.num_rows):
        row = rows.slice(number, 1)
        try:
            expected: Any = streamed.matches(_texts(row, names), 1)
        except Wal2LakeError as error:
            with pytest.raises(Wal2LakeError) as caught:
                stored.matches(row)
            assert caught.value.sqlstate == error.sqlstate, (text, row.to_pylist())
            continue
        assert stored.matches(row).to_pylist() == expected, (text, row.to_pylist())
    try:
        expected = streamed.matches(_texts(rows, names), rows.num_rows)
    except Wal2LakeError:
        return stored
    assert stored.matches(rows).to_pylist() == expected, text
    assert stored.matches(rows.slice(0, 0)).to_pylist() == []
    return stored


def _is_known(text: str) -> bool:
    try:
        _filter(text)
    except (Wal2LakeError, AssertionError):
        return False
    return True


def test_stored_values_are_judged_as_their_texts() -> None:
    known = [text for text in dict.fromkeys((*FILTERS, *MORE)) if _is_known(text)]
    assert len(known) > 180
    for text in known:
        _compare(text)


@pytest.mark.parametrize("text", VECTORS)
def test_columns_are_compared_whole(text: str) -> None:
    expression, names = _filter(text)
    types = [COLUMNS[name][2] for name in names]
    assert vector(expression, types) is not None
    _compare(text)


@pytest.mark.parametrize(
    "text",
    [
        "i4 / i8 > 0",
        "i4 % i8 = 0",
        "i4 + 1 > 0",
        "i8::int4 = 1",
        "r > 0",
        "n > 'NaN'",
        "n > 0.0001",
        "u = 1",
        "t like 'x_'",
        "t like 'x\\%%'",
        "t like '%x%y%'",
        "t like v",
        "t like null",
        "t ~ 'x'",
        "js ->> 'a' = 'x'",
        "i4 > any ('{1, 2}')",
        "greatest(i4, i8) > 1",
        "da = ts",
        "case when b then i4 = 1 end",
    ],
)
def test_what_may_fail_or_is_not_arrows_is_computed_row_by_row(text: str) -> None:
    expression, names = _filter(text)
    assert vector(expression, [COLUMNS[name][2] for name in names]) is None


def test_a_foreign_files_types_decide_for_themselves() -> None:
    stored = StoredFilter(*_filter("i4 > 1 and ts > '2020-01-01'"))
    moment = datetime(2020, 1, 2)
    for arrow in (pa.int64(), pa.int8(), pa.string()):
        for unit in ("ns", "ms", "us"):
            batch = pa.RecordBatch.from_pydict(
                {
                    "i4": pa.array([1, 2, None]).cast(arrow),
                    "ts": pa.array([moment] * 3, pa.timestamp(unit)),
                }
            )
            assert stored.matches(batch).to_pylist() == [False, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i4 = 5", {"i4": (5, 5)}),
        ("5 < i4 and i4 < 9 and t = 'x'", {"i4": (5, 9)}),
        ("i4 in (3, 7, null) and i8 >= -1", {"i4": (3, 7), "i8": (-1, (1 << 63) - 1)}),
        ("i4 = 5 or i8 = 5", {}),
        ("not i4 = 5", {}),
        ("i4 <> 5", {"i4": (-(1 << 63), (1 << 63) - 1)}),
        ("i4 = i8", {}),
    ],
)
def test_files_that_cannot_have_a_row_are_known(
    text: str, expected: dict[str, tuple[int, int]]
) -> None:
    assert StoredFilter(*_filter(text)).bounds() == expected


@pytest.mark.parametrize(
    "query",
    [
        "select a from t",
        "select a from t where",
        "select a from t where a = 1 order by a",
        "select a from t where a = 1 limit 1",
        "select a from t, u where a = 1",
        "select a from t u where a = 1",
        "select a from (select 1) t where a = 1",
        "select a from a.b.c where a = 1",
        "select (select a from t where a = 1)",
        "select 'x from t where a = 1",
        "with q as (select 1) select a from t where a = 1",
        f"select a from t where {'(' * 5000}a{')' * 5000}",
    ],
)
def test_other_queries_are_not_read_as_a_subscribers(query: str) -> None:
    assert filtered_rows(query) is None


def test_a_subscribers_query_is_read() -> None:
    found = filtered_rows(
        'SELECT a, "from", extract(x from y) FROM ONLY "S".t WHERE ((a > 1)) OR (b)'
    )
    assert found is not None
    assert (found.table.schema, found.table.name) == ("S", "t")
    assert found.unfiltered.endswith('FROM ONLY "S".t ')
    assert found.condition.word == "OR"


@pytest.mark.parametrize(
    "text",
    [
        "10 / coalesce(i4, 0) > 1",
        "case when i4 is null then 1 / 0 = 1 else true end",
    ],
)
def test_a_null_that_no_row_has_is_not_computed(text: str) -> None:
    stored = StoredFilter(*_filter(text))
    rows = pa.RecordBatch.from_pydict({"i4": pa.array([1, 2, 5], pa.int32())})
    assert stored.matches(rows).to_pylist() == [True] * 3


def test_a_column_of_arrays_may_be_the_only_one() -> None:
    arrays = replace(TABLE, columns=(ColumnDef("a", Oid(1007), -1),))
    asked = filtered_rows("select a from f where coalesce(a is null, true)")
    assert asked is not None
    stored = StoredFilter(*analyse(asked.condition, arrays, "UTC"))
    values = pa.array([[1], None], pa.list_(pa.int32()))
    rows = pa.RecordBatch.from_pydict({"a": values})
    assert stored.matches(rows).to_pylist() == [False, True]


def test_any_of_no_array_bounds_nothing() -> None:
    stored = StoredFilter(*_filter("i4 = any (null::int4[])"))
    assert stored.bounds() == {}
    assert not any(stored.matches(_rows()).to_pylist())


def test_zeros_behind_the_point_are_no_places() -> None:
    _compare(f"n = 1.{'0' * 45}")
