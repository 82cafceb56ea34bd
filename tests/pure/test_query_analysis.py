"""How a query is rewritten by the types of its columns."""

from __future__ import annotations

import re
import struct

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import FeatureNotSupportedError, Wal2LakeError
from wal2lake.model import Oid
from wal2lake.pgtypes.encode.interval import Interval, interval_of
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.query.translate import (
    BoundParameter,
    SparkQuery,
    TableRef,
    translate_query,
)
from wal2lake.sql.query.writes import default_sql, translate_write

COLUMNS = {
    "i": "int",
    "i2": "smallint",
    "i8": "bigint",
    "n": "numeric",
    "nn": "numeric(20,5)",
    "f4": "real",
    "f8": "double precision",
    "t": "text",
    "ch": "char(5)",
    "by": "bytea",
    "tz": "timestamptz",
    "ts": "timestamp",
    "d": "date",
    "jb": "jsonb",
    "ia": "int[]",
}


def _column(name: str, kind: str) -> ColumnDef:
    oid, typmod = parse_type_name(kind)
    return ColumnDef(name, oid, typmod)


TABLE = TableDef(
    Oid(20000),
    "public",
    "t",
    Oid(10),
    tuple(_column(name, kind) for name, kind in COLUMNS.items()),
    ("i",),
    "/t",
)


def written(sql: str) -> str:
    return translate_write(sql, lambda schema, name: TableRef(TABLE, None)).sql


def translated(sql: str, *parameters: BoundParameter, zone: str = "UTC") -> SparkQuery:
    return translate_query(
        sql, lambda schema, name: TableRef(TABLE, 3), parameters, zone
    )


def item(expression: str, *parameters: BoundParameter, zone: str = "UTC") -> str:
    """Spark's SQL of one expression, without what is the same for all."""
    sql = translated(f"select {expression} as x from t", *parameters, zone=zone).sql
    found = re.fullmatch(
        r"SELECT (.*) AS x FROM delta\.`/t` VERSION AS OF 3 AS .*", sql
    )
    assert found is not None, sql
    return found[1].replace("`t@1`.", "")


