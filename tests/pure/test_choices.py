"""type_mappings and value_policies: their syntax, what is possible, what values become."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.model import Oid
from wal2lake.pgtypes import (
    RemoteType,
    SourceColumn,
    TypeMappings,
    ValuePolicies,
    ValuePolicy,
    coerce,
    mapping_for,
    numeric_typmod,
    parse_type_name,
)
from wal2lake.pgtypes.choices.coerce import EXAMPLE_CHARACTERS
from wal2lake.pgtypes.choices.types import unmatched
from wal2lake.pgtypes.encode.text import arrow_to_text


def column(
    type_name: str, name: str = "note", foreign: str | None = None, base: int = 0
) -> SourceColumn:
    """A column of ``public.orders``."""
    if foreign is not None:
        if base:
            return SourceColumn("public", "orders", name, base, domain=foreign)
        return SourceColumn("public", "orders", name, 90001, -1, foreign)
    oid, typmod = parse_type_name(type_name)
    return SourceColumn("public", "orders", name, int(oid), typmod)


def stored(mappings: str, of: SourceColumn, policies: str = "") -> str | None:
    """The Spark type that the column is to have; None: its default."""
    found = TypeMappings.parse(mappings).stored_type(of, ValuePolicies.parse(policies))
    return None if found is None else mapping_for(*found).spark_ddl


@pytest.mark.parametrize(
    ("mappings", "type_name", "ddl"),
    [
        ("", "numeric", None),
        ("numeric = decimal(38,10)", "numeric", "DECIMAL(38,10)"),
        ("numeric=Decimal( 38 , 10 ) , date=string", "date", "STRING"),
        ("decimal = double", "numeric", "DOUBLE"),
        ("numeric = double", "numeric(10,2)", None),
        ("numeric = double", "numeric(4,1)[]", None),
        ("timestamp = string", "timestamp(3)", "STRING"),
        ("numeric = double, numeric(10,2) = string", "numeric(10,2)", "STRING"),
        ("numeric = double, numeric(10,2) = string", "numeric(11,2)", None),
        ("public.orders.note = string, numeric = double", "numeric", None),
        ('"public"."orders".NOTE = string', "numeric(3,1)", "STRING"),
        ("public.orders.other = string", "numeric(3,1)", None),
        ("timestamp with time zone = string", "timestamptz", "STRING"),
        ("pg_catalog.int4 = bigint", "int", "BIGINT"),
        ("oid = bigint", "oid", "BIGINT"),
        ("int4 = decimal(12,2)", "int", "DECIMAL(12,2)"),
        ("int[] = string", "int[]", "STRING"),
        ("int[] = array<bigint>", "int[]", "ARRAY<BIGINT>"),
        ("numeric[] = array<decimal(20,4)>", "numeric[]", "ARRAY<DECIMAL(20,4)>"),
        (
            "numeric(4,1)[] = array<decimal(20,4)>",
            "numeric(4,1)[]",
            "ARRAY<DECIMAL(20,4)>",
        ),
        ("numeric = decimal(10,2)", "numeric(10,2)", None),
        ("text = string", "text", None),
    ],
)
def test_the_most_specific_mapping_decides(
    mappings: str, type_name: str, ddl: str | None
) -> None:
    assert stored(mappings, column(type_name)) == ddl


def test_types_of_the_user_are_named_with_or_without_their_schema() -> None:
    price = column("", foreign="public.price", base=1700)
    assert stored("price = decimal(10,2)", price) == "DECIMAL(10,2)"
    assert stored("public.price = decimal(10,2), price = string", price) == (
        "DECIMAL(10,2)"
    )
    assert stored("other.price = decimal(10,2)", price) is None
    assert stored("public.orders.note = double", price) == "DOUBLE"
    with pytest.raises(UsageError, match="cannot be stored as DATE"):
        stored("price = date", price)
    moods = column("", foreign="public._mood")
    policies = ValuePolicies.parse("mood[] = null, other.mood[] = error")
    assert policies.of(moods) is ValuePolicy.NULL
    mood = column("", foreign="public.mood")
    assert policies.of(mood) is ValuePolicy.ERROR
    with pytest.raises(UsageError, match=r"public\.mood cannot be stored as INT"):
        stored("mood = int", mood)
    hstore = column("", foreign="public.hstore")
    assert stored("hstore = string", hstore) == "STRING"
    whole = column("", foreign="public.whole", base=23)
    assert stored("whole = int", whole) is None, "it is anyway"
    assert stored("whole = bigint", whole) == "BIGINT"
    # By the base type, too; its own name says more.
    assert stored("int = string", whole) == "STRING"
    assert stored("int = string, whole = bigint", whole) == "BIGINT"
    limited = replace(price, typmod=numeric_typmod(10, 2))
    assert stored("numeric = double", limited) is None
    assert stored("price = double, numeric(10,2) = string", limited) == "DOUBLE"
    assert ValuePolicies.parse("numeric = null").of(price) is ValuePolicy.NULL
    assert (
        ValuePolicies.parse("numeric=null, price=error").of(price) is ValuePolicy.ERROR
    )


@pytest.mark.parametrize(
    ("mappings", "sqlstate", "message", "hint"),
    [
        ("numeric", "22023", 'invalid entry in "type_mappings": "numeric"', "type = "),
        ("numeric =", "22023", 'invalid entry in "type_mappings"', "type = "),
        ("= string", "22023", 'invalid entry in "type_mappings"', "type = "),
        ("numeric = string,", "22023", 'invalid entry in "type_mappings": ""', "type"),
        ("a.b.c.d = string", "22023", "neither a type nor a column", "Name a type"),
        ("numeric(x) = string", "22023", "neither a type nor a column", "Name a type"),
        ("* = string", "22023", "neither a type nor a column", "One type cannot"),
        ("int = string, int4 = bigint", "22023", "more than one entry", None),
        ("int = date", "22023", "type integer cannot be stored as DATE", "BIGINT"),
        ("int = tinyint", "22023", "type integer cannot be stored as TINYINT", "INT"),
        (
            "numeric = float",
            "22023",
            "type numeric cannot be stored as FLOAT",
            "DOUBLE",
        ),
        ("date = timestamp", "22023", "date cannot be stored as TIMESTAMP", "STRING"),
        ("int[] = int", "22023", r"integer\[\] cannot be stored as INT", "ARRAY"),
        ("jsonb = variant", "0A000", 'cannot store jsonb as "variant"', "STRING"),
        ("numeric = decimal(39,1)", "0A000", "the type is not supported", "DECIMAL"),
    ],
)
def test_a_mapping_that_cannot_be_says_what_can(
    mappings: str, sqlstate: str, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TypeMappings.parse(mappings)
    assert caught.value.sqlstate == sqlstate
    assert isinstance(caught.value, FeatureNotSupportedError) == (sqlstate == "0A000")
    assert (hint or "") in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("policies", "type_name", "policy"),
    [
        ("", "date", ValuePolicy.ERROR),
        ("* = null", "date", ValuePolicy.NULL),
        ("* = null, date = CLAMP", "date", ValuePolicy.CLAMP),
        (
            "* = null, date = clamp, public.orders.note = error",
            "date",
            ValuePolicy.ERROR,
        ),
        ("timestamp(3) = null", "timestamp", ValuePolicy.ERROR),
        ("numeric[] = clamp", "numeric[]", ValuePolicy.CLAMP),
    ],
)
def test_the_most_specific_policy_decides(
    policies: str, type_name: str, policy: ValuePolicy
) -> None:
    parsed = pickle.loads(pickle.dumps(ValuePolicies.parse(policies)))
    assert parsed.of(column(type_name)) is policy


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("date = nul", 'unrecognized value policy: "nul"'),
        ("text = clamp", '"clamp" is not possible for type text'),
        ("mood = clamp", '"clamp" is not possible for type mood'),
        ("date = null, date = error", "more than one entry"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(policies: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ValuePolicies.parse(policies)
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize(
    ("type_name", "ddl"),
    [
        ("date", None),
        ("timestamptz", None),
        ("numeric(10,2)", None),
        ("int[]", "STRING"),
        ("int", None),
        ("float8", None),
        ("numeric", None),
        ("text", None),
        ("bytea", None),
    ],
)
def test_lossless_makes_a_column_text_where_its_own_type_is_too_small(
    type_name: str, ddl: str | None
) -> None:
    assert stored("", column(type_name), "* = lossless") == ddl


@pytest.mark.parametrize(
    ("type_name", "ddl"),
    [
        ("date", None),
        ("timestamptz", "STRING"),
        ("numeric(10,2)", "STRING"),
        ("numeric(10,2)[]", "STRING"),
        ("int", None),
    ],
)
def test_text_is_for_columns_that_lack_any_value(
    type_name: str, ddl: str | None
) -> None:
    assert stored("", column(type_name), "* = text") == ddl


def test_lossless_and_a_smaller_type_contradict_each_other() -> None:
    numeric = column("numeric")
    narrow = "numeric = decimal(38,10)"
    with pytest.raises(UsageError, match="cannot be lossless as"):
        stored(narrow, numeric, "numeric = lossless")
    assert stored(narrow, numeric, "* = lossless") == "DECIMAL(38,10)"
    assert stored("date = string", column("date"), "date = lossless") == "STRING"


def test_a_column_of_several_dimensions_stays_text() -> None:
    matrix = replace(column("int[]"), dimensions=2)
    assert stored("int[] = array<bigint>", matrix) is None
    assert stored("public.orders.note = array<bigint>", matrix) == "ARRAY<BIGINT>"


def test_entries_that_concern_no_column_are_told() -> None:
    known = [column("numeric"), column("text", "other")]
    entries = TypeMappings.parse(
        "numeric = string, public.orders.nope = string, mood = string"
    ).entries
    assert unmatched(entries, known) == ["public.orders.nope", "mood"]


# ---- values ------------------------------------------------------------------------------


def texts(*values: str | bytes | None) -> pa.Array:
    return pa.array(
        [v.encode() if isinstance(v, str) else v for v in values], pa.binary()
    )


DECIMAL = mapping_for(*parse_type_name("numeric(5,2)"))

CLAMPED: list[tuple[str, list[str], list[str]]] = [
    (
        "numeric(5,2)",
        ["Infinity", "-Infinity", "NaN", "1000", "-1e30", "1.005", "-1.005", "999.999"],
        ["999.99", "-999.99", "None", "999.99", "-999.99", "1.01", "-1.01", "999.99"],
    ),
    ("numeric(2,2)", ["1", "-0.999", "0.994"], ["0.99", "-0.99", "0.99"]),
    ("numeric(38,0)", ["1e400", "0.5", "-" + "9" * 40], ["9" * 38, "1", "-" + "9" * 38]),
    ("int2", ["40000", "-40000"], ["32767", "-32768"]),
    ("bigint", ["9" * 30], ["9223372036854775807"]),
    ("date", ["5874898-01-01", "4714-11-23 BC"], ["5874897-12-31", "4714-11-24 BC"]),
    (
        "timestamp",
        ["294276-12-31 23:59:59.999999", "4714-11-23 00:00:00 BC"],
        ["294247-01-10 04:00:54.775806", "4714-11-24 00:00:00 BC"],
    ),
    (
        "timestamptz",
        ["294276-12-31 00:00:00+00", "294247-01-10 01:00:00-04"],
        ["294247-01-10 04:00:54.775806+00", "294247-01-10 04:00:54.775806+00"],
    ),
    ("numeric(3,1)[]", ["{NaN,1.25,NULL,1e9}"], ["[None, '1.3', None, '99.9']"]),
    ("date[]", ["{5874898-01-01,infinity}"], ["{5874897-12-31,infinity}"]),
    ("float8", ["1e400", "-1e400", "1e-400"],
     ["1.7976931348623157e+308", "-1.7976931348623157e+308", "0.0"]),
]  # fmt: skip


def shown(value: object) -> str:
    if isinstance(value, list):
        return str([None if v is None else str(v) for v in value])
    return str(value)


@pytest.mark.parametrize(("type_name", "values", "expected"), CLAMPED)
def test_clamp_stores_the_nearest_value(
    type_name: str, values: list[str], expected: list[str]
) -> None:
    mapping = mapping_for(*parse_type_name(type_name))
    column = texts(None, *values, None)
    found = coerce(column, None, 0, {}, mapping, ValuePolicy.CLAMP)
    assert not found.failures
    assert found.array.type == mapping.arrow_type
    oid = parse_type_name(type_name)[0]
    if "date" in type_name or "time" in type_name:
        shown_texts = [str(v and v.decode()) for v in arrow_to_text(found.array, oid)]
    else:
        shown_texts = [shown(v) for v in found.array.to_pylist()]
    assert shown_texts == ["None", *expected, "None"]
    changed = sorted(int(row) for change in found.changes for row in change.rows)
    assert changed == list(range(1, len(values) + 1))
    refused = coerce(column, None, 0, {}, mapping)
    assert sorted(int(r) for f in refused.failures for r in f.rows) == changed
    assert {f.message for f in refused.failures} == {c.reason for c in found.changes}
    nulls = coerce(column, None, 0, {}, mapping, ValuePolicy.NULL)
    assert not nulls.failures
    assert nulls.array.null_count == len(column)
    assert sum(len(c.rows) for c in nulls.changes) == len(values)


def test_what_has_no_nearest_value_stays_an_error_under_clamp() -> None:
    text = mapping_for(25)
    found = coerce(texts("a", b"\xff", b"a\0b"), None, 0, {}, text, ValuePolicy.CLAMP)
    assert [(f.sqlstate, f.rows.tolist()) for f in found.failures] == [
        ("22021", [1]),
        ("22021", [2]),
    ]
    assert found.array.to_pylist() == ["a", None, None]
    array = mapping_for(1007)
    values = texts("{{1}}", "{1}", "[0:0]={1}", "{99999999999}")
    found = coerce(values, None, 0, {}, array, ValuePolicy.CLAMP)
    assert found.array.to_pylist() == [None, [1], None, [2147483647]]
    assert sorted(int(r) for f in found.failures for r in f.rows) == [0, 2]
    assert [c.rows.tolist() for c in found.changes] == [[3]]


def test_no_policy_makes_null_what_must_not_be() -> None:
    values = texts("NaN", "1e9", "1")
    for policy, bad, kept in (
        (ValuePolicy.NULL, [0, 1], [None, None, "1.00"]),
        (ValuePolicy.CLAMP, [0], [None, "999.99", "1.00"]),
    ):
        found = coerce(values, None, 0, {}, DECIMAL, policy, nullable=False)
        assert sorted(int(r) for f in found.failures for r in f.rows) == bad
        assert [None if v is None else str(v) for v in found.array.to_pylist()] == kept
    array = mapping_for(*parse_type_name("numeric(5,2)[]"))
    found = coerce(
        texts("{NaN,1}"), None, 0, {}, array, ValuePolicy.CLAMP, nullable=False
    )
    assert found.array.to_pylist() == [[None, Decimal("1.00")]]


@settings(deadline=None)
@given(
    st.lists(st.decimals(allow_nan=False, places=3) | st.decimals(), max_size=20),
    st.integers(1, 38),
    st.data(),
)
def test_clamp_is_the_nearest_decimal_there_is(
    numbers: list[Decimal], precision: int, data: st.DataObject
) -> None:
    scale = data.draw(st.integers(0, precision))
    mapping = mapping_for(1700, numeric_typmod(precision, scale))
    found = coerce(
        texts(*(_numeric_text(n) for n in numbers)),
        None,
        0,
        {},
        mapping,
        ValuePolicy.CLAMP,
    )
    assert not found.failures
    end = Decimal((0, (9,) * precision, -scale))
    changed = {int(row) for change in found.changes for row in change.rows}
    for row, number in enumerate(numbers):
        value = found.array[row].as_py()
        if number.is_nan():
            assert value is None
        elif abs(number) > end:
            assert value == end.copy_sign(number)
        else:
            with localcontext(prec=200):
                assert abs(value - number) * 2 <= Decimal(1).scaleb(-scale)
        assert (row in changed) == (value is None or value != number)


def _numeric_text(number: Decimal) -> str:
    if number.is_nan():
        return "NaN"
    return str(number) if number.is_infinite() else f"{number:f}"


def test_an_example_is_valid_text_of_bounded_length() -> None:
    text = mapping_for(25)
    found = coerce(texts(b"caf\xe9 \\"), None, 0, {}, text, ValuePolicy.NULL)
    assert found.changes[0].example == "caf\\xe9 \\"
    found = coerce(texts(b"a\0b"), None, 0, {}, text, ValuePolicy.NULL)
    assert found.changes[0].example == "a\\x00b"
    found = coerce(texts("9" * 500), None, 0, {}, DECIMAL, ValuePolicy.NULL)
    assert found.changes[0].example == "9" * EXAMPLE_CHARACTERS + "..."
    found = coerce(texts(b"\xff" * 5000), None, 0, {}, text, ValuePolicy.NULL)
    assert len(found.changes[0].example) == EXAMPLE_CHARACTERS + 3


def test_a_value_above_the_limit_is_refused_or_null() -> None:
    bytea = mapping_for(17)
    values = texts("\\x00", "\\x" + "00" * 10, None, "\\x")
    found = coerce(values, None, 17, {}, bytea, max_bytes=10)
    (failure,) = found.failures
    assert failure.sqlstate == "54000"
    assert failure.message == ("value is longer than apply.max_value_bytes (10 bytes)")
    assert failure.rows.tolist() == [1]
    for policy in (ValuePolicy.NULL, ValuePolicy.CLAMP):
        found = coerce(values, None, 17, {}, bytea, policy, max_bytes=10)
        assert found.array.to_pylist() == [b"\0", None, None, b""]
        assert bool(found.failures) == (policy is ValuePolicy.CLAMP)
        assert bool(found.changes) == (policy is ValuePolicy.NULL)
    assert not coerce(values, None, 17, {}, bytea, max_bytes=22).failures
    binary = np.array([True, True, False, True])
    found = coerce(
        texts(b"\0", b"x" * 11, None, b""), binary, 17, {}, bytea, max_bytes=10
    )
    assert [f.rows.tolist() for f in found.failures] == [[1]]


@pytest.mark.parametrize(
    ("type_oid", "exact"), [(1700, False), (20, False), (701, True), (0, True)]
)
def test_digits_are_lost_in_a_float_only_if_it_is_declared(
    type_oid: int, exact: bool
) -> None:
    double = mapping_for(701)
    long = "0.12345678901234567890"
    values = texts(long, "1.50", "-0", "NaN", "1e300", "9007199254740993", None)
    found = coerce(values, None, type_oid, {}, double)
    if exact:
        assert not found.failures
        return
    assert [(f.sqlstate, f.rows.tolist()) for f in found.failures] == [
        ("22003", [0, 5])
    ]
    clamped = coerce(values, None, type_oid, {}, double, ValuePolicy.CLAMP)
    assert not clamped.failures
    assert clamped.array.to_pylist()[0] == float(long)
    assert clamped.changes[0].rows.tolist() == [0, 5]


def test_digits_are_counted_in_arrays_and_below_domains_too() -> None:
    types = {90001: RemoteType(Oid(90001), "public.price", "d", True, Oid(1700))}
    double = mapping_for(701)
    long = texts("0.12345678901234567890")
    assert coerce(long, None, 90001, types, double).failures
    array = mapping_for(1022)
    found = coerce(texts("{0.12345678901234567890,1}"), None, 1231, {}, array)
    assert found.failures
    single = mapping_for(700)
    assert coerce(texts("0.123456789"), None, 701, {}, single).failures
    assert not coerce(texts("0.1"), None, 701, {}, single).failures
    assert not coerce(texts("0.1"), None, 700, {}, single).failures


def test_a_value_without_decoder_is_no_policys_business() -> None:
    money = mapping_for(790)
    found = coerce(texts(b"\0" * 8), np.array([True]), 790, {}, money, ValuePolicy.NULL)
    assert [f.sqlstate for f in found.failures] == ["0A000"]
    assert not found.changes


def test_binary_values_meet_the_same_policy() -> None:
    nan = bytes.fromhex("00000000c0000000")
    infinite = (2**31 - 1).to_bytes(4)
    every = np.array([True])
    found = coerce(
        pa.array([nan], pa.binary()), every, 1700, {}, DECIMAL, ValuePolicy.CLAMP
    )
    assert (found.array.to_pylist(), found.changes[0].example) == ([None], "NaN")
    date = mapping_for(1082)
    found = coerce(
        pa.array([infinite], pa.binary()), every, 1082, {}, date, ValuePolicy.CLAMP
    )
    assert found.array.cast(pa.int32()).to_pylist() == [2**31 - 1]
    assert not found.changes
    # 294276-12-31, of which a column holds what is 30 years before it.
    far = (9_223_371_331_199_999_999).to_bytes(8)
    found = coerce(
        pa.array([far], pa.binary()),
        every,
        1114,
        {},
        mapping_for(1114),
        ValuePolicy.CLAMP,
    )
    assert arrow_to_text(found.array, 1114) == [b"294247-01-10 04:00:54.775806"]
    assert found.changes[0].example == "294276-12-31 23:59:59.999999"
