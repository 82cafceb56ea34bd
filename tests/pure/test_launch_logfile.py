"""The log file: rotation by size and age, a disk that is full, a node that writes through it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.node import HERE, ROOT, FakeNode

from wal2lake.errors import ConfigurationError
from wal2lake.launch import is_locked, read_lock
from wal2lake.launch.children.echo import LogEcho
from wal2lake.launch.children.logfile import LogRotation, RotatedFile
from wal2lake.launch.directory.lockfile import LockFacts, LockFile
from wal2lake.launch.processes import Process, is_alive, processes
from wal2lake.launch.start.node import run_node
from wal2lake.settings import FILE_NAME
from wal2lake.testing.waits import wait_until

DAY = 86400.0


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def files(path: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(path.parent.iterdir())}


def test_a_full_file_ends_at_a_line_and_old_ones_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = RotatedFile(path, LogRotation(10, 0, keep=2))
    for data in (b"one\n", b"two, of", b" more\nthree\n", b"four five six\n", b"7\n"):
        file.write(data)
    assert files(path) == {
        "log": "7\n",
        "log.1": "four five six\n",
        "log.2": "three\n",
    }
    assert path.stat().st_mode & 0o777 == 0o600
    file.rotation = LogRotation(2, 0, keep=1)
    file.write(b"8\n")
    assert files(path) == {"log": "8\n", "log.1": "7\n"}
    file.rotation = LogRotation(2, 0, keep=0)
    file.write(b"9\n")
    assert files(path) == {"log": "9\n"}
    file.close()


def test_a_file_ends_with_its_period_also_across_restarts(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock(10 * DAY + 5)
    file = RotatedFile(path, LogRotation(0, DAY, keep=5), clock=clock)
    file.write(b"monday\n")
    clock.now += DAY - 10
    file.write(b"evening\n")
    clock.now += 10
    file.write(b"tuesday\n")
    assert files(path) == {"log": "tuesday\n", "log.1": "monday\nevening\n"}
    file.close()
    os.utime(path, (clock.now, clock.now))
    clock.now += DAY
    file = RotatedFile(path, LogRotation(0, DAY, keep=5), clock=clock)
    file.write(b"wednesday\n")
    assert files(path)["log.1"] == "tuesday\n"
    file.close()


def test_a_file_that_was_moved_or_truncated_by_others(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock(1000.0)
    file = RotatedFile(path, LogRotation(100, 0, keep=5), clock=clock)
    file.write(b"a\n")
    path.rename(tmp_path / "log-old")
    clock.now += 2
    file.write(b"b\n")
    assert files(path) == {"log": "b\n", "log-old": "a\n"}
    file.write(b"x" * 90 + b"\n")
    os.truncate(path, 0)
    clock.now += 2
    file.write(b"y" * 90 + b"\n")
    assert "log.1" not in files(path)
    path.rename(tmp_path / "log-older")
    file.reopen()
    file.write(b"c\n")
    assert files(path)["log"] == "c\n"
    file.close()


def test_lines_that_could_not_be_written_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    file = RotatedFile(path, LogRotation(0, 0, keep=5))
    file.write(b"a\n")
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    file.write(b"lost\n")
    monkeypatch.setattr(os, "write", write)
    file.write(b"b\n")
    assert path.read_text() == "a\n5 bytes of the log could not be written\nb\n"
    file.close()


def test_a_folder_that_refuses_to_rename_does_not_stop_the_log(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock(1000.0)
    (tmp_path / "log.1" / "x").mkdir(parents=True)
    file = RotatedFile(path, LogRotation(4, 0, keep=1), clock=clock)
    for number in range(3):
        file.write(f"{number}..\n".encode())
    assert path.read_text() == (
        "0..\ncould not rotate log file: Is a directory\n1..\n2..\n"
    )
    # It is tried again after a while, also by a clock that was set back meanwhile.
    (tmp_path / "log.1" / "x").rmdir()
    (tmp_path / "log.1").rmdir()
    clock.now -= 500
    file.write(b"3..\n")
    assert path.read_text() == "3..\n"
    file.close()


def collector_of(node: FakeNode, status_pids: set[int]) -> Process:
    """The child of the supervisor that is none of the others."""
    assert node.process is not None
    (found,) = [
        p
        for p in processes()
        if p.parent == node.process.pid and p.pid not in status_pids
    ]
    return found


def test_a_node_writes_its_log_file_and_stderr(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, node__log_file="server.log", node__log_rotation_size=1)
    subid = node.subscribe(1)
    node.start()
    node.wait_events(f"receiver{subid}", 1)
    path = tmp_path / "server.log"
    ready = "database system is ready to accept connections"
    wait_until(lambda: ready in path.read_text())
    assert ready in node.log_text()

    # The collector is killed: its successor goes on, and a moved file is made anew.
    collector = collector_of(node, {*node.pids()})
    os.kill(collector.pid, signal.SIGKILL)
    wait_until(
        lambda: f"log collector process (PID {collector.pid})" in path.read_text()
    )
    path.rename(tmp_path / "moved")
    settings = tmp_path / FILE_NAME
    text = settings.read_text()
    settings.write_text(text.replace("log_rotation_size = 1\n", ""))
    node.signal(signal.SIGHUP)
    changed = 'parameter "node.log_rotation_size" changed to "10240"'
    wait_until(lambda: path.exists() and changed in path.read_text())

    node.signal(signal.SIGTERM)
    assert node.wait_end() == 0
    assert path.read_text().endswith("database system is shut down\n")
    assert node.log_text().endswith("database system is shut down\n")
    assert not [p for p in processes() if p.pid == collector.pid]
    node.close()


def fill_log(node: FakeNode) -> None:
    """Fill the pipe that all processes of the node write to."""
    assert node.process is not None
    pipe = os.open(f"/proc/{node.process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 99 + b"\n")
    os.close(pipe)


@pytest.mark.parametrize("fate", ["stopped", "lost"])
def test_a_supervisor_does_not_wait_for_a_log_that_nobody_reads(
    tmp_path: Path, fate: str
) -> None:
    """It slept in a write, reaped nobody and heard no signal, not even the one to stop."""
    node = FakeNode(tmp_path, node__log_file="server.log").start()
    (tmp_path / "fake" / "fault").write_text("OSError _fork")
    collector = collector_of(node, {*node.pids()})
    os.kill(collector.pid, signal.SIGSTOP if fate == "stopped" else signal.SIGKILL)
    fill_log(node)
    for _ in range(20):
        node.signal(signal.SIGHUP)
    subid = node.subscribe(1)
    node.wait_events(f"receiver{subid}", 1)
    node.signal(signal.SIGTERM)
    assert node.wait_end() == 0
    # Its lines had waited in memory; those in the pipe were written in the end.
    told = (tmp_path / "server.log").read_text()
    assert told.count("x" * 99 + "\n") > 600
    assert 'receiver for subscription "s1" has started' in told
    assert told.endswith("database system is shut down\n")
    node.close()


def test_the_last_words_are_written_without_a_collector(tmp_path: Path) -> None:
    """What was in the pipe of a collector that died just before the end was lost."""
    node = FakeNode(tmp_path, node__log_file="server.log").start()
    (tmp_path / "fake" / "fault").write_text("OSError _fork")
    collector = collector_of(node, {*node.pids()})
    os.kill(collector.pid, signal.SIGKILL)
    # It takes with it what a read that has begun returns.
    wait_until(lambda: not is_alive(collector.pid))
    node.signal(signal.SIGTERM)
    assert node.wait_end() == 0
    last = "database system is shut down\n"
    told = (tmp_path / "server.log").read_text()
    assert "received fast shutdown request" in told and told.endswith(last)
    assert node.log_text().endswith(last), "in the foreground also on stderr"
    node.close()


def test_a_killed_node_leaves_no_collector(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, node__log_file="server.log").start()
    collector = collector_of(node, {*node.pids()})
    node.signal(signal.SIGKILL)
    node.wait_end()
    wait_until(lambda: not is_locked(tmp_path))
    wait_until(lambda: collector.pid not in {p.pid for p in processes()})
    node.close()


def test_a_log_file_that_cannot_be_written_is_an_error_with_a_remedy(
    tmp_path: Path,
) -> None:
    node = FakeNode(tmp_path, node__log_file="nowhere/server.log")
    process = node.launch()
    assert process.wait(20) == 1
    assert (
        "could not open log file" in node.log_text()
        and 'Set "log_file" of [node] to a file that the node' in node.log_text()
    )
    (tmp_path / "nowhere").mkdir()
    node.start()
    node.close()


def detached(directory: Path, seconds: float = 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "node_runner.py"), str(directory), "--daemon"],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            "FAKE_TIMEOUT": str(seconds),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_node_in_the_background_is_ready_or_says_why_not(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, node__log_file="server.log")
    (tmp_path / "fake" / "engine.exit").write_text("78")
    done = detached(tmp_path)
    assert done.returncode == 1
    assert "could not start server" in done.stderr
    assert "the engine could not start, shutting down" in done.stderr
    assert f'Examine the log output in "{tmp_path}/server.log".' in done.stderr
    (tmp_path / "fake" / "engine.exit").unlink()

    done = detached(tmp_path, 0)
    assert done.returncode == 1
    assert "server did not start in time" in done.stderr
    assert "or give it more time with --timeout." in done.stderr
    wait_until(lambda: (lock := read_lock(tmp_path)) and lock.state == "ready")
    lock = read_lock(tmp_path)
    assert lock is not None
    os.kill(lock.pid, signal.SIGTERM)
    wait_until(lambda: not is_locked(tmp_path))

    done = detached(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lock = read_lock(tmp_path)
    assert lock is not None
    assert (lock.state, str(lock.pid)) == ("ready", done.stdout.strip())
    log, end = tmp_path / "server.log", "database system is shut down\n"
    again = detached(tmp_path)
    assert again.returncode == 1
    assert 'lock file "wal2lake.pid" already exists' in again.stderr
    assert "lock file" not in log.read_text(), "the log is the first node's"
    os.kill(lock.pid, signal.SIGTERM)
    wait_until(lambda: not is_locked(tmp_path))
    assert log.read_text().endswith(end), "the lock outlives the collector"
    node.close()


def test_a_second_node_touches_neither_the_log_nor_the_catalog(tmp_path: Path) -> None:
    FakeNode(tmp_path, node__log_file="server.log")
    before = (tmp_path / "catalog.sqlite").read_bytes()
    (tmp_path / "server.log").unlink(missing_ok=True)
    with LockFile.acquire(tmp_path) as held:
        held.write(LockFacts(os.getpid(), str(tmp_path), 0, 5480, "127.0.0.1", "ready"))
        with pytest.raises(ConfigurationError, match="lock file"):
            run_node(tmp_path, {}, {})
    assert not (tmp_path / "server.log").exists()
    assert (tmp_path / "catalog.sqlite").read_bytes() == before


def test_a_reader_that_sleeps_gets_whole_lines_and_how_much_is_left_out() -> None:
    reader, writer = os.pipe()
    echo = LogEcho(writer, limit_bytes=10_000)
    lines = [f"{number} {'x' * 90}\n".encode() for number in range(5000)]
    for line in lines:
        echo.write(line[:10])
        echo.write(line[10:])
    read = bytearray()

    def drain() -> None:
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reader, 65536):
                read.extend(data)

    drain()
    echo.flush()
    drain()
    echo.write(b"again\nand the last")
    echo.finish()
    os.close(writer)
    drain()
    shown = bytes(read).splitlines(keepends=True)
    (notice,) = [line for line in shown if line.endswith(b" left out here\n")]
    at = shown.index(notice)
    assert shown[:at] == lines[:at]
    assert at > 100
    left_out = sum(map(len, lines[at:]))
    assert notice == f"{left_out} bytes of the log are left out here\n".encode()
    assert shown[at + 1 :] == [b"again\n", b"and the last"]
    os.close(reader)


def test_a_terminal_that_is_not_read_holds_up_nobody() -> None:
    reader, terminal = os.openpty()
    echo = LogEcho(terminal, limit_bytes=10_000)
    for _ in range(1000):
        echo.write(b"x" * 99 + b"\n")
    assert echo.waits
    assert os.get_blocking(terminal), "others share the mode"
    os.close(reader)
    echo.finish()
    os.close(terminal)


def test_a_lock_forgets_the_node_that_was_killed(tmp_path: Path) -> None:
    killed = LockFacts(1, str(tmp_path), 0.0, 5480, "127.0.0.1", "ready")
    (tmp_path / "wal2lake.pid").write_bytes(killed.render())
    assert read_lock(tmp_path) == killed
    with LockFile.acquire(tmp_path):
        facts = read_lock(tmp_path)
        assert facts is not None
        assert (facts.pid, facts.port, facts.state) == (os.getpid(), 0, "starting")


def test_a_reader_that_has_gone_is_forgotten() -> None:
    reader, writer = os.pipe()
    echo = LogEcho(writer)
    os.close(reader)
    for _ in range(100):
        echo.write(b"x" * 100 + b"\n")
    assert not echo.waits
    echo.finish()
    os.close(writer)


def test_lines_that_stderr_could_not_take_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stderr"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    echo = LogEcho(descriptor)
    write = os.write
    room = 0

    def write_some(number: int, data: bytes) -> int:
        """Write to a disk that is full sooner or later."""
        nonlocal room
        done = write(number, data[:room])
        room -= done
        if not done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return done

    line = b"x" * 99 + b"\n"
    monkeypatch.setattr(os, "write", write_some)
    for _ in range(5):
        echo.write(line)
    room = 10
    echo.write(line)
    assert not echo.waits
    room = 1000
    echo.write(b"again\n")
    # A line of which a part was written.
    room = 10
    echo.write(line)
    room = 1000
    echo.write(b"and again\n")
    echo.finish()
    os.close(descriptor)
    assert path.read_bytes().decode() == (
        "500 bytes \n600 bytes of the log are left out here\nagain\n"
        "xxxxxxxxxx\n90 bytes of the log are left out here\nand again\n"
    )


STALLED = """
import os, sys
from pathlib import Path
from wal2lake.launch.children.nodelog import node_log
from wal2lake.settings import load