@pytest.mark.parametrize(
    ("expression", "spark"),
    [
        ("i / 2", "CAST((i DIV 2) AS INT)"),
        ("i2 / i8", "CAST((i2 DIV i8) AS BIGINT)"),
        ("nn + 1", "(nn + CAST(1 AS DECIMAL(10, 0)))"),
        (
            "nn * nn",
            "(CAST(nn AS DECIMAL(18, 5)) * CAST(nn AS DECIMAL(19, 5)))",
        ),
        ("by = '\\x00FF'", "by = X'00ff'"),
        ("ch = 'ab'", "TRIM(TRAILING ' ' FROM ch) = 'ab'"),
        (
            "f8 = 0",
            "(CAST(f8 AS DOUBLE) + CAST(0 AS DOUBLE))"
            " = (CAST(0 AS DOUBLE) + CAST(0 AS DOUBLE))",
        ),
        ("f8 > 1", "(CAST(f8 AS DOUBLE)) > (CAST(1 AS DOUBLE))"),
        ("d > '2024-1-2'", "d > CAST('2024-01-02' AS DATE)"),
        ("i = any('{1,2}')", "(i IN (CAST('1' AS INT), CAST('2' AS INT)))"),
        ("1e3", "CAST('1000' AS DECIMAL(4, 0))"),
        ("2.5::int", "CAST(ROUND(CAST('2.5' AS DECIMAL(2, 1)), 0) AS INT)"),
        ("f8::int", "CAST(RINT(f8) AS INT)"),
        ("sum(i8)", "SUM(CAST(i8 AS DECIMAL(19, 0)))"),
        ("""'{"bb": 1, "a": 1.50, "a": 2}'::jsonb""", """'{"a": 2, "bb": 1}'"""),
        ("ia[1]", "GET(ia, 0)"),
        ("ia[0]", "GET(ia, -1)"),
        ("ia[-1]", "GET(ia, -1 - 1)"),
        ("ia[i]", "GET(ia, i - 1)"),
        ("ia[i + 1]", "GET(ia, (i + 1) - 1)"),
        ("ia[array_length(ia, 1)]", "GET(ia, NULLIF(SIZE(ia), 0) - 1)"),
        ("t ~ 'a.\\.$'", "(t RLIKE 'a[\\\\x00-\\\\x{10FFFF}]\\\\.\\\\z')"),
        ("(i, i8) < (1, 2)", "(i < 1 OR (i = 1 AND i8 < 2))"),
        ("1 = any(ia)", "EXISTS(ia, wal2lake_element -> 1 = wal2lake_element)"),
    ],
)
def test_operators_mean_what_their_types_make_of_them(
    expression: str, spark: str
) -> None:
    assert item(expression) == spark


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("'0001-03-15 BC'::date::text", "UTC"),
        ("'0001-03-15 12:00 BC'::timestamp::text", "UTC"),
        ("'0001-03-15 12:00 BC'::timestamptz::text", "UTC"),
        ("'0001-01-01 00:00+00'::timestamptz::text", "America/New_York"),
        ("'9999-12-31 23:00+00'::timestamptz::text", "Asia/Tokyo"),
    ],
)
def test_the_text_of_a_constant_tells_its_era(expression: str, zone: str) -> None:
    assert "' BC'" in item(expression, zone=zone)
    assert "' BC'" not in item("'2024-03-15'::date::text")


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("i / 2", "integer"),
        ("avg(i)", "numeric"),
        ("avg(f4)", "double precision"),
        ("sum(i2)", "bigint"),
        ("sum(i8)", "numeric"),
        ("sum(f4)", "real"),
        ("max(n)", "numeric"),
        ("ts - ts", "interval"),
        ("d + 1", "date"),
        ("d + interval '1 day'", "timestamp without time zone"),
        ("tz at time zone 'UTC'", "timestamp without time zone"),
        ("ts at time zone 'UTC'", "timestamp with time zone"),
        ("date_trunc('day', ts)", "timestamp without time zone"),
        ("extract(year from ts)", "numeric"),
        ("coalesce(i2, i8)", "bigint"),
        ("case when true then 1 else 2.5 end", "numeric"),
        ("rank() over (order by i)", "bigint"),
        ("'x'", "text"),
        ("array_agg(i)", "integer[]"),
    ],
)
def test_columns_have_postgresqls_types(expression: str, name: str) -> None:
    columns = translated(f"select {expression} from t").columns
    assert columns is not None
    assert [c.type.name for c in columns] == [name]


def test_a_column_keeps_its_declared_limits_and_a_computed_one_has_none() -> None:
    columns = translated("select nn, nn as m, nn + 0, * from t").columns
    assert columns is not None
    own = TABLE.columns[4].typmod
    assert [c.type.typmod for c in columns[:3]] == [own, own, -1]
    assert [c.name for c in columns[3:]] == list(COLUMNS)


