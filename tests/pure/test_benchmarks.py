"""The arithmetic and the command line of the benchmarks; never their figures."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from datetime import UTC, datetime
from decimal import Decimal

import benchmarks
import pytest
from benchmarks.changes import decoding, latency, streamed
from benchmarks.changes.shapes import SHAPES
from benchmarks.copies import copying
from benchmarks.heap import Heap, size_bytes
from benchmarks.options import OPT_IN, WORKLOADS, parse
from benchmarks.positions import Positions, delays
from benchmarks.report import (
    Result,
    Target,
    as_json,
    milliseconds,
    percentile,
    rate,
    render,
    show,
)
from benchmarks.usage import role_of


def test_without_names_all_but_the_longest_run_at_the_size_of_the_targets() -> None:
    options = parse([])
    assert options.workloads == tuple(n for n in WORKLOADS if n not in OPT_IN)
    assert (options.rows_scale, options.seconds, options.node) == (1.0, 30, True)
    assert options.scaled(2_000_000) == 2_000_000


def test_names_run_in_their_order_and_once() -> None:
    options = parse(["idle", "copy", "idle", "--rows-scale", "0.1", "--no-node"])
    assert options.workloads == ("copy", "idle")
    assert options.scaled(1_000_000) == 100_000
    assert options.scaled(1) == 1
    assert not options.node
    assert parse([*OPT_IN]).workloads == tuple(n for n in WORKLOADS if n in OPT_IN)


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["--rows-scale", "0"], ["--rows-scale", "x"], ["--seconds", "0"]],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert "usage: python -m benchmarks" in capsys.readouterr().err


def test_a_ratio_is_ours_divided_by_native() -> None:
    assert Result("w", "x", "rows/s", 50.0, 200.0).ratio == 0.25
    assert Result("w", "x", "rows/s", 50.0).ratio is None
    assert Result("w", "x", "rows/s", None, 200.0).ratio is None
    assert Result("w", "x", "ms", 1.0, 0.0).ratio is None


def test_a_target_is_met_at_its_bound_and_unknown_without_a_figure() -> None:
    half = Target(ratio_at_least=0.5)
    assert Result("w", "x", "rows/s", 1.0, 2.0, half).met is True
    assert Result("w", "x", "rows/s", 0.99, 2.0, half).met is False
    assert Result("w", "x", "rows/s", None, 2.0, half).met is None
    limit = Target(at_most=500.0)
    assert Result("w", "x", "MB", 500.0, target=limit).met is True
    assert Result("w", "x", "MB", 500.1, target=limit).met is False
    least = Target(at_least=1_000_000)
    assert Result("w", "x", "rows/s", 1e6, target=least).met is True
    assert Result("w", "x", "rows/s", 999_999.0, target=least).met is False
    assert Result("w", "x", "rows/s", None, target=least).met is None
    assert (str(limit), str(least)) == ("<= 500", ">= 1,000,000")
    assert Result("w", "x", "MB", 1.0).met is None


def test_an_aim_is_beyond_the_target_and_decides_nothing() -> None:
    target = Target(ratio_at_least=1.0, aim=1.3)
    assert str(target) == "ratio >= 1 (aim 1.3)"
    found = [Result("w", "x", "s", ours, 1.0, target) for ours in (0.9, 1.2, 1.3)]
    assert [one.met for one in found] == [False, True, True]
    assert [one.aim_met for one in found] == [False, False, True]
    assert [line.split()[-1] for line in render(found).splitlines()[-3:]] == [
        "NO",
        "yes",
        "aim",
    ]
    assert Result("w", "x", "s", 1.3, target=target).aim_met is None
    assert Result("w", "x", "s", 1.3, 1.0, Target(ratio_at_least=1)).aim_met is None


def test_a_percentile_is_a_value_that_did_occur() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile(values, 100) == 100.0
    assert percentile([7.0], 1) == 7.0
    assert percentile([], 50) is None
    assert milliseconds([0.001, 0.25], 99) == 250.0
    assert milliseconds([], 99) is None


def test_a_rate_without_a_time_is_unknown() -> None:
    assert rate(10, 2.0) == 5.0
    assert rate(10, None) is None
    assert rate(10, 0.0) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.00123, "0.00123"),
        (0.5, "0.500"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (1234567.8, "1,234,568"),
    ],
)
def test_figures_have_three_digits_and_no_exponent(
    value: float | None, text: str
) -> None:
    assert show(value) == text


def test_the_table_has_a_block_per_workload_and_says_what_missed_its_target() -> None:
    results = [
        Result("copy", "speed", "rows/s", 100.0, 200.0, Target(ratio_at_least=1)),
        Result("idle", "CPU", "%", 1.5, target=Target(at_most=5)),
        Result("idle", "RSS", "MB", 300.0),
    ]
    lines = render(results).splitlines()
    assert lines[0].split() == ["what", "ours", "native", "ratio", "target", "met"]
    assert lines[2] == "copy:"
    assert lines[3].split() == [
        *("speed", "[rows/s]", "100", "200", "0.50"),
        *("ratio", ">=", "1", "NO"),
    ]
    assert lines[4] == "idle:"
    assert lines[5].split() == ["CPU", "[%]", "1.50", "-", "-", "<=", "5", "yes"]
    assert lines[6].split() == ["RSS", "[MB]", "300", "-", "-"]


def test_the_table_can_be_empty() -> None:
    assert render([]).splitlines()[0].startswith("what")


def test_the_json_has_what_the_table_has() -> None:
    one = Result("copy", "speed", "rows/s", 1.0, 2.0, Target(ratio_at_least=0.5))
    found = json.loads(json.dumps(as_json({"cores": 2}, [one])))
    assert found["facts"] == {"cores": 2}
    assert found["results"] == [
        {
            "workload": "copy",
            "what": "speed",
            "unit": "rows/s",
            "ours": 1.0,
            "native": 2.0,
            "ratio": 0.5,
            "target": "ratio >= 0.5",
            "met": True,
            "aim_met": None,
        }
    ]


def test_a_transaction_has_arrived_only_beyond_its_mark() -> None:
    seen = Positions()
    for moment, lsn in ((1.0, 100), (1.1, 100), (1.2, 150), (1.3, 300)):
        seen.note(moment, lsn)
    assert seen.looks == 4
    # The position that stands at the mark has the row, but not the commit.
    assert seen.delay(1.15, 150) == pytest.approx(0.15)
    assert seen.delay(1.15, 149) == pytest.approx(0.05)
    assert seen.delay(1.25, 100) == 0.0
    assert seen.delay(1.3, 300) is None
    assert (seen.beyond(299), seen.beyond(300)) == (True, False)
    assert delays(seen, [(1.15, 149), (1.3, 300)]) == [pytest.approx(0.05)]


def test_a_standstill_is_the_longest_time_between_two_advances() -> None:
    seen = Positions()
    for moment, lsn in ((1.0, 100), (3.0, 100), (4.0, 101), (4.5, 200), (9.0, 200)):
        seen.note(moment, lsn)
    assert seen.longest_standstill(1.0) == 3.0
    assert seen.longest_standstill(3.75) == 0.5
    assert seen.longest_standstill(5.0) == 0.0, "nothing has moved since"


def test_the_largest_heap_of_all_samples_counts() -> None:
    heap, names = Heap(None), ["S0C", "S1C", "S0U", "S1U", "EC", "EU", "OC", "OU", "MC"]
    for line in (
        "0.0 10.0 0.0 10.0 100.0 7.0 900.0 83.0 5.0",
        "0.0 10.0 0.0 10.0 90.0 90.0 800.0 100.0 5.0",
        "0.0 10.0 0.0 1",
    ):
        heap.note(dict(zip(names, line.split(), strict=False)))
    assert (heap.in_use_bytes, heap.taken_bytes) == (200 << 10, 1010 << 10)
    with heap:
        pass
    assert [size_bytes(text) for text in ("512m", "2G")] == [512 << 20, 2 << 30]
    with pytest.raises(ValueError, match="no size"):
        size_bytes("2")


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python -m wal2lake.launch.children.child wal2lake.receive -D d", "receiver"),
        ("python -m wal2lake.receive -D d --subscription 9", "receiver"),
        (
            "python -m wal2lake.launch.children.child wal2lake.engine -D d",
            "engine",
        ),
        ("python -m wal2lake.cli start -D d", "supervisor"),
        ("/usr/lib/jvm/bin/java -cp x org.apache.spark.deploy.SparkSubmit", "jvm"),
        ("python -m wal2lake.executor pyspark.worker", "python worker"),
        ("postgres: walsender postgres postgres 127.0.0.1(1) START", "walsender"),
        ("postgres: logical replication apply worker for 1", "apply"),
        ("postgres: logical replication tablesync worker for 1", "tablesync"),
        ("postgres: checkpointer", "postgres"),
        ("bash", "other"),
    ],
)
def test_a_process_is_known_by_its_command_line(command: str, role: str) -> None:
    assert role_of(command) == role


def test_every_workload_is_one_that_a_module_runs() -> None:
    """And each module still fits the product, as far as importing it shows."""
    named: set[str] = set(SHAPES)
    for plan in (*copying.PLANS, *latency.LOADS, *streamed.PLANS):
        named.add(plan.name)
    for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            if hasattr(module, "run"):
                headline = str(module.__doc__).partition("\n")[0]
                named.update(re.findall(r"``(\w+)``", headline))
    assert named == set(WORKLOADS)


@pytest.mark.parametrize("binary", [False, True])
def test_the_backlogs_table_is_the_same_in_both_formats(binary: bool) -> None:
    runs = decoding.feeds(decoding.backlogs_table(50, binary=binary), 1000)
    assert len(runs) > 1
    assert decoding.decode(runs) == 50
    rows = [row for table in decoding.converted(runs) for row in table.to_pylist()]
    assert len(rows) == 50
    assert rows[13] == {
        "id": 13,
        "customer": 13 * 37,
        "amount": Decimal("0.13"),
        "created": datetime(2026, 1, 1, 0, 0, 13, 13_000, UTC),
        "note": "c51ce410c124a10e0db5e4b97fc2af39aab3238922bcc25a6f",
        "paid": False,
    }
