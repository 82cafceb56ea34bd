"""What pgtypes believes about PostgreSQL, compared with PostgreSQL."""

from __future__ import annotations

import random
import struct
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from wal2lake.errors import SqlSyntaxError, Wal2LakeError
from wal2lake.pgtypes import (
    BUILT_IN,
    PgType,
    arrow_to_binary,
    arrow_to_text,
    binary_param_to_text,
    format_type,
    mapping_for,
    multirange_range,
    parse_type_name,
    range_subtype,
    text_to_arrow,
)

# --- the registry -----------------------------------------------------------------------


def test_the_registry_is_the_servers_pg_type(
    connection: psycopg.Connection[Any],
) -> None:
    rows = connection.execute("""
        select t.oid::int8, typname, typarray::int8, typelem::int8, typlen::int,
               typbyval, typcategory::text, typispreferred, typtype::text,
               typdelim::text, typalign::text, typstorage::text, typcollation::int8,
               typinput::text, typoutput::text, nullif(typreceive::text, '-'),
               nullif(typsend::text, '-'), typmodin <> 0, format_type(t.oid, null)
        from pg_type t
        where t.oid < 10000 and typtype in ('b', 'r', 'm')
          and not exists (select from pg_type e
                          where e.oid = t.typelem and e.typtype = 'c')
        """).fetchall()
    theirs = {row[0]: row for row in rows}
    ours = {oid: _as_row(known) for oid, known in BUILT_IN.items() if known.kind != "p"}
    # cstring's array is a base type, the only one whose element is a pseudo-type.
    assert theirs.keys() == ours.keys()
    for oid, row in theirs.items():
        assert ours[oid] == row
    pseudo = [oid for oid, known in BUILT_IN.items() if known.kind == "p"]
    found = connection.execute(
        "select oid::int8, typname, typlen::int, typcategory::text, typarray::int8"
        " from pg_type where oid = any(%s)",
        [pseudo],
    ).fetchall()
    assert sorted(found) == sorted(
        (t.oid, t.name, t.length, t.category, t.array_oid)
        for t in (BUILT_IN[oid] for oid in pseudo)
    )


def _as_row(t: PgType) -> tuple[object, ...]:
    return (
        t.oid,
        t.name,
        t.array_oid,
        t.element_oid,
        t.length,
        t.by_value,
        t.category,
        t.preferred,
        t.kind,
        t.delimiter,
        t.align,
        t.storage,
        t.collation,
        t.input_function,
        t.output_function,
        t.receive_function,
        t.send_function,
        t.has_typmod,
        format_type(t.oid),
    )


def test_ranges_are_the_servers_pg_range(connection: psycopg.Connection[Any]) -> None:
    for range_, subtype, multirange in connection.execute(
        "select rngtypid::int8, rngsubtype::int8, rngmultitypid::int8 from pg_range"
        " where rngtypid < 10000"
    ):
        assert range_subtype(range_) == subtype
        assert multirange_range(multirange) == range_


INTERVALS = [327679, 470286339, 2147418114, 268435457, 201392127, 402653184, 2147483647]


def test_format_type_prints_every_type_and_modifier_as_the_server_does(
    connection: psycopg.Connection[Any],
) -> None:
    typmods = [None, -1, 0, 1, 3, 4, 5, 6, 24, 655366, 198658, 131081, 65537004]
    typmods += INTERVALS
    for oid, known in BUILT_IN.items():
        usable = [
            m
            for m in typmods
            if m is None
            or m < 0
            or (known.has_typmod and m < 7 and "interval" not in known.name)
            or ("interval" in known.name and known.has_typmod and m in INTERVALS)
            or known.name.endswith(("numeric", "varchar", "bpchar"))
        ]
        shown = connection.execute(
            "select array_agg(format_type(%s::oid, m) order by n)"
            " from unnest(%s::int[]) with ordinality as t(m, n)",
            [oid, usable],
        ).fetchone()
        assert shown is not None
        assert [format_type(oid, m) for m in usable] == shown[0], known.name


