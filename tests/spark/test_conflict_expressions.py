"""Expressions of users over rows that meet: which are taken, and what they make."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import InternalError, StorageError, UsageError
from wal2lake.lake import FieldSpec
from wal2lake.lake.expressions import Pairs, facts_table
from wal2lake.lake.port import CommitConflict
from wal2lake.lake.spark.expressions import SparkExpressions
from wal2lake.lake.spark.expressions.allowed import FUNCTIONS
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
def expressions(spark_session: SparkSession) -> SparkExpressions:
    return SparkExpressions(spark_session)


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
        ("(if(rand() < 0.5, 'skip', 'error'))", "0A000", "not available"),
        ("set (qty = unix_timestamp())", "0A000", "not deterministic"),
        ("(if(now() > local_commit_time, 'skip', 'error'))", "0A000", "not available"),
        ("(current_user())", "0A000", "not available"),
        ("(java_method('java.lang.System', 'exit', 1))", "0A000", "not available"),
        ("((select 'skip'))", "0A000", "not deterministic"),
        ("set (qty = sum(local.qty))", "0A000", "not available"),
        ("set (qty = sum(local.qty) over ())", "0A000", "not deterministic"),
        ("(if(exists(select 1), 'skip', 'error'))", "0A000", "not deterministic"),
        # Refused before Spark has looked at the file.
        ("((select nothing from json.`/no/such/file`))", "0A000", "deterministic"),
        ("((select cast(1 as int) from text.`/no/file`))", "0A000", "deterministic"),
        ("(identifier('current' || '_user')())", "0A000", "not deterministic"),
        (
            "(array_join(transform(array(1), x -> current_user()), ','))",
            "0A000",
            "not available",
        ),
        ("(struct(*))", "0A000", "not deterministic"),
        ("(explode(array('skip')))", "0A000", "not available"),
        ("(:skip)", "0A000", "not deterministic"),
        ("(current_user)", "0A000", "not deterministic"),
        ("(base64(aes_encrypt('a', '0000111122223333')))", "0A000", "not available"),
        ("(from_xml('<a/>', 'b string', map('x', 'y')).b)", "0A000", "not available"),
        ("(xpath_string('<a/>', '/a'))", "0A000", "not available"),
        ("(builtin.upper('skip'))", "42883", '"builtin.upper"'),
        # The time, as a word.
        ("(string(timestamp 'now'))", "0A000", "not deterministic"),
        ("(concat('\U0001f600', date ' Today '))", "0A000", "not deterministic"),
        ("(string(timestamp_ntz'\\u006eow'))", "0A000", "not deterministic"),
        ('(string(timestamp"tomorrow UTC"))', "0A000", "not deterministic"),
        ("(string(cast('Yesterday' as date)))", "0A000", "not deterministic"),
        ("(string(to_timestamp('now')))", "0A000", "not deterministic"),
        ("(string(to_date('\ttoday ')))", "0A000", "not deterministic"),
        ("(string(cast(concat('no', 'w') as timestamp)))", "0A000", "deterministic"),
        ("(if(timestamp'2020-01-01' < 'now', 'skip', 'error'))", "0A000", "determin"),
        ("(if(year('now') > 2020, 'skip', 'error'))", "0A000", "not deterministic"),
        # What makes all that a JVM has of a few bytes.
        ("(repeat('x', 10001))", "0A000", "constant count of at most 10000"),
        ("(repeat('x', local.id))", "0A000", "constant count"),
        ("(repeat(repeat('x', 200), 100))", "0A000", "constant count"),
        ("(repeat(upper(rpad('x', 200)), 100))", "0A000", "constant count"),
        ("(lpad('x', 2000000000))", "0A000", "constant count"),
        ("(lpad('x', 1000 * 1000, 'y'))", "0A000", "constant count"),
        ("(format_number(local.qty, 100000))", "0A000", "constant count"),
        ("(array_join(array_insert(array('x'), -20000, 'y'), ''))", "0A000", "count"),
        ("(format_string('%1$20000d', local.id))", "0A000", "constant format"),
        ("(printf(local.`Note it`, 1))", "0A000", "constant format"),
        (
            "(aggregate(array(1, 2, 3), 'x', (a, b) -> repeat(a, 1000)))",
            "0A000",
            "constant count",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    expressions: SparkExpressions, text: str, sqlstate: str, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        expressions.check(FIELDS, ("id",), expression(text))
    assert refused.value.sqlstate == sqlstate, refused.value
    assert says in refused.value.message
    if sqlstate == "42703":
        assert "local.column" in (refused.value.hint or "")


def test_what_needs_no_more_than_the_rows_is_taken(
    expressions: SparkExpressions,
) -> None:
    registry = expressions._spark._jsparkSession.sessionState().functionRegistry()
    named = expressions._spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    unknown = [n for n in FUNCTIONS if not registry.functionExists(named(n))]
    # These the parser knows.
    assert not set(unknown) - {"struct"}, unknown
    for text in (
        "(concat('now', ' ', local.`Note it`, '\U0001f600', date '2020-01-01'))",
        "(case when local.qty between 1 and 2 then 'skip' when remote.qty in (1, 2) or not"
        " local.id <=> remote.id then 'error' else nullif(remote.`Note it`, 'x') end)",
        "(if(local_commit_time + interval 1 day > date_trunc('day', remote_commit_time)"
        " and local.`Note it` is not null, 'skip', '${env:HOME}'))",
        "(array_join(transform(array_union(split(local.`Note it`, ','), array('x')),"
        " (x, i) -> upper(x) || i), ','))",
        "(to_json(named_struct('a', local.qty % 2, 'b', extract(year from"
        " remote_commit_time), 'c', (1, 2)), map('pretty', 'false')))",
        "(string(to_timestamp(remote.`Note it`)))",
        "(string(timestampadd(day, 1, timestamp'epoch') < local_commit_time))",
        "(trim(both 'x' from substring(local.`Note it` from 2 for 3))"
        " || overlay('a' placing 'b' from 1) || position('a' in 'b'))",
        "(string(aggregate(array(1, -2), 0, (a, b) -> a + b << 1 | 2 & 3 ^ ~ +4)))",
        "(from_json(remote.`Note it`, 'a string, b array<int>').a)",
        "(rpad(repeat(local.`Note it`, 100), 100, 'x') || format_string('%5d', local.id)"
        " || format_number(local.qty, '#.##') || lpad('a', 10000)"
        " || array_join(array_insert(array('a'), -2, 'b'), ','))",
        "(string(local.`Note it` like 'a%' or remote.`Note it` rlike '^a'"
        " or local.`Note it` like any ('a', 'b') or (local.qty > 1) is not true))",
    ):
        expressions.check(FIELDS, ("id",), expression(text))
    # A column's text is never the time.
    found = expressions.evaluate(
        FIELDS,
        ("id",),
        frozenset(),
        expression("(string(to_timestamp(remote.`Note it`)))"),
        pairs(((1, "1", "a"), (1, "2", "now"))),
    )
    assert found[0].error is not None
    assert found[0].error[0] == "22P02"


USABLE = (
    "Use the columns of local and remote, local_commit_time, remote_commit_time and"
    " local_origin, operators and the functions that the documentation of"
    " conflict_resolution lists."
)
COLUMNS = 'Write local.column or remote.column. Columns: "id", "qty", "Note it", "doc".'


@pytest.mark.parametrize(
    ("text", "hint", "instead"),
    [
        (
            "(case when missing(local.qty) then 'skip' end)",
            USABLE,
            "(case when abs(local.qty + remote.qty) > 1 and local_origin = 'local'"
            " and local_commit_time < remote_commit_time then 'skip' end)",
        ),
        ("set (qty = rand())", USABLE, "set (qty = round(local.qty))"),
        (
            "set (qty = unix_timestamp())",
            USABLE,
            "set (qty = unix_timestamp(local_commit_time))",
        ),
        (
            "(repeat('x', local.id))",
            'Write the count of "repeat" as a literal, outside of aggregate() and'
            " reduce().",
            "(repeat('x', 3))",
        ),
        (
            "(printf(local.`Note it`, 1))",
            'Write the format of "printf" as a literal, outside of aggregate() and'
            " reduce().",
            "(printf('%d', 1))",
        ),
        ("(qty > 1)", "Write local.column or remote.column.", "(string(local.qty))"),
        ("(string(local.no))", COLUMNS, "(string(local.qty))"),
        ("set (no = local.qty)", COLUMNS, "set (qty = local.qty)"),
        (
            "(local.qty > 1)",
            "It names one of apply_remote, keep_local, skip, error.",
            "(if(local.qty > 1, 'apply_remote', if(local.qty > 2, 'keep_local',"
            " if(local.qty > 3, 'skip', 'error'))))",
        ),
        (
            "(local.qty::text)",
            "Write it in Spark SQL.",
            "(cast(local.qty as string))",
        ),
    ],
)
def test_what_a_hint_says_is_taken(
    expressions: SparkExpressions, text: str, hint: str, instead: str
) -> None:
    with pytest.raises(UsageError) as refused:
        expressions.check(FIELDS, ("id",), expression(text))
    assert refused.value.hint == hint
    expressions.check(FIELDS, ("id",), expression(instead))


def test_a_table_without_a_key_chooses_a_row(expressions: SparkExpressions) -> None:
    with pytest.raises(UsageError) as refused:
        expressions.check(FIELDS, (), expression("set (qty = local.qty)"))
    assert refused.value.hint == "Choose one of the rows: (expression)."
    expressions.check(FIELDS, (), expression("(if(local.qty > 1, 'skip', 'error'))"))


def test_what_is_not_checked_before_stops_at_its_pair(
    expressions: SparkExpressions,
) -> None:
    one = pairs(((1, "1", "a"), (1, "2", "b")))
    for text, sqlstate in (
        ("set (renamed = 1)", "42703"),
        ("(local.renamed)", "42703"),
        ("(current_user())", "0A000"),
        ("((select max(value) from text.`/etc/hostname`))", "0A000"),
        ("(local.qty > )", "42601"),
        ("(local.qty)", "42804"),
        ("set (id = 1)", "0A000"),
    ):
        for _ in range(2):
            found = expressions.evaluate(
                FIELDS, ("id",), frozenset(), expression(text), one
            )
            assert [o.error and o.error[0] for o in found] == [sqlstate], text
    merge = expression("set (qty = 1)")
    expressions.check(FIELDS, ("id",), merge)
    with pytest.raises(UsageError, match="without a primary key") as refused:
        expressions.check(FIELDS, (), merge)
    assert refused.value.sqlstate == "0A000"
    expressions.check_text(expression("(local.whatever)"))
    for text in ("(uuid())", "(local.x +)", "(x)"):
        with pytest.raises(UsageError):
            expressions.check_text(expression(text))


def test_bytes_that_are_no_text_stop_at_their_pair(
    expressions: SparkExpressions,
) -> None:
    two = pairs(((1, "1", "a"), (1, "2", "b")), ((2, "1", "a"), (2, "2", "c")))
    text = "cast(if(remote.id = 2, x'ff', x'61') as string)"
    choice = expression(f"({text})")
    found = expressions.evaluate(FIELDS, ("id",), frozenset(), choice, two)
    assert [one.error and one.error[0] for one in found] == ["22023"]
    found = expressions.evaluate(
        FIELDS, ("id",), frozenset(), expression(f'set ("Note it" = {text})'), two
    )
    assert [one.error is None for one in found] == [True, False]
    assert found[1].error is not None
    assert found[1].error[0] == "22021"


def test_bytes_that_are_no_text_are_found_in_arrays(
    expressions: SparkExpressions,
) -> None:
    fields = (FIELDS[0], FieldSpec("a", "array<string>", pg_type_oid=Oid(1009)))
    rows = pa.table(
        [pa.array([1, 2], pa.int32()), pa.array([["x"], None], pa.list_(pa.string()))],
        names=["id", "a"],
    )
    two = Pairs(rows, rows, facts_table([1, 1], [1, 1], ["local", "local"]))
    merge = expression(
        "set (a = array('y', cast(if(remote.id = 2, x'ff', x'61') as string)))"
    )
    found = expressions.evaluate(fields, ("id",), frozenset(), merge, two)
    assert found[0].row is not None
    assert found[0].row.to_pylist() == [{"id": 1, "a": ["y", "a"]}]
    assert found[1].error == ("22000", 'value of column "a" cannot be stored')


def test_what_spark_does_not_name_is_an_error_of_the_pair(
    expressions: SparkExpressions, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pairs(((1, "1", "a"), (1, "2", "b")))
    choice = expression("('skip')")
    for raised, passes in (
        (InternalError("Spark failed: of itself"), False),
        (CommitConflict("another writer"), True),
        (StorageError("Spark is shutting down", sqlstate="57P01"), True),
        (UsageError("canceled", sqlstate="57014"), True),
    ):
        expressions.check(FIELDS, ("id",), choice)

        def fails(*_: object, error: Exception = raised) -> None:
            raise error

        with monkeypatch.context() as patched:
            expressions.evaluate(FIELDS, ("id",), frozenset(), choice, one)
            patched.setattr(expressions, "_frame", fails)
            if passes:
                with pytest.raises(type(raised)):
                    expressions.evaluate(FIELDS, ("id",), frozenset(), choice, one)
            else:
                found = expressions.evaluate(FIELDS, ("id",), frozenset(), choice, one)
                assert found[0].error == ("XX000", "Spark failed: of itself")


def test_rows_are_chosen_and_merged(expressions: SparkExpressions) -> None:
    choice = expression(
        "(case when remote.qty > local.qty then 'apply_remote'"
        " when local_commit_time < timestamp'2000-01-01' and local_origin = 'local'"
        " and remote_commit_time is null then 'Keep_Local' end)"
    )
    expressions.check(FIELDS, ("id",), choice)
    two = pairs(((1, "1.50", "a"), (1, "2.25", "b")), ((2, "3", None), (2, "1", "x")))
    found = expressions.evaluate(FIELDS, ("id",), frozenset(), choice, two)
    assert [one.choice for one in found] == ["apply_remote", "keep_local"]
    merge = expression(
        "set (qty = local.qty + remote.qty,"
        " \"Note it\" = concat(local.`Note it`, ',', remote.`Note it`))"
    )
    expressions.check(FIELDS, ("id",), merge)
    found = expressions.evaluate(FIELDS, ("id",), frozenset(), merge, two)
    rows = [one.row.to_pylist()[0] for one in found if one.row is not None]
    assert [(r["id"], str(r["qty"]), r["Note it"]) for r in rows] == [
        (1, "3.75", "a,b"),
        (2, "4.00", None),
    ]


def test_the_first_that_fails_is_found(expressions: SparkExpressions) -> None:
    many = pairs(*(((n, "1", "abc"), (n, str(10 - n), "de")) for n in range(1, 14)))
    by_zero = expression("set (qty = local.qty / remote.qty)")
    found = expressions.evaluate(FIELDS, ("id",), frozenset(), by_zero, many)
    assert len(found) == 10
    assert found[-1].error == ("22012", "division by zero")
    long = expression(
        'set ("Note it" = left(repeat(local.`Note it`, 13), 3 * (remote.id - 2)))'
    )
    found = expressions.evaluate(FIELDS, ("id",), frozenset(), long, many)
    assert [one.error is None for one in found] == [True, True, True, False]
    assert found[-1].error is not None
    assert found[-1].error[0] == "22001"
    null = expression("set (\"Note it\" = nullif(remote.`Note it`, 'de'))")
    found = expressions.evaluate(FIELDS, ("id",), frozenset(("Note it",)), null, many)
    assert [one.error and one.error[0] for one in found] == ["23502"]
    word = expression("(if(remote.id > 2, 'perhaps', 'skip'))")
    found = expressions.evaluate(FIELDS, ("id",), frozenset(), word, many)
    assert [one.error and one.error[0] for one in found] == [None, None, "22023"]
