"""The text of /metrics: names, formats, bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from tests.fakes.facts import NOW
from tests.fakes.readings import (
    NAMES,
    full_reading,
    node,
    reading,
    subscription,
    table,
    telemetry,
)

from wal2lake.model import Lsn
from wal2lake.observe.series import SeriesValues
from wal2lake.observe.telemetry import BUCKETS
from wal2lake.web.metrics import METRICS, MetricKind, MetricSheet, fill
from wal2lake.web.metrics import declarations as m
from wal2lake.web.metrics.route import wants_openmetrics
from wal2lake.web.metrics.samples import MAX_TABLES, SampleTexts
from wal2lake.web.metrics.sheet import label_text
from wal2lake.web.reading import NodeReading

UNITS = ("_bytes", "_seconds", "_total", "_info", "_timestamp_seconds")


def text(reading: NodeReading, *, openmetrics: bool = False) -> str:
    sheet = MetricSheet()
    fill(sheet, reading)
    return sheet.render(openmetrics=openmetrics).decode()


def values(reading: NodeReading) -> dict[tuple[str, frozenset[str]], float]:
    """Return the samples by name and label values."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in parse_openmetrics(text(reading, openmetrics=True))
        for sample in family.samples
    }


def test_every_metric_has_a_value_when_everything_happens():
    shown = text(full_reading())
    missing = [
        m.name for m in METRICS if f"# TYPE {m.name} {m.kind.value}\n" not in shown
    ]
    assert missing == []


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_names_and_help_follow_the_rules_for_exporters(metric):
    assert re.fullmatch(r"wal2lake_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert not re.search(r"_(ms|millis|kb|mb|percent|count|sum|bucket)$", metric.name)
    assert metric.help.endswith(".") and len(metric.help) > 10
    assert len(set(metric.labels)) == len(metric.labels) <= 3
    assert "pid" not in metric.labels and "le" not in metric.labels


def test_names_are_unique():
    assert len({m.name for m in METRICS}) == len(METRICS)


def test_both_formats_are_read_by_the_library_and_say_the_same():
    made = full_reading()
    plain, openmetrics = (
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }
        for families in (
            parse_plain(text(made)),
            parse_openmetrics(text(made, openmetrics=True)),
        )
    )
    assert plain == openmetrics
    tables = {dict(labels).get("table") for _, labels in plain}
    assert {f"public.{name}" for name in NAMES} <= tables


def test_a_histogram_is_cumulated_and_has_a_bucket_without_bound():
    lines = [
        line
        for line in text(full_reading()).splitlines()
        if line.startswith("wal2lake_commit_to_durable_seconds")
    ]
    counts = [int(line.rpartition(" ")[2]) for line in lines if "_bucket" in line]
    assert len(counts) == len(BUCKETS) + 1 and counts == sorted(counts)
    assert 'le="+Inf"' in lines[len(BUCKETS)]
    assert lines[-2].endswith(f'_count{{subscription="s"}} {counts[-1]}')
    assert lines[-1].endswith('_sum{subscription="s"} 12.5')


def test_what_is_not_known_has_no_series():
    unknown = table(1, behind_seconds=None, freshness=None, version=None, files=None)
    shown = text(reading(unknown))
    for name in ("lag_seconds", "freshness_seconds", "version", "files"):
        assert f"wal2lake_table_{name}{{" not in shown
    assert "None" not in shown


def test_positions_are_exact():
    shown = text(full_reading())
    assert f'{{subscription="s",stage="visible"}} {2**60 + 1}' in shown


def test_a_table_is_behind_by_what_the_source_has_and_it_has_not():
    ahead = table(2, applied_lsn=Lsn(5000))
    found = values(reading(table(1), ahead))
    assert found["wal2lake_table_lag_bytes", frozenset({"s", "public.table_1"})] == 100
    assert found["wal2lake_table_lag_bytes", frozenset({"s", "public.table_2"})] == 0


def test_paused_and_failed_tables_are_counted_apart():
    found = values(
        reading(table(1), table(2, paused_since=NOW), table(3, error="broken"))
    )
    counts = [
        found["wal2lake_subscription_tables", frozenset({"s", state})]
        for state in ("ready", "paused", "failed", "init")
    ]
    assert counts == [1, 1, 1, 0]


def test_two_subscribers_with_one_name_and_slot_are_one_series_with_the_largest_lag():
    found = values(full_reading())
    labels = ("a", "down")
    assert found["wal2lake_walsender_lag_bytes", frozenset({*labels, "sent"})] == 10
    flushed = frozenset({*labels, "flushed"})
    assert found["wal2lake_walsender_lag_bytes", flushed] == 50
    assert found["wal2lake_walsender_lag_seconds", flushed] == 1.5


def test_temporary_slots_have_no_series():
    made = full_reading()
    [slot] = made.facts.slots
    hidden = replace(slot, name="of_a_copy", temporary=True)
    assert "of_a_copy" not in text(
        replace(made, facts=replace(made.facts, slots=(slot, hidden)))
    )