SPELLINGS = """
int; int2; int4; int8; integer; smallint; bigint; bool; boolean; real; float; float4;
float8; float(1); float(24); float(25); float(53); double precision; text; name; bytea;
"char"; char; char(7); character; character(3); character varying; character varying(9);
varchar; varchar(12); nchar(2); national character varying(4); national char(3); bpchar;
bpchar(4); numeric; numeric(10); numeric(10,2); decimal(5, 1); dec(3,-2); numeric(2,5);
date; time; time(2); time with time zone; time (3) without time zone; timetz; timetz(0);
timestamp; timestamp(3); timestamp with time zone; timestamp(0) with time zone;
timestamptz(4); timestamp without time zone; interval; interval(2); interval year;
interval day to second(3); interval second(1); interval hour to minute; bit; bit(5);
bit varying; bit varying(8); varbit(3); uuid; json; jsonb; xml; inet; cidr; macaddr;
macaddr8; point; box; pg_lsn; oid; regclass; xid8; tsvector; tsquery; int4range;
nummultirange; money; int[]; text[][]; varchar(5)[3]; numeric(4,1) array; int array[4];
pg_catalog.int4; pg_catalog."char"; "numeric"(6,2); _int4; "timestamp"; INTEGER;
TimeStamp ( 2 ) With Time Zone; box[]; "char"[]; pg_catalog.bpchar; pg_catalog.bit
"""


@pytest.mark.parametrize(
    "spelling", [" ".join(s.split()) for s in SPELLINGS.split(";") if s.strip()]
)
def test_a_type_name_means_what_it_means_to_the_server(
    connection: psycopg.Connection[Any], spelling: str
) -> None:
    connection.execute(f"create temp table t (c {spelling})".encode())
    row = connection.execute(
        "select atttypid::int8, atttypmod from pg_attribute"
        " where attrelid = 't'::regclass and attname = 'c'"
    ).fetchone()
    assert parse_type_name(spelling) == row


@pytest.mark.parametrize(
    "spelling",
    [
        "nosuchtype",
        "public.nosuchtype",
        "varchar(0)",
        "varchar(99999999)",
        "bit(0)",
        "char(0)",
        "numeric(0)",
        "numeric(1001)",
        "numeric(10,1001)",
        "numeric(1,2,3)",
        "float(0)",
        "float(54)",
        "uuid(3)",
        "int[",
        "double",
        "interval minute to year",
        "varchar(3",
    ],
)
def test_a_wrong_type_name_is_refused_in_the_servers_words(
    connection: psycopg.Connection[Any], spelling: str
) -> None:
    with pytest.raises(psycopg.Error) as theirs:
        connection.execute(f"select null::{spelling}".encode())
    with pytest.raises(Wal2LakeError) as ours:
        parse_type_name(spelling)
    assert ours.value.sqlstate == theirs.value.sqlstate
    if not isinstance(ours.value, SqlSyntaxError):
        assert str(ours.value) == theirs.value.diag.message_primary


# --- values -----------------------------------------------------------------------------

