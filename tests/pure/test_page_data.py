"""The page's data: rates, the last hour, documents, the feed, and answers of the routes."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import scenes

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.health import NodeFacts, Problem, Severity, TableFacts
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.web.api import documents
from wal2lake.web.api.feed import TableKey, TableRows, encode, sample
from wal2lake.web.api.history import CAPACITY, SERIES, SUBSCRIPTIONS, PageHistory
from wal2lake.web.api.rates import RateWindow
from wal2lake.web.api.tablepage import table_document

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def table_rows(
    facts: NodeFacts,
    problems: Sequence[Problem],
    rates: Mapping[Hashable, float] | None = None,
    of: TableRows | None = None,
) -> dict[TableKey, bytes]:
    worst = documents.worst_problems(problems)
    return (of or TableRows()).encode(facts, rates or {}, worst)


# ---- rates ------------------------------------------------------------------------


def test_the_first_reading_has_no_rate_and_the_second_one_has():
    rates = RateWindow(5)
    assert rates.add(100, {"a": 50}) == {}
    assert rates.add(102, {"a": 70, "b": 5}) == {"a": 10}
    assert rates.add(104, {"a": 70, "b": 9}) == {"a": 5, "b": 2}


def test_a_rate_is_that_of_the_window_alone():
    rates = RateWindow(5)
    for second in range(60):
        answer = rates.add(second, {"a": second * (100 if second < 30 else 1)})
    assert answer == {"a": 1}


def test_a_counter_that_falls_begins_anew():
    rates = RateWindow(5)
    rates.add(0, {"a": 1000})
    assert rates.add(1, {"a": 3}) == {}
    assert rates.add(2, {"a": 7}) == {"a": 4}


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_a_rate_is_never_negative_and_never_above_the_fastest_step(steps):
    rates = RateWindow(5)
    total = 0
    for second, step in enumerate(steps):
        total += step
        for rate in rates.add(second, {"a": total}).values():
            assert 0 <= rate <= max(steps)


# ---- the last hour ----------------------------------------------------------------


def test_the_history_is_a_ring_of_an_hour():
    history = PageHistory()
    for second in range(CAPACITY + 500):
        history.add(second, {Oid(1): {"rows": float(second)}})
    columns = history.columns(Oid(1), 0, CAPACITY)
    assert columns["times"][0] == 500 and columns["times"][-1] == CAPACITY + 499
    assert len(columns["times"]) == CAPACITY
    assert columns["visible"] == [None] * CAPACITY


def test_a_thinned_history_keeps_peaks_and_ends_now():
    history = PageHistory()
    for second in range(1000):
        history.add(second, {Oid(1): {"rows": 9.0 if second == 437 else 1.0}})
    columns = history.columns(Oid(1), 0, 60)
    assert len(columns["times"]) <= 60
    assert columns["times"][-1] == 999
    times = [time or 0 for time in columns["times"]]
    assert times == sorted(times)
    assert 9 in columns["rows"]
    assert len(history.columns(Oid(1), 990, 60)["times"]) == 10


def test_the_history_is_bounded_and_forgets_dropped_subscriptions():
    history = PageHistory()
    for second in range(3):
        history.add(second, {Oid(i): {"rows": 1.0} for i in range(1, 200)})
    lengths = [len(history.columns(Oid(i), 0, 9)["times"]) for i in range(1, 200)]
    assert lengths == [3] * SUBSCRIPTIONS + [0] * (199 - SUBSCRIPTIONS)
    history.add(3, {Oid(150): {"rows": 1.0}})
    assert history.columns(Oid(1), 0, 9)["times"] == []
    assert history.columns(Oid(150), 0, 9)["times"] == [3]


def test_a_clock_that_is_set_back_begins_the_history_anew():
    history = PageHistory()
    for second in (10, 11, 12, 5, 6):
        history.add(second, {Oid(1): {"rows": float(second)}})
    assert history.columns(Oid(1), 0, 9)["times"] == [5, 6]


# ---- documents --------------------------------------------------------------------


@pytest.mark.parametrize(
    "scene",
    [
        scenes.calm,
        scenes.empty,
        scenes.copying,
        scenes.troubled,
        scenes.hostile,
        scenes.stopped,
    ],
)
def test_every_scene_is_strict_json(scene):
    facts, problems = scene(NOW)
    texts = [
        encode(documents.state(facts, problems, {})),
        encode(documents.problems(problems)),
        *table_rows(facts, problems).values(),
    ]
    for text in texts:
        json.loads(text, parse_constant=lambda name: pytest.fail(name))
        assert b"\n" not in text, "a line break would end an event's data"


def test_a_stage_is_late_only_because_a_problem_says_so():
    facts, problems = scenes.troubled(NOW)
    stages = {
        s["name"]: {one["stage"]: one["severity"] for one in s["stages"]}
        for s in documents.state(facts, problems, {})["subscriptions"]
    }
    assert stages["shop"]["applied"] == "warning"
    assert stages["crm"]["received"] == "error"
    assert stages["crm"]["source"] == "warning"
    assert stages["shop"]["durable"] is None
    calm = documents.state(facts, (), {})["subscriptions"]
    assert {one["severity"] for s in calm for one in s["stages"]} == {None}


def test_problems_come_errors_first_and_are_bounded():
    _, few = scenes.troubled(NOW)
    listed = documents.problems(few)["problems"]
    severities = [one["severity"] for one in listed]
    assert severities == sorted(severities)
    every = [*few, *list(scenes.hostile(NOW)[1]) * 100]
    document = documents.problems(every)
    assert document["total"] == len(every)
    assert document["errors"] == sum(p.severity is Severity.ERROR for p in every)
    assert len(document["problems"]) == documents.PROBLEMS
    assert max(len(p["message"]) for p in document["problems"]) <= 2000


def test_a_row_is_made_again_only_if_something_in_it_has_changed(monkeypatch):
    made = []

    def noted(subscription: int, table: TableFacts, *others: Any) -> list[Any]:
        made.append(int(table.oid))
        return row(subscription, table, *others)

    row = documents.table_row
    monkeypatch.setattr(documents, "table_row", noted)
    facts, problems = scenes.many(NOW)
    rows = TableRows()
    first = table_rows(facts, (), of=rows)
    made.clear()
    assert table_rows(facts, (), of=rows) == first and made == []
    [s] = facts.subscriptions
    oids = [int(t.oid) for t in s.tables]
    grown = replace(s.tables[0], rows={"inserted": 10**9})
    facts = replace(facts, subscriptions=(replace(s, tables=(grown, *s.tables[1:-1])),))
    rates: dict[Hashable, float] = {("rows", int(s.oid), oids[1]): 7.0}
    in_trouble = replace(problems[0], subscription=s.name, table=s.tables[2].qualified)
    second = table_rows(facts, [in_trouble], rates, rows)
    assert made == oids[:3]
    assert b"1000000000" in second[int(s.oid), oids[0]]
    assert second.keys() == first.keys() - {(int(s.oid), oids[-1])}
    assert table_rows(facts, [in_trouble], rates) == second


def test_a_thousand_tables_are_small_and_quick_to_write():
    facts, problems = scenes.many(NOW)
    rows = list(table_rows(facts, problems).values())
    assert sum(map(len, rows)) < 200_000
    row = dict(zip(documents.TABLE_COLUMNS, json.loads(rows[5]), strict=True))
    assert row["name"] == "events_0005" and row["severity"] == "error"
    assert row["problem"] == "errored"


def test_lone_surrogates_of_a_name_are_escaped():
    assert json.loads(encode(["a\ud800"])) == ["a\ud800"]


def test_a_sample_has_all_series():
    facts, _ = scenes.calm(NOW)
    assert set(sample(facts.subscriptions[0], {})) == set(SERIES)
    assert 0 < (sample(facts.subscriptions[0], {})["visible"] or 0) < 60


def test_rates_of_rows_follow_the_counters():
    rates = RateWindow()
    for second in range(10):
        facts, _ = scenes.calm(NOW + timedelta(seconds=second))
        answer = rates.add(second, documents.totals(facts))
    [s] = facts.subscriptions
    of_tables = sum(answer["rows", int(s.oid), int(t.oid)] for t in s.tables)
    assert answer["rows", int(s.oid)] == pytest.approx(of_tables)
    assert answer["rows", int(s.oid)] > 1000


# ---- one table --------------------------------------------------------------------


def test_a_table_that_does_not_exist_has_no_document(tmp_path):
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    assert table_document(catalog, None, Oid(99)) is None
    catalog.close()


def test_a_tables_versions_begin_where_they_were_first_published(tmp_path):
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    relid, other, subid = Oid(30000), Oid(30001), Oid(20000)
    for oid in (relid, other):
        catalog.create_table(
            TableDef(
                oid,
                "public",
                f"t{oid}",
                Oid(10),
                (ColumnDef("id", Oid(20), not_null=True), ColumnDef("n", Oid(1700))),
                ("id",),
                f"/t{oid}",
            )
        )
    catalog.create_subscription(
        Subscription(subid, "s", Oid(10), True, "host=p", "s", ("p",)),
        [
            SubscriptionRel(
                subid, oid, "app", f"t{oid}", SyncState.READY, None, 1, trusted=False
            )
            for oid in (relid, other)
        ],
        {int(relid): 1, int(other): 1},
    )
    far = (1 << 63) - 1
    for lsn, versions in (
        (100, {int(relid): 2}),
        (200, {int(other): 2}),
        (300, {int(relid): 3, int(other): 3}),
        (far, {int(relid): 4}),
    ):
        catalog.publish(subid, Lsn(lsn), versions, participants=[relid, other])
    published = catalog.table_versions(subid, relid, 100)
    assert [(v.version, v.lsn) for v in published][:3] == [(4, far), (3, 300), (2, 100)]
    assert [v.version for v in catalog.table_versions(subid, relid, 2)] == [4, 3]
    assert catalog.table_versions(subid, Oid(9), 2) == []
    document = table_document(catalog, None, relid)
    assert document is not None
    assert (document["columns"], document["key"]) == (["id", "n"], ["id"])
    [mine] = document["subscriptions"]
    assert mine["source"] == {"schema": "app", "name": "t30000"}
    assert mine["versions"][1]["lsn"] == "0/12C"
    assert mine["conflicts"] == mine["coercions"] == mine["schema_history"] == []
    json.loads(encode(document))
    catalog.close()
