"""The image's entry point with a volume, as process 1, through the image's own commands."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.deployed import Container

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A container with an empty volume, whose start finds no cache and needs no network."""
    folder = tmp_path_factory.mktemp("container")
    jars = {p.parent for p in locate_jars(JarSource.from_environment(os.environ), {})}
    [jars_dir] = jars
    made = Container(
        folder,
        {
            "WAL2LAKE_JARS_DIR": str(jars_dir),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "WAL2LAKE_INIT_PASSWORD": "it's open",
            "WAL2LAKE_NODE_PORT": "0",
            "WAL2LAKE_WEB_LISTEN": "127.0.0.1:0",
        },
    )
    yield made
    made.close()


def start(container: Container) -> None:
    container.start()
    wait_until(container.is_healthy, timeout_seconds=60, describe=container.log_text)
    wait_until(container.is_serving, timeout_seconds=120, describe=container.log_text)


def sql(container: Container, statement: str) -> str:
    done = container.run(
        "wal2lake", "sql", "-D", str(container.directory), "-At", "-c", statement
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def children_of(pid: int) -> list[tuple[int, str]]:
    """Return pid and state of each child."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = text.rpartition(")")[2].split()[:2]
            if int(parent) == pid:
                found.append((int(entry.name), state))
    return found


def test_a_container_starts_stops_and_starts_again_on_its_volume(container):
    start(container)
    assert sql(container, "select current_user") == "lake"
    passfile = (container.directory / "passfile").read_text()
    assert passfile == "*:*:lake:lake:it's open\n"
    sql(container, "create table kept (id int primary key)")
    sql(container, "insert into kept values (7)")
    environment = Path(f"/proc/{container.first_pid}/environ").read_bytes()
    assert b"WAL2LAKE_INIT_PASSWORD" not in environment
    assert container.stop() == 0
    assert not container.is_healthy()

    start(container)
    assert sql(container, "select id from kept") == "7"
    assert container.log_text().count("made a wal2lake node in") == 1


def test_process_1_reaps_orphans_and_survives_a_kill(container):
    if not container.is_namespaced:
        pytest.skip("not allowed to make a namespace of process ids")
    if not container.is_running:
        start(container)
    sql(container, "create table lived (id int primary key)")
    sql(container, "insert into lived values (8)")
    first = container.first_pid
    enter = ["nsenter", "--pid", "--mount", "--target", str(first), "--"]
    subprocess.run([*enter, "sh", "-c", "sleep 0.5 & exit 0"], check=True, timeout=10)
    before = {pid for pid, _ in children_of(first)}
    wait_until(lambda: before - {pid for pid, _ in children_of(first)})
    assert [pid for pid, state in children_of(first) if state == "Z"] == []

    # The lock file then names process 1, which the next start is, too.
    container.end(signal.SIGKILL)
    start(container)
    assert sql(container, "select id from lived") == "8"
    assert container.end(signal.SIGINT) == 0