@pytest.mark.parametrize(
    ("sql", "sqlstate", "text"),
    [
        ("select nope from t", "42703", 'column "nope" does not exist'),
        (
            "select * from other.public.t",
            "0A000",
            'cross-database references are not implemented: "other.public.t"',
        ),
        (
            "select other.public.t.i from t",
            "0A000",
            "cross-database references are not implemented: other.public.t.i",
        ),
        (
            "select i from t where nosuch.t.i = 1",
            "42P01",
            'invalid reference to FROM-clause entry for table "t"',
        ),
        (
            "select lower(t, i) from t",
            "42883",
            "function lower(text, integer) does not exist",
        ),
        ("select sum(i, 'x') from t", "42883", "sum(integer, unknown) does not exist"),
        ("select i from t wher $12", "42601", 'syntax error at or near "$12"'),
        ("select t.nope from t", "42703", "column t.nope does not exist"),
        ("select x.i from t", "42P01", 'missing FROM-clause entry for table "x"'),
        ("select i from t a, t b", "42702", 'column reference "i" is ambiguous'),
        ("select -i as x from t where x = 1", "42703", 'column "x" does not exist'),
        ("select t = 1 from t", "42883", "operator does not exist: text = integer"),
        ("select i = 'x' from t", "22P02", "for type integer"),
        ("select 1 from t where i", "42804", "must be type boolean"),
        ("select i from t union select t from t", "42804", "cannot be matched"),
        ("select exp(f8) from t", "0A000", "exp"),
        ("select n * 2 from t", "0A000", "numeric without precision"),
        ("select distinct n from t", "0A000", "DISTINCT"),
        ("select jb = '{}' from t", "0A000", "jsonb"),
        ("select t ~ 'a*?' from t", "0A000", "regular expression"),
        ("select ts = 'yesterday' from t", "0A000", "yesterday"),
        ("select t ~ '(' from t", "0A000", "regular expression"),
        ("select t ~ '[z-a]' from t", "0A000", "regular expression"),
        ("select substring(t from 'a|b') from t", "0A000", "alternatives"),
        ("select to_char(ts, 'RM') from t", "0A000", "RM"),
        ("select ia[t] from t", "42804", "must have type integer"),
        ("select array[x] from t x", "0A000", "record"),
        ("select coalesce(x, x) from t x", "0A000", "rows"),
        ("select (i, t) = (1, 'a', 2) from t", "42601", "unequal number"),
        ("select distinct on (i) t from t order by t", "42P10", "DISTINCT ON"),
        ("select i from t fetch first rows with ties", "42601", "WITH TIES"),
        ("select unnest(ia), unnest(ia) from t", "0A000", "several functions"),
        ("select i from t tablesample system (1)", "0A000", "SAMPLE"),
        ("select * from unnest(array[1]) with ordinality, t", "0A000", "ORDINALITY"),
    ],
)
def test_what_is_wrong_or_unknown_is_refused(
    sql: str, sqlstate: str, text: str
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        translated(sql)
    assert caught.value.sqlstate == sqlstate
    assert text in caught.value.message


def test_a_timestamptz_without_zone_is_in_the_sessions() -> None:
    assert item("tz = '2024-01-01 00:00'", zone="America/New_York") == (
        "tz = CAST('2024-01-01T05:00:00.000000Z' AS TIMESTAMP_LTZ)"
    )
    assert item("tz = '2024-01-01 00:00+02'", zone="America/New_York") == (
        "tz = CAST('2023-12-31T22:00:00.000000Z' AS TIMESTAMP_LTZ)"
    )


def test_a_parameter_has_the_type_that_the_client_gave_it() -> None:
    assert item("i / $1", BoundParameter("2", 23)) == (
        "CAST((i DIV CAST(CAST('2' AS INT) AS INT)) AS INT)"
    )
    assert item("nn * $1", BoundParameter(None, 1700)).endswith(
        "* CAST(CAST(NULL AS DECIMAL(1, 0)) AS DECIMAL(1, 0)))"
    )
    assert item("by = $1", BoundParameter("\\x00", 17)) == "by = X'00'"
    assert (
        item("i = any($1)", BoundParameter("{1}", 1007)) == "(i IN (CAST('1' AS INT)))"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "insert into other.public.t (i) values (1)",
        "insert into other.public.t (i) select 1",
        "update other.public.t set i = 1",
        "delete from other.public.t",
    ],
)
def test_a_write_to_another_database_is_refused(sql: str) -> None:
    with pytest.raises(FeatureNotSupportedError) as refused:
        written(sql)
    assert str(refused.value) == (
        'cross-database references are not implemented: "other.public.t"'
    )


def test_a_write_computes_and_rounds_as_postgresql_does() -> None:
    sql = written(
        "update t set i = 2.5, nn = nn / 2, t = default where ch = 'a' and t.i / 2 = 1"
    )
    assert "`i` = CAST('3' AS INT)" in sql
    assert "CAST((`t`.i DIV 2) AS INT) = 1" in sql
    assert "`t` = CAST(NULL AS STRING)" in sql


def test_rows_of_constants_stay_a_list_and_others_become_a_union() -> None:
    """Spark evaluates a VALUES list while it plans, and can evaluate constants only."""
    assert "FROM (VALUES (1)) AS src" in written("insert into t values (1)")
    sql = written("insert into t values (1, 2), (3, i2(4))".replace("i2(4)", "abs(4)"))
    assert "UNION ALL" in sql


def test_other_tables_make_a_merge_of_one_row_for_each_key() -> None:
    sql = written("update t set t = o.t from t o where o.i = t.i + 1")
    assert sql.startswith("MERGE INTO delta.`/t` AS target USING (SELECT v0, one.v1")
    assert sql.endswith(
        "ON target.`i` = src.v0 WHEN MATCHED THEN UPDATE SET `t` = src.v1"
    )
    sql = written("delete from t where i in (select i8 from t)")
    assert sql.endswith("ON target.`i` = src.v0 WHEN MATCHED THEN DELETE")


