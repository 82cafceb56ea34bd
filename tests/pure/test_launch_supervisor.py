"""The supervisor as a process, with fake children: deaths, throttles, shutdowns."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.node import FakeNode

from wal2lake.catalog import Subscription
from wal2lake.launch import is_locked, read_lock, read_status
from wal2lake.launch.processes import is_alive
from wal2lake.launch.wakeup import RELOAD, notify
from wal2lake.model import Oid
from wal2lake.settings import FILE_NAME
from wal2lake.testing.waits import wait_until


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNode]:
    node = FakeNode(tmp_path)
    yield node
    node.close()


def test_a_node_starts_its_engine_and_one_receiver_per_enabled_subscription(fake):
    one = fake.subscribe(1)
    fake.subscribe(2, enabled=False)
    fake.subscribe(3, slot_name=None)
    fake.start()
    fake.wait_events(f"receiver{one}", 1)
    status = read_status(fake.directory / "run")
    assert status is not None and status.state == "ready"
    assert [(w.role, w.subscription) for w in status.workers] == [
        ("engine", ""),
        ("receiver", "s1"),
    ]
    # The engine got the very socket that the pid file speaks of.
    facts = read_lock(fake.directory)
    assert facts is not None
    assert fake.events("engine", "listening")[0][2] == f"listening {facts.port}"
    assert f'address "127.0.0.1", port {facts.port}' in fake.log_text()
    assert "database system is ready to accept connections" in fake.log_text()


def test_a_node_says_that_it_listens_when_it_is_ready(fake):
    fake.start()
    told = fake.log_text()
    assert told.index("listening on") > told.index("starting wal2lake")
    assert told.index("listening on") < told.index("is ready to accept connections")


def test_a_warehouse_that_cannot_be_written_is_found_before_anybody_connects(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    fake = FakeNode(tmp_path, spark__warehouse=str(in_the_way / "warehouse"))
    fake.process = fake.launch()
    assert fake.wait_end() == 1
    told = fake.log_text()
    assert f'could not write to the warehouse "{in_the_way}/warehouse"' in told
    assert 'Set "warehouse" of [spark]' in told
    assert "listening on" not in told
    fake.close()


def test_a_second_start_is_refused_and_names_the_first(fake):
    fake.start()
    second = fake.launch()
    assert second.wait(10) == 1
    assert 'lock file "wal2lake.pid" already exists' in fake.log_text()
    assert f"Is another wal2lake (PID {fake.process.pid}) running" in fake.log_text()
    assert fake.ready()


def test_a_port_in_use_is_a_clear_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        fake = FakeNode(tmp_path, node__port=taken.getsockname()[1])
        process = fake.launch()
        assert process.wait(10) == 1
    assert (
        'could not bind IPv4 address "127.0.0.1": Address already in use'
        in fake.log_text()
    )
    assert "HINT:  Is another server already running on port" in fake.log_text()
    assert fake.events("engine", "start") == []
    assert not is_locked(tmp_path)
    fake.close()


def test_a_killed_engine_comes_back_while_receivers_go_on_and_clients_wait(fake):
    subid = fake.subscribe(1)
    fake.start()
    (receiver,) = fake.wait_events(f"receiver{subid}", 1)
    (engine,) = fake.wait_events("engine", 1)
    grandchild = int(fake.events("engine", "grandchild")[0][2].split()[1])
    os.kill(engine, signal.SIGKILL)
    facts = read_lock(fake.directory)
    assert facts is not None
    with socket.create_connection(("127.0.0.1", facts.port), timeout=5):
        pass
    assert fake.wait_events("engine", 2)[1] != engine
    assert not is_alive(grandchild), "what the engine leaves behind may still write"
    assert is_alive(receiver)
    assert f"engine process (PID {engine}) was terminated by signal 9" in (
        fake.log_text()
    )


def test_a_killed_receiver_comes_back_alone(fake):
    subid = fake.subscribe(1)
    fake.start()
    (engine,) = fake.wait_events("engine", 1)
    (receiver,) = fake.wait_events(f"receiver{subid}", 1)
    os.kill(receiver, signal.SIGKILL)
    fake.wait_events(f"receiver{subid}", 2)
    assert is_alive(engine)


def starts(fake: FakeNode) -> int:
    """How often the one receiver was started, as ``wal2lake status`` says it."""
    status = read_status(fake.directory / "run")
    assert status is not None
    return max((w.starts for w in status.workers if w.role == "receiver"), default=0)


def test_a_receiver_that_always_fails_is_started_again_and_again(fake):
    subid = fake.subscribe(1)
    (fake.directory / "fake" / f"receiver{subid}.exit").write_text("1")
    fake.start()
    fake.wait_events(f"receiver{subid}", 3, "start")
    wait_until(lambda: starts(fake) >= 3)
    assert 'receiver process for subscription "s1" (PID' in fake.log_text()
    assert "exited with exit code 1" in fake.log_text()


def test_a_receiver_that_fails_waits_for_its_retry_interval(tmp_path):
    fake = FakeNode(tmp_path, subscription__wal_retrieve_retry_interval_ms=600_000)
    subid = fake.subscribe(1)
    (tmp_path / "fake" / f"receiver{subid}.exit").write_text("1")
    fake.start()
    wait_until(lambda: "exited with exit code 1" in fake.log_text())
    # Whatever else happens meanwhile, its turn has not come.
    for number in (2, 3, 4):
        other = fake.subscribe(number)
        fake.wait_events(f"receiver{other}", 1)
    assert len(fake.events(f"receiver{subid}", "start")) == 1
    fake.close()


def test_an_altered_subscription_restarts_its_receiver_unthrottled(tmp_path):
    fake = FakeNode(tmp_path, subscription__wal_retrieve_retry_interval_ms=600_000)
    fake.start()
    subid = fake.subscribe(1)
    (first,) = fake.wait_events(f"receiver{subid}", 1)
    fake.change(subid, bump=True)
    second = fake.wait_events(f"receiver{subid}", 2)[1]
    assert not is_alive(first)
    wait_until(lambda: starts(fake) == 1, describe="an ALTER is no restart")
    fake.change(subid, enabled=False)
    wait_until(lambda: not is_alive(second))
    fake.close()


def test_a_word_from_the_engine_is_heard_before_the_next_poll(fake):
    fake.start("--patient")
    for number in range(1, 4):
        subid = fake.subscribe(number)
        fake.wait_events(f"receiver{subid}", 1, "start")


def test_sigusr1_makes_the_supervisor_look_at_the_catalog(fake):
    fake.start()
    oid = Oid(20001)
    fake.catalog.create_subscription(
        Subscription(oid, "s1", Oid(10), True, "", "s1", ("p",)), []
    )
    fake.signal(signal.SIGUSR1)
    fake.wait_events(f"receiver{oid}", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_fast_shutdown_stops_the_engine_first_and_exits_with_0(fake, number):
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    pids = fake.pids()
    fake.signal(number)
    assert fake.wait_end() == 0
    engine = fake.events("engine", "signal SIGTERM")[0][0]
    receiver = fake.events(f"receiver{subid}", "signal SIGTERM")[0][0]
    assert engine < receiver
    assert not [pid for pid in pids if is_alive(pid)]
    assert not (fake.directory / "wal2lake.pid").exists()
    assert "received fast shutdown request" in fake.log_text()
    assert "database system is shut down" in fake.log_text()


def test_a_shutdown_ends_also_when_a_child_does_not_listen(tmp_path):
    fake = FakeNode(tmp_path, node__shutdown_timeout_ms=100)
    (tmp_path / "fake" / "engine.stubborn").touch()
    fake.start()
    fake.signal(signal.SIGTERM)
    assert fake.wait_end() == 0
    assert "did not stop in time, sending it SIGKILL" in fake.log_text()
    fake.close()


def test_an_immediate_shutdown_overtakes_a_fast_one(fake):
    (fake.directory / "fake" / "engine.stubborn").touch()
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    pids = fake.pids()
    fake.signal(signal.SIGTERM)
    fake.wait_events("engine", 1, "signal SIGTERM")
    begin = time.monotonic()
    fake.signal(signal.SIGQUIT)
    assert fake.wait_end() == 0
    assert time.monotonic() - begin < 5
    assert not [pid for pid in pids if is_alive(pid)]
    assert fake.events(f"receiver{subid}", "signal") == []


def test_a_smart_shutdown_refuses_new_clients_and_waits_for_the_engine(fake):
    (fake.directory / "fake" / "engine.stubborn").touch()
    subid = fake.subscribe(1)
    fake.start()
    (receiver,) = fake.wait_events(f"receiver{subid}", 1)
    fake.signal(signal.SIGUSR2)
    fake.wait_events("engine", 1, "signal SIGUSR2")
    assert is_alive(receiver) and fake.process.poll() is None
    (engine,) = [pid for _, pid, _ in fake.events("engine", "up")]
    os.kill(engine, signal.SIGKILL)
    assert fake.wait_end() == 0
    assert len(fake.events("engine", "start")) == 1


def test_no_process_outlives_a_killed_supervisor(fake):
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    pids = fake.pids()
    assert len(pids) == 5, "guardian, two children, two grandchildren"
    fake.process.kill()
    fake.process.wait()
    wait_until(
        lambda: not [pid for pid in pids if is_alive(pid)],
        timeout_seconds=5,
        describe=lambda: str([pid for pid in pids if is_alive(pid)]),
    )


def test_a_start_after_a_kill_waits_for_the_remains_of_the_old_tree(fake):
    fake.start()
    pids = fake.pids()
    fake.process.kill()
    fake.process.wait()
    fake.start()
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_start_buries_what_a_killed_guardian_could_not(fake):
    fake.start()
    grandchild = int(fake.events("engine", "grandchild")[0][2].split()[1])
    status = read_status(fake.directory / "run")
    assert status is not None
    (engine,) = fake.wait_events("engine", 1)
    # The grandchild alone survives: nobody who knows of it is left.
    for pid in (fake.process.pid, status.guardian_pid, engine):
        os.kill(pid, signal.SIGSTOP)
    for pid in (status.guardian_pid, fake.process.pid, engine):
        os.kill(pid, signal.SIGKILL)
    fake.process.wait()
    assert is_alive(grandchild)
    fake.start()
    assert not is_alive(grandchild)
    assert "that an earlier node left behind" in fake.log_text()


def guardian_of(fake):
    status = read_status(fake.directory / "run")
    assert status is not None
    return status.guardian_pid


def test_a_killed_guardian_is_replaced(fake):
    fake.start()
    first = guardian_of(fake)
    os.kill(first, signal.SIGKILL)
    second = wait_until(
        lambda: (found := guardian_of(fake)) != first and found,
        describe="another guardian",
    )
    pids = fake.pids()
    assert second in pids
    fake.process.kill()
    fake.process.wait()
    wait_until(lambda: not [pid for pid in pids if is_alive(pid)])


def test_an_engine_that_cannot_be_configured_ends_the_node_at_its_start(fake):
    (fake.directory / "fake" / "engine.exit").write_text("78")
    fake.process = fake.launch()
    assert fake.wait_end() == 1
    assert len(fake.events("engine", "start")) == 1
    assert "the engine could not start, shutting down" in fake.log_text()


def test_sighup_replaces_receivers_with_new_settings_and_tells_the_engine(fake):
    subid = fake.subscribe(1)
    fake.start()
    fake.wait_events(f"receiver{subid}", 1)
    path = fake.directory / FILE_NAME
    path.write_text(
        path.read_text()
        .replace("port = 0", "port = 1")
        .replace("# segment_interval_ms = 250", "segment_interval_ms = 77")
        .replace('# webhook_url = ""', 'webhook_url = "https://u:S3CRET@h/x"')
    )
    fake.signal(signal.SIGHUP)
    fake.wait_events(f"receiver{subid}", 2)
    assert len(fake.events("engine", "start")) == 1
    told = fake.log_text()
    assert 'parameter "node.port" cannot be changed without restarting' in told
    assert 'parameter "log.segment_interval_ms" changed to "77"' in told
    assert 'parameter "alerts.webhook_url" changed\n' in told
    assert "S3CRET" not in told
    fake.wait_events("engine", 1, "signal SIGHUP")
    # What only the engine obeys disturbs no receiver.
    path.write_text(
        path.read_text()
        .replace("# max_sync_workers_", "max_sync_workers_", 1)
        .replace(
            "max_sync_workers_per_subscription = 2",
            "max_sync_workers_per_subscription = 9",
        )
    )
    # A session may ask for the same.
    assert notify(fake.directory / "run", RELOAD)
    fake.wait_events("engine", 2, "signal SIGHUP")
    # Once more without a change: the engine has files of its own to read (hba_file, TLS).
    fake.signal(signal.SIGHUP)
    fake.wait_events("engine", 3, "signal SIGHUP")
    # Whoever was told to stop has been, before a later one is there.
    other = fake.subscribe(2)
    fake.wait_events(f"receiver{other}", 1)
    assert len(fake.events(f"receiver{subid}", "signal")) == 1
    assert len(fake.events("engine", "signal")) == 3


def test_sighup_with_a_bad_file_changes_nothing(fake):
    fake.start()
    path = fake.directory / FILE_NAME
    path.write_text(path.read_text().replace("port = 0", 'port = "x"'))
    fake.signal(signal.SIGHUP)
    wait_until(lambda: "no changes were applied" in fake.log_text())
    assert 'invalid value for parameter "node.port"' in fake.log_text()
    assert fake.ready()


def test_sighup_sent_to_a_child_by_mistake_does_not_kill_it(fake):
    subid = fake.subscribe(1)
    fake.start()
    (receiver,) = fake.wait_events(f"receiver{subid}", 1)
    os.kill(receiver, signal.SIGHUP)
    os.kill(receiver, signal.SIGTERM)
    fake.wait_events(f"receiver{subid}", 1, "signal SIGTERM")


def test_a_directory_with_a_long_name_still_has_a_wake_up_socket(tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    fake = FakeNode(deep).start()
    subid = fake.subscribe(1)
    fake.wait_events(f"receiver{subid}", 1)
    fake.close()


def test_the_supervisor_imports_neither_spark_nor_numpy():
    heavy = ("numpy", "pyarrow", "pyspark", "py4j", "delta", "duckdb", "psycopg")
    code = (
        "import sys, wal2lake.launch.start.node, wal2lake.launch.children.child\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