MIDPOINTS = ["1e23", "9007199254740993", "8.41e21", "2e23", "9.5e21", "1e22", "5e-324"]
VALUES: dict[str, list[str | None]] = {
    "boolean": ["t", "f", None],
    "smallint": ["0", "-32768", "32767", None],
    "integer": ["0", "-2147483648", "2147483647", None, "7"],
    "bigint": ["0", "-9223372036854775808", "9223372036854775807", None],
    "real": [
        "0",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "0.1",
        "1e6",
        "999999",
        "1e-4",
        "1e-5",
        "3.4028235e38",
        "1e-45",
        "16777217",
        "8388608.5",
        "33554432",
        "1.17549435e-38",
        "123456.7",
        "5e9",
        "8589934592",
        "67108864",
        None,
    ],
    "double precision": [
        "0",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "0.1",
        "1e20",
        "1e14",
        "1e15",
        "1e16",
        "123456789012345678",
        "1e-4",
        "1e-5",
        "1.7976931348623157e308",
        "3.14",
        "1e100",
        "2.2250738585072014e-308",
        "9007199254740992",
        "-4503599627370497.5",
        None,
        *MIDPOINTS,
    ],
    "numeric(12,2)": [
        "0",
        "0.01",
        "-0.01",
        "9999999999.99",
        "-9999999999.99",
        "1",
        None,
    ],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38, "0", "10000", None],
    "numeric(38,38)": ["0." + "9" * 38, "0." + "0" * 37 + "1", None],
    "numeric(5,5)": ["0.00001", "0.10000", "-0.99999"],
    "numeric(9,4)": ["10000", "99999.9999", "0.0001", "12345.6789", "1.2"],
    "numeric": [
        "NaN",
        "Infinity",
        "-Infinity",
        "0",
        "0.000",
        "1.10",
        "-1.10",
        "1e50",
        "1e-50",
        "123456789.123456789",
        "10000",
        "0.0001",
        "-0.00010000",
        None,
    ],
    "numeric(3,-2)": ["12300", "-99900", "0"],
    "numeric(2,5)": ["0.00099", "-0.00001"],
    "date": [
        "infinity",
        "-infinity",
        "5874897-12-31",
        "4714-11-24 BC",
        "0001-12-31 BC",
        "2024-02-29",
        "0001-01-01",
        "9999-12-31",
        "1582-10-10",
        "2000-01-01",
        None,
    ],
    "timestamp without time zone": [
        "infinity",
        "-infinity",
        "294246-12-31 23:59:59.999999",
        "4714-11-24 00:00:00 BC",
        "2024-02-29 12:34:56.789",
        "0001-01-01",
        "9999-12-31 23:59:59.999999",
        "1582-10-10 00:00:01",
        "1999-12-31 23:59:59.1",
        "2000-01-01 00:00:00.000001",
        None,
    ],
    "timestamp(0) without time zone": ["2024-02-29 12:34:56", None],
    "timestamp with time zone": [
        "infinity",
        "-infinity",
        "294246-12-31 23:59:59.999999+00",
        "0044-03-15 12:00:00.5+00 BC",
        "2024-02-29 12:34:56.789+00",
        "0001-01-01 00:00:00+00",
        "1900-01-01 00:00:00+01",
        "9999-12-31 23:59:59.999999+00",
        "1969-12-31 23:59:59.999999+00",
        None,
    ],
    "text": ["", " ", "a'b\"c\\d", "é€😀", "NULL", "\t\n\r", "\x01", None, "x" * 9000],
    "character varying(20)": ["", "abc ", None],
    "character(5)": ["", "ab", "abcde", None],
    '"char"': ["a", "", "\\377", "é", " ", None],
    "name": ["pg_class", "", "x" * 63],
    "bytea": ["\\x", "\\x00ff5c27", "\\xdeadbeef", "ab\\\\c\\001", None],
    "uuid": [
        "00000000-0000-0000-0000-000000000000",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
    ],
    "json": ['{"a": 1,  "b":[null]}', '"x"', "[]", None],
    "jsonb": ['{"b": 1.10, "a": null}', "[]", '"\\u00e9"', None],
    "time without time zone": [
        "00:00:00",
        "23:59:59.999999",
        "12:00:00.5",
        "24:00:00",
        None,
    ],
    "oid": ["0", "4294967295", None],
    "xid": ["0", "4294967295"],
    "cid": ["7"],
    "xid8": ["18446744073709551615", "0"],
    "pg_lsn": ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"],
    "integer[]": ["{}", "{1,2,NULL}", None, "{NULL}", "{-2147483648}"],
    "bigint[]": ["{9223372036854775807}"],
    "boolean[]": ["{t,f,NULL}"],
    "text[]": [
        "{}",
        '{"",NULL,"NULL","null",nullx}',
        '{"a b","a\\"b","a\\\\b","{","}",","}',
        '{é,"\t","\n"," ","\\\\\\"\\\\"}',
        None,
        '{"\u00a0"}',
        "{a,b,c}",
    ],
    "numeric(6,2)[]": ["{1.00,NULL,-9999.99}"],
    "timestamp with time zone[]": ['{"2024-01-01 00:00:00.5+00",NULL}'],
    "date[]": ["{2024-01-01,NULL}"],
    "double precision[]": ["{NaN,-0,1e20,0.1,NULL}"],
    "bytea[]": ['{"\\\\x00ff",NULL,"\\\\x"}'],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"],
    "character(3)[]": ['{"a  ",abc}'],
    "jsonb[]": ['{"{\\"a\\": 1}"}'],
    "numeric[]": ["{NaN,1.10,NULL}"],
}
TEXT_ONLY: dict[str, list[str | None]] = {
    "interval": ["1 year 2 mons -3 days 04:05:06.7", "-00:00:01", "0"],
    "time with time zone": ["12:00:00+05:30", "23:59:59.5-00"],
    "timestamp with time zone[]": ["{}"],
    "bit(3)": ["101"],
    "bit varying": ["", "10101"],
    "inet": ["10.0.0.1/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["$1,234.50"],
    "point": ["(1.5,-2)"],
    "lseg": ["[(1,2),(3,4)]"],
    "path": ["[(1,2),(3,4)]"],
    "box": ["(3,4),(1,2)"],
    "box[]": ["{(3,4),(1,2);(1,1),(0,0)}"],
    "polygon": ["((1,2),(3,4))"],
    "line": ["{1,2,3}"],
    "circle": ["<(1,2),3>"],
    "tsvector": ["'a':1 'b'"],
    "tsquery": ["'a' & 'b'"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "tstzrange": ['["2024-01-01 00:00:00+00",infinity]'],
    "nummultirange": ["{[1.5,2],[3,)}"],
    "int4range[]": ['{"[1,5)",empty,NULL}'],
    "interval[]": ['{"1 day",01:00:00}'],
    "regclass": ["pg_class"],
    "tid": ["(1,2)"],
    "jsonpath": ['$."a"[*]'],
    "pg_snapshot": ["10:20:10,14"],
    "int2vector": ["1 2 3"],
    "oidvector": ["1 2"],
}


def _sent(
    connection: psycopg.Connection[Any], type_name: str, values: list[str | None]
) -> list[bytes | None]:
    """The column as COPY ... TO STDOUT sends it in text, unescaped."""
    _column(connection, type_name, values)
    with connection.cursor().copy(
        "copy (select c from v order by n) to stdout"
    ) as copy:
        lines = b"".join(bytes(block) for block in copy).split(b"\n")[:-1]
    return [None if line == rb"\N" else _unescape(line) for line in lines]


def _column(
    connection: psycopg.Connection[Any], type_name: str, values: list[str | None]
) -> None:
    connection.execute("drop table if exists v")
    connection.execute(f"create temp table v (n serial, c {type_name})".encode())
    for value in values:
        connection.execute(f"insert into v (c) values (%s::text::{type_name})", [value])


_ESCAPES = {"b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v"}


def _unescape(line: bytes) -> bytes:
    out, at = bytearray(), 0
    while at < len(line):
        if line[at : at + 1] == b"\\":
            letter = line[at + 1 : at + 2]
            out += _ESCAPES.get(letter.decode(), letter)
            at += 2
        else:
            out += line[at : at + 1]
            at += 1
    return bytes(out)


def _sent_binary(connection: psycopg.Connection[Any]) -> list[bytes | None]:
    """The column as binary COPY sends it."""
    with connection.cursor().copy(
        "copy (select c from v order by n) to stdout (format binary)"
    ) as copy:
        data = b"".join(bytes(block) for block in copy)
    at, values = 19, []
    while struct.unpack_from("!h", data, at)[0] != -1:
        (size,) = struct.unpack_from("!i", data, at + 2)
        at += 6
        values.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    return values


@pytest.mark.parametrize("type_name", [*VALUES, *TEXT_ONLY])
def test_text_comes_back_as_the_server_sent_it(
    connection: psycopg.Connection[Any], type_name: str
) -> None:
    values = VALUES.get(type_name, []) + TEXT_ONLY.get(type_name, [])
    sent = _sent(connection, type_name, values)
    oid, typmod = parse_type_name(type_name)
    found = text_to_arrow(pa.array(sent, pa.binary()), mapping_for(oid, typmod))
    assert found.failures == ()
    assert arrow_to_text(found.array, oid, typmod) == sent


@pytest.mark.parametrize("type_name", VALUES)
def test_binary_values_are_the_servers_bytes_both_ways(
    connection: psycopg.Connection[Any], type_name: str
) -> None:
    sent = _sent(connection, type_name, VALUES[type_name])
    oid, typmod = parse_type_name(type_name)
    found = text_to_arrow(pa.array(sent, pa.binary()), mapping_for(oid, typmod))
    theirs = _sent_binary(connection)
    assert arrow_to_binary(found.array, oid, typmod) == theirs
    # And bound parameters: the server's bytes read as the server's text.
    read = [
        None if b is None else binary_param_to_text(oid, b).encode() for b in theirs
    ]
    assert read == sent


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("timestamp without time zone", ["294276-12-31 23:59:59.999999"]),
        ("timestamp with time zone", ["294276-12-31 00:00Z", "294247-01-10 04:00:55Z"]),
        ("numeric(12,2)", ["NaN"]),
        ("integer[]", ["[0:1]={1,2}", "{{1,2},{3,4}}"]),
        ("text[]", ["[2:2]={x}", '{{"{"}}']),
    ],
)
def test_values_that_the_lake_cannot_hold_are_flagged_and_the_others_kept(
    connection: psycopg.Connection[Any], type_name: str, values: list[str]
) -> None:
    good = VALUES[type_name]
    sent = _sent(connection, type_name, [*good, *values, *good])
    oid, typmod = parse_type_name(type_name)
    found = text_to_arrow(pa.array(sent, pa.binary()), mapping_for(oid, typmod))
    bad = [False] * len(good) + [True] * len(values) + [False] * len(good)
    assert found.bad is not None
    assert found.bad.to_pylist() == bad
    shown = arrow_to_text(found.array, oid, typmod)
    assert shown == [None if b else s for b, s in zip(bad, sent, strict=True)]
    messages = " ".join(f.message for f in found.failures)
    assert not any(v in messages for v in values if len(v) > 8)


