"""The process that walsenders are forked from: descriptors arrive, ends are seen, its own end
does no harm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal2lake.publish.walsender.template import Template
from wal2lake.testing.waits import wait_until

_MODULE = """
import os, socket, sys
from wal2lake.publish.walsender.template import serve

def run(task, fds):
    if task == "die":
        raise ValueError("as it was told to")
    os.write(fds[0], f"{task} {os.getpid()} {os.getppid()} {len(fds)}".encode())
    os.read(fds[1], 1)

serve(socket.socket(fileno=int(sys.argv[1])), run)
"""


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    (tmp_path / "walsenders_of_a_test.py").write_text(_MODULE)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    one = Template("walsenders_of_a_test")
    yield one
    one.close()


class _Child:
    """A walsender of the test's module: it says who it is, and ends when it is let go."""

    def __init__(self, template: Template, task: str) -> None:
        out, out_write = os.pipe()
        hold, self._hold = os.pipe()
        self._out = os.fdopen(out, "rb", buffering=0)
        self.pid = template.fork(task, [out_write, hold])
        os.close(out_write)
        os.close(hold)

    def said(self) -> list[str]:
        return self._out.read(100).decode().split()

    def let_go(self) -> None:
        os.close(self._hold)
        assert self._out.read() == b""
        self._out.close()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_task_is_done_by_a_fork_with_its_descriptors(template: Template) -> None:
    first, second = _Child(template, "a"), _Child(template, "b")
    word, pid, parent, count = first.said()
    assert (word, int(pid), count) == ("a", first.pid, "2")
    word, pid, same_parent, _ = second.said()
    assert (word, int(pid), same_parent) == ("b", second.pid, parent)
    # Out of order: nobody holds the other's descriptors.
    second.let_go()
    first.let_go()
    for one in (first, second):
        assert _is_there(one.pid)  # So nobody else has its number yet.
        template.reap(one.pid)
        assert not _is_there(one.pid)


def test_a_task_that_fails_ends_that_process_alone(
    template: Template, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = _Child(template, "die")
    assert bad.said() == []
    bad.let_go()
    template.reap(bad.pid)
    assert "ValueError: as it was told to" in capfd.readouterr().err
    good = _Child(template, "a")
    assert good.said()[0] == "a"
    good.let_go()


def test_one_that_was_killed_is_replaced_and_its_walsenders_go_on(
    template: Template,
) -> None:
    before = _Child(template, "a")
    parent = int(before.said()[2])
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: not _runs(parent), describe="the end of the template")
    after = _Child(template, "b")
    assert int(after.said()[2]) != parent
    before.let_go()
    after.let_go()
    template.reap(before.pid)
    template.reap(after.pid)


def _runs(pid: int) -> bool:
    """It is there, and not only its number."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_it_ends_with_the_engine(template: Template) -> None:
    child = _Child(template, "a")
    parent = int(child.said()[2])
    template.close()
    assert not _is_there(parent)
    child.let_go()
