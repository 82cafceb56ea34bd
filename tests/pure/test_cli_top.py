"""The terminal's view: frames of facts, keys, rates, and a real terminal on a node of fakes."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.fakes.facts import NODE, NOW, ORDERS, SHOP, STOPPED, ago, large
from tests.fakes.facts import with_subscription as having
from tests.fakes.node import FakeNode
from tests.fakes.terminal import Terminal

from wal2lake.cli import __main__ as cli
from wal2lake.cli.looking import Look
from wal2lake.cli.top.frame import frame
from wal2lake.cli.top.keys import SortOrder, TopPage, TopView, names_of_keys, pressed
from wal2lake.cli.top.rates import RecentRates
from wal2lake.health import NodeFacts, problems
from wal2lake.testing.node import run_cli

VIEW = TopView()
SIZES = ((80, 24), (160, 50))


def drawn(
    facts: NodeFacts,
    view: TopView = VIEW,
    size: tuple[int, int | None] = (80, 24),
    rates: RecentRates | None = None,
    error: str | None = None,
) -> list[str]:
    width, height = size
    file = io.StringIO()
    console = Console(file=file, width=width, height=height or 25, color_system=None)
    look = Look(facts, problems(facts, facts.taken_at))
    shown = frame(
        look, rates or RecentRates(), view, width=width, height=height, error=error
    )
    console.print(shown.content)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", TopPage)
@pytest.mark.parametrize("facts", [NODE, STOPPED, large()], ids=["one", "down", "many"])
def test_every_frame_fits(
    facts: NodeFacts, page: TopPage, size: tuple[int, int]
) -> None:
    lines = drawn(facts, TopView(page), size)
    assert len(lines) == size[1]
    assert max(map(cell_len, lines)) <= size[0]
    assert lines[0].rstrip().endswith("03:02:01 UTC")
    assert lines[-1].startswith("o overview t tables c copies p problems d publisher")
    assert not set("\x1b\x07") & set("".join(lines))


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (80, 10), (1, 1), (300, 100)])
def test_a_terminal_of_any_size_is_no_error(size: tuple[int, int]) -> None:
    for page in TopPage:
        assert len(drawn(large(20), TopView(page), size)) <= max(size[1], 1)


def test_the_overview_has_stages_tables_copies_and_the_node() -> None:
    text = "\n".join(drawn(NODE))
    assert "ready (PID 1) on 127.0.0.1:5480, up 2 hours" in text
    assert "engine 800 MB, jvm 1024 MB, receiver 90 MB, heap 500 MB of 2048 MB" in text
    words = [line.split() for line in text.splitlines()]
    row = ["shop", "streaming", "0.0", "s", "0.1", "s", "0.3", "s", "0.4", "s", "-"]
    assert [*row, "12", "MB"] in words
    assert next(w[-4:] for w in words if "4,500/10,000" in w) == [
        "45%",
        "4,500/10,000",
        "110",
        "s",
    ]
    assert "most behind first" in text
    wide = "\n".join(drawn(NODE, size=(160, 40)))
    assert all(word in wide for word in ("1/2", "3072 kB", "reserved", "9/20", "0/FA0"))


def test_tables_that_are_most_behind_come_first_and_scroll() -> None:
    def names(view: TopView) -> list[str]:
        lines = drawn(large(200), view, (220, 24))
        return [line.split()[0] for line in lines if line.startswith("shop.")]

    view = TopView(TopPage.TABLES)
    first = names(view)
    assert [int(name.rpartition("_")[2]) % 97 for name in first[:3]] == [96, 96, 95]
    assert names(pressed(view, "down", 200))[:5] == first[1:6]
    by_name = names(replace(view, sort=SortOrder.NAME))
    assert by_name == sorted(by_name)
    failed = replace(ORDERS, error="broken", behind_seconds=None)
    lines = drawn(having(tables=(ORDERS, failed)), view)
    assert "error" in next(line for line in lines if line.startswith("shop."))


def test_problems_are_in_words_with_their_remedy() -> None:
    paused = replace(ORDERS, paused_since=ago(minutes=5))
    facts = having(tables=(paused,))
    assert any(
        line.startswith('warning: table "shop.orders" of subscription "shop" is paused')
        for line in drawn(facts)
    )
    text = "\n".join(drawn(facts, TopView(TopPage.PROBLEMS)))
    assert "1 problem" in text
    assert "remedy:" in text and "SELECT wal2lake.resume_table(" in text
    assert "no problems" in "\n".join(drawn(NODE, TopView(TopPage.PROBLEMS)))


def test_a_node_that_is_down_is_shown_and_said_to_be() -> None:
    assert "no node is running; this is what it has left" in drawn(STOPPED)[1]
    engineless = replace(
        NODE,
        processes=tuple(p for p in NODE.processes if p.role != "engine"),
        engine_told_at=ago(minutes=3),
    )
    told = drawn(engineless, size=(160, 24))[1]
    assert "the engine is down; the engine's numbers are 3 minutes old" in told
    shown = drawn(NODE, error="disk I/O error")
    assert "the node cannot be read: disk I/O error" in shown[3]


def test_the_publishers_slots_and_subscribers() -> None:
    text = "\n".join(drawn(NODE, TopView(TopPage.PUBLISHER), (160, 24)))
    for word in ("1 connected", "10.0.0.5:4711", "100 bytes", "pgoutput", "4096 bytes"):
        assert word in text


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = RecentRates()

    def look(seconds: float, inserted: int, received: int) -> None:
        table = replace(ORDERS, rows={"inserted": inserted, "truncated": 7})
        lag = replace(SHOP.received, lsn=type(SHOP.received.lsn)(received))
        facts = having(tables=(table,), received=lag)
        rates.add(replace(facts, taken_at=NOW + timedelta(seconds=seconds)))

    look(0, 100, 1000)
    assert rates.table(SHOP, ORDERS) is None
    look(2, 300, 5000)
    assert rates.table(SHOP, ORDERS) == 100.0 == rates.rows(SHOP)
    assert rates.received(SHOP) == 2000.0
    for second in range(3, 30):
        look(second, 300, 5000)
    assert rates.table(SHOP, ORDERS) == 0.0
    look(31, 5, 6000)
    assert rates.table(SHOP, ORDERS) is None
    shown = drawn(NODE, size=(80, None), rates=rates)
    assert any(line.startswith("shop.orders") for line in shown)


def test_keys_change_the_view() -> None:
    assert list(names_of_keys("t\x1b[Bq\x1b[5~\x1b[99xo\x1b")) == [
        "t",
        "down",
        "q",
        "page up",
        "o",
    ]
    view = TopView()
    assert pressed(view, "t", 5).page is TopPage.TABLES
    assert pressed(view, "\t", 5).page is TopPage.TABLES
    assert pressed(view, "back tab", 5).page is TopPage.PUBLISHER
    assert pressed(view, "s", 5).sort is SortOrder.RATE
    assert pressed(view, "page down", 5).scroll == 5
    assert pressed(pressed(view, "end", 5), "up", 5).scroll == 4
    assert pressed(view, "up", 5).scroll == 0
    assert pressed(view, "q", 5).ended and not pressed(view, "x", 5).ended


def test_a_pipe_gets_one_frame_without_colours(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    assert cli.main(["init", "-D", str(directory)]) == 0
    done = run_cli("top", "-D", directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no node is running; this is what it has left" in done.stdout
    assert "no subscriptions" in done.stdout
    assert "\x1b" not in done.stdout
    done = run_cli("top", "-D", tmp_path)
    assert done.returncode == 1
    assert "is not a wal2lake node" in done.stderr


def test_a_terminal_shows_pages_follows_its_size_and_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    node = FakeNode(tmp_path)
    node.subscribe(1)
    node.start()
    terminal = Terminal("-D", str(tmp_path), "--interval", "0.2")
    terminal.wait_for("\x1b[?1049h")
    terminal.wait_for("ready (PID")
    terminal.wait_for("s1")
    assert "WAL/s" not in terminal.output
    terminal.output = ""
    terminal.resize(160, 40)
    terminal.wait_for("WAL/s")
    terminal.press("d")
    terminal.wait_for("no slots and no subscribers")
    terminal.press("o")
    node.close()
    assert node.process is not None
    node.process.kill()
    terminal.wait_for("no node is running; this is what it has left")
    assert "\x1b[3" not in terminal.output
    terminal.end("q")
    terminal = Terminal("-D", str(tmp_path))
    terminal.wait_for("s1")
    terminal.end("\x03")