@pytest.mark.parametrize("type_name", ["date", "timestamp without time zone"])
def test_dates_before_christ_and_infinite_ones_are_read_from_binary_parameters(
    connection: psycopg.Connection[Any], type_name: str
) -> None:
    values: list[str | None] = ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"]
    sent = _sent(connection, type_name, values)
    oid, _ = parse_type_name(type_name)
    read = [
        binary_param_to_text(oid, b or b"").encode() for b in _sent_binary(connection)
    ]
    assert read == sent
    kept = pa.array(sent[:2], pa.binary()).cast(pa.string())
    assert arrow_to_binary(kept, oid) == _sent_binary(connection)[:2]


@pytest.mark.parametrize("element", ["integer", "text", "date"])
def test_arrays_of_several_dimensions_are_read_from_binary_parameters(
    connection: psycopg.Connection[Any], element: str
) -> None:
    values = {
        "integer": ["{{1,2},{3,NULL}}", "[0:1]={1,2}", "[-1:0][2:3]={{1,2},{3,4}}"],
        "text": ['{{{a,"b c"}},{{NULL,"NULL"}}}', "[5:5]={x}"],
        "date": ["{{2024-01-01},{infinity}}"],
    }[element]
    sent = _sent(connection, f"{element}[]", list(values))
    oid, _ = parse_type_name(f"{element}[]")
    read = [
        binary_param_to_text(oid, b or b"").encode() for b in _sent_binary(connection)
    ]
    assert read == sent


