"""What a supervisor survives, each once ended it or made it hang; and how it ends when it must."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.node import HERE, FakeNode

from wal2lake.catalog import Catalog
from wal2lake.errors import StorageError
from wal2lake.launch import is_locked, read_lock, read_status
from wal2lake.launch import processes as processes_module
from wal2lake.launch.children import attendants
from wal2lake.launch.children.attendants import Attendant
from wal2lake.launch.children.collector import LogCollector
from wal2lake.launch.directory.lockfile import FILE_NAME, LockFile
from wal2lake.launch.processes import (
    MARKER,
    Process,
    directory_marker,
    is_alive,
    kill_marked,
    kill_session,
    marked,
    new_marker,
    processes,
    session_members,
)
from wal2lake.launch.requests import promptly, run_program
from wal2lake.launch.wakeup import CHANGED, SOCKET_NAME, Wake, Wakeup, notify
from wal2lake.observe import configure
from wal2lake.settings import FILE_NAME as SETTINGS_FILE
from wal2lake.testing.node import run_cli
from wal2lake.testing.waits import wait_until


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNode]:
    node = FakeNode(tmp_path)
    yield node
    node.close()


def status_of(fake: FakeNode) -> str:
    status = read_status(fake.directory / "run")
    return "" if status is None else status.state


# ---- the start ---------------------------------------------------------------------------


def test_a_node_without_a_stderr_runs(fake: FakeNode) -> None:
    """Its next file took the number, and no child could start."""
    closed = 'exec "$0" "$1" "$2" 2>&-'
    runner = [sys.executable, str(HERE / "node_runner.py"), str(fake.directory)]
    fake.process = subprocess.Popen(
        ["sh", "-c", closed, *runner], env=fake.environ, start_new_session=True
    )
    wait_until(fake.ready)
    assert fake.events("engine", "listening")


# ---- the system's limits ---------------------------------------------------------------------


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """While the context is open, no file can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_descriptors_no_process_is_called_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine's JVM was then left alive beside the next engine."""
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        session_members(os.getsid(0))
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    find, failures = session_members, [errno.EMFILE, errno.ENFILE]

    def failing(session: int) -> list[int]:
        if failures:
            number = failures.pop()
            raise OSError(number, os.strerror(number))
        return find(session)

    monkeypatch.setattr(processes_module, "session_members", failing)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    assert kill_session(child.pid) == 1
    assert child.wait() == -signal.SIGKILL


