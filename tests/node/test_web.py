"""The web process of a whole node: health, metrics, logins, and a real Prometheus."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.fakes.prometheus import Prometheus, Tools, find_tools
from tests.fakes.tls_front import Authority

from wal2lake.launch import read_web_status
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "wal2lake.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "wal2lake.json"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("web") / "keys")


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[Node]:
    """A node that serves this machine plainly, and others with TLS."""
    certificate, key = authority.issue("node", "node")
    settings = {
        "web.listen": "127.0.0.1:0, 0.0.0.0:0",
        "node.ssl": "on",
        "node.ssl_cert_file": certificate,
        "node.ssl_key_file": key,
        "subscription.wal_retrieve_retry_interval_ms": 300,
    }
    directory = tmp_path_factory.mktemp("watched") / "node"
    with Node(directory, settings=settings) as node:
        node.init().start()
        wait_until(lambda: len(urls(node)) == 2, describe=node.log_text)
        node.sql("create role scraper login password 'sesame' in role pg_monitor")
        node.sql("create role stranger login password 'sesame'")
        yield node


def urls(node: Node) -> tuple[str, ...]:
    """Where the present web process listens: HTTP, then HTTPS."""
    status = read_web_status(node.directory / "run")
    pids = [worker.pid for worker in node.status().workers if worker.role == "web"]
    return status.urls if status is not None and [status.pid] == pids else ()


def port(node: Node, scheme: str) -> int:
    found = [urlsplit(url) for url in urls(node)]
    [number] = [url.port for url in found if url.scheme == scheme and url.port]
    return number


def get(node: Node, path: str, accept: str = "*/*") -> tuple[int, str]:
    """Ask as a program on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port(node, "http"), timeout=30)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def get_from_elsewhere(
    node: Node, authority: Authority, path: str, user: str = ""
) -> tuple[int, str]:
    """Ask over TLS, as ``name:password`` or nobody."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port(node, "https"), timeout=30, context=context
    )
    headers = {}
    if user:
        encoded = base64.b64encode(user.encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def values(node: Node) -> dict[str, dict[str, float]]:
    """Return the samples: name, labels as JSON, value."""
    status, text = get(node, "/metrics", "application/openmetrics-text;version=1.0.0")
    assert status == 200, text
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = json.dumps(sample.labels, sort_keys=True)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def web_pid(node: Node) -> int:
    return next(worker.pid for worker in node.status().workers if worker.role == "web")


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def subscriber(watched: Node) -> Node:
    return watched


def test_a_subscription_is_seen_in_the_metrics(watched, pg18, subscribe):
    pg18.psql(
        "create schema shop; create table shop.t (id int primary key, v text);"
        "insert into shop.t select g, 'x' from generate_series(1, 100) g;"
        "create publication shop for table shop.t"
    )
    mirror = subscribe(pg18, "shop")
    mirror.synced()
    pg18.psql("insert into shop.t values (1000, 'y')")
    mirror.caught_up()
    of_shop = '{"subscription": "shop"}'
    of_table = '{"subscription": "shop", "table": "shop.t"}'

    def settled() -> dict[str, dict[str, float]] | None:
        found = values(watched)
        seen = found.get("wal2lake_commit_to_durable_seconds_count", {})
        return found if seen.get(of_shop) else None

    found = wait_until(settled, describe=lambda: get(watched, "/metrics")[1])
    assert found["wal2lake_node_ready"] == {"{}": 1}
    assert found["wal2lake_table_ready"] == {of_table: 1}
    stages = found["wal2lake_subscription_lag_bytes"]
    assert len(stages) == 4 and all(value >= 0 for value in stages.values())
    assert found["wal2lake_received_bytes_total"][of_shop] > 0
    assert found["wal2lake_subscription_log_bytes"][of_shop] > 0
    memory = found["wal2lake_process_resident_memory_bytes"]
    assert memory['{"role": "web", "subscription": ""}'] < 120 << 20
    assert memory['{"role": "receiver", "subscription": "shop"}'] > 0


def test_the_node_is_ready_and_says_so(watched):
    def ready() -> bool:
        return get(watched, "/health/ready") == (200, '{"status":"ready","reasons":[]}')

    wait_until(ready, describe=lambda: get(watched, "/health/ready")[1])
    assert get(watched, "/health/live")[0] == 200


@pytest.mark.slow
def test_other_machines_need_a_role_of_pg_monitor(watched, authority):
    def ask(user: str = "") -> int:
        return get_from_elsewhere(watched, authority, "/metrics", user)[0]

    assert ask() == 401
    assert ask("scraper:wrong") == 401
    assert ask("stranger:sesame") == 403
    assert ask("scraper:sesame") == 200
    watched.sql("grant pg_monitor to stranger")
    assert ask("stranger:sesame") == 200
    watched.sql("alter role stranger valid until '2020-01-01'")
    assert ask("stranger:sesame") == 401
    watched.sql("alter role stranger valid until 'infinity' nologin")
    assert ask("stranger:sesame") == 403
    # A load balancer learns whether, but not why.
    for path in ("/health/live", "/health/ready"):
        status, text = get_from_elsewhere(watched, authority, path)
        assert status in (200, 503) and "message" not in text


@pytest.mark.slow
def test_readers_of_iceberg_on_other_machines_need_a_role_but_not_pg_monitor(
    watched, authority
):
    watched.sql("create role reader login password 'sesame'")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port(watched, "https"), timeout=30, context=context
    )

    def ask(path: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    try:
        assert ask("/v1/config")[0] == 401
        basic = get_from_elsewhere(watched, authority, "/v1/config", "reader:sesame")
        assert basic[0] == 401
        status, answer = ask(
            "/v1/oauth/tokens",
            "grant_type=client_credentials&client_id=reader&client_secret=sesame",
        )
        assert status == 200
        bearer = f"Bearer {answer['access_token']}"
        assert ask("/v1/config", Authorization=bearer)[0] == 200
        namespaces = ask("/v1/latest/namespaces", Authorization=bearer)
        assert namespaces == (200, {"namespaces": [], "next-page-token": None})
    finally:
        connection.close()


@pytest.mark.slow
def test_plain_http_on_the_port_for_tls_gets_no_answer(watched):
    connection = http.client.HTTPConnection("127.0.0.1", port(watched, "https"))
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.request("GET", "/health/live")
        connection.getresponse()
    connection.close()


def test_clients_that_never_begin_the_handshake_cost_little(watched, authority):
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port(watched, "https")))
            )
        assert get(watched, "/health/live")[0] == 200
        assert peak_bytes(web_pid(watched)) < 120 << 20

    def answered() -> bool:
        try:
            return get_from_elsewhere(watched, authority, "/health/live")[0] == 200
        except OSError:
            return False

    wait_until(answered)
    assert "Traceback" not in watched.log_text()


def test_a_certificate_that_is_replaced_is_served_after_a_reload(watched, authority):
    def served() -> str:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port(watched, "https"), timeout=30, context=context
        )
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        certificate: dict[str, Any] = dict(connection.sock.getpeercert() or {})
        connection.close()
        return str(dict(pair for (pair,) in certificate["subject"])["commonName"])

    pid = web_pid(watched)
    assert served() == "node"
    authority.issue("node", "renewed")
    os.kill(watched.pids()[0], signal.SIGHUP)
    wait_until(lambda: served() == "renewed")
    assert web_pid(watched) == pid


def test_it_answers_while_the_engine_is_down_and_a_crash_of_it_disturbs_nothing(
    watched,
):
    before = web_pid(watched)
    watched.kill("engine")
    wait_until(lambda: '"kind":"node"' in get(watched, "/health/ready")[1])
    assert get(watched, "/health/ready")[0] == 503
    assert values(watched)["wal2lake_node_ready"] == {"{}": 0}
    assert web_pid(watched) == before
    watched.wait_ready()
    engine = next(w.pid for w in watched.status().workers if w.role == "engine")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: len(urls(watched)) == 2 and web_pid(watched) != before)
    assert get(watched, "/health/live")[0] == 200
    assert engine in [w.pid for w in watched.status().workers]
    restarts = values(watched)["wal2lake_process_restarts_total"]
    assert restarts['{"role": "web", "subscription": ""}'] == 1


# ---- Prometheus ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def tools() -> Tools:
    return find_tools()


def promtool(tools: Tools, *arguments: str, text: str = "", cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [tools.promtool, *arguments],
        input=text,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_finds_nothing_to_improve(watched, tools, tmp_path):
    assert promtool(tools, "check", "metrics", text=get(watched, "/metrics")[1]) == ""
    assert "SUCCESS" in promtool(tools, "check", "rules", str(RULES))
    tests = RULES.with_name("wal2lake.rules.test.yml")
    assert "SUCCESS" in promtool(tools, "test", "rules", tests.name, cwd=tests.parent)
    for name in ("prometheus.yml", "wal2lake.rules.yml"):
        (tmp_path / name).write_text((RULES.parent / name).read_text())
    for name in ("wal2lake.crt", "wal2lake.password"):
        (tmp_path / name).touch()
    promtool(tools, "check", "config", "prometheus.yml", cwd=tmp_path)


def test_prometheus_scrapes_the_node_on_this_machine_and_as_from_another(
    watched, tools, authority, tmp_path
):
    configuration = f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [ {RULES} ]
scrape_configs:
  - job_name: wal2lake
    static_configs: [ {{ targets: [ "127.0.0.1:{port(watched, "http")}" ] }} ]
  - job_name: wal2lake-remote
    scheme: https
    tls_config: {{ ca_file: {authority.certificate} }}
    basic_auth: {{ username: scraper, password: sesame }}
    static_configs: [ {{ targets: [ "127.0.0.1:{port(watched, "https")}" ] }} ]
"""
    with Prometheus(tools, tmp_path / "prometheus", configuration) as prometheus:
        wait_until(
            lambda: prometheus.wait_for("sum(up)") == {"{}": 2},
            describe=lambda: str(prometheus.ask("targets")),
        )
        for target in prometheus.ask("targets")["activeTargets"]:
            assert target["lastError"] == ""
        assert list(prometheus.wait_for("wal2lake_node_ready").values()) == [1, 1]
        rules = prometheus.ask("rules")["groups"]
        assert all(r["health"] in ("ok", "unknown") for g in rules for r in g["rules"])
        names = set(prometheus.ask("label/__name__/values"))
        assert "wal2lake_disk_free_bytes" in names
        # Every query of the dashboard is one that Prometheus can answer.
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "1m")
                for variable in ("$instance", "$subscription"):
                    query = query.replace(variable, ".*")
                prometheus.ask("query", query=query)