@pytest.mark.parametrize("digits", [-15, -3, 0, 1, 3])
@pytest.mark.parametrize("type_name", ["real", "double precision"])
def test_random_floats_print_as_the_server_prints_them(
    connection: psycopg.Connection[Any], type_name: str, digits: int
) -> None:
    rng = random.Random(8)
    code, width = ("f", 4) if type_name == "real" else ("d", 8)
    bits = [rng.randbytes(width) for _ in range(3000)]
    numbers: list[float] = [struct.unpack(code, b)[0] for b in bits]
    numbers += [float(n) for n in range(300)]
    top = 127 if type_name == "real" else 1023
    for power in range(-top, top):
        numbers += [2.0**power, 3 * 2.0 ** (power - 1)]
    for power in range(-37, 38):
        numbers += [float(f"1e{power}"), float(f"-{rng.randint(1, 99999)}e{power - 5}")]
    arrow = pa.float32() if type_name == "real" else pa.float64()
    array = pa.array(numbers, pa.float64()).cast(arrow, safe=False)
    oid, _ = parse_type_name(type_name)
    connection.execute("set extra_float_digits = 3")
    with connection.cursor() as cursor:
        cursor.execute("create temp table f (n serial, c " + type_name + ")")
        with cursor.copy("copy f (c) from stdin (format binary)") as copy:
            copy.set_types([type_name])
            for number in array.to_pylist():
                copy.write_row([number])
        cursor.execute(f"set extra_float_digits = {digits}".encode())
        with cursor.copy("copy (select c from f order by n) to stdout") as copy:
            sent = b"".join(bytes(block) for block in copy).split(b"\n")[:-1]
    assert arrow_to_text(array, oid, extra_float_digits=digits) == sent


ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "-7",
    "5.5",
    "XST3",
    "utc",
]


