"""The node and a service manager: readiness, reload, shutdown and the watchdog over its socket."""

from __future__ import annotations

import configparser
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.node import FakeNode

from wal2lake.cli.options import build_parser
from wal2lake.launch.servicemanager import ServiceManager
from wal2lake.testing.waits import wait_until

Opened = Callable[..., ServiceManager]

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "wal2lake.service"


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, socket.socket]]:
    """A manager's socket, and its name as NOTIFY_SOCKET has it."""
    name = str(tmp_path / "notify")
    if request.param == "abstract":
        name = f"@wal2lake-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.setblocking(False)
        yield name, listening


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Makes a node's end, and closes it after the test."""
    with contextlib.ExitStack() as stack:

        def make(environ: dict[str, str], **options: Any) -> ServiceManager:
            return stack.enter_context(
                contextlib.closing(ServiceManager(environ, **options))
            )

        yield make


def told(listening: socket.socket) -> list[str]:
    """All datagrams that have come."""
    texts = []
    while True:
        try:
            texts.append(listening.recv(4096).decode())
        except BlockingIOError:
            return texts


def test_each_state_is_told_once(
    manager: tuple[str, socket.socket], opened: Opened
) -> None:
    name, listening = manager
    node = opened({"NOTIFY_SOCKET": name})
    for state in ("starting", "starting", "ready", "ready"):
        node.tell(state)
    node.reloading()
    for state in ("ready", "stopping", "stopping"):
        node.tell(state)
    texts = told(listening)
    assert texts[0] == "STATUS=node is starting"
    assert texts[1] == "READY=1\nSTATUS=node is ready"
    assert texts[2].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert texts[3:] == [
        "READY=1\nSTATUS=node is ready",
        "STOPPING=1\nSTATUS=node is stopping",
    ]


def test_the_watchdog_is_fed_in_half_of_its_time(
    manager: tuple[str, socket.socket], opened: Opened
) -> None:
    name, listening = manager
    times = [100.0]
    environ = {
        "NOTIFY_SOCKET": name,
        "WATCHDOG_USEC": "10000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    node = opened(environ, clock=lambda: times[-1])
    node.tell("ready")
    for now in (101.0, 104.9, 105.0, 109.0, 110.5):
        times.append(now)
        node.tell("ready")
    assert told(listening).count("WATCHDOG=1") == 3
    # The loop turns once a second by itself.
    assert opened({**environ, "WATCHDOG_USEC": "800000"}).patience_seconds == 0.2
    assert opened({}).patience_seconds > 1e9
    other = opened({**environ, "WATCHDOG_PID": "1"}, clock=lambda: times[-1])
    other.tell("ready")
    assert told(listening) == ["READY=1\nSTATUS=node is ready"]


def test_without_a_manager_or_with_one_that_is_gone_nothing_happens(
    tmp_path: Path, opened: Opened
) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        node = opened(environ)
        node.tell("ready")
        node.tell("stopping")


def test_a_manager_that_comes_back_is_told(tmp_path: Path, opened: Opened) -> None:
    name = str(tmp_path / "notify")
    node = opened({"NOTIFY_SOCKET": name})
    node.tell("ready")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        node.tell("ready")
        assert told(listening) == ["READY=1\nSTATUS=node is ready"]


def test_a_ping_that_was_lost_is_repeated_at_once(
    tmp_path: Path, opened: Opened
) -> None:
    name = str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000"}
    node = opened(environ, clock=lambda: 100.0)
    node.tell("ready")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        node.tell("ready")
        assert told(listening)[1:] == ["WATCHDOG=1"]


def test_a_ping_needs_no_descriptor(tmp_path: Path, opened: Opened) -> None:
    """A supervisor that had none left could not say that it was alive, and was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = str(tmp_path / "notify")
        listening.bind(name)
        listening.setblocking(False)
        node = opened({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000"})
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            node.tell("ready")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert told(listening)[1:] == ["WATCHDOG=1"]


def test_a_supervisor_that_tries_again_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog killed it, and the receivers with it, for a lack that might pass."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        # Shorter than the pause between two attempts would be without a watchdog.
        monkeypatch.setenv("WATCHDOG_USEC", "800000")
        (tmp_path / "node").mkdir()
        node = FakeNode(tmp_path / "node")
        try:
            node.start()
            fault = node.directory / "fake" / "fault"
            fault.write_text("OSError running")
            wait_until(lambda: "lacks a resource" in node.log_text())
            told(listening)
            pings: list[str] = []

            def pinged() -> bool:
                pings.extend(text for text in told(listening) if "WATCHDOG" in text)
                return len(pings) >= 4

            wait_until(pinged, describe=lambda: str(pings))
            assert fault.exists() and node.ready()
        finally:
            node.close()


def test_a_node_tells_its_manager_and_its_children_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name)
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        (tmp_path / "node").mkdir()
        node = FakeNode(tmp_path / "node")
        try:
            node.start()
            texts: list[str] = []

            def has(text: str) -> bool:
                texts.extend(told(listening))
                return any(text in one for one in texts)

            wait_until(lambda: has("READY=1"), describe=lambda: str(texts))
            wait_until(lambda: has("WATCHDOG=1"), describe=lambda: str(texts))
            engine = node.events("engine", "listening")[0][1]
            environ = Path(f"/proc/{engine}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in environ
            assert b"WATCHDOG_USEC" not in environ
            node.signal(signal.SIGTERM)
            wait_until(lambda: has("STOPPING=1"), describe=lambda: str(texts))
        finally:
            node.close()


def test_the_unit_has_commands_that_exist_and_waits_for_the_node() -> None:
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    service = parser["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    for key in ("ExecStart", "ExecReload"):
        program, *arguments = service[key].split()
        assert program.endswith("/wal2lake")
        build_parser().parse_args(arguments)
