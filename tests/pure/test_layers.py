"""The runner of the layers: which runs pass, and what is told of second tries."""

from __future__ import annotations

from pathlib import Path

from tools.layers import (
    MOST_RETRIED,
    Layer,
    processes,
    read_report,
    summary,
    verdict,
)


def test_a_report_counts_what_ran_and_names_what_failed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        "<testcase classname='tests.node.test_a' name='test_good'/>"
        "<testcase classname='tests.node.test_a' name='test_skipped'><skipped/>"
        "</testcase>"
        "<testcase classname='tests.node.test_a' name='test_bad[1]'><failure/>"
        "</testcase>"
        # pytest reports a failed teardown beside the result of the call.
        "<testcase classname='tests.node.test_a' name='test_torn'/>"
        "<testcase classname='tests.node.test_a' name='test_torn'><error/>"
        "</testcase>"
        "</testsuite></testsuites>"
    )
    assert read_report(report) == (
        3,
        ["tests.node.test_a::test_bad[1]", "tests.node.test_a::test_torn"],
    )
    assert read_report(tmp_path / "none.xml") == (0, [])


def test_a_run_fails_if_a_test_fails_twice_or_many_fail_once() -> None:
    few = [f"test_{i}" for i in range(MOST_RETRIED)]
    assert verdict([Layer("pure"), Layer("bugs", code=5)]) == 0
    assert verdict([Layer("pure", retried=few)]) == 0
    assert verdict([Layer("pure", retried=few), Layer("node", retried=["more"])]) == 1
    assert verdict([Layer("pure", retried=["test_a"], code=1)]) == 1
    # Interrupted, or pytest could not start.
    assert verdict([Layer("pure", code=2)]) == 1


def test_the_summary_tells_times_and_second_tries() -> None:
    text = summary(
        [
            Layer("pure", seconds=370.4, tests=3755),
            Layer("node", seconds=61.0, tests=211, retried=["test_a::test_b"]),
        ]
    )
    assert text.splitlines() == [
        "layer       tests    time  retried",
        "pure         3755    6:10        0",
        "node          211    1:01        1",
        "failed at the first try (at most 3 may):",
        "  test_a::test_b",
    ]


def test_more_processes_run_tests_that_mostly_wait() -> None:
    assert processes("node", 2) == 2
    assert processes("pure", 2) == 4