@pytest.mark.parametrize("zone", [*ZONES, "europe/paris", "Australia/Lord_Howe"])
def test_timestamps_are_shown_and_read_in_any_time_zone(
    connection: psycopg.Connection[Any], zone: str
) -> None:
    connection.execute("drop table if exists v")
    connection.execute("""
        create temp table v as select n, c from
          (select n, '1850-01-01 00:00:30.5+00'::timestamptz + n * interval '2 days 7 hours'
             as c from generate_series(1, 40000) n) s
          where n % 31 = 0 or c between '1937-06-01' and '1937-08-01'""")
    instants = [
        row[0]
        for row in connection.execute(
            "select (extract(epoch from c) * 1000000)::int8 from v order by n"
        )
    ]
    connection.execute("select set_config('timezone', %s, false)", [zone])
    with connection.cursor().copy(
        "copy (select c from v order by n) to stdout"
    ) as copy:
        sent = b"".join(bytes(block) for block in copy).split(b"\n")[:-1]
    array = pa.array(instants, pa.timestamp("us", "UTC"))
    assert arrow_to_text(array, 1184, timezone=zone) == sent
    found = text_to_arrow(pa.array(sent, pa.binary()), mapping_for(1184))
    assert found.failures == ()
    assert found.array.equals(array)


def test_years_outside_the_lakes_are_printed_as_the_server_prints_them(
    connection: psycopg.Connection[Any],
) -> None:
    rows = connection.execute("""
        select (extract(epoch from c) * 1000000)::int8, c::text, c::date::text,
               c::date - '1970-01-01'::date
        from (select timestamptz '4713-01-01 00:00Z BC' + n * interval '333 days 5:00:01.25'
              as c from generate_series(1, 20000) n) s""").fetchall()
    instants, texts, dates, days = zip(*rows, strict=True)
    array = pa.array(instants, pa.timestamp("us", "UTC"))
    assert arrow_to_text(array, 1184) == [t.encode() for t in texts]
    shown = arrow_to_text(pa.array(days, pa.int32()).cast(pa.date32()), 1082)
    assert shown == [d.encode() for d in dates]


