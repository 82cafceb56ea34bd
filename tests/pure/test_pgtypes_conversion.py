"""PostgreSQL's text to Arrow and back, against small models."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes import (
    Conversion,
    TypeMapping,
    arrow_to_binary,
    arrow_to_text,
    binary_param_to_text,
    mapping_for,
    numeric_typmod,
    parse_type_name,
    text_param_to_python,
    text_to_arrow,
)
from wal2lake.pgtypes.encode.text import plain_text
from wal2lake.pgtypes.moments import spark_number, spark_text
from wal2lake.pgtypes.receive.columns import convert_sent

HSTORE = mapping_for(90001, type_name="hstore")
ODDITIES = st.sampled_from(
    [
        "",
        "x",
        "{",
        "}",
        "{}",
        '"',
        "\\",
        "NULL",
        "infinity",
        "NaN",
        "1",
        "t",
        "\\x00",
        ",",
    ]
)


def convert(texts: Sequence[str | bytes | None], type_name: str) -> Conversion:
    return text_to_arrow(binary(texts), mapping_for(*parse_type_name(type_name)))


def is_nan(array: pa.Array) -> bool:
    """Which is not equal to itself."""
    return bool(pa.types.is_floating(array.type) and math.isnan(array[0].as_py()))


def binary(texts: Sequence[str | bytes | None]) -> pa.BinaryArray:
    return pa.array(
        [t.encode() if isinstance(t, str) else t for t in texts], pa.binary()
    )


def shown(array: pa.Array, type_name: str, **settings: Any) -> list[str | None]:
    texts = arrow_to_text(array, *parse_type_name(type_name), **settings)
    if settings.keys() <= {"timezone"}:
        plain = plain_text(array, *parse_type_name(type_name), **settings)
        assert plain is None or plain.to_pylist() == texts
    return [None if t is None else t.decode() for t in texts]


# --- scalars: value -> text -> value ----------------------------------------------------

_UTC = st.just(dt.UTC)
_MIN, _MAX = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "real": st.floats(width=32, allow_nan=False),
    "double precision": st.floats(allow_nan=False),
    "numeric(12,2)": st.decimals(-(10**9), 10**9, places=2),
    "numeric(38,38)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -38))
    ),
    "date": st.dates(),
    "timestamp": st.datetimes(_MIN, _MAX),
    "timestamptz": st.datetimes(_MIN, _MAX, timezones=_UTC),
    "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "bytea": st.binary(),
    "uuid": st.uuids().map(str),
}


@pytest.mark.parametrize("type_name", TYPES)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_values_survive_text_binary_and_arrays(
    type_name: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | TYPES[type_name], max_size=8))
    oid, typmod = parse_type_name(type_name)
    mapping = mapping_for(oid, typmod)
    array = pa.array(values, mapping.arrow_type)
    texts = arrow_to_text(array, oid, typmod)
    found = text_to_arrow(pa.array(texts, pa.binary()), mapping)
    assert found.failures == ()
    assert found.bad is None
    assert _same(found.array, array)
    # A slice has offsets that do not begin at 0.
    part = text_to_arrow(pa.array([b"?", *texts, b"?"], pa.binary())[1:-1], mapping)
    assert _same(part.array, array)
    # Binary parameters read as the text.
    for text, sent in zip(texts, arrow_to_binary(array, oid, typmod), strict=True):
        assert (sent is None) == (text is None)
        assert sent is None or binary_param_to_text(oid, sent).encode() == text
    # Arrays: print, parse, and binary.
    array_oid, _ = parse_type_name(f"{type_name}[]")
    lists = pa.array(
        [values, None, [], values[:1]], mapping_for(array_oid, typmod).arrow_type
    )
    literals = arrow_to_text(lists, array_oid, typmod)
    found = text_to_arrow(
        pa.array(literals, pa.binary()), mapping_for(array_oid, typmod)
    )
    assert found.failures == ()
    assert _same(found.array, lists)
    for text, sent in zip(
        literals, arrow_to_binary(lists, array_oid, typmod), strict=True
    ):
        assert sent is None or binary_param_to_text(array_oid, sent).encode() == text


def _same(left: pa.Array, right: pa.Array) -> bool:
    """Equal, and -0 is not 0."""
    left.validate(full=True)
    return left.type == right.type and repr(left.to_pylist()) == repr(right.to_pylist())


@settings(deadline=None)
@given(st.floats(), st.sampled_from([-15, 0, 1, 3]))
def test_a_double_reads_back_as_itself_and_looks_like_postgresqls(
    number: float, digits: int
) -> None:
    (text,) = shown(pa.array([number]), "float8", extra_float_digits=digits)
    assert text is not None
    if digits > 0:
        again = float(text)
        assert math.isnan(again) if math.isnan(number) else again == number
        assert "e" not in text or "e+1" in text or "e" in repr(number)
    assert text in ("NaN", "Infinity", "-Infinity") or not text.endswith(".0")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e23, "9.999999999999999e+22"),
        (9007199254740993.0, "9.007199254740992e+15"),
        (1e15, "1e+15"),
        (123456789012345.0, "123456789012345"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-0.0, "-0"),
        (5e-324, "5e-324"),
    ],
)
def test_doubles_have_postgresqls_digits_and_layout(number: float, text: str) -> None:
    assert shown(pa.array([number]), "float8") == [text]


# --- what cannot be stored --------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "text", "sqlstate"),
    [
        ("date", "5874898-01-01", "22008"),
        ("date", "4714-11-23 BC", "22008"),
        ("date", "0000-01-01", "22008"),
        ("date", "today", "22007"),
        ("date", "2023-02-29", "22008"),
        ("timestamp", "294247-01-10 04:00:54.775807", "22008"),
        ("timestamp", "4714-11-23 23:59:59.999999 BC", "22008"),
        ("timestamp", "2024-01-01 00:00:00+00", "22007"),
        ("timestamptz", "2024-01-01 00:00:00", "22007"),
        ("timestamptz", "294247-01-10 00:00:54.775807-04", "22008"),
        ("numeric(10,2)", "NaN", "22003"),
        ("numeric(10,2)", "-Infinity", "22003"),
        ("numeric(10,2)", "1.001", "22003"),
        ("numeric(10,2)", "100000000.00", "22003"),
        ("numeric(10,2)", "sNaN", "22P02"),
        ("smallint", "32768", "22003"),
        ("bigint", "9223372036854775808", "22003"),
        ("double precision", "1e309", "22003"),
        ("double precision", "1e-330", "22003"),
        ("real", "1e39", "22003"),
        ("text", b"\xff", "22021"),
        ("text", b"a\0b", "22021"),
        ("bytea", "\\x0", "22023"),
        ("integer[]", "[0:0]={1}", "22023"),
        ("integer[]", "{{1}}", "22023"),
        ("integer[]", "{x}", "22P02"),
        ("integer[]", "{1", "22P02"),
        ("text[]", b'{"\xff"}', "22021"),
        ("text[]", '{a"b"}', "22P02"),
        ("text[]", '{"a\\"}', "22P02"),
        ("text[]", "{,}", "22P02"),
        ("date[]", "{2024-01-01,5874898-01-01}", "22008"),
    ],
)
def test_a_value_that_does_not_fit_is_flagged_alone(
    type_name: str, text: str | bytes, sqlstate: str
) -> None:
    good = {
        "text": "ok",
        "bytea": "\\x00ff",
        "integer[]": "{1,NULL}",
        "text[]": '{"a b"}',
    }
    scalar = {"date": "2024-01-01", "timestamp": "2024-01-01 00:00:00.5"}
    fine = good.get(type_name) or scalar.get(type_name) or "1"
    fine = {"timestamptz": "2024-01-01 00:00:00+00", "date[]": "{}"}.get(
        type_name, fine
    )
    clean = convert([fine] * 3, type_name)
    found = convert([fine, None, text, fine, fine], type_name)
    assert found.bad is not None
    assert found.bad.to_pylist() == [False, False, True, False, False]
    assert found.first_bad_row == 2
    failure = found.failure_at(2)
    assert failure is not None
    assert failure.sqlstate == sqlstate
    assert found.failure_at(1) is None
    assert found.array[2].as_py() is None
    assert found.array.take(pa.array([0, 3, 4])).equals(clean.array)


def test_messages_do_not_contain_the_value() -> None:
    found = convert(["secret-value", "4711471147114711"], "integer")
    for failure in found.failures:
        assert "secret" not in failure.message
        assert "4711" not in failure.message


@pytest.mark.parametrize("type_name", [*TYPES, "integer[]", "text[]", "timestamptz[]"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_bytes_make_a_conversion_fail_as_a_whole(
    type_name: str, data: st.DataObject
) -> None:
    texts = data.draw(
        st.lists(
            st.none() | st.binary(max_size=12) | ODDITIES.map(str.encode), max_size=30
        )
    )
    mapping = mapping_for(*parse_type_name(type_name))
    found = text_to_arrow(binary(texts), mapping)
    found.array.validate(full=True)
    assert found.array.type == mapping.arrow_type
    assert len(found.array) == len(texts)
    bad = [False] * len(texts) if found.bad is None else found.bad.to_pylist()
    for row, text in enumerate(texts):
        assert (found.failure_at(row) is not None) == bad[row]
        assert found.array[row].is_valid == (text is not None and not bad[row])
        # Each value fares as it would alone: no row disturbs another.
        alone = text_to_arrow(binary([text]), mapping)
        assert (alone.bad is not None) == bad[row]
        assert alone.array.equals(found.array.slice(row, 1)) or is_nan(alone.array)


@settings(deadline=None)
@given(
    st.lists(st.none() | st.binary(max_size=16) | ODDITIES.map(str.encode), max_size=20)
)
def test_no_bytes_make_an_hstore_column_fail_as_a_whole(
    texts: list[bytes | None],
) -> None:
    found = text_to_arrow(binary(texts), HSTORE)
    found.array.validate(full=True)
    for row, text in enumerate(texts):
        alone = text_to_arrow(binary([text]), HSTORE)
        assert alone.array.equals(found.array.slice(row, 1)) or is_nan(alone.array)
        assert found.array[row].is_valid or text is None or found.failure_at(row)


def test_a_column_full_of_odd_values_is_converted_quickly() -> None:
    found = convert(["infinity"] * 50_000, "timestamptz")
    assert found.array.cast(pa.int64()).unique().to_pylist() == [2**63 - 1]
    found = convert(["294276-01-01 00:00:00+00"] * 50_000, "timestamptz")
    assert len(found.failures) == 1
    assert len(found.failures[0].rows) == 50_000


@pytest.mark.parametrize(
    ("type_name", "texts"),
    [
        (
            "date",
            [
                "infinity",
                "-infinity",
                "5874897-12-31",
                "4714-11-24 BC",
                "10000-02-29",
                "0001-12-31 BC",
                "0005-02-29 BC",
                "9999-12-31",
                "0001-01-01",
            ],
        ),
        (
            "timestamp",
            [
                "infinity",
                "-infinity",
                "294247-01-10 04:00:54.775806",
                "0001-01-01 00:00:00",
                "4714-11-24 00:00:00 BC",
                "0001-12-31 23:59:59.5 BC",
                "10000-01-01 00:00:00",
            ],
        ),
        (
            "timestamptz",
            [
                "infinity",
                "-infinity",
                "294247-01-10 04:00:54.775806+00",
                "4714-11-24 00:00:00+00 BC",
                "0044-03-15 12:00:00.000001+00 BC",
            ],
        ),
    ],
)
def test_far_dates_are_what_they_are_in_text_and_binary_form(
    type_name: str, texts: list[str]
) -> None:
    oid, typmod = parse_type_name(type_name)
    mapping = mapping_for(oid, typmod)
    found = convert([*texts, None], type_name)
    assert found.bad is None
    assert arrow_to_text(found.array, oid) == [*(t.encode() for t in texts), None]
    # As PostgreSQL sends them, and as it receives them.
    sent = arrow_to_binary(found.array, oid)
    again = convert_sent(
        pa.array(sent, pa.binary()), np.array([True] * len(sent)), oid, {}, mapping
    )
    assert again.array.equals(found.array)
    assert not again.failures
    highest, lowest = (0x7FFFFFFF, 0x80000000) if oid == 1082 else (2**63 - 1, 2**63)
    width = 4 if oid == 1082 else 8
    assert sent[:2] == [highest.to_bytes(width), lowest.to_bytes(width)]
    # As partitions of Delta tables have them.
    for value in found.array.drop_null():
        number = value.cast(pa.int32() if oid == 1082 else pa.int64()).as_py()
        shown = spark_text(number, mapping.arrow_type)
        assert spark_number(shown, mapping.arrow_type) == number


def test_offsets_take_times_over_the_ends_of_python_years() -> None:
    found = convert(
        ["0001-01-01 00:00:00+01", "9999-12-31 23:59:59.999999-01"], "timestamptz"
    )
    assert arrow_to_text(found.array, 1184) == [
        b"0001-12-31 23:00:00+00 BC",
        b"10000-01-01 00:59:59.999999+00",
    ]
    summer = convert(["12024-07-01 12:00:00+00", "infinity"], "timestamptz").array
    assert arrow_to_text(summer, 1184, timezone="America/New_York") == [
        b"12024-07-01 08:00:00-04",
        b"infinity",
    ]


def test_bytes_in_the_slot_of_a_null_do_not_matter() -> None:
    for type_name, one in [
        ("bytea", b"\\x01"),
        ("boolean", b"t"),
        ("integer[]", b"{1}"),
    ]:
        data = one + b"{junk" + one
        offsets = np.array([0, len(one), len(one) + 5, len(data)], np.int32)
        values = pa.BinaryArray.from_buffers(
            pa.binary(),
            3,
            [pa.py_buffer(b"\x05"), pa.py_buffer(offsets), pa.py_buffer(data)],
        )
        found = text_to_arrow(values, mapping_for(*parse_type_name(type_name)))
        assert found.bad is None
        assert found.array.is_valid().to_pylist() == [True, False, True]


def test_chunked_columns_keep_their_rows_numbers() -> None:
    chunks = pa.chunked_array([binary(["1", "x"]), binary([]), binary(["y", "2", "z"])])
    found = text_to_arrow(chunks, mapping_for(23))
    assert isinstance(found.array, pa.ChunkedArray)
    assert found.array.to_pylist() == [1, None, None, 2, None]
    assert found.bad is not None
    assert found.bad.to_pylist() == [False, True, True, False, True]
    assert [f.rows.tolist() for f in found.failures] == [[1, 2, 4]]
    assert text_to_arrow(pa.chunked_array([], pa.binary()), mapping_for(23)).bad is None


def test_string_and_large_columns_are_taken_too() -> None:
    for kind in (pa.string(), pa.large_binary(), pa.large_string()):
        found = text_to_arrow(pa.array(["1", None], kind), mapping_for(20))
        assert found.array.to_pylist() == [1, None]


# --- arrays and hstore, against printers of their own -----------------------------------

_TEXT = st.text(
    st.sampled_from('ab"\\{},= >NULnul\t\u00e9')
    | st.characters(exclude_categories=["Cs"]),
    max_size=8,
).filter(lambda s: "\0" not in s)


def _array_literal(items: list[str | None] | None) -> str | None:
    if items is None:
        return None
    shown = []
    for item in items:
        special = item is not None and (
            item == ""
            or item.upper() == "NULL"
            or any(c in '"\\{}, \t\n\v\f\r' for c in item)
        )
        if item is None:
            shown.append("NULL")
        elif special:
            shown.append('"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"')
        else:
            shown.append(item)
    return "{" + ",".join(shown) + "}"


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(st.none() | _TEXT, max_size=5), max_size=8))
def test_text_arrays_are_parsed_and_printed(
    rows: list[list[str | None] | None],
) -> None:
    literals = [_array_literal(row) for row in rows]
    found = convert(literals, "text[]")
    assert found.failures == ()
    assert found.array.to_pylist() == rows
    assert shown(found.array, "text[]") == literals


def _hstore_literal(pairs: dict[str, str | None] | None) -> str | None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    if pairs is None:
        return None
    return ", ".join(
        f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in pairs.items()
    )


@settings(deadline=None)
@given(
    st.lists(
        st.none() | st.dictionaries(_TEXT, st.none() | _TEXT, max_size=4), max_size=8
    )
)
def test_hstores_are_parsed_and_printed(
    rows: list[dict[str, str | None] | None],
) -> None:
    literals = [_hstore_literal(row) for row in rows]
    found = text_to_arrow(binary(literals), HSTORE)
    found.array.validate(full=True)
    assert found.failures == ()
    assert [None if r is None else dict(r) for r in found.array.to_pylist()] == rows
    texts = arrow_to_text(found.array, 25)
    assert [None if t is None else t.decode() for t in texts] == literals


@pytest.mark.parametrize(
    "text",
    [
        '"a"',
        "a=>1",
        '"a"=>b',
        'NULL=>"x"',
        '"a"=>"1","b"=>"2"',
        '"a"=>"1", ',
        '"a=>"1"',
    ],
)
def test_a_malformed_hstore_is_flagged_alone(text: str) -> None:
    found = text_to_arrow(binary(['"k"=>"v"', text, '"l"=>NULL']), HSTORE)
    assert found.bad is not None
    assert found.bad.to_pylist() == [False, True, False]
    assert found.array.to_pylist() == [[("k", "v")], None, [("l", None)]]


def test_an_array_of_boxes_is_separated_by_semicolons() -> None:
    found = convert(["{(3,4),(1,2);(1,1),(0,0)}"], "box[]")
    assert found.array.to_pylist() == [["(3,4),(1,2)", "(1,1),(0,0)"]]
    assert shown(found.array, "box[]") == ["{(3,4),(1,2);(1,1),(0,0)}"]


# --- overrides --------------------------------------------------------------------------


def test_numeric_as_decimal_keeps_what_fits_exactly() -> None:
    mapping = mapping_for(1700, overrides={"numeric": "decimal(10,2)"})
    found = text_to_arrow(binary(["1.5", "1.500", "1.005", "1e2", "NaN"]), mapping)
    assert found.array.to_pylist() == [
        Decimal("1.50"),
        Decimal("1.50"),
        None,
        Decimal("100.00"),
        None,
    ]


def test_a_decimal_is_shown_with_its_declared_scale_if_that_is_exact() -> None:
    array = pa.array([Decimal("1.5"), Decimal("0.0000000001")], pa.decimal128(38, 10))
    assert shown(array[:1], "numeric(10,2)") == ["1.50"]
    assert shown(array, "numeric(10,2)") == ["1.5000000000", "0.0000000001"]
    assert shown(array[1:], "numeric") == ["0.0000000001"]


# --- the front door's types -------------------------------------------------------------


def test_sparks_own_types_are_printed_as_postgresqls() -> None:
    days = pa.array(
        [0, 90061000001, -90061000000, -86400000000, None], pa.duration("us")
    )
    assert shown(days, "interval") == [
        "00:00:00",
        "1 day 01:01:01.000001",
        "-1 days -01:01:01",
        "-1 days",
        None,
    ]
    assert shown(pa.array([dt.time(1, 2, 3, 400000)], pa.time64("us")), "time") == [
        "01:02:03.4"
    ]
    assert shown(pa.nulls(2), "text") == [None, None]
    assert shown(pa.array(["a", None]).dictionary_encode(), "text") == ["a", None]
    nested = pa.array([[[1, 2], [3, None]], None])
    assert shown(nested, "integer[]") == ["{{1,2},{3,NULL}}", None]
    assert shown(pa.array([1, 2], pa.int32()), "float8") == ["1", "2"]


def test_a_type_without_binary_form_is_refused_by_name() -> None:
    with pytest.raises(FeatureNotSupportedError, match="regclass"):
        arrow_to_binary(pa.array(["pg_class"]), 2205)
    with pytest.raises(FeatureNotSupportedError, match=r"money\[\]"):
        binary_param_to_text(791, b"")
    with pytest.raises(FeatureNotSupportedError, match="DateStyle"):
        arrow_to_text(pa.array([1]), 23, datestyle="German")


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        *((790, text) for text in ("1.234,56", "$1,2345.00", "$1.0", "$-1.00", "")),
        *((3614, text) for text in ("a:1", "'a':1E", "'a''", "'a'  'b'")),
        *((3615, text) for text in ("a", "'a' )", "( 'a'", "'a' <99999> 'b'")),
    ],
)
def test_text_that_is_no_value_has_no_binary_form(type_oid: int, text: str) -> None:
    with pytest.raises(FeatureNotSupportedError, match="binary format"):
        arrow_to_binary(pa.array([text]), type_oid)


def test_a_value_kept_as_text_is_sent_in_binary_if_its_type_has_one() -> None:
    dates = pa.array(["infinity", "2000-01-02", "-infinity", None])
    assert arrow_to_binary(dates, 1082) == [
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x01",
        b"\x80\0\0\0",
        None,
    ]
    assert arrow_to_binary(pa.array(["[0:0]={1}"])[:0], 1007) == []
    with pytest.raises(FeatureNotSupportedError, match="integer"):
        arrow_to_binary(pa.array(["{{1}}"]), 1007)


@pytest.mark.parametrize(
    ("type_name", "text", "value"),
    [
        ("boolean", "on", True),
        ("integer", " 7 ", 7),
        ("float8", "1.5", 1.5),
        ("numeric", "1.10", Decimal("1.10")),
        ("numeric(3,1)", "1.1", Decimal("1.1")),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("timestamp", "2024-02-29 01:02:03", dt.datetime(2024, 2, 29, 1, 2, 3)),
        (
            "timestamptz",
            "2024-02-29 01:02:03+01",
            dt.datetime(2024, 2, 29, 0, 2, 3, tzinfo=dt.UTC),
        ),
        (
            "timestamptz",
            "2024-02-29 01:02:03",
            dt.datetime(2024, 2, 29, 0, 2, 3, tzinfo=dt.UTC),
        ),
        ("bytea", "\\x00ff", b"\x00\xff"),
        ("text", "a", "a"),
        ("jsonb", "{}", "{}"),
        ("integer[]", "{1,NULL}", [1, None]),
    ],
)
def test_a_text_parameter_is_its_python_value(
    type_name: str, text: str, value: object
) -> None:
    oid, _ = parse_type_name(type_name)
    assert text_param_to_python(oid, text, timezone="Europe/Berlin") == value


def test_a_wrong_parameter_is_refused_with_its_text() -> None:
    with pytest.raises(UsageError, match='type integer: "abc"') as caught:
        text_param_to_python(23, "abc")
    assert caught.value.sqlstate == "22P02"
    with pytest.raises(UsageError, match='type numeric: "abc"'):
        text_param_to_python(1700, "abc")


@pytest.mark.parametrize(
    "oid", [16, 20, 21, 23, 26, 700, 701, 1082, 1114, 1184, 1700, 2950]
)
@settings(deadline=None)
@given(data=st.binary(max_size=24))
def test_any_bytes_are_a_parameter_or_a_clear_error(oid: int, data: bytes) -> None:
    for each in (oid, mapping_array(oid)):
        try:
            text = binary_param_to_text(each, data)
        except UsageError as error:
            assert error.sqlstate in ("22P03", "22008", "42804")
        else:
            assert isinstance(text, str)


def mapping_array(oid: int) -> int:
    names = {16: "bool", 20: "int8", 21: "int2", 23: "int4", 26: "oid", 700: "float4"}
    names |= {701: "float8", 1082: "date", 1114: "timestamp", 1184: "timestamptz"}
    names |= {1700: "numeric", 2950: "uuid"}
    return parse_type_name(f"{names[oid]}[]")[0]


def test_a_huge_dimension_costs_no_memory() -> None:
    data = struct.pack("!iiIii", 1, 0, 23, 2**31 - 1, 1)
    with pytest.raises(UsageError):
        binary_param_to_text(1007, data)


@settings(deadline=None)
@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40
    )
)
def test_numeric_survives_binary(value: Decimal) -> None:
    text = f"{abs(value):f}" if value == 0 else f"{value:f}"
    (sent,) = arrow_to_binary(pa.array([text]), 1700)
    assert sent is not None
    assert binary_param_to_text(1700, sent) == text


def test_the_mapping_decides_the_type_even_of_an_empty_column() -> None:
    for type_name in [*TYPES, "integer[]"]:
        oid, typmod = parse_type_name(type_name)
        mapping: TypeMapping = mapping_for(oid, typmod)
        for values in (binary([]), binary([None, None])):
            found = text_to_arrow(values, mapping)
            assert found.array.type == mapping.arrow_type
            assert found.array.null_count == len(values)
    assert text_to_arrow(binary([None]), HSTORE).array.to_pylist() == [None]
    assert numeric_typmod(12, 2) == 786438


@pytest.mark.parametrize(
    "text",
    [
        "87559574213497229586468196974159895487672797257917196048468624",
        "1" + "0" * 128,
        "-1" + "0" * 999,
    ],
)
def test_a_number_of_too_many_digits_is_refused_and_not_cut_to_128_bits(
    text: str,
) -> None:
    # Alone: beside a number that Arrow refuses, each would be looked at again anyway.
    mapping = mapping_for(1700, overrides={"numeric": "decimal(38,10)"})
    found = text_to_arrow(binary([text, "1.5", "-0." + "0" * 10]), mapping)
    assert found.array.to_pylist() == [None, Decimal("1.5"), Decimal(0)]
    assert [f.sqlstate for f in found.failures] == ["22003"]


@settings(deadline=None, max_examples=examples(300))
@given(
    st.sampled_from([(38, 10), (38, 0), (38, 38), (38, 37), (20, 5), (10, 2)]),
    st.text("0123456789", min_size=1, max_size=60),
    st.text("0123456789", max_size=40),
    st.sampled_from(["", "-"]),
    st.sampled_from(["", "", "e5", "e+30", "e-3"]),
)
def test_any_number_alone_is_stored_exactly_or_refused(
    limits: tuple[int, int], whole: str, fraction: str, sign: str, exponent: str
) -> None:
    precision, scale = limits
    text = (
        f"{sign}{whole}.{fraction}{exponent}" if fraction else sign + whole + exponent
    )
    mapping = mapping_for(1700, (precision << 16 | scale) + 4)
    (stored,) = text_to_arrow(binary([text]), mapping).array.to_pylist()
    with localcontext(prec=200):
        number = Decimal(text)
        fits = abs(number).scaleb(scale) < 10**precision
        exact = number.scaleb(scale) % 1 == 0
        assert stored == (number if fits and exact else None)


@pytest.mark.parametrize("timezone", ["UTC", "America/New_York"])
@pytest.mark.parametrize(
    ("kind", "oid", "values"),
    [
        (pa.timestamp("us", "UTC"), 1184, [0, -1, 999_999, 1_790_000_000_120_000]),
        (pa.timestamp("us", "UTC"), 1184, [60_000_000, (1 << 63) - 1, 1 - (1 << 63)]),
        (pa.timestamp("us"), 1114, [0, -62_135_596_800_000_000, 1_000_000, None]),
        (pa.timestamp("us"), 1114, [253_402_300_799_999_999, -(10**17), 3 * 10**17]),
        (pa.int64(), 20, [0, -1, None, (1 << 63) - 1, -(1 << 63)]),
        (pa.int16(), 21, [5, -32768, None]),
        (pa.uint32(), 26, [0, 4_294_967_295]),
        (pa.string(), 25, ["", "ä", None, "NULL", "x" * 100]),
    ],
)
def test_few_values_have_the_texts_of_many(
    kind: pa.DataType, oid: int, values: list[Any], timezone: str
) -> None:
    times = 40
    few = pa.array(values, kind)
    many = pa.array(values * times, kind)
    texts = arrow_to_text(few, oid, timezone=timezone)
    assert arrow_to_text(many, oid, timezone=timezone) == texts * times
    assert arrow_to_text(many.slice(1, 2), oid, timezone=timezone) == texts[1:3] + (
        texts[:1] if len(texts) < 3 else []
    )
