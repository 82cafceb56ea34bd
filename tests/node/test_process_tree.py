"""The real process tree: each process killed alone, all killed, and nothing left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from wal2lake.launch.processes import is_alive, session_members
from wal2lake.testing.node import Node, run_cli
from wal2lake.testing.waits import wait_until


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    with Node(tmp_path_factory.mktemp("tree") / "node") as made:
        made.init().start()
        yield made


def engine_of(node):
    return next(w.pid for w in node.status().workers if w.role == "engine")


def java_of(node):
    return [
        pid
        for pid in session_members(engine_of(node))
        if Path(f"/proc/{pid}/exe").readlink().name == "java"
    ]


def test_a_killed_engine_takes_its_jvm_along_and_comes_back(tree):
    engine, java = engine_of(tree), java_of(tree)
    assert java, "an engine has a JVM"
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not [pid for pid in java if is_alive(pid)])
    wait_until(lambda: engine_of(tree) != engine if tree.status().workers else False)
    tree.wait_ready()
    assert tree.value("select 1") == "1"


@pytest.mark.slow
def test_a_killed_jvm_makes_a_new_engine(tree):
    engine = engine_of(tree)
    for pid in java_of(tree):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(engine))
    tree.wait_ready()
    assert tree.value("select 1") == "1"


def test_a_second_start_is_refused(tree):
    done = run_cli("start", "-D", tree.directory)
    assert done.returncode == 1
    assert 'lock file "wal2lake.pid" already exists' in done.stderr
    assert tree.value("select 1") == "1"


def test_no_process_outlives_a_killed_supervisor_and_the_node_comes_back(tree):
    pids = tree.pids()
    assert len(pids) >= 4, "supervisor, guardian, engine, JVM"
    tree.kill("supervisor")
    wait_until(
        lambda: not [pid for pid in pids if is_alive(pid)],
        describe=lambda: str([pid for pid in pids if is_alive(pid)]),
    )
    tree.start()
    assert tree.value("select 1") == "1"


@pytest.mark.slow
def test_the_whole_tree_killed_comes_back_and_stops_in_order(tree):
    tree.kill("tree")
    tree.start()
    pids = tree.pids()
    assert tree.value("select 1") == "1"
    assert tree.stop() == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert "database system is shut down" in tree.log_text()
    # What DuckDB's module says of an interpreter's end is nobody's business.
    assert "nanobind" not in tree.log_text()
