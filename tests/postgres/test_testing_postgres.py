"""The embedded servers: they start, die, come back and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Database, drop

from wal2lake.launch.processes import descendants, is_alive
from wal2lake.testing.postgres import PostgresServer, StopMode, find_installation
from wal2lake.testing.waits import wait_until


@pytest.mark.parametrize("version", [16, 18])
def test_a_server_is_of_the_version_asked_for_and_logical(postgres_server, version):
    server = postgres_server(version)
    assert server.psql("show server_version").startswith(f"{version}.")
    assert server.psql("show wal_level") == "logical"


def test_each_test_gets_an_empty_database_of_its_own(pg18, pg16):
    assert pg18.psql("select count(*) from pg_tables where schemaname = 'public'") == (
        "0"
    )
    assert pg18.name != pg16.name
    assert pg18.psql("select current_database()") == pg18.name


def test_a_database_with_a_slot_in_it_can_be_left_behind(postgres_server):
    # The end of the fixture ``database``.
    server = postgres_server(18)
    server.psql("create database left_behind")
    left = Database(server, "left_behind")
    left.psql("select pg_create_logical_replication_slot('left_slot', 'pgoutput')")
    wait_until(lambda: drop(left))
    assert server.psql("select 1 from pg_database where datname = 'left_behind'") == ""
    slots = "select 1 from pg_replication_slots where slot_name = 'left_slot'"
    assert server.psql(slots) == ""


def test_a_commit_survives_a_kill_and_the_port_stays():
    with PostgresServer(18) as server:
        server.psql("create table t(a int); insert into t values (1)")
        pids = [server.pid, *descendants(server.pid)]
        port = server.port
        server.kill()
        assert not [pid for pid in pids if is_alive(pid)]
        server.start()
        assert server.port == port
        assert server.psql("select a from t") == "1"
        server.restart(StopMode.IMMEDIATE)
        server.set(work_mem="7MB")
        wait_until(lambda: server.psql("show work_mem") == "7MB")
    assert server.pid == 0
    assert not server.data.exists()


def test_a_fresh_server_has_an_identity_of_its_own(postgres_server):
    ask = "select system_identifier from pg_control_system()"
    with PostgresServer(18, fresh=True) as server:
        assert server.psql(ask) != postgres_server(18).psql(ask)


def test_an_error_of_psql_is_an_error_here(pg18):
    with pytest.raises(RuntimeError, match="division by zero"):
        pg18.psql("select 1/0")


def test_a_server_dies_with_its_starter():
    code = (
        "from wal2lake.testing.postgres import PostgresServer\n"
        "import sys\n"
        "server = PostgresServer(18)\n"
        "print(server.pid, server.data.parent, flush=True)\n"
        "sys.stdin.read()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        pids = [int(pid), *descendants(int(pid))]
        os.kill(starter.pid, signal.SIGKILL)
    wait_until(lambda: not [p for p in pids if is_alive(p)])
    # Its files are removed by whoever makes the next ones.
    PostgresServer(18).close()
    assert not Path(folder).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands servers to another user")
def test_a_server_runs_from_a_folder_that_its_user_may_not_enter(
    tmp_path: Path,
) -> None:
    package = find_installation(18).bin.parent.parent
    closed = tmp_path / "closed"
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.with_name(name), closed / name, symlinks=True)
    closed.chmod(0o700)
    installation = find_installation(closed / package.name / "pginstall18")
    assert closed not in installation.bin.parents
    with PostgresServer(closed / package.name / "pginstall18", fresh=True) as server:
        assert server.psql("select 1") == "1"
