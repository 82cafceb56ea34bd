"""deploy/prometheus and deploy/grafana: they name what the node has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wal2lake.web.metrics import METRICS, MetricKind

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "wal2lake.rules.yml"
RULE_TESTS = DEPLOY / "prometheus" / "wal2lake.rules.test.yml"
DASHBOARD = DEPLOY / "grafana" / "wal2lake.json"
GUIDE = DEPLOY.parent / "docs" / "guide" / "monitoring.md"

OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds."""


def known() -> dict[str, set[str]]:
    """Return the labels of each name that a query may use."""
    names = {}
    for metric in METRICS:
        labels = set(metric.labels) | OF_PROMETHEUS
        if metric.kind is MetricKind.HISTOGRAM:
            for suffix in ("_bucket", "_count", "_sum"):
                names[metric.name + suffix] = labels
        else:
            names[metric.name] = labels
    return names


@pytest.mark.parametrize(
    "path", [RULES, RULE_TESTS, DASHBOARD, GUIDE], ids=lambda p: p.name
)
def test_every_name_and_label_exists(path):
    names, found = known(), 0
    text = path.read_text().replace(r"\"", '"')
    for match in re.finditer(r"\b(wal2lake_[a-z0-9_]+)(?:\{([^}]*)\})?", text):
        name, matchers = match[1], match[2] or ""
        assert name in names, name
        used = set(re.findall(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"', matchers))
        assert used <= names[name], (name, used)
        found += 1
    assert found > 5


def alerts() -> dict[str, str]:
    """Return the text of each alert."""
    parts = re.split(r"(?m)^      - alert: ", RULES.read_text())[1:]
    return {part.split("\n", 1)[0]: part for part in parts}


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_is_wrong_and_what_to_do_and_is_tested(name):
    text = alerts()[name]
    assert re.search(r"severity: (warning|critical)", text)
    assert "summary:" in text and "runbook:" in text
    assert name in RULE_TESTS.read_text()


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something."""
    dashboard = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """Yield the queries of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


def test_a_panel_has_a_title_a_description_and_a_place_of_its_own():
    places: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["title"] and panel["description"].endswith(".")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + x, place["y"] + y)
            for x in range(place["w"])
            for y in range(place["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_shows_each_part_of_the_node():
    shown = "\n".join(queries())
    for name in (
        "lag_seconds",
        "commit_to_visible",
        "rows_total",
        "copy_rows",
        "log_limit",
        "source_slot",
        "walsender",
        "jvm_heap",
        "disk_free",
    ):
        assert name in shown
