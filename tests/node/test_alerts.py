"""Alerts of a whole node: a problem begins and ends, over kill -9 of the web process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def said(file: Path) -> list[dict[str, Any]]:
    """The alerts that the command has been given."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def web_pid(node: Node) -> int | None:
    return next((w.pid for w in node.status().workers if w.role == "web"), None)


def test_an_alert_begins_and_ends_once_over_a_kill(
    pg18: Database, tmp_path: Path
) -> None:
    pg18.psql(
        "create table al (id int primary key); create publication al for table al"
    )
    file = tmp_path / "alerts"
    settings = {
        "web.listen": "",
        "alerts.command": f"cat >> {file}; echo >> {file}",
        "alerts.delay_ms": 100,
    }
    with Node(tmp_path / "node", settings=settings) as node:
        node.init().start()
        node.sql(
            f"create subscription al connection {quote_literal(pg18.conninfo())}"
            " publication al"
        )
        node.wait_for(
            "select srsubstate from pg_subscription_rel", lambda rows: rows == [("r",)]
        )
        node.sql("alter subscription al disable")

        def of_kind(event: str) -> list[dict[str, Any]]:
            return [
                alert
                for alert in said(file)
                if alert["problem"]["kind"] == "disabled" and alert["event"] == event
            ]

        wait_until(
            lambda: of_kind("begin"), timeout_seconds=150, describe=node.log_text
        )
        (begin,) = of_kind("begin")
        assert begin["problem"]["subscription"] == "al"
        assert begin["problem"]["remedy"] == 'ALTER SUBSCRIPTION "al" ENABLE;'
        assert begin["node"]["directory"] == str(node.directory)
        # It is noted as accepted; before that, a kill would have it sent again.
        noted = node.directory / "run" / "alerts-command.json"
        wait_until(
            lambda: (
                (begin["id"], "announced")
                in [
                    (e["id"], e["stage"])
                    for e in json.loads(noted.read_text())["entries"]
                ]
            )
        )
        killed = web_pid(node)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: web_pid(node) not in (killed, None), timeout_seconds=150)
        # What the alert says repairs it.
        node.sql(begin["problem"]["remedy"])
        wait_until(lambda: of_kind("end"), timeout_seconds=150, describe=node.log_text)
        (end,) = of_kind("end")
        assert end["id"] == begin["id"]
        assert len(of_kind("begin")) == 1
        node.sql("drop subscription al")