def test_a_guardian_starts_when_all_descriptors_are_in_use() -> None:
    """It ended at once, and the supervisor started the next one without a pause."""
    code = (
        "import os, resource\n"
        "from wal2lake.launch.children.guardian import close_all_but\n"
        "kept = os.dup(1)\n"
        "while os.dup(1) < 60: pass\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (61, 61))\n"
        "close_all_but({kept})\n"
        "os.write(kept, str(os.listdir('/dev/fd')).encode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (len(done.stdout.split(",")), done.stderr) == (2, "")


def test_a_fork_that_fails_is_tried_again_after_a_pause(
    capfd: pytest.CaptureFixture[str],
) -> None:
    configure("test")
    answers: list[int | None] = [None, None, 7]

    def fork() -> int:
        answer = answers.pop(0)
        if answer is None:
            raise BlockingIOError(errno.EAGAIN, "no")
        return answer

    attendant = Attendant("guardian", fork)
    for now in (100.0, 100.1, 100.9):
        attendant.keep(now)
    assert len(answers) == 2
    attendant.keep(101.0)
    attendant.keep(102.0)
    assert attendant.pid == 7
    text = "could not fork guardian process: Resource temporarily unavailable"
    assert capfd.readouterr().err.count(text) == 1
    # One that ends at once is throttled, too.
    answers[:] = [8]
    attendant.note_end(7, 256, 102.2)
    attendant.keep(102.5)
    assert attendant.pid == 0
    attendant.keep(103.0)
    assert attendant.pid == 8
    assert "guardian process (PID 7) exited with exit code 1" in capfd.readouterr().err


def test_an_attendant_that_ends_again_and_again_is_logged_now_and_then(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A line a second would fill the pipe of a collector that ends at its start."""
    configure("test")
    attendant = Attendant("guardian", lambda: 7)
    for second in range(150):
        attendant.keep(100.0 + second)
        attendant.note_end(7, 256, 100.5 + second)
    told = capfd.readouterr().err.splitlines()
    text = "guardian process (PID 7) exited with exit code 1"
    assert [line.split(":  ")[1] for line in told] == [
        f"{text}, starting another",
        f"{text} for the 10th time in a row, starting another",
        f"{text} for the 100th time in a row, starting another",
    ]
    # One that has lived for long ends for another reason.
    attendant.keep(1000.0)
    attendant.note_end(7, 256, 1060.0)
    assert f"{text}, starting another" in capfd.readouterr().err


def test_a_collector_that_cannot_be_forked_leaves_the_signals_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor was deaf to SIGHUP from then on."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "no")

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(BlockingIOError):
        object.__new__(LogCollector)._fork()
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_attendant_that_is_stopped_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attendants, "_FAREWELL_SECONDS", 0.1)
    deaf = subprocess.Popen(["sleep", "600"])
    Attendant("guardian", lambda: 0, deaf.pid).part(0.1)
    assert not is_alive(deaf.pid)
    deaf.wait()


def test_a_stop_does_not_wait_for_a_guardian_that_was_stopped(fake: FakeNode) -> None:
    fake.start()
    status = read_status(fake.directory / "run")
    assert status is not None
    os.kill(status.guardian_pid, signal.SIGSTOP)
    fake.signal(signal.SIGTERM)
    assert fake.wait_end() == 0


# ---- the catalog ---------------------------------------------------------------------------


@contextlib.contextmanager
def damaged(fake: FakeNode, value: str | None) -> Iterator[None]:
    path = fake.directory / "catalog.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        where = "where key = 'counter'"
        (before,) = other.execute(f"select value from meta {where}").fetchone()
        if value is None:
            other.execute(f"delete from meta {where}")
        else:
            other.execute(f"update meta set value = ? {where}", (value,))
        yield
        other.execute(
            "insert or replace into meta (key, value) values ('counter', ?)", (before,)
        )


@pytest.mark.parametrize("value", ["no number", None])
def test_a_catalog_with_an_unexpected_value_stops_nobody(
    fake: FakeNode, value: str | None
) -> None:
    subid = fake.subscribe(1)
    fake.start()
    [receiver] = fake.wait_events(f"receiver{subid}", 1)
    with damaged(fake, value):
        wait_until(lambda: "could not read the catalog" in fake.log_text())
        assert is_alive(receiver) and fake.ready()
    other = fake.subscribe(2)
    fake.wait_events(f"receiver{other}", 1)
    assert is_alive(receiver)


def test_a_locked_catalog_is_waited_for_as_long_as_the_supervisor_says(
    fake: FakeNode,
) -> None:
    """Each round would have waited half a minute for the lock, and SIGTERM with it."""
    path = fake.directory / "catalog.sqlite"
    fake.catalog.close()
    catalog = Catalog(path, busy_timeout_seconds=0.1)
    catalog.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma journal_mode = delete")
        other.execute("begin exclusive")
        begin = time.monotonic()
        with pytest.raises(StorageError, match="Device or resource busy"):
            assert catalog.change_counter
        assert time.monotonic() - begin < 5
    catalog.close()


# ---- words and signals ---------------------------------------------------------------------


def test_a_ready_of_another_engine_counts_for_nothing_and_a_lost_one_is_repeated(
    fake: FakeNode,
) -> None:
    silent = fake.directory / "fake" / "engine.silent"
    silent.touch()
    subid = fake.subscribe(1)
    fake.process = fake.launch()
    [engine] = fake.wait_events("engine", 1)
    fake.wait_events(f"receiver{subid}", 1)
    for word in ("ready", "ready 1", f"ready {engine}0", "\x00"):
        notify(fake.directory / "run", word)
    # Whatever was sent before it has been read with it.
    fake.change(subid, bump=True)
    fake.wait_events(f"receiver{subid}", 2)
    assert status_of(fake) == "starting"
    (fake.directory / "run" / SOCKET_NAME).unlink()
    silent.unlink()
    wait_until(fake.ready)


def test_words_that_are_repeated_are_read_once(tmp_path: Path) -> None:
    with Wakeup(tmp_path) as wakeup:
        for _ in range(3):
            notify(tmp_path, CHANGED)
        assert wakeup.wait(10).words == (CHANGED,)


def test_the_socket_of_the_next_node_stays(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.bind(str(path))
        inode = path.stat().st_ino
        with Wakeup(tmp_path, lambda: False) as wakeup:
            assert wakeup.wait(0) == Wake()
            os.kill(os.getpid(), signal.SIGHUP)
            assert wakeup.wait(10).signals == (signal.SIGHUP,)
        assert path.stat().st_ino == inode
        assert notify(tmp_path, CHANGED)
        assert others.recv(256) == CHANGED.encode()


def test_signals_wait_until_they_can_be_taken(tmp_path: Path) -> None:
    # In a process of one thread, as the supervisor is.
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from wal2lake.launch.requests import held\n"
        "from wal2lake.launch.wakeup import Wakeup\n"
        "with held():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    with Wakeup(Path(sys.argv[1])) as wakeup:\n"
        "        print(sorted(wakeup.wait(10).signals))\n"
        "    # After the end they mean nothing more.\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(signal.getsignal(signal.SIGTERM).name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"{sorted([signal.SIGTERM, signal.SIGHUP])}\nSIG_DFL\n"
    assert (done.returncode, done.stdout) == (0, expected)


def test_signals_during_the_start_do_not_kill_a_node(fake: FakeNode) -> None:
    fake.process = fake.launch()
    wait_until(lambda: read_lock(fake.directory))
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        fake.signal(number)
    wait_until(fake.ready)
    fake.signal(signal.SIGTERM)
    assert fake.wait_end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR2])
def test_a_step_of_the_start_that_hangs_does_not_delay_a_stop(
    fake: FakeNode, number: signal.Signals
) -> None:
    """The signals were blocked until the last step had ended."""
    fake.catalog.close()
    (fake.directory / "fake" / "fault").write_text("hang check_warehouse")
    fake.process = fake.launch()
    wait_until(lambda: "starting wal2lake" in fake.log_text())
    wait_until((fake.directory / "fake" / "hangs").exists)
    # It is no request, and must not end the node.
    fake.signal(signal.SIGHUP)
    fake.signal(number)
    assert fake.wait_end(10) == 0
    told = fake.log_text()
    assert "shutdown request" in told and "database system is shut down" in told
    assert fake.events("engine", "start") == []
    assert not (fake.directory / FILE_NAME).exists()


def holds_signals(pid: int) -> bool:
    [line] = re.findall(r"SigBlk:\t(.*)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(line, 16) & 1 << (signal.SIGTERM - 1))


def test_a_start_that_waits_for_the_lock_can_be_stopped(fake: FakeNode) -> None:
    with LockFile.acquire(fake.directory) as held:
        # As if a killed node had left it: remains may need ten seconds to die.
        os.ftruncate(held.fileno, 0)
        starting = fake.process = fake.launch()
        wait_until(lambda: holds_signals(starting.pid))
        fake.signal(signal.SIGTERM)
        wait_until(lambda: "received fast shutdown request" in fake.log_text())
        assert fake.wait_end(5) == 0
        assert held.is_in_place()


STARTING = """
import os, sys
from pathlib import Path
from wal2lake.launch.directory.warehouse import check_warehouse
from wal2lake.launch.requests import StopRequested, held, promptly
from wal2lake.launch.start.java import check_java
from wal2lake.settings import fixed_at_start, load

directory, step = Path(sys.argv[1]), sys.argv[2]
settings = load(directory, os.environ)
environ = {**os.environ, **fixed_at_start(settings), "JAVA_HOME": str(directory)}
steps = {
    "java": lambda: check_java(environ),
    "warehouse": lambda: check_warehouse(settings, environ),
}
with held():
    try:
        promptly(steps[step])
    except StopRequested as request:
        print(request.mode.value)
"""


@pytest.mark.parametrize("step", ["java", "warehouse"])
def test_a_stop_during_the_start_ends_the_program_that_is_tried(
    tmp_path: Path, step: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / SETTINGS_FILE).write_text(
            '[spark]\nwarehouse = "s3://b/w"\n[store]\naccess_key_id = "k"\n'
            'secret_access_key = "s"\n'
            f'endpoint = "http://127.0.0.1:{silent.getsockname()[1]}"\n'
        )
        with subprocess.Popen(
            [sys.executable, "-c", STARTING, str(tmp_path), step],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            tried = wait_until(lambda: children_of(process.pid))
            if step == "warehouse":
                wait_until(lambda: not holds_signals(tried[0]))
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=10)[0] == "fast\n"
        assert not is_alive(tried[0])


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [
        int(child)
        for task in tasks
        for child in (task / "children").read_text().split()
    ]


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(["sleep", "600"], os.environ, 0.1)
    done = run_program(["sh", "-c", "echo $A; echo b >&2; exit 3"], {"A": "a"}, 60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\n", "b\n")


def test_a_step_gives_its_result_or_its_error() -> None:
    assert promptly(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        promptly(lambda: 1 // 0)


def test_a_step_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert promptly(lambda: 7) == 7


def test_a_node_can_be_stopped_while_it_starts(fake: FakeNode) -> None:
    """Nobody was signalled, and the command waited in vain."""
    fake.process = fake.launch()
    wait_until(lambda: read_lock(fake.directory))
    done = run_cli("stop", "-D", fake.directory, "--timeout", "20")
    assert (done.returncode, done.stderr) == (0, "")
    assert fake.wait_end() == 0


# ---- the directory -------------------------------------------------------------------------


def test_a_node_whose_lock_file_was_removed_makes_room_for_the_next(
    fake: FakeNode,
) -> None:
    """A second node could start in its directory and write the same tables."""
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    (fake.directory / FILE_NAME).unlink()
    with LockFile.acquire(fake.directory) as other:
        assert fake.wait_end() == 1
        assert "because the node's lock file is gone" in fake.log_text()
        assert other.is_in_place(), "it is not the ended node's to remove"
    assert marked(directory_marker(fake.directory)) == []


def test_a_node_whose_directory_was_moved_ends(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    fake = FakeNode(old).start()
    old.rename(new)
    shutil.copytree(new, old, ignore=shutil.ignore_patterns("*.sock"))
    assert fake.wait_end() == 1
    assert marked(directory_marker(new)) == [] and not is_locked(new)
    assert (old / FILE_NAME).exists()
    fake.close()


def workers_of(fake: FakeNode) -> set[int]:
    status = read_status(fake.directory / "run")
    assert status is not None
    return {worker.pid for worker in status.workers}


def goes_on(fake: FakeNode) -> None:
    """The node has its children, its status file and its socket."""
    pids = workers_of(fake)
    status = read_status(fake.directory / "run")
    assert fake.process is not None and status is not None
    assert status.supervisor_pid == fake.process.pid and fake.ready()
    assert all(is_alive(pid) for pid in pids)
    oid = fake.subscribe(9)
    fake.wait_events(f"receiver{oid}", 1)
    assert pids < workers_of(fake)


@pytest.mark.parametrize("by", ["name", "link"])
def test_a_node_that_was_moved_away_leaves_its_successor_alone(
    tmp_path: Path, by: str
) -> None:
    """Its guardian killed by the path, and its end removed the other one's socket. Of a link that
    led elsewhere it knew nothing, and its next engine would have run there."""
    place, aside, other = (tmp_path / name for name in ("place", "aside", "other"))
    for made in (aside, other) if by == "link" else (place,):
        made.mkdir()
    if by == "link":
        place.symlink_to(aside)
    old = FakeNode(place, node__shutdown_timeout_ms=100).start()
    # It learns of it when the next one runs already.
    old.signal(signal.SIGSTOP)
    if by == "link":
        place.unlink()
        place.symlink_to(other)
    else:
        place.rename(aside)
        place.mkdir()
    new = FakeNode(place).start()
    before = workers_of(new)
    old.signal(signal.SIGCONT)
    assert old.wait_end() == 1
    assert marked(directory_marker(aside)) == [] and not is_locked(aside)
    assert workers_of(new) == before
    goes_on(new)
    new.close()
    old.close()


def test_a_node_without_its_lock_file_leaves_its_successor_alone(
    fake: FakeNode,
) -> None:
    fake.start()
    old, before = fake.process, fake.pids()
    assert old is not None
    old.send_signal(signal.SIGSTOP)
    (fake.directory / FILE_NAME).unlink()
    # Two engines must not write the same tables.
    fake.start()
    assert not [pid for pid in before[1:] if is_alive(pid)]
    old.send_signal(signal.SIGCONT)
    assert old.wait(20) == 1
    goes_on(fake)


def test_a_node_that_drains_looks_for_its_lock_file(tmp_path: Path) -> None:
    """Its last client may stay for days, and a second node would have started beside it."""
    fake = FakeNode(tmp_path)
    (tmp_path / "fake" / "engine.stubborn").touch()
    fake.start()
    fake.signal(signal.SIGUSR2)
    fake.wait_events("engine", 1, "signal SIGUSR2")
    (tmp_path / FILE_NAME).unlink()
    assert fake.wait_end() == 1
    assert marked(directory_marker(tmp_path)) == []
    fake.close()


def test_a_marker_is_found_by_itself_and_by_its_directory(tmp_path: Path) -> None:
    one, other = new_marker(tmp_path), new_marker(tmp_path)
    environ = {**os.environ, MARKER: one}
    with subprocess.Popen(["sleep", "600"], env=environ) as child:
        # Another node's number may begin with the same digits.
        for stranger in (other, one[:-1], directory_marker(tmp_path)[:-1]):
            assert marked(stranger) == []
        assert marked(one) == marked(directory_marker(tmp_path)) == [child.pid]
        assert kill_marked(other) == 0 and kill_marked(one) == 1


def test_a_directory_whose_name_is_no_text_has_a_node(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"l\xffke")
    directory.mkdir()
    fake = FakeNode(directory).start()
    fake.signal(signal.SIGTERM)
    assert fake.wait_end() == 0
    fake.close()


# ---- errors that nobody has thought of -----------------------------------------------------


def test_a_round_that_lacks_a_resource_is_repeated(fake: FakeNode) -> None:
    subid = fake.subscribe(1)
    fake.start()
    [receiver] = fake.wait_events(f"receiver{subid}", 1)
    fault = fake.directory / "fake" / "fault"
    fault.write_text("OSError")
    wait_until(lambda: "the supervisor lacks a resource" in fake.log_text())
    fault.unlink()
    other = fake.subscribe(2)
    fake.wait_events(f"receiver{other}", 1)
    assert is_alive(receiver) and fake.ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize("where", ["running", "wait"])
def test_a_stop_goes_on_through_a_round_that_lacks_a_resource(
    fake: FakeNode, number: signal.Signals, where: str
) -> None:
    """The node ended with 1, and killed what it had been asked to let end."""
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    fault = fake.directory / "fake" / "fault"
    fault.write_text(f"OSError {where}")
    wait_until(lambda: "the supervisor lacks a resource" in fake.log_text())
    fake.signal(number)
    if where == "running":
        wait_until(lambda: "shutdown request" in fake.log_text())
    fault.unlink()
    assert fake.wait_end() == 0
    assert len(fake.events("engine", f"signal {number.name}")) == 1
    assert len(fake.events(f"receiver{subid}", "signal SIGTERM")) == 1


def test_an_immediate_stop_needs_no_resource(fake: FakeNode) -> None:
    fake.start()
    (fake.directory / "fake" / "fault").write_text("MemoryError running")
    wait_until(lambda: "the supervisor lacks a resource" in fake.log_text())
    fake.signal(signal.SIGQUIT)
    assert fake.wait_end() == 0
    assert fake.events("engine", "signal") == []


def test_children_are_reaped_and_guarded_while_lost_ones_cannot_be_looked_for(
    fake: FakeNode,
) -> None:
    subid = fake.subscribe(1)
    fake.start()
    [receiver] = fake.wait_events(f"receiver{subid}", 1)
    status = read_status(fake.directory / "run")
    assert fake.process is not None and status is not None
    fault = fake.directory / "fake" / "fault"
    fault.write_text("OSError running")
    wait_until(lambda: "the supervisor lacks a resource" in fake.log_text())
    fault.write_text("OSError kill_lost")
    for pid in (receiver, status.guardian_pid):
        os.kill(pid, signal.SIGKILL)

    def below() -> list[Process]:
        assert fake.process is not None
        return [p for p in processes() if p.parent == fake.process.pid]

    # The engine, and another guardian.
    wait_until(lambda: len(below()) == 2 and all(p.state != "Z" for p in below()))
    fault.unlink()
    fake.wait_events(f"receiver{subid}", 2)


def test_a_bug_ends_the_node_at_once_and_the_log_says_why(tmp_path: Path) -> None:
    """In the background, nothing was left to say why the node was gone."""
    fake = FakeNode(tmp_path, node__log_file="server.log")
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    (tmp_path / "fake" / "fault").write_text("KeyError")
    assert fake.wait_end() == 1
    told = (tmp_path / "server.log").read_text()
    assert "FATAL:  the supervisor has failed" in told
    assert "KeyError: 'planted'" in told and "shut down" not in told
    assert marked(directory_marker(tmp_path)) == [] and not is_locked(tmp_path)
    fake.close()
