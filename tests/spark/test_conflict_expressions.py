"""Expressions of users over rows that meet: which are taken, and what they make."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import UsageError
from wal2lake.lake import FieldSpec
from wal2lake.lake.expressions import Expressions, Pairs, facts_table
from wal2lake.model import ConflictType, Oid
from wal2lake.pgtypes import ConflictExpression, ConflictResolutions

FIELDS = (
    FieldSpec("id", "int", pg_type_oid=Oid(23)),
    FieldSpec("qty", "decimal(9,2)", pg_type_oid=Oid(1700), pg_typmod=(9 << 16) + 6),
    FieldSpec("Note it", "string", pg_type_oid=Oid(1043), pg_typmod=9),
    FieldSpec("doc", "variant", pg_type_oid=Oid(114)),
)


def expression(text: str) -> ConflictExpression:
    parsed = ConflictResolutions.parse(f"s.t.insert_exists = {text}")
    return parsed.of("s", "t").expressions[ConflictType.INSERT_EXISTS]


def pairs(*rows: tuple[tuple[Any, ...], tuple[Any, ...]]) -> Pairs:
    from decimal import Decimal

    def side(number: int) -> pa.Table:
        ids, qtys, notes = zip(*(row[number] for row in rows), strict=True)
        numbers = [None if q is None else Decimal(q) for q in qtys]
        return pa.table(
            [
                pa.array(ids, pa.int32()),
                pa.array(numbers, pa.decimal128(9, 2)),
                pa.array(notes, pa.string()),
                pa.nulls(len(rows), pa.string()),
            ],
            names=[field.name for field in FIELDS],
        )

    count = len(rows)
    return Pairs(
        side(0), side(1), facts_table([5] * count, [None] * count, ["local"] * count)
    )


@pytest.fixture
def expressions(spark_session: SparkSession) -> Expressions:
    return Expressions(spark_session)


@pytest.mark.parametrize(
    ("text", "sqlstate", "says"),
    [
        ("(case when local.nothing > 1 then 'skip' end)", "42703", '"nothing"'),
        ("(nothing)", "42703", '"nothing"'),
        ("set (nothing = 1)", "42703", '"nothing"'),
        ("set (id = local.id)", "0A000", '"id" cannot be set'),
        ("set (doc = local.doc)", "0A000", '"doc" cannot be set'),
        ("(local.qty > )", "42601", "syntax error"),
        ("(local.qty > 1)", "42804", "must be text, not boolean"),
        ("(missing_function(local.qty))", "42883", '"missing_function"'),
        ("(if(rand() < 0.5, 'skip', 'error'))", "0A000", "not deterministic"),
        ("set (qty = unix_timestamp())", "0A000", "not deterministic"),
        ("(if(now() > local_commit_time, 'skip', 'error'))", "0A000", "determinist"),
        ("(current_user())", "0A000", "not deterministic"),
        ("(java_method('java.lang.System', 'exit', 1))", "0A000", "not deterministic"),
        ("((select 'skip'))", "0A000", "not deterministic"),
        ("set (qty = sum(local.qty))", "0A000", "not deterministic"),
        ("set (qty = sum(local.qty) over ())", "0A000", "not deterministic"),
        ("(if(exists(select 1), 'skip', 'error'))", "0A000", "not deterministic"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    expressions: Expressions, text: str, sqlstate: str, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        expressions.check(FIELDS, ("id",), expression(text))
    assert refused.value.sqlstate == sqlstate, refused.value
    assert says in refused.value.message
    if sqlstate == "42703":
        assert "local.column" in (refused.value.hint or "")


def test_rows_are_chosen_and_merged(expressions: Expressions) -> None:
    choice = expression(
        "(case when remote.qty > local.qty then 'apply_remote'"
        " when local_commit_time < timestamp'2000-01-01' and local_origin = 'local'"
        " and remote_commit_time is null then 'Keep_Local' end)"
    )
    expressions.check(FIELDS, ("id",), choice)
    two = pairs(((1, "1.50", "a"), (1, "2.25", "b")), ((2, "3", None), (2, "1", "x")))
    found = expressions.evaluate(FIELDS, frozenset(), choice, two)
    assert [one.choice for one in found] == ["apply_remote", "keep_local"]
    merge = expression(
        "set (qty = local.qty + remote.qty,"
        " \"Note it\" = concat(local.`Note it`, ',', remote.`Note it`))"
    )
    expressions.check(FIELDS, ("id",), merge)
    found = expressions.evaluate(FIELDS, frozenset(), merge, two)
    rows = [one.row.to_pylist()[0] for one in found if one.row is not None]
    assert [(r["id"], str(r["qty"]), r["Note it"]) for r in rows] == [
        (1, "3.75", "a,b"),
        (2, "4.00", None),
    ]


def test_the_first_that_fails_is_found(expressions: Expressions) -> None:
    many = pairs(*(((n, "1", "abc"), (n, str(10 - n), "de")) for n in range(1, 14)))
    by_zero = expression("set (qty = local.qty / remote.qty)")
    found = expressions.evaluate(FIELDS, frozenset(), by_zero, many)
    assert len(found) == 10
    assert found[-1].error == ("22012", "division by zero")
    long = expression('set ("Note it" = repeat(local.`Note it`, remote.id - 2))')
    found = expressions.evaluate(FIELDS, frozenset(), long, many)
    assert [one.error is None for one in found] == [True, True, True, False]
    assert found[-1].error is not None
    assert found[-1].error[0] == "22001"
    null = expression("set (\"Note it\" = nullif(remote.`Note it`, 'de'))")
    found = expressions.evaluate(FIELDS, frozenset(("Note it",)), null, many)
    assert [one.error and one.error[0] for one in found] == ["23502"]
    word = expression("(if(remote.id > 2, 'perhaps', 'skip'))")
    found = expressions.evaluate(FIELDS, frozenset(), word, many)
    assert [one.error and one.error[0] for one in found] == [None, None, "22023"]
