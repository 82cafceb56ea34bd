"""Spinners and bars: on terminals only, and gone when the work is done."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.facts import COPYING, NODE, NOW, ORDERS, STOPPED, with_subscription

from wal2lake.cli import copywait
from wal2lake.cli.copywait import wait_copies
from wal2lake.cli.looking import Look
from wal2lake.cli.terminal import progress
from wal2lake.cli.terminal.copybars import CopyBars
from wal2lake.cli.terminal.progress import late_spinner, waiting
from wal2lake.health import NodeFacts, problems
from wal2lake.launch.start.detached import last_message
from wal2lake.model import SyncState
from wal2lake.testing.waits import wait_until


class Stream(io.StringIO):
    """A terminal, as far as ``isatty`` tells."""

    def isatty(self) -> bool:
        return True


def attached(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Standard error, which is a terminal from now on, as standard output is."""
    stream = Stream()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", Stream())
    return stream


def test_a_pipe_gets_text_and_nothing_that_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", 0.0)
    with waiting("waiting for server to start") as shown:
        shown.tick(lambda: pytest.fail("nothing is drawn"))
    with late_spinner("running"):
        time.sleep(0.01)
    with CopyBars() as bars:
        bars.show(NODE)
    with pytest.raises(KeyError), waiting("waiting"):
        raise KeyError
    assert capsys.readouterr() == (
        "waiting for server to start... done\nwaiting... stopped waiting\n",
        "",
    )


def test_a_terminal_gets_a_spinner_with_the_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attached(monkeypatch)
    with waiting("waiting for server to start") as shown:
        shown.tick(lambda: "downloading jars")
        shown.tick(lambda: "[bold]")
    assert "waiting for server to start: downloading jars" in terminal.getvalue()
    assert "waiting for server to start: [bold]" in terminal.getvalue()
    assert isinstance(sys.stdout, Stream)
    assert sys.stdout.getvalue() == "waiting for server to start... done\n"


def test_only_a_long_command_gets_a_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attached(monkeypatch)
    with late_spinner("running"):
        pass
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "LATE_SECONDS", 0.0)
    with late_spinner("running"):
        wait_until(lambda: "running" in terminal.getvalue())
    assert sys.stderr is terminal
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    before = terminal.getvalue()
    with late_spinner("behind a pager"):
        time.sleep(0.01)
    assert terminal.getvalue() == before


def test_copies_have_bars_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attached(monkeypatch)
    with CopyBars() as bars:
        bars.show(NODE)
        assert bars.drawn
        text = terminal.getvalue()
        assert "shop.payments" in text and "45%" in text
        assert "4,500 rows, 110 s left" in text
        assert "1 of 2 tables" in text
        done = replace(COPYING, state=SyncState.READY, copy=None)
        bars.show(with_subscription(tables=(ORDERS, done)))
        assert "2 of 2 tables" in terminal.getvalue()
        many = [
            replace(COPYING, oid=type(COPYING.oid)(n), name=f"t{n}")
            for n in range(10, 40)
        ]
        bars.show(with_subscription(tables=tuple(many)))
    assert "t19" in terminal.getvalue() and "t25" not in terminal.getvalue()


class FakeLooker:
    """Looks at one of these facts after the other."""

    facts: tuple[NodeFacts, ...] = ()

    def __init__(self, directory: Path) -> None:
        self._left = list(self.facts)

    def look(self) -> Look:
        facts = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return Look(facts, problems(facts, NOW))

    def __enter__(self) -> FakeLooker:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("facts", "code", "told"),
    [
        ((NODE, with_subscription(tables=(ORDERS,))), 0, ""),
        ((with_subscription(enabled=False, state="disabled"),), 0, ""),
        ((NODE, STOPPED), 1, 'error: no node is running in "/srv/node"'),
        (
            (with_subscription(tables=(replace(COPYING, error="no room"),)),),
            1,
            "cannot be copied: no room",
        ),
    ],
)
def test_a_script_waits_for_its_copies(
    facts: tuple[NodeFacts, ...],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(copywait, "Looker", type("L", (FakeLooker,), {"facts": facts}))
    assert wait_copies(Path("/srv/node")) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err if told else shown.err == ""


def test_the_phase_of_a_start_is_the_last_line_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_message(log) == ""
    log.write_text(
        "2026-01-02 03:04:05.678 UTC [1] supervisor LOG:  starting\n"
        "2026-01-02 03:04:05.678 UTC [2] engine LOG:  downloading jars, once\n"
        "WARNING: of the JVM\n"
    )
    assert last_message(log) == "downloading jars, once"