def test_an_output_column_does_not_hide_an_input_column() -> None:
    """Spark would take the name in an expression for the output column."""
    sql = translated("select -i as i from t order by i + 0").sql
    assert sql.endswith("ORDER BY (`t@1`.i + 0) NULLS LAST")
    sql = translated("select -i as i from t order by i").sql
    assert sql.endswith("ORDER BY i NULLS LAST")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("1 year 2 mons 3 days -04:05:06.7", (14, 3, -14706700000)),
        ("-1 years -2 mons +3 days", (-14, 3, 0)),
        ("00:00:00", (0, 0, 0)),
        ("-00:00:00.000001", (0, 0, -1)),
        ("infinity", (2**31 - 1, 2**31 - 1, 2**63 - 1)),
        ("90 minutes", (0, 0, 5_400_000_000)),
        # A number without a unit counts seconds.
        ("0", (0, 0, 0)),
        (" 1 day -2.5 ", (0, 1, -2_500_000)),
    ],
)
def test_intervals_are_read_and_sent_as_three_fields(
    text: str, fields: tuple[int, int, int]
) -> None:
    found = interval_of(text)
    assert found == Interval(*fields)
    months, days, microseconds = fields
    assert found.to_binary() == struct.pack("!qii", microseconds, days, months)


def test_intervals_are_printed_as_postgresql_prints_them() -> None:
    for text in (
        "1 year 2 mons 3 days -04:05:06.7",
        "-1 years -2 mons +3 days",
        "1 day",
        "-1 days +02:03:00",
        "00:00:00",
        "-00:00:01",
    ):
        assert str(interval_of(text)) == text


def test_a_subscript_counts_from_one_however_it_is_written() -> None:
    assert item("ia[$1]", BoundParameter("2", 0)) == "GET(ia, CAST('2' AS INT) - 1)"
    assert item("ia[$1]", BoundParameter("2", 23)).endswith(" AS INT) - 1)")
    assert item("(string_to_array(t, ','))[i]").endswith(", i - 1)")
    assert item("(string_to_array(t, ','))[2]").endswith(", 1)")
    assert "slice(ia, greatest(2, 1)" in item("ia[2:3]").lower()
    assert "GET(" in written("UPDATE t SET i = ia[i] WHERE ia[i8::int] = 1")
    assert "`i` = " in written("UPDATE t SET i = ia[i]")
    with pytest.raises(Wal2LakeError, match="assign to an element") as error:
        written("UPDATE t SET ia[1] = 3")
    assert error.value.sqlstate == "0A000"


def test_the_end_of_a_text_by_a_null_is_null() -> None:
    assert item("left(t, i)") == (
        "LEFT(t, CASE WHEN i >= 0 THEN i WHEN i < 0 THEN GREATEST(LENGTH(t) + i, 0) END)"
    )


@pytest.mark.parametrize("how", ["1 row with ties", "50 percent rows only"])
@pytest.mark.parametrize(
    "query",
    [
        "values (1), (2) order by 1",
        "(select i from t order by i)",
        "select i from t union select i from t order by 1",
        "select * from (select i from t union all select 1 order by 1",
    ],
)
def test_ties_and_percents_are_kept_or_refused(query: str, how: str) -> None:
    with pytest.raises(Wal2LakeError) as error:
        closed = ") x" if query.count("(select i") > query.count(")") else ""
        translated(f"{query} fetch first {how}{closed}")
    assert error.value.sqlstate == "0A000"


def test_a_template_of_a_date_pads_fractions_and_cuts_no_year() -> None:
    assert "LPAD(" in item("to_char(ts, 'FMMS')")
    assert "LPAD(" in item("to_char(ts, 'FMUS')")
    assert "LPAD(" not in item("to_char(ts, 'FMDD')")
    year = item("to_char(ts, 'YYYY')")
    assert "GREATEST(4, LENGTH(CAST(YEAR(ts) AS STRING)))" in year


def test_a_shape_ends_where_the_text_does_and_not_before_its_last_line_end() -> None:
    for expression in (
        "decode(t, 'hex')",
        "decode(t, 'base64')",
        "quote_ident(t)",
        "t::date",
        "t::timestamp",
        "t::uuid",
        "t::numeric",
        "to_date(t, 'YYYY-MM-DD')",
    ):
        sql = item(expression)
        assert r"\\z'" in sql, sql
        assert "$'" not in sql, sql