directory = Path(sys.argv[1])
settings = load(directory, {})
with node_log(settings, lambda: settings, echo=True):
    for number in range(40_000):
        os.write(2, f"{number} {'x' * 90}\\n".encode())
"""


def test_a_node_goes_on_while_nobody_reads_its_stderr(tmp_path: Path) -> None:
    FakeNode(tmp_path, node__log_file="server.log")
    with subprocess.Popen(
        [sys.executable, "-c", STALLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
    ) as process:
        assert process.wait(60) == 0
        log = (tmp_path / "server.log").read_bytes()
        assert log.count(b"\n") == 40_000
        assert process.stderr is not None
        assert log.startswith(process.stderr.read())


WRITERS = """
import os, subprocess, sys
from pathlib import Path
from wal2lake.launch.children.nodelog import node_log
from wal2lake.settings import load

write = '''
import os, sys
for number in range(500):
    line = f"{sys.argv[1]} {number} " + "x" * (number * 7 % 3000) + " end\\\\n"
    os.write(2, line.encode())
'''
directory = Path(sys.argv[1])
settings = load(directory, {})
with node_log(settings, lambda: settings, echo=False) as log:
    writers = [
        subprocess.Popen([sys.executable, "-c", write, str(n)]) for n in range(4)
    ]
    # It ignores the first signal, and opens the file again at the second one.
    os.kill(log.collector.process.pid, 15)
    os.kill(log.collector.process.pid, 1)
    for writer in writers:
        assert writer.wait() == 0
"""


def test_lines_of_several_processes_are_whole_across_rotations(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(
        '[node]\nlog_file = "log/server.log"\nlog_rotation_size = 100\n'
        "log_keep_files = 1000\n"
    )
    (tmp_path / "log").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found: set[tuple[str, str]] = set()
    for path in (tmp_path / "log").iterdir():
        assert path.stat().st_size <= 100 * 1024
        for line in path.read_text().splitlines():
            writer, number, *filler, end = line.split(" ")
            assert (end, len(filler[0])) == ("end", int(number) * 7 % 3000)
            found.add((writer, number))
    assert len(found) == 2000
    assert len(list((tmp_path / "log").iterdir())) > 20
