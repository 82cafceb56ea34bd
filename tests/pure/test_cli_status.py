"""The status of a node as text, JSON and exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.facts import (
    COPYING,
    ENGINE,
    NODE,
    NOW,
    ORDERS,
    SHOP,
    STOPPED,
    ago,
    large,
    with_subscription,
)

from wal2lake.cli import __main__ as cli
from wal2lake.cli.looking import Look, NodeCondition, condition
from wal2lake.cli.status.document import document
from wal2lake.cli.status.lines import lines
from wal2lake.cli.terminal.words import seconds_text
from wal2lake.health import DiskFacts, NodeFacts, problems


def look(facts: NodeFacts) -> Look:
    return Look(facts, problems(facts, NOW))


def text(facts: NodeFacts) -> str:
    return "\n".join(lines(look(facts)))


def test_a_node_that_is_well() -> None:
    assert text(NODE) == (
        "node is ready (PID 1), listening on 127.0.0.1:5480\n"
        "  engine: PID 3 since 2026-05-04T01:02:01+00:00\n"
        '  receiver of subscription "shop": PID 7 since 2026-05-04T02:57:01+00:00,'
        " restarted 2x\n"
        'subscription "shop": streaming, 1 of 2 tables ready, applied 0/FF8,'
        " 0.4 s (912 bytes) behind\n"
        "  behind the source: received 0.0 s, durable 0.1 s, applied 0.3 s,"
        " visible 0.4 s\n"
        "  copying shop.payments: 45 %, 4,500 of about 10,000 rows, 110 seconds left"
    )
    assert condition(look(NODE)) is NodeCondition.WELL


def test_where_the_page_is_or_why_it_is_not() -> None:
    served = replace(NODE, web_urls=("http://127.0.0.1:5481/",))
    assert "\n  metrics and page: http://127.0.0.1:5481/\n" in text(served)
    assert document(look(served))["web"]["urls"] == ["http://127.0.0.1:5481/"]
    taken = replace(NODE, web_error="could not bind: Address already in use")
    assert (
        "\n  metrics and page are not served: could not bind: Address already in use\n"
    ) in text(taken)
    assert condition(look(taken)) is NodeCondition.WELL


def test_a_problem_has_its_time_whom_it_concerns_and_its_remedy() -> None:
    paused = replace(ORDERS, paused_since=ago(minutes=5), behind_seconds=300.0)
    shown = text(with_subscription(tables=(paused,)))
    assert (
        "\n\n1 problem\n"
        'warning: table "shop.orders" of subscription "shop" is paused'
        " (for 5 minutes; concerns you)\n"
        "  since: 2026-05-04 02:57:01 UTC\n"
        "  hint: The log keeps what the table misses." in shown
    )
    assert "  remedy:\n    SELECT wal2lake.resume_table(" in shown


def test_names_cannot_move_the_cursor() -> None:
    facts = with_subscription(
        name="a\x1b[2J", errors={"apply": ("x\x07y", "XX000", NOW)}
    )
    shown = text(facts)
    assert "a?[2J" in shown and not set("\x1b\x07") & set(shown)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (with_subscription(tables=()), NodeCondition.WELL),
        (with_subscription(tables=(COPYING,)), NodeCondition.WELL),
        (with_subscription(enabled=False, state="disabled"), NodeCondition.TROUBLE),
        (with_subscription(state="retrying"), NodeCondition.TROUBLE),
        (with_subscription(state="down", receiver_pid=None), NodeCondition.TROUBLE),
        (
            with_subscription(errors={"apply": ("an error", "22000", NOW)}),
            NodeCondition.TROUBLE,
        ),
        (
            with_subscription(tables=(replace(ORDERS, paused_since=NOW),)),
            NodeCondition.TROUBLE,
        ),
        (
            with_subscription(tables=(replace(ORDERS, freshness=0.2),)),
            NodeCondition.TROUBLE,
        ),
        (
            replace(NODE, disks=(DiskFacts("log", "/srv", 1, 10**12, 1),)),
            NodeCondition.TROUBLE,
        ),
        (replace(NODE, settings_error="bad"), NodeCondition.WELL),
        (STOPPED, NodeCondition.DOWN),
        (replace(NODE, state="starting"), NodeCondition.DOWN),
        (replace(NODE, state="stopping"), NodeCondition.DOWN),
        (
            replace(NODE, processes=tuple(p for p in NODE.processes if p != ENGINE)),
            NodeCondition.DOWN,
        ),
    ],
)
def test_the_condition_of_a_node(facts: NodeFacts, expected: NodeCondition) -> None:
    assert condition(look(facts)) is expected


def test_the_names_in_json_are_a_contract() -> None:
    told = document(look(with_subscription(errors={"apply": ("first", "22000", NOW)})))
    assert list(told)[:8] == [
        "directory",
        "state",
        "version",
        "pid",
        "address",
        "port",
        "started_at",
        "processes",
    ]
    assert [p["role"] for p in told["processes"]] == [
        "supervisor",
        "guardian",
        "engine",
        "receiver",
    ]
    assert told["processes"][3] == {
        "role": "receiver",
        "pid": 7,
        "started_at": "2026-05-04T02:57:01+00:00",
        "starts": 3,
        "subscription": "shop",
        "rss_bytes": 90 << 20,
    }
    (shop,) = told["subscriptions"]
    assert {k: v for k, v in shop.items() if k in list(shop)[:14]} == {
        "name": "shop",
        "enabled": True,
        "state": "streaming",
        "receiver_pid": 7,
        "received_lsn": "0/1388",
        "logged_lsn": "0/1324",
        "applied_lsn": "0/FF8",
        "lag_bytes": 912,
        "tables": 2,
        "tables_ready": 1,
        "rows_copied": 4590,
        "last_error": "first",
        "errors": {"apply": "first"},
        "lag_seconds": 0.4,
    }
    assert shop["stages"]["durable"] == {
        "lsn": "0/1324",
        "behind_bytes": 100,
        "behind_seconds": 0.1,
    }
    assert shop["table_states"][1]["copy"]["rows_expected"] == 10_000
    (problem,) = told["problems"]
    assert (problem["kind"], problem["concern"]) == ("errored", "operator")
    assert told["condition"] == "trouble"
    json.dumps(document(look(large())))


def test_status_check_tells_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "-D", str(tmp_path), "--check"]) == 2
    assert "is not a wal2lake node" in capsys.readouterr().err
    directory = tmp_path / "node"
    assert cli.main(["init", "-D", str(directory)]) == 0
    assert cli.main(["status", "-D", str(directory), "--check", "--json"]) == 2
    assert '"condition": "down"' in capsys.readouterr().out
    (directory / "catalog.sqlite").write_bytes(b"nothing")
    assert cli.main(["status", "-D", str(directory), "--check"]) == 2
    assert cli.main(["status", "-D", str(directory)]) == 1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (119.0, "119 s"),
        (150.0, "2 min"),
        (7300.0, "2 h"),
        (200_000.0, "2 d"),
    ],
)
def test_lags_are_short(seconds: float | None, expected: str) -> None:
    assert seconds_text(seconds) == expected


def test_the_subscription_of_the_tests_is_well() -> None:
    assert problems(NODE, NOW) == ()
    assert SHOP.visible.lsn <= SHOP.applied.lsn <= SHOP.durable.lsn
