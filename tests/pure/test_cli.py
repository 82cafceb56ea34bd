"""The command line without a server: init, status, stop, arguments, tables."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.node import FakeNode

from wal2lake import __version__
from wal2lake.catalog import Catalog, Role
from wal2lake.cli import __main__ as cli
from wal2lake.cli.options import EXIT_CODES
from wal2lake.cli.start import parse_listen
from wal2lake.cli.terminal.print import Layout, render
from wal2lake.errors import ConfigurationError
from wal2lake.launch.directory.passfile import passfile_user, write_passfile
from wal2lake.pg.client import ResultRows
from wal2lake.settings import FILE_NAME, load
from wal2lake.testing.node import run_cli
from wal2lake.testing.waits import wait_until
from wal2lake.wire.scram import parse_verifier


def roles_of(directory: Path) -> list[Role]:
    catalog = Catalog(directory / "catalog.sqlite")
    try:
        # Without the predefined ones.
        return [r for r in catalog.roles() if not r.name.startswith("pg_")]
    finally:
        catalog.close()


def password_of(directory: Path) -> str:
    return (directory / "passfile").read_text().rstrip("\n").rsplit(":", 1)[1]


def test_init_makes_a_node_that_only_its_owner_can_read(tmp_path, capsys):
    directory = tmp_path / "a" / "node"
    assert cli.main(["init", "-D", str(directory)]) == 0
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    names = {p.name for p in directory.iterdir()}
    assert {FILE_NAME, "catalog.sqlite", "passfile", "log", "warehouse", "run"} <= names
    for name in (FILE_NAME, "catalog.sqlite", "passfile"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600, name
    assert load(directory, {}).node.authentication == "scram-sha-256"
    (role,) = roles_of(directory)
    assert role.name == pwd.getpwuid(os.geteuid()).pw_name
    assert role.superuser
    verifier = parse_verifier(role.password or "")
    assert verifier is not None and verifier.matches(password_of(directory))
    assert passfile_user(directory) == role.name
    told = capsys.readouterr().out
    assert "Success. You can now start it" in told
    assert password_of(directory) not in told


def test_two_nodes_have_different_passwords(tmp_path):
    for name in ("a", "b"):
        assert cli.main(["init", "-D", str(tmp_path / name)]) == 0
    assert password_of(tmp_path / "a") != password_of(tmp_path / "b")


def test_init_takes_a_name_a_password_and_trust(tmp_path):
    pwfile = tmp_path / "pw"
    pwfile.write_text("s3:cr\\et\nsecond line\n")
    one = tmp_path / "one"
    arguments = ["init", "-D", str(one), "-U", "a:b", "--pwfile", str(pwfile)]
    assert cli.main(arguments) == 0
    (role,) = roles_of(one)
    assert role.name == "a:b" == passfile_user(one)
    verifier = parse_verifier(role.password or "")
    assert verifier is not None and verifier.matches("s3:cr\\et")
    assert (one / "passfile").read_text() == "*:*:lake:a\\:b:s3\\:cr\\\\et\n"

    two = tmp_path / "two"
    assert cli.main(["init", "-D", str(two), "-A", "trust", "-U", "me"]) == 0
    assert load(two, {}).node.authentication == "trust"
    assert roles_of(two)[0].password is None
    assert not (two / "passfile").exists()


def test_init_uses_an_empty_directory_and_refuses_a_full_one(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    assert cli.main(["init", "-D", str(empty)]) == 0
    assert stat.S_IMODE(empty.stat().st_mode) == 0o700
    before = sorted(p.name for p in empty.iterdir())
    capsys.readouterr()
    assert cli.main(["init", "-D", str(empty)]) == 1
    error = capsys.readouterr().err
    assert f'wal2lake: error: directory "{empty}" exists but is not empty' in error
    assert "wal2lake: hint: If you want to make a new node, either remove" in error
    assert sorted(p.name for p in empty.iterdir()) == before


def test_init_refuses_a_place_inside_of_another_node(tmp_path, capsys):
    outer = tmp_path / "outer"
    assert cli.main(["init", "-D", str(outer)]) == 0
    inner = outer / "warehouse" / "inner"
    assert cli.main(["init", "-D", str(inner)]) == 1
    error = capsys.readouterr().err
    assert f'"{inner}" is inside the directory of another node, "{outer}"' in error
    assert not inner.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-U", "pg_x"], 'role names cannot begin with "pg_"'),
        (["-U", "x" * 64], "must have 1 to 63 bytes"),
        (["--pwfile", "/nonexistent"], "could not open file"),
        (["--pwfile", os.devnull], "is empty"),
    ],
)
def test_an_init_that_fails_leaves_nothing(tmp_path, capsys, arguments, message):
    directory = tmp_path / "node"
    assert cli.main(["init", "-D", str(directory), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not directory.exists()


def test_an_init_that_breaks_in_the_middle_leaves_nothing(
    tmp_path, capsys, monkeypatch
):
    def full(*arguments: object) -> Catalog:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Catalog, "create", full)
    directory = tmp_path / "node"
    assert cli.main(["init", "-D", str(directory)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not directory.exists()


def test_status_and_stop_of_a_node_that_does_not_run(tmp_path, capsys):
    assert cli.main(["status", "-D", str(tmp_path)]) == 4
    assert "is not a wal2lake node" in capsys.readouterr().err
    directory = tmp_path / "node"
    cli.main(["init", "-D", str(directory)])
    capsys.readouterr()
    assert cli.main(["status", "-D", str(directory)]) == 3
    assert "no node is running" in capsys.readouterr().out
    assert cli.main(["status", "-D", str(directory), "--json"]) == 3
    facts = json.loads(capsys.readouterr().out)
    assert (facts["state"], facts["pid"], facts["subscriptions"]) == (
        "stopped",
        None,
        [],
    )
    assert cli.main(["stop", "-D", str(directory)]) == 1
    assert "no node is running" in capsys.readouterr().err
    assert cli.main(["sql", "-D", str(directory), "-c", "select 1"]) == 1
    assert "Start it with: wal2lake start" in capsys.readouterr().err


def test_status_and_stop_of_a_running_node(tmp_path, capsys):
    node = FakeNode(tmp_path)
    subid = node.subscribe(1)
    node.subscribe(2, enabled=False)
    node.start()
    assert node.process is not None
    node.wait_events(f"receiver{subid}", 1)
    assert cli.main(["status", "-D", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["state"], facts["version"]) == ("ready", __version__)
    assert facts["pid"] == node.process.pid
    roles = [p["role"] for p in facts["processes"]]
    assert roles == ["supervisor", "guardian", "engine", "receiver"]
    states = {s["name"]: s["state"] for s in facts["subscriptions"]}
    assert states == {"s1": "streaming", "s2": "disabled"}
    assert cli.main(["status", "-D", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"node is ready (PID {node.process.pid}), listening on 127.0.0.1:" in told
    assert 'receiver of subscription "s1": PID' in told
    assert 'subscription "s2": disabled, 0 of 0 tables ready' in told
    assert cli.main(["stop", "-D", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "waiting for server to shut down... done\nserver stopped\n"
    )
    assert node.wait_end() == 0
    node.close()


def test_a_stop_that_takes_too_long_says_how_to_go_on(tmp_path, capsys):
    node = FakeNode(tmp_path)
    (tmp_path / "fake" / "engine.stubborn").touch()
    node.start()
    assert cli.main(["stop", "-D", str(tmp_path), "-t", "0.3"]) == 1
    error = capsys.readouterr().err
    assert "wal2lake: error: server does not shut down" in error
    assert '"--mode immediate" ends it now' in error
    assert cli.main(["stop", "-D", str(tmp_path), "--mode", "immediate"]) == 0
    assert node.wait_end() == 0
    node.close()


def test_reload_signals_a_running_node_and_refuses_settings_with_errors(
    tmp_path, capsys
):
    node = FakeNode(tmp_path)
    assert cli.main(["reload", "-D", str(tmp_path)]) == 1
    assert "no node is running in directory" in capsys.readouterr().err
    node.start()
    settings = tmp_path / FILE_NAME
    good = settings.read_text()
    settings.write_text(good + "\n[node]\nprot = 1\n")
    assert cli.main(["reload", "-D", str(tmp_path)]) == 1
    assert "error: " in capsys.readouterr().err
    assert "received SIGHUP" not in node.log_text()
    settings.write_text(
        good.replace("# segment_interval_ms = 250", "segment_interval_ms = 9")
    )
    assert cli.main(["reload", "-D", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "server signaled\n"
    wait_until(
        lambda: 'parameter "log.segment_interval_ms" changed to "9"' in node.log_text()
    )
    node.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5480", "127.0.0.1", "5480"),
        ("[::1]:0", "::1", "0"),
        ("*:99", "*", "99"),
        (":99", None, "99"),
        ("99", None, "99"),
    ],
)
def test_listen_takes_a_host_and_a_port(text, host, port):
    wanted = {"node.port": port}
    if host is not None:
        wanted["node.listen_addresses"] = host
    assert parse_listen(text) == wanted


@pytest.mark.parametrize("text", ["host", "host:", "host:x", "::1", "a:b:1", ""])
def test_listen_refuses_what_is_no_address(text):
    with pytest.raises(ConfigurationError, match="invalid argument for option"):
        parse_listen(text)


def test_every_command_explains_itself(capsys):
    for command in EXIT_CODES:
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        assert told.startswith(f"usage: wal2lake {command}")
        assert "exit codes:\n  0  " in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "invalid choice"),
        (["start"], "the following arguments are required: -D"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_arguments_are_one_error_and_one_hint(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("wal2lake: error: ") and message in first
    assert second.startswith("wal2lake: hint: Try ")


def test_a_start_that_cannot_be_is_one_error(tmp_path):
    done = run_cli("start", "-D", tmp_path / "nothing")
    assert done.returncode == 1
    assert "could not access the server configuration file" in done.stderr
    directory = tmp_path / "node"
    assert run_cli("init", "-D", directory).returncode == 0
    done = run_cli("start", "-D", directory, "-c", "node.prot=1")
    assert done.returncode == 1
    assert 'parameter "node.prot" in the command line' in done.stderr
    assert "Traceback" not in done.stderr
    done = run_cli("start", "-D", directory, "--listen", "nonsense")
    assert 'invalid argument for option --listen: "nonsense"' in done.stderr


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "none is on PATH"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "java on PATH is version 11"),
        ("echo 'java version \"1.8.0_392\"' >&2", "java on PATH is version 8"),
        ("exit 1", "java on PATH does not run"),
    ],
)
def test_a_start_without_java_is_one_line_that_names_it(tmp_path, script, told):
    directory, programs = tmp_path / "node", tmp_path / "bin"
    assert run_cli("init", "-D", directory).returncode == 0
    programs.mkdir()
    if script is not None:
        java = programs / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    environ = {"PATH": str(programs), "JAVA_HOME": ""}
    done = run_cli("start", "-D", directory, environ=environ)
    assert done.returncode == 1
    (line,) = [one for one in done.stderr.splitlines() if "running as root" not in one]
    assert line == (
        f"wal2lake: error: Java 17 or 21 is needed and {told}:"
        " install it, or set JAVA_HOME to where it is"
    )
    environ = {"JAVA_HOME": str(tmp_path / "nowhere")}
    done = run_cli("start", "-D", directory, environ=environ)
    assert done.returncode == 1
    assert f'there is no "{tmp_path}/nowhere/bin/java" (JAVA_HOME)' in done.stderr


def test_a_closed_pipe_ends_quietly(tmp_path):
    directory = tmp_path / "node"
    assert run_cli("init", "-D", directory).returncode == 0
    command = f"{sys.executable} -m wal2lake.cli status -D {directory} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_process_of_start_stays_small():
    code = (
        "import sys; from wal2lake.cli import __main__, start;"
        "print([m for m in ('numpy', 'pyarrow', 'pyspark', 'psycopg', 'duckdb',"
        " 'sqlglot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_passfile_is_never_readable_by_others(tmp_path):
    old = os.umask(0)
    try:
        write_passfile(tmp_path, "u", "p")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "passfile").stat().st_mode) == 0o600


def test_rows_are_printed_as_psql_does():
    rows = ResultRows(
        ("id", "name"), (23, 25), (("1", "x"), ("10", None), ("2", "a\nbb")), ""
    )
    assert list(render(rows, Layout())) == [
        " id | name ",
        "----+------",
        "  1 | x",
        " 10 | ",
        "  2 | a   +",
        "    | bb",
        "(3 rows)",
        "",
    ]
    assert list(render(rows, Layout(aligned=False))) == [
        "id|name",
        "1|x",
        "10|",
        "2|a\nbb",
        "(3 rows)",
    ]
    bare = list(render(rows, Layout(aligned=False, tuples_only=True)))
    assert bare == ["1|x", "10|", "2|a\nbb"]
