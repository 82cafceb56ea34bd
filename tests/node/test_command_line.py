"""The command line against a running node: what its unit tests cannot see.

One node of its own, which the next test finds as it wants it: running, or stopped.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Database
from tests.fakes.terminal import Terminal

from wal2lake.errors import PublisherError
from wal2lake.launch.directory.lockfile import is_locked
from wal2lake.launch.processes import is_alive
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import COMMAND, Node, run_cli
from wal2lake.testing.waits import wait_until


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("cli") / "node") as node:
        node.init("-U", "me").start()
        node.sql("create table kept (id int primary key, v text)")
        node.sql("insert into kept values (1, 'a'), (2, null)")
        yield node


@pytest.fixture
def own(made: Node) -> Node:
    """It runs."""
    return made if is_locked(made.directory) else made.start()


@pytest.fixture
def stopped(made: Node) -> Node:
    """It does not."""
    if is_locked(made.directory):
        made.stop()
    return made


def sql(node: Node, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and error of ``wal2lake sql``."""
    done = run_cli("sql", "-D", node.directory, *arguments, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_init_refuses_a_node_that_is_there_and_keeps_it(own: Node) -> None:
    before = (own.directory / "passfile").read_bytes()
    done = run_cli("init", "-D", own.directory)
    assert done.returncode == 1
    assert "exists but is not empty" in done.stderr
    assert "hint:" in done.stderr
    assert (own.directory / "passfile").read_bytes() == before
    assert (own.directory / "passfile").stat().st_mode & 0o777 == 0o600
    assert own.directory.stat().st_mode & 0o777 == 0o700
    for path in (own.directory / "run", own.directory / "log"):
        assert path.stat().st_mode & 0o077 == 0
    assert own.value("select current_user") == "me"


def test_a_port_in_use_is_a_clear_error_and_harms_nobody(
    own: Node, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert run_cli("init", "-D", other).returncode == 0
    done = run_cli("start", "-D", other, "--listen", f"127.0.0.1:{own.port}")
    assert done.returncode == 1
    assert f"127.0.0.1:{own.port}" in done.stderr or str(own.port) in done.stderr
    assert "Address already in use" in done.stderr
    assert "hint" in done.stderr.lower()
    assert not is_locked(other)
    assert own.value("select 1") == "1"


def test_sql_runs_commands_files_and_input(own: Node, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "create schema cl; -- one; comment\n"
        "create table cl.t (id int primary key, v text);\n"
        "insert into cl.t values (1, 'a;b'), (2, null);\n"
    )
    assert sql(own, "-f", str(script)) == (
        0,
        "CREATE SCHEMA\nCREATE TABLE\nINSERT 0 2\n",
        "",
    )
    assert sql(own, "-c", "select * from cl.t order by id", "-c", "show timezone") == (
        0,
        " id |  v  \n----+-----\n  1 | a;b\n  2 | \n(2 rows)\n\n"
        " TimeZone \n----------\n UTC\n(1 row)\n\n",
        "",
    )
    assert sql(own, "-A", "-t", stdin="table cl.t;\nselect 'end'") == (
        0,
        "1|a;b\n2|\nend\n",
        "",
    )


def test_sql_stops_a_script_at_its_first_error(own: Node, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text("select 1 as one;\nselect * from nope;\nselect 2 as two;\n")
    code, out, error = sql(own, "-A", "-t", "-f", str(script))
    assert (code, out) == (1, "1\n")
    assert error.startswith('ERROR:  relation "nope" does not exist')
    code, out, error = sql(own, "-f", str(tmp_path / "nope.sql"))
    assert (code, out) == (1, "")
    assert "No such file or directory" in error
    script.write_text("select 1;\n\\dt\n")
    for arguments in (("-c", "\\dt"), ("-f", str(script))):
        code, _, told = sql(own, *arguments)
        assert (code, "ERROR:  \\dt: backslash commands are psql's" in told) == (
            1,
            True,
        )
        asked = told.partition("ask the views: ")[2].strip().rstrip(".")
        assert sql(own, "-c", asked)[0] == 0


def test_status_as_json_has_processes_positions_and_tables(
    own: Node, pg18: Database
) -> None:
    pg18.psql(
        "create schema cs; create table cs.t (id int primary key);"
        " insert into cs.t select generate_series(1, 100); create publication cs"
        " for table cs.t"
    )
    created = sql(
        own,
        "-c",
        f"create subscription cs connection {quote_literal(pg18.conninfo())}"
        " publication cs",
        "--wait-copies",
    )
    assert (created[0], created[1]) == (0, "CREATE SUBSCRIPTION\n")
    assert own.value("select count(*) from cs.t") == "100"
    mirror = Mirror(own, pg18.conninfo(), "cs")
    mirror.synced()
    target = mirror.caught_up()

    def streaming() -> dict[str, Any] | None:
        done = run_cli("status", "-D", own.directory, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        status: dict[str, Any] = json.loads(done.stdout)
        state = status["subscriptions"][0]["state"]
        return status if state == "streaming" else None

    facts = wait_until(streaming)
    assert (facts["state"], facts["address"], facts["port"]) == (
        "ready",
        "127.0.0.1",
        own.port,
    )
    processes = facts["processes"]
    assert [p["role"] for p in processes] == [
        "supervisor",
        "guardian",
        "engine",
        "receiver",
    ]
    assert all(is_alive(p["pid"]) for p in processes)
    (found,) = facts["subscriptions"]
    assert (found["name"], found["enabled"], found["last_error"]) == ("cs", True, None)
    assert (found["tables"], found["tables_ready"], found["rows_copied"]) == (1, 1, 100)
    # Applied is the last transaction's end: what was written since is not published.
    assert (
        pg18.psql(
            f"select '{found['received_lsn']}'::pg_lsn >= '{target}',"
            f" '{found['received_lsn']}'::pg_lsn >= '{found['logged_lsn']}',"
            f" '{found['logged_lsn']}'::pg_lsn >= '{target}',"
            f" '{found['logged_lsn']}'::pg_lsn >= '{found['applied_lsn']}'"
        )
        == "t|t|t|t"
    )
    shown = run_cli("status", "-D", own.directory).stdout
    assert 'subscription "cs": streaming, 1 of 1 tables ready' in shown
    assert "  behind the source: received " in shown
    assert run_cli("status", "-D", own.directory, "--check").returncode == 0
    once = run_cli("top", "-D", own.directory, "--once").stdout
    assert "cs.t" in once and "streaming" in once
    terminal = Terminal("-D", str(own.directory), "--interval", "0.2")
    terminal.wait_for("streaming")
    terminal.press("t")
    terminal.wait_for("1 table, most behind first")
    terminal.end("q")
    own.sql("alter subscription cs disable")
    assert run_cli("status", "-D", own.directory, "--check").returncode == 1
    own.sql("drop subscription cs")


def test_check_says_what_the_node_would_meet(pg18: Database) -> None:
    pg18.psql("create table t (id int primary key); create publication ck for table t")
    good = run_cli("check", pg18.conninfo(), "-p", "ck")
    assert good.returncode == 0
    assert "no problems" in good.stdout
    bad = run_cli("check", pg18.conninfo(), "-p", "nope")
    assert bad.returncode == 1
    assert 'publication "nope" does not exist' in bad.stdout


def test_a_smart_stop_waits_for_its_clients_and_lets_nobody_in(own: Node) -> None:
    with own.connect() as client:
        stopping = subprocess.Popen(
            [*COMMAND, "stop", "-D", str(own.directory), "--mode", "smart"],
            stdout=subprocess.PIPE,
            text=True,
        )

        def refused() -> str:
            try:
                own.connect().close()
            except PublisherError as error:
                return error.message
            return ""

        assert wait_until(refused, describe="new clients are refused")
        assert client.rows("select count(*) from kept") == [("2",)]
        assert stopping.poll() is None
        pids = own.pids()
    output, _ = stopping.communicate(timeout=60)
    assert (stopping.returncode, output.splitlines()[-1]) == (0, "server stopped")
    assert own.wait_end() == 0
    assert not [pid for pid in pids if is_alive(pid)]
    done = run_cli("status", "-D", own.directory)
    assert done.returncode == 3
    assert "no node is running" in done.stdout
    code, _, error = sql(own, "-c", "select 1")
    assert code != 0
    assert error.startswith("wal2lake: error:")


@pytest.mark.slow
def test_a_catalog_of_a_newer_version_is_refused_and_left_alone(stopped: Node) -> None:
    path = stopped.directory / "catalog.sqlite"

    def set_version(version: str) -> str:
        with sqlite3.connect(path) as catalog:
            (before,) = catalog.execute(
                "select value from meta where key = 'version'"
            ).fetchone()
            catalog.execute(
                "update meta set value = ? where key = 'version'", (version,)
            )
        catalog.close()
        return str(before)

    version = set_version("999")
    done = run_cli("start", "-D", stopped.directory)
    assert done.returncode == 1
    assert "999" in done.stderr
    assert "hint" in done.stderr.lower()
    assert not is_locked(stopped.directory)
    assert set_version(version) == "999"
    stopped.start()
    assert stopped.sql("select * from kept order by id") == [("1", "a"), ("2", None)]


def test_a_node_in_the_background_is_ready_when_its_start_returns(
    stopped: Node,
) -> None:
    environ = {"WAL2LAKE_NODE_PORT": "0"}
    done = run_cli("start", "-D", stopped.directory, "--daemon", environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "waiting for server to start... done\nserver started\n",
        "",
    )
    assert stopped.sql("select * from kept order by id") == [("1", "a"), ("2", None)]
    again = run_cli("start", "-D", stopped.directory, "--daemon", environ=environ)
    assert again.returncode == 1
    assert 'lock file "wal2lake.pid" already exists' in again.stderr
    assert run_cli("reload", "-D", stopped.directory).stdout == "server signaled\n"
    assert run_cli("stop", "-D", stopped.directory).returncode == 0
    log = (stopped.directory / "wal2lake.log").read_text()
    assert "database system is ready to accept connections" in log
    assert "received SIGHUP, reloading configuration files" in log


@pytest.mark.slow
def test_an_immediate_stop_does_not_wait(own: Node) -> None:
    pids = own.pids()
    with own.connect():
        own.stop("immediate")
    assert not [pid for pid in pids if is_alive(pid)]
    assert not is_locked(own.directory)
    done = run_cli("stop", "-D", own.directory)
    assert done.returncode == 1
    assert "no node is running" in done.stderr
