"""What row filters make of changes: every row of the manual's table, unchanged values, several
publications. (That their values are PostgreSQL's is tested beside it.)"""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from tests.fakes.printed import parse_printed

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.publication.filters import analyse
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.model import Oid
from wal2lake.pgtypes.expressions import Expression, Filter, decode, deparse, encode
from wal2lake.publish.filtering import (
    FilterOutcome,
    combined,
    filled,
    transform,
    transforms,
)
from wal2lake.sql.grammar import parse, quote_identifier, to_sql
from wal2lake.sql.grammar.publishing.publicationstatements import (
    CreatePublication,
    PublicationTable,
)

TABLE = TableDef(
    Oid(30000),
    "public",
    "t",
    Oid(10),
    (
        ColumnDef("a", Oid(23)),
        ColumnDef("b", Oid(25)),
        ColumnDef("e", Oid(25), type_name="app.mood"),
    ),
    ("a",),
    "/t",
)


def _filter(text: str) -> tuple[Expression, tuple[str, ...]]:
    statement = parse(f"create publication p for table t where ({text})")
    assert isinstance(statement, CreatePublication)
    (table,) = statement.objects
    assert isinstance(table, PublicationTable) and table.where is not None
    return analyse(table.where.expression, TABLE, "UTC")


def _texts(*values: str | None) -> pa.Array:
    return pa.array([None if v is None else v.encode() for v in values], pa.binary())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (False, False, FilterOutcome.NOTHING),
        (False, True, FilterOutcome.INSERT),
        (True, False, FilterOutcome.DELETE),
        (True, True, FilterOutcome.KEEP),
        (None, True, FilterOutcome.KEEP),
        (None, False, FilterOutcome.NOTHING),
    ],
)
def test_an_update_becomes_what_the_manual_says(
    old: bool | None, new: bool, expected: FilterOutcome
) -> None:
    assert transform(old, new) is expected


def test_updates_are_judged_by_both_rows() -> None:
    filter_ = Filter(*_filter("a > 5"))
    values = ("3", "7", None)
    pairs = list(itertools.product(values, values, (True, False)))
    old = _texts(*(before for before, _, _ in pairs))
    new = _texts(*(after for _, after, _ in pairs))
    found = transforms(filter_, [old], [new], [there for *_, there in pairs])
    matches = {"3": False, "7": True, None: False}
    assert found == [
        transform(matches[before] if there else None, matches[after])
        for before, after, there in pairs
    ]


def test_a_value_that_has_not_been_sent_is_the_old_rows() -> None:
    new = _texts(None, "y", None, None)
    old = _texts("x", "z", None, "w")
    unchanged = pa.array([True, False, True, False])
    whole = filled(new, old, unchanged)
    assert whole.to_pylist() == [b"x", b"y", None, None]
    filter_ = Filter(*_filter("b = 'x'"))
    there = [True] * 4
    assert transforms(filter_, [_texts("q", "x", "x", "x")], [whole], there) == [
        FilterOutcome.INSERT,
        FilterOutcome.DELETE,
        FilterOutcome.DELETE,
        FilterOutcome.DELETE,
    ]


def test_a_row_is_sent_that_one_of_several_filters_lets_through() -> None:
    found = combined(
        [_filter("b = 'x'"), _filter("a > 5 and b <> 'x'"), _filter("b = 'x'")]
    )
    assert found is not None
    assert deparse(*found, quote_identifier) == (
        "((b = 'x'::text) OR ((a > 5) AND (b <> 'x'::text)))"
    )
    filter_ = Filter(*found)
    assert filter_.columns == ("b", "a")
    rows = _texts("x", "y", "y", None), _texts("1", "6", "1", "9")
    assert filter_.matches(rows, 4) == [True, True, False, False]


def test_a_publication_without_a_filter_lets_everything_through() -> None:
    assert combined([_filter("a > 5"), None]) is None
    assert combined([]) is None
    only = combined([_filter("a > 5")])
    assert only is not None and deparse(*only, quote_identifier) == "(a > 5)"


def test_a_filter_without_columns_has_one_answer() -> None:
    assert Filter(*_filter("1 < 2")).matches([], 3) == [True] * 3
    assert Filter(*_filter("null")).matches([], 2) == [False] * 2


@pytest.mark.parametrize(
    "text",
    [
        "a > -1 and b is not null or a in (1, 2, null)",
        "case a when 1 then b like 'x%' else null end",
        "coalesce(nullif(a, 0), 7) between 1 and 5 and b is distinct from 'q'",
    ],
)
def test_the_catalog_keeps_what_a_filter_means(text: str) -> None:
    expression, columns = _filter(text)
    assert decode(encode(expression)) == expression
    shown = deparse(expression, columns, quote_identifier)
    again, names = _filter(shown)
    assert names == columns
    assert deparse(again, names, quote_identifier) == shown
    renamed = tuple(f"New {name}" for name in columns)
    for name in columns:
        assert f'"New {name}"' in deparse(expression, renamed, quote_identifier)


def test_a_statement_is_parsed_from_what_is_printed() -> None:
    sql = (
        'CREATE PUBLICATION "P" FOR TABLE ONLY s.t (a, "B") WHERE (a > 1 and (b) like'
        " 'x'), TABLES IN SCHEMA CURRENT_SCHEMA WITH (publish = 'insert')"
    )
    statement = parse_printed(sql)
    assert to_sql(statement) == sql
    assert parse(to_sql(statement)) == statement


def test_a_publishers_own_type_is_a_user_defined_one() -> None:
    with pytest.raises(FeatureNotSupportedError) as caught:
        _filter("e = 'ok'")
    assert caught.value.detail == "User-defined types are not allowed."


def test_what_is_no_value_of_its_type_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        Filter(*_filter("a > 5")).matches([_texts("x")], 1)
    assert caught.value.sqlstate == "22P02"


def test_what_is_refused_says_what_is_not() -> None:
    with pytest.raises(FeatureNotSupportedError) as caught:
        _filter("b ~ '[[:alpha:]]'")
    assert "operator ~" in caught.value.message
    assert caught.value.detail is not None and "LIKE" in caught.value.detail


@pytest.mark.parametrize(
    "text",
    ["(" * 5000 + "true" + ")" * 5000, "not " * 400 + "true", f"a in ({'a, ' * 400}a)"],
)
def test_a_filter_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        _filter(text)
    assert caught.value.sqlstate == "54001"


def test_a_long_list_is_not_deep() -> None:
    expression, columns = _filter(" or ".join(f"a = {i}" for i in range(2000)))
    found = Filter(expression, columns).matches([_texts("1999", "2000")], 2)
    assert found == [True, False]
