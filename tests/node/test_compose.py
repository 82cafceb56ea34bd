"""What the services of deploy/compose do, one after the other, without containers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fakes.deployed import DEPLOY, Container
from tests.fakes.prometheus import Prometheus, find_tools

from wal2lake.launch import read_web_status
from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.testing.postgres import PostgresServer, find_installation
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.slow

COMPOSE = DEPLOY / "compose"
SECRETS = {
    "source_password": 'it\'s "first" \\ $HOME',
    "lake_password": 'it\'s "second" \\ $HOME',
    "prometheus_password": 'it\'s "third" \\ $HOME',
}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    for name, text in SECRETS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    script = ["sh", str(COMPOSE / "certificate.sh"), str(folder), str(os.getegid())]
    subprocess.run(script, check=True, capture_output=True, timeout=30)
    # The node runs as the key's owner here, not as its group.
    (folder / "server.key").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def container(
    tmp_path_factory: pytest.TempPathFactory, secrets: Path, keys: Path
) -> Iterator[Container]:
    """The service wal2lake, on free ports."""
    folder = tmp_path_factory.mktemp("compose")
    settings = folder / "outside.toml"
    text = (COMPOSE / "wal2lake.toml").read_text()
    assert '"/keys/' in text and ":5481" in text and ":5482" in text
    text = text.replace('"/keys/', f'"{keys}/')
    settings.write_text(text.replace(":5481", ":0").replace(":5482", ":0"))
    environ = {
        "WAL2LAKE_SETTINGS_FILE": str(settings),
        "WAL2LAKE_INIT_PASSWORD_FILE": str(secrets / "lake_password"),
        "WAL2LAKE_NODE_PORT": "0",
    }
    made = Container(folder, environ)
    made.start()
    wait_until(made.is_serving, timeout_seconds=120, describe=made.log_text)
    yield made
    made.close()


def run(*words: str | Path, **environ: str) -> str:
    programs = str(find_installation(18).bin)
    done = subprocess.run(
        list(map(str, words)),
        env={"PATH": os.pathsep.join([programs, os.environ["PATH"]]), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_services_work_together(container, secrets, keys, tmp_path):
    with PostgresServer(18) as server:
        server.psql("create database app")
        source = str(COMPOSE / "source.sql")
        psql = ("psql", "-X", "-q", "-d", server.conninfo("app"), "-f", source)
        run(*psql, SECRETS=str(secrets))

        at_node = connection_parameters(container.directory)
        environ = {
            "PGHOST": at_node["host"],
            "PGPORT": at_node["port"],
            "PGUSER": "lake",
            "PGDATABASE": "lake",
            "SOURCE": server.conninfo("app", user="lake"),
            "SECRETS": str(secrets),
        }
        # Each "docker compose up" runs it again.
        for _ in range(2):
            run("sh", COMPOSE / "setup.sh", COMPOSE / "lake.sql", **environ)
        environ["PGPASSWORD"] = SECRETS["lake_password"]
        ask = ("psql", "-X", "-Atc", "select count(*) from orders")
        wait_until(lambda: run(*ask, **environ).strip() == "2")

    tools = find_tools()
    status = read_web_status(container.directory / "run")
    assert status is not None
    [port] = [urlsplit(u).port for u in status.urls if u.startswith("https:")]
    text = (COMPOSE / "prometheus.yml").read_text()
    for place, here in {
        "/keys/": f"{keys}/",
        "/run/secrets/": f"{secrets}/",
        "wal2lake:5482": f"localhost:{port}",
        "scrape_interval: 15s": "scrape_interval: 1s",
        "wal2lake.rules.yml": str(DEPLOY / "prometheus" / "wal2lake.rules.yml"),
    }.items():
        assert place in text
        text = text.replace(place, here)
    (tmp_path / "prometheus.yml").write_text(text)
    run(tools.promtool, "check", "config", tmp_path / "prometheus.yml")
    with Prometheus(tools, tmp_path / "prometheus", text) as prometheus:
        assert list(prometheus.wait_for('up{job="wal2lake"} == 1').values()) == [1]
        assert list(prometheus.wait_for("wal2lake_node_ready").values()) == [1]
