"""Counters and histograms that processes keep are exported under their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from wal2lake.web.metrics import METRICS, MetricKind
from wal2lake.web.metrics.declarations import PREFIX

SOURCES = Path(__file__).parents[2] / "src" / "wal2lake"

ROOMS = ("apply", "engine", "publish", "receive", "tablesync", "lake", "local", "door")

METHODS = {
    "count": "_total",
    "_count": "_total",
    "observe": "_seconds",
    "observe_all": "_seconds",
}


def names() -> Iterator[str]:
    """Yield names of counters and histograms in the calls of the sources."""
    for room in ROOMS:
        for path in (SOURCES / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                function = node.func
                method = (
                    function.attr
                    if isinstance(function, ast.Attribute)
                    else function.id
                    if isinstance(function, ast.Name)
                    else ""
                )
                for argument in node.args:
                    value = argument.value if isinstance(argument, ast.Constant) else 0
                    suffix = METHODS.get(method)
                    if suffix and isinstance(value, str) and value.endswith(suffix):
                        yield value


def test_every_counter_and_histogram_that_is_kept_is_exported_and_no_other():
    kept = set(names())
    exported = {m.name.removeprefix(PREFIX) for m in METRICS if m.measured}
    assert kept == exported
    assert len(kept) > 10


def test_what_is_measured_only_grows():
    assert {m.kind for m in METRICS if m.measured} == {
        MetricKind.COUNTER,
        MetricKind.HISTOGRAM,
    }