def test_what_processes_have_measured_of_dropped_subscriptions_is_left_out():
    made = replace(reading(table(1)), telemetry=(*telemetry("s"), *telemetry("gone")))
    shown = text(made)
    assert 'received_bytes_total{subscription="s"} 17' in shown
    assert "gone" not in shown and "not_declared" not in shown


def test_measurements_of_tables_that_have_left_the_subscription_are_left_out():
    made = replace(reading(table(1)), telemetry=telemetry("s", table(1), table(2)))
    shown = text(made)
    assert (
        'rows_total{kind="copied",subscription="s",table="public.table_1"} 3' in shown
    )
    assert "table_2" not in shown


def test_more_tables_than_the_bound_lose_their_series_but_not_those_in_trouble():
    tables = [table(number) for number in range(MAX_TABLES)]
    tables.append(table(MAX_TABLES, paused_since=NOW))
    tables.append(table(MAX_TABLES + 1, behind_seconds=99.0))
    shown = text(reading(*tables))
    assert shown.count("wal2lake_table_ready{") == MAX_TABLES
    assert "wal2lake_tables_left_out 2" in shown
    for number in (MAX_TABLES, MAX_TABLES + 1):
        assert f'table_ready{{subscription="s",table="public.table_{number}"}}' in shown


def test_a_node_without_anything_is_valid_too():
    empty = NodeReading(replace(node(), version=None), (), (), 0.0)
    families = list(parse_openmetrics(text(empty, openmetrics=True)))
    assert families and list(parse_plain(text(empty)))


def test_labels_of_a_table_are_written_once_for_all_its_metrics(monkeypatch):
    written = 0

    def counted(names: Sequence[str], of: Sequence[str]) -> str:
        nonlocal written
        written += 1
        return label_text(names, of)

    monkeypatch.setattr("wal2lake.web.metrics.samples.label_text", counted)
    tables = [table(number) for number in range(1000)]
    made = replace(reading(*tables), telemetry=())
    assert text(made).count("\n") > 10_000
    assert written == 1000


def test_texts_of_earlier_readings_change_nothing():
    texts = SampleTexts()
    first = reading(table(1), table(2))
    gone = replace(reading(table(2)), telemetry=first.telemetry)
    renamed = reading(table(2, name="other"))
    nameless = reading(table(1), name="t")
    late = reading(table(1, version=None), table(2, behind_seconds=7.5))
    for made in (first, first, late, gone, renamed, nameless, full_reading(), first):
        sheet = MetricSheet()
        fill(sheet, made, texts)
        assert sheet.render(openmetrics=True).decode() == text(made, openmetrics=True)


def test_labels_that_are_known_are_not_written_again(monkeypatch):
    texts = SampleTexts()
    tables = [table(number) for number in range(100)]
    made = reading(*tables)
    fill(MetricSheet(), made, texts)

    def refused(names: Sequence[str], of: Sequence[str]) -> str:
        raise AssertionError(f"{names} {of}")

    monkeypatch.setattr("wal2lake.web.metrics.samples.label_text", refused)
    # Other numbers, as a file with the same names has them.
    measured = tuple(
        replace(
            process,
            counters=SeriesValues(
                process.counters.names,
                [value + 1 for value in process.counters.values_in_order],
            ),
        )
        for process in made.telemetry
    )
    sheet = MetricSheet()
    fill(sheet, replace(made, telemetry=measured), texts)
    shown = sheet.render(openmetrics=False).decode()
    assert (
        'rows_total{kind="copied",subscription="s",table="public.table_7"} 4' in shown
    )


def test_values_are_written_as_both_formats_want_them():
    sheet = MetricSheet()
    values = [2**64 + 1, 0.5, float("nan"), float("inf"), float("-inf"), None]
    sheet.add_column(m.TABLE_FILES, [f'x="{n}"' for n in range(6)], values)
    sheet.add_column(m.TABLE_BYTES, ['x="0"'], [None])
    shown = sheet.render(openmetrics=False).decode().splitlines()
    assert [line.rpartition(" ")[2] for line in shown[2:]] == [
        "18446744073709551617",
        "0.5",
        "NaN",
        "+Inf",
        "-Inf",
    ]


def test_a_name_with_half_a_surrogate_does_not_end_the_scrape():
    sheet = MetricSheet()
    fill(sheet, replace(reading(), facts=node(subscription("\ud800", ()))))
    assert b"?" in sheet.render(openmetrics=False)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            True,
        ),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text", True),
        ('APPLICATION/openmetrics-text;version="1.0.0"', True),
        ("text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/vnd.google.protobuf;q=1,text/plain;q=0.1", False),
        ("*/*", False),
        ("", False),
        (";=,;q", False),
    ],
)
def test_the_format_is_the_one_that_the_scraper_prefers(accept, openmetrics):
    assert wants_openmetrics(accept) is openmetrics


@given(st.text(st.sampled_from('aq=;,/.01 \t"openmetrics-text')))
def test_no_accept_header_is_an_error(accept):
    wants_openmetrics(accept)
