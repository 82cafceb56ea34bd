"""The web process under the supervisor, with fake children."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.node import FakeNode

from wal2lake.launch import read_status
from wal2lake.launch.processes import is_alive
from wal2lake.settings import FILE_NAME
from wal2lake.testing.waits import wait_until


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNode]:
    node = FakeNode(tmp_path, web__listen="127.0.0.1:0")
    yield node
    node.close()


def roles(fake: FakeNode) -> list[str]:
    status = read_status(fake.directory / "run")
    assert status is not None
    return [worker.role for worker in status.workers]


def test_the_web_process_comes_with_the_node_and_ends_with_it(fake):
    fake.subscribe(1)
    fake.start()
    [pid] = fake.wait_events("web", 1)
    wait_until(lambda: roles(fake) == ["engine", "web", "receiver"])
    assert fake.process is not None
    fake.process.send_signal(signal.SIGTERM)
    assert fake.process.wait(20) == 0
    assert not is_alive(pid)
    # It is told last: until then it says that the node is stopping.
    ends = [fake.events(r, "signal SIGTERM")[0][0] for r in ("engine", "web")]
    assert ends == sorted(ends)


def test_a_killed_web_process_disturbs_nobody_and_comes_back(fake):
    fake.subscribe(1)
    fake.start()
    [web] = fake.wait_events("web", 1)
    [engine] = fake.wait_events("engine", 1)
    os.kill(web, signal.SIGKILL)
    fake.wait_events("web", 2)
    assert fake.wait_events("engine", 1) == [engine]
    assert "web process (PID" in fake.log_text()


def test_the_web_process_stays_while_the_engine_is_replaced(fake):
    fake.start()
    [web] = fake.wait_events("web", 1)
    os.kill(fake.wait_events("engine", 1)[0], signal.SIGKILL)
    fake.wait_events("engine", 2)
    assert fake.wait_events("web", 1) == [web] and is_alive(web)


def test_a_web_process_that_always_dies_is_throttled_and_the_node_goes_on(fake):
    (fake.directory / "fake" / "web.exit").write_text("1")
    fake.start()
    wait_until(lambda: len(fake.events("web", "start")) >= 3)
    times = [at for at, *_ in fake.events("web", "start")]
    # No pause is longer than the retry interval, here 0.7 s.
    assert times[2] - times[1] >= 0.6
    assert fake.ready()


def test_sighup_reaches_the_web_process_and_can_end_or_begin_it(fake):
    fake.start()
    [web] = fake.wait_events("web", 1)
    assert fake.process is not None
    fake.process.send_signal(signal.SIGHUP)
    fake.wait_events("web", 1, "signal SIGHUP")
    file = fake.directory / FILE_NAME
    text = file.read_text()
    file.write_text(text.replace('listen = "127.0.0.1:0"', 'listen = ""'))
    fake.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not is_alive(web) and roles(fake) == ["engine"])
    file.write_text(text)
    fake.process.send_signal(signal.SIGHUP)
    fake.wait_events("web", 2)
