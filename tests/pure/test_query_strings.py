"""Strings of different types in one expression: PostgreSQL 18 has chosen the operators."""

from __future__ import annotations

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.model import Oid
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.query.translate import TableRef, translate_query
from wal2lake.sql.query.writes import translate_write

COLUMNS = {
    "v": "varchar(20)",
    "c": "char(5)",
    "t": "text",
    "z": "timetz",
}

TABLE = TableDef(
    Oid(20000),
    "public",
    "t",
    Oid(10),
    tuple(ColumnDef(n, *parse_type_name(kind)) for n, kind in COLUMNS.items()),
    (),
    "/t",
)

C = "TRIM(TRAILING ' ' FROM c)"
V = "TRIM(TRAILING ' ' FROM v)"


def item(expression: str) -> str:
    sql = translate_query(
        f"select {expression} as x from t", lambda schema, name: TableRef(TABLE, 3)
    ).sql
    return sql.partition("SELECT ")[2].partition(" AS x FROM ")[0].replace("`t@1`.", "")


@pytest.mark.parametrize(
    ("expression", "spark"),
    [
        # char and varchar have char's operator, char and text have text's.
        ("v = c", f"{V} = {C}"),
        ("c < v", f"{C} < {V}"),
        ("t = c", f"t = {C}"),
        ("v in (c, 'x')", f"({V} = {C} OR v = 'x')"),
        ("v is distinct from c", f"{V} IS DISTINCT FROM {C}"),
        ("nullif(v, c)", f"CASE WHEN {V} = {C} THEN NULL ELSE v END"),
        ("c = 'a '", f"{C} = 'a'"),
        # An array of untyped texts is one of text.
        ("c = any(array['a ', 'b'])", f"({C} IN ('a ', 'b'))"),
        # A regular expression sees the blanks of char.
        ("c ~ 'a'", "(c RLIKE 'a')"),
        ("regexp_like(c, 'a')", f"({C} RLIKE 'a')"),
        # The first type is the common one; of CASE, that of ELSE.
        ("coalesce(c, v)", "COALESCE(c, v)"),
        ("coalesce(v, c)", f"COALESCE(v, {C})"),
        ("array[c, v]", "ARRAY(c, v)"),
        ("array[v, c]", f"ARRAY(v, {C})"),
        ("case when true then c else v end", f"CASE WHEN TRUE THEN {C} ELSE v END"),
        ("case when true then v else c end", "CASE WHEN TRUE THEN v ELSE c END"),
    ],
)
def test_blanks_of_char_mean_what_they_mean_in_postgresql(
    expression: str, spark: str
) -> None:
    assert item(expression) == spark


def test_rows_are_found_by_the_same_rules() -> None:
    sql = translate_write(
        "delete from t where v = c", lambda schema, name: TableRef(TABLE, None)
    ).sql
    assert sql.endswith(
        "WHERE TRIM(TRAILING ' ' FROM `t`.v) = TRIM(TRAILING ' ' FROM `t`.c)"
    )


@pytest.mark.parametrize(
    "expression",
    ["greatest(c, v)", "z::timetz(0)"],
)
def test_what_would_be_wrong_is_refused(expression: str) -> None:
    with pytest.raises(FeatureNotSupportedError):
        item(expression)


def test_values_that_differ_in_blanks_are_not_grouped() -> None:
    with pytest.raises(FeatureNotSupportedError) as caught:
        translate_query(
            "select coalesce(c, v), count(*) from t group by 1",
            lambda schema, name: TableRef(TABLE, 3),
        )
    assert caught.value.hint == "Cast them to text."


def test_a_literal_is_quoted_without_a_blank_before_it() -> None:
    assert "' E'" not in item("quote_literal(t)")