def test_decode_passes_over_blanks() -> None:
    assert r"UNHEX(TRANSLATE(t, ' \t\n\r', ''))" in item("decode(t, 'hex')")


@pytest.mark.parametrize(
    ("query", "sqlstate"),
    [
        ("select distinct on (1) i as a, t as a from t", "0A000"),
        ("select distinct on (a) i as a, t as a from t", "42702"),
        ("select distinct on (ts) i as a, t as a from t order by ts, a", "42702"),
        ("select i as a, ch as a from t order by a", "42702"),
        ("select mode() within group (order by i desc) from t", "0A000"),
    ],
)
def test_what_would_be_another_row_is_refused(query: str, sqlstate: str) -> None:
    with pytest.raises(Wal2LakeError) as error:
        translated(query)
    assert error.value.sqlstate == sqlstate


def test_one_expression_twice_is_not_ambiguous() -> None:
    assert "PARTITION BY" in translated("select distinct on (1) i, i from t").sql


def test_a_pattern_has_no_trailing_blanks() -> None:
    assert item("t LIKE ch") == "t LIKE TRIM(TRAILING ' ' FROM ch)"
    assert item("ch LIKE t") == "ch LIKE t"


@pytest.mark.parametrize(
    ("local", "instant"),
    [
        ("2024-11-03 01:30", "06:30:00.000000Z"),
        ("2024-11-03 00:30", "04:30:00.000000Z"),
        ("2024-11-03 02:30", "07:30:00.000000Z"),
        ("2024-03-10 02:30", "07:30:00.000000Z"),
    ],
)
def test_a_local_time_that_comes_twice_is_the_later_one(
    local: str, instant: str
) -> None:
    shown = item(f"timestamptz '{local}'", zone="America/New_York")
    assert instant in shown


def test_a_computed_local_time_that_comes_twice_is_the_later_one() -> None:
    shown = item("ts::timestamptz", zone="America/New_York")
    assert "INTERVAL '1' DAY" in shown
    assert "INTERVAL '1' DAY" not in item("ts::timestamptz")


def test_hours_of_a_timestamptz_are_cut_without_a_new_offset() -> None:
    for expression in ("date_trunc('hour', tz)", "tz + interval '1 hour'"):
        shown = item(expression, zone="America/New_York")
        assert "CONVERT_TIMEZONE('America/New_York', 'UTC'" not in shown
    shown = item("date_trunc('day', tz)", zone="America/New_York")
    assert "CONVERT_TIMEZONE('America/New_York', 'UTC'" in shown


@pytest.mark.parametrize(
    ("constant", "shown"),
    [
        ("interval '1 day 02:00:00'", "1 day 02:00:00"),
        ("interval '3' day", "3 days"),
        ("interval '1 day 02:03:04.567' day to minute", "1 day 02:03:00"),
        ("interval(1) '02:03:04.567'", "02:03:04.6"),
        ("'02:03:04.567'::interval(0)", "02:03:05"),
    ],
)
def test_an_interval_constant_keeps_all_its_units(constant: str, shown: str) -> None:
    assert f"'{shown}'" in item(constant)


def test_a_default_of_type_char_stays_a_constant() -> None:
    column = ColumnDef("k", Oid(1042), 7, default="'z '::bpchar")
    assert default_sql(column, "UTC") == "'z  '"


_PARAMETERS = r"(?:\((\w+), (\w+)\)|(\w+)) ->"


@pytest.mark.parametrize(
    "expression",
    [
        "jb->'a'",
        "jb->>0",
        "jsonb_array_elements_text(jb)",
        "f8::text",
        "initcap(t)",
        "string_to_array(t, ',', 'x')",
        "(n + n) + n",
        "array_agg(i order by t)",
        "stddev(f8)",
        "decode(t, 'hex')",
        "ia::bigint[]",
    ],
)
def test_parameters_of_lambdas_hide_no_name_of_the_statement(expression: str) -> None:
    shown = item(expression)
    names = [n for found in re.findall(_PARAMETERS, shown) for n in found if n]
    assert names
    assert all(name.startswith("wal2lake_") for name in names), names


def test_a_stored_array_hides_no_column() -> None:
    sql = written("UPDATE t SET ia = array[i8]")
    assert "wal2lake_item -> " in sql
