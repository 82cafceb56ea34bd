"""The value of a constant is what Spark makes of the same expression, whatever its type and literal
are."""

from __future__ import annotations

import re
import struct
from collections import Counter
from typing import Final

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import Wal2LakeError
from wal2lake.lake.spark.query import Queries
from wal2lake.model import Oid
from wal2lake.pgtypes.moments import numbered
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.sql.query.plain import PlainInsert, PlainWrite
from wal2lake.sql.query.translate import TableRef
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.writes import translate_write


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


KINDS: Final = {
    "b": (16, -1),
    "y": (17, -1),
    "s": (21, -1),
    "i": (23, -1),
    "l": (20, -1),
    "n": (1700, _numeric(6, 2)),
    "m": (1700, _numeric(38, 9)),
    "z": (1700, _numeric(5, 0)),
    "u": (1700, -1),
    "w": (1700, _numeric(50, 2)),
    "f": (700, -1),
    "d": (701, -1),
    "dt": (1082, -1),
    "ts": (1114, -1),
    "tz": (1184, -1),
    "ti": (1083, -1),
    "t": (25, -1),
    "v": (1043, 9),
    "c": (1042, 9),
    "g": (2950, -1),
    "j": (3802, -1),
    "iv": (1186, -1),
    "net": (869, -1),
    "a": (1007, -1),
}

TABLE: Final = TableDef(
    Oid(1),
    "public",
    "k",
    Oid(10),
    tuple(ColumnDef(name, Oid(oid), typmod) for name, (oid, typmod) in KINDS.items()),
    (),
    "/k",
)

NUMBERS = st.one_of(
    st.integers(-40_000, 40_000).map(str),
    st.sampled_from([1 << 15, 1 << 31, 1 << 53, 1 << 63]).flatmap(
        lambda n: st.integers(n - 2, n + 2) | st.integers(-n - 2, 2 - n)
    ).map(str),
    st.decimals(-10_000, 10_000, places=3).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"\A-?[0-9]{0,25}\.[0-9]{1,12}\Z"),
    st.sampled_from(["-0", "-0.0", "0.000", "1e3", "-1e-7", "1e-20", "3.4028235e38"]),
)  # fmt: skip

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    st.sampled_from(["NaN", "-inf", "Infinity", "t", "off", "1 day", "10.0.0.1/8"]),
    st.sampled_from(["{1,null}", '{"a": [1.0, null]}', "\\x00fF", "a'\\n\"${x}"]),
    st.uuids().map(str),
)

MOMENTS = st.one_of(
    st.dates().map(str),
    st.datetimes().map(str),
    st.tuples(st.datetimes(), st.sampled_from(["+00", "-03:30", "Z"])).map(
        lambda one: f"{one[0]}{one[1]}"
    ),
    st.times().map(str),
)

CASTS = st.sampled_from(
    [
        "",
        "",
        "",
        "::int",
        "::bigint",
        "::smallint",
        "::numeric",
        "::numeric(7,3)",
        "::float8",
    ]
)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


LITERALS = st.one_of(
    st.tuples(NUMBERS, CASTS).map("".join),
    NUMBERS.map(_quoted),
    TEXTS.map(_quoted),
    MOMENTS.map(_quoted),
    MOMENTS.map(lambda text: f"timestamp {_quoted(text)}"),
    st.sampled_from(["true", "false", "null", "-(5)", "- -7", "(1)", "-1.5::float4"]),
)

CELL: Final = re.compile(r"FROM \(VALUES \((.*)\)\) AS src\(v0\)", re.DOTALL)


def translated(sql: str) -> SparkWrite | None:
    """None: it is refused before anybody is asked for values."""
    try:
        return translate_write(sql, lambda *_: TableRef(TABLE, None), zone="Asia/Tokyo")
    except Wal2LakeError:
        return None


def bits(value: object) -> object:
    """What is equal is the same, zeros and all."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack(">d", value)
    return repr(value)


@settings(
    max_examples=examples(20),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    cells=st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), LITERALS), min_size=60, max_size=90
    )
)
def test_spark_makes_the_same_of_it(
    queries: Queries, cells: list[tuple[str, str]]
) -> None:
    asked, expected = [], []
    for name, literal in cells:
        write = translated(f"insert into k ({name}) values ({literal})")
        if write is None or not isinstance(write.plain, PlainInsert):
            continue
        kinds = [column for column, _ in write.plain.columns]
        (row,) = write.plain.rows
        found = CELL.search(write.sql)
        assert found is not None
        column = TABLE.column(name)
        assert column is not None
        asked.append(f"CAST({found[1]} AS {t.spark_name(t.of_column(column))})")
        expected.append((name, literal, row[kinds.index(name)]))
        change = translated(f"update k set {name} = {literal} where i = 1")
        assert change is not None and isinstance(change.plain, PlainWrite)
        assert change.plain.constants is not None
        assert bits(change.plain.constants[0]) == bits(row[kinds.index(name)])
    if not asked:
        return
    items = ", ".join(f"{text} AS c{place}" for place, text in enumerate(asked))
    with queries.run(f"SELECT {items}", job_group="constants").batches as batches:
        (answer,) = [
            row
            for batch in batches
            for row in pa.RecordBatch.from_arrays(
                [numbered(column) for column in batch.columns], batch.schema.names
            ).to_pylist()
        ]
    for place, (name, literal, value) in enumerate(expected):
        assert bits(answer[f"c{place}"]) == bits(value), (name, literal)


def test_what_people_write_is_no_question_for_spark() -> None:
    literals = {
        "b": ("true", "'f'", "null"),
        "y": (r"'\x00ff'", "'abc'"),
        "s": ("1", "-1", "'7'"),
        "i": ("2147483647", "-2147483648", "'12'", "5::bigint", "2.5", "- 3"),
        "l": ("9223372036854775807", "-9223372036854775808"),
        "n": ("1", "-1.005", "'12.5'"),
        "u": ("1", "-12", "1.50", "'NaN'"),
        "w": ("1.5",),
        "f": ("1.1", "'NaN'"),
        "d": ("-0.0", "'-inf'", "1e300"),
        "dt": ("'2024-02-29'", "date '0001-01-01'"),
        "ts": ("'2024-02-29 10:00'", "timestamp '9999-12-31'"),
        "tz": ("'2024-02-29 10:00+02'",),
        "ti": ("'10:00'",),
        "t": ("'a'", "5", "true"),
        "v": ("'abc'",),
        "c": ("'abc'",),
        "g": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
        "j": ("'[1]'",),
    }
    asked = Counter(
        name
        for name, given_ones in literals.items()
        for literal in given_ones
        if (write := translated(f"insert into k ({name}) values ({literal})")) is None
        or write.plain is None
    )
    assert not asked
    others = ("now()", "1 + 1", "array[1]", "'{1}'", "random()", "upper('x')")
    for name, literal in zip(("tz", "i", "a", "a", "d", "t"), others, strict=True):
        write = translated(f"insert into k ({name}) values ({literal})")
        assert write is not None and write.plain is None, literal
