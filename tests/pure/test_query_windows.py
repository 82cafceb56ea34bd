"""Aggregates with FILTER and OVER, which Spark does not have together."""

from __future__ import annotations

import pytest
from tests.pure.test_query_analysis import item

from wal2lake.errors import FeatureNotSupportedError


@pytest.mark.parametrize(
    ("expression", "spark"),
    [
        (
            "count(*) filter (where i > 1) over ()",
            "COUNT(CASE WHEN i > 1 THEN 1 END) OVER ()",
        ),
        (
            "sum(i) filter (where i > 1) over (order by i2)",
            "SUM(CASE WHEN i > 1 THEN i END) OVER (ORDER BY i2 NULLS LAST)",
        ),
        (
            "max(t) filter (where i > 1) over (partition by d)",
            "MAX(CASE WHEN i > 1 THEN t END) OVER (PARTITION BY d)",
        ),
        ("count(*) filter (where i > 1)", "COUNT(*) FILTER(WHERE i > 1)"),
    ],
)
def test_an_aggregate_over_a_window_sees_the_matching_rows(
    expression: str, spark: str
) -> None:
    assert item(expression) == spark


def test_an_aggregate_that_may_see_nulls_is_refused() -> None:
    with pytest.raises(FeatureNotSupportedError, match="FILTER with OVER"):
        item("string_agg(t, ',') filter (where i > 1) over ()")


def test_the_smallest_integer_is_divided_as_a_decimal() -> None:
    assert "CAST(i AS DECIMAL(10, 0)) AS a" in item("i / 3.0")
