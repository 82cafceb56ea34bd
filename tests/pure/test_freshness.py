"""The storage parameter freshness: grammar, catalog, and the facts that it becomes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fakes.printed import parse_printed

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.errors import Wal2LakeError
from wal2lake.health import FactReader
from wal2lake.health.collecting.tables import freshness_seconds
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.settings import Settings
from wal2lake.sql.grammar import parse, to_sql
from wal2lake.sql.grammar.altering.alterstatements import AlterTable, ParametersClause
from wal2lake.sql.grammar.statements import CreateTable


def altered(sql: str) -> tuple[tuple[str, str | None], ...]:
    statement = parse(f"alter table t {sql}")
    assert isinstance(statement, AlterTable)
    (action,) = statement.actions
    assert isinstance(action, ParametersClause)
    return action.parameters


@pytest.mark.parametrize(
    ("text", "shown", "seconds"),
    [
        ("'2s'", "00:00:02", 2),
        ("'1500 ms'", "00:00:01.5", 1.5),
        ("'5 min'", "00:05:00", 300),
        ("'1h 30m'", "01:30:00", 5400),
        ("'1 day 2 hours'", "1 day 02:00:00", 93_600),
        ("'2 weeks'", "14 days", 1_209_600),
        ("'1 year 1 mon'", "1 year 1 mon", 390 * 86_400),
        ("'00:00:10'", "00:00:10", 10),
        ("3", "00:00:03", 3),
    ],
)
def test_an_interval_is_kept_as_postgresql_writes_it(
    text: str, shown: str, seconds: float
) -> None:
    assert altered(f"set (freshness = {text})") == (("freshness", shown),)
    assert freshness_seconds(shown) == seconds
    created = parse(f"create table t (a int) with (freshness = {text})")
    assert isinstance(created, CreateTable)
    assert created.parameters == (("freshness", shown),)


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        (
            "set (freshness = 'soon')",
            "22007",
            'invalid input syntax for type interval: "soon"',
        ),
        (
            "set (freshness = '2 parsecs')",
            "22007",
            'invalid input syntax for type interval: "2 parsecs"',
        ),
        (
            "set (freshness = '2 hs')",
            "22007",
            'invalid input syntax for type interval: "2 hs"',
        ),
        (
            "set (freshness = '-2s')",
            "22023",
            'invalid value for storage parameter "freshness": "-2s"',
        ),
        (
            "set (freshness = '0s')",
            "22023",
            'invalid value for storage parameter "freshness": "0s"',
        ),
        (
            "set (freshness = 'infinity')",
            "22023",
            'invalid value for storage parameter "freshness": "infinity"',
        ),
        (
            "set (freshness = 1, freshness = 2)",
            "22023",
            'parameter "freshness" specified more than once',
        ),
        (
            "reset (freshness, freshness)",
            "22023",
            'parameter "freshness" specified more than once',
        ),
        (
            "set (delta.checkpointInterval = 3)",
            "0A000",
            'storage parameter "delta.checkpointInterval" cannot be changed by ALTER'
            " TABLE",
        ),
        (
            "set (fillfactor = 70)",
            "0A000",
            'storage parameters like "fillfactor" are not supported on lake tables',
        ),
        ("reset (nothing)", "22023", 'unrecognized parameter "nothing"'),
    ],
)
def test_what_is_no_freshness_is_refused(sql: str, sqlstate: str, message: str) -> None:
    with pytest.raises(Wal2LakeError) as refused:
        parse(f"alter table t {sql}")
    assert (refused.value.sqlstate, refused.value.message) == (sqlstate, message)


def test_a_time_that_is_no_limit_says_what_is_one() -> None:
    with pytest.raises(Wal2LakeError) as refused:
        parse("alter table t set (freshness = '0')")
    assert refused.value.hint == (
        "A time that a table may be behind, such as '2s' or '5 min'."
    )


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t SET (freshness = '00:00:02')",
        "ALTER TABLE IF EXISTS s.t RESET (freshness), REPLICA IDENTITY FULL",
    ],
)
def test_the_statement_is_printed_as_it_was_parsed(text: str) -> None:
    assert to_sql(parse_printed(text)) == text


def test_what_is_set_is_a_fact_of_each_subscription_of_the_table(
    tmp_path: Path,
) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    kept = ("delta.checkpointInterval", "5")
    root = TableDef(
        Oid(30000), "public", "t", Oid(10), (), (), "/t", parameters=(kept,)
    )
    part = TableDef(
        Oid(30001), "public", "d", Oid(10), (), (), "/t", partition_of=root.oid
    )
    catalog.create_table(root, part)
    sub = Oid(20000)
    catalog.create_subscription(
        Subscription(sub, "s", Oid(10), True, "host=p", "s", ("p",), floor=Lsn(1)),
        [
            SubscriptionRel(
                sub, Oid(30001), "public", "d", SyncState.READY, None, epoch=1
            )
        ],
        {30001: 1},
    )

    def freshness() -> float | None:
        facts = FactReader(Settings(tmp_path)).read(datetime.now(UTC))
        return facts.subscriptions[0].tables[0].freshness

    assert freshness() is None
    catalog.set_parameters(root.oid, {"freshness": "00:00:02"})
    assert freshness() == 2.0
    table = catalog.table_by_oid(root.oid)
    assert table is not None
    assert table.parameters == (kept, ("freshness", "00:00:02"))
    catalog.set_parameters(root.oid, {"freshness": None})
    assert freshness() is None