def test_bytea_output_escape_is_printed_and_read(
    connection: psycopg.Connection[Any],
) -> None:
    every = bytes(range(256))
    connection.execute("set bytea_output = escape")
    row = connection.execute("select %s::bytea::text", [every]).fetchone()
    assert row is not None
    array = pa.array([every], pa.binary())
    assert arrow_to_text(array, 17, bytea_output="escape") == [row[0].encode()]
    found = text_to_arrow(pa.array([row[0].encode()], pa.binary()), mapping_for(17))
    assert found.array.equals(array)


def test_a_record_is_printed_and_sent_as_the_server_does(
    connection: psycopg.Connection[Any],
) -> None:
    sql = "select row(1, 'a b'::text, null::text, ''::text, 'x\"y\\z'::text, '('::text, true)"
    array = pa.array(
        [{"a": 1, "b": "a b", "c": None, "d": "", "e": 'x"y\\z', "f": "(", "g": True}],
        pa.struct(
            [
                ("a", pa.int32()),
                *((name, pa.string()) for name in "bcdef"),
                ("g", pa.bool_()),
            ]
        ),
    )
    row = connection.execute(f"{sql}::text".encode()).fetchone()
    assert row is not None
    assert arrow_to_text(array, 2249) == [row[0].encode()]
    with connection.cursor().copy(
        f"copy ({sql}) to stdout (format binary)".encode()
    ) as copy:
        data = b"".join(bytes(block) for block in copy)
    assert arrow_to_binary(array, 2249) == [data[25:-2]]


@pytest.mark.parametrize(
    ("type_name", "texts"),
    [
        (
            "boolean",
            [" TRUE ", "yes", "y", "on", "1", "of", "off", "n", "o", "tru", "2", ""],
        ),
        (
            "integer",
            [" 12 ", "+5", "0x1F", "0b101", "0o17", "1_000", "1__0", "--1", "1.0"],
        ),
        ("integer", ["010", "2147483648", "-0x80000000", "0x", "_1", "", "-"]),
        (
            "double precision",
            [" 1 ", "inf", "-INF", "+nan", "1e400", "1e-400", "x", "1e"],
        ),
        ("real", ["1e39", "1e-46", ".5", "5.", "infinit"]),
        (
            "numeric(10,2)",
            [" 1.50 ", "1e2", "-.5", "99999999.99", "1e8", "abc", "nan", "1_0.5"],
        ),
        ("bytea", ["\\x 01 02", "\\x0", "\\xzz", "a\\\\b", "\\1", "\\101"]),
        ("date", ["2023-02-29", "2024-13-01"]),
        ("timestamp without time zone", ["2024-01-01 25:00:00", "2024-02-30 00:00:00"]),
    ],
)
def test_text_of_another_type_is_taken_or_refused_as_the_server_does(
    connection: psycopg.Connection[Any], type_name: str, texts: list[str]
) -> None:
    oid, typmod = parse_type_name(type_name)
    for text in texts:
        found = text_to_arrow(
            pa.array([text.encode()], pa.binary()), mapping_for(oid, typmod)
        )
        ours = arrow_to_text(found.array, oid, typmod, extra_float_digits=3)[0]
        try:
            row = connection.execute(f"select %s::{type_name}::text", [text]).fetchone()
        except psycopg.Error as error:
            assert found.bad is not None, text
            assert found.failures[0].sqlstate == error.sqlstate, text
            continue
        assert row is not None
        theirs = row[0] if type_name != "boolean" else row[0][0]
        if theirs == "NaN" and type_name.startswith("numeric"):
            assert found.failures[0].sqlstate == "22003"
        else:
            assert ours == theirs.encode(), text
