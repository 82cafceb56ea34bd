"""Queries whose parameters Spark took for something else than PostgreSQL does."""

from __future__ import annotations

import pytest

from wal2lake.errors import UsageError
from wal2lake.sql.query.translate import BoundParameter, generate, parse, prepare


def translated(sql: str, *parameters: BoundParameter) -> str:
    tree = parse(sql)
    prepare(tree, parameters)
    return generate(tree)


def test_limit_and_offset_take_null_for_none_and_any_integer_type() -> None:
    """Spark refuses NULL, which a parameter is while a query is described, and smallint,
    as which psycopg sends small numbers."""
    sql = "select a from t limit $1 offset $2::int"
    nulls = BoundParameter(None, 20), BoundParameter(None, 23)
    assert translated(sql, *nulls) == "SELECT a FROM t"
    numbers = BoundParameter("2", 21), BoundParameter("1", 23)
    assert translated(sql, *numbers) == "SELECT a FROM t LIMIT 2 OFFSET 1"
    assert "LIMIT CAST(1 + 1 AS INT)" in translated("select a from t limit 1 + 1")
    assert translated("select a from t limit 3") == "SELECT a FROM t LIMIT 3"


def test_an_element_outside_of_an_array_is_null() -> None:
    """Spark's brackets raise INVALID_ARRAY_INDEX."""
    assert translated("select a[1] from t") == "SELECT GET(a, 0) FROM t"


def test_a_uuid_is_compared_in_its_one_form() -> None:
    """psycopg sends it without hyphens; the lake has text."""
    text = "6f1c2b1e-0000-4000-8000-000000000001"
    for form in (text, text.replace("-", ""), text.upper(), "{" + text + "}"):
        sql = translated("select 1 from t where u = $1", BoundParameter(form, 2950))
        assert sql == f"SELECT 1 FROM t WHERE u = '{text}'"
    with pytest.raises(UsageError, match="invalid input syntax for type uuid"):
        translated("select $1", BoundParameter("6f", 2950))
