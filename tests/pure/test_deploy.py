"""The files of deploy/docker, deploy/compose and deploy/kubernetes fit each other and the node."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.deployed import DEPLOY, argument, command, documents, instructions

from wal2lake import __version__
from wal2lake.settings import Settings, load

ROOT = DEPLOY.parent
LIMIT_SECONDS = Settings(Path("/")).node.shutdown_timeout_ms / 1000
"""Longest time of a fast shutdown, before receivers are told to end."""


# ---- the image ------------------------------------------------------------------------


def test_the_image_runs_the_programs_that_are_beside_the_dockerfile():
    [copied] = [rest for name, rest in instructions() if "deploy/" in rest]
    sources = copied.removeprefix("--chmod=0755 ").split()[:-1]
    programs = [command(argument(word))[0] for word in ("ENTRYPOINT", "HEALTHCHECK")]
    assert [Path(source).name for source in sources] == programs
    for source in sources:
        assert os.access(ROOT / source, os.X_OK), source
    assert command(argument("CMD")) == ["start"]


def test_the_image_stops_in_order_and_is_nobody_in_particular():
    assert argument("STOPSIGNAL") == "SIGTERM"
    user, _, group = argument("USER").partition(":")
    assert user == group == "10001"
    [made] = [rest for name, rest in instructions() if "useradd" in rest]
    assert f"--uid {user}" in made and f"--gid {group}" in made
    # The folder is made for that user before it becomes a volume.
    assert f"-m 0700 {argument('VOLUME')}" in made


def test_each_file_that_the_image_copies_is_sent_to_the_builder():
    sent = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = {
        word
        for stage in (0, 1, 2)
        for name, rest in instructions(stage)
        if name == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
        if not word.startswith("--")
    }
    assert copied == {line[1:] for line in sent if line.startswith("!")}
    for name in copied:
        assert (ROOT / name).exists(), name


def test_the_stages_have_the_same_java_and_no_registry_is_named():
    bases = [instructions(stage)[0][1].split()[0] for stage in (0, 1, 2)]
    assert bases == ["python:3.11-slim-bookworm", "java", "java"]


def test_a_start_of_the_image_has_its_jars():
    [fetched] = [rest for _, rest in instructions(1) if "lake.jars" in rest]
    [environment] = [rest for name, rest in instructions() if name == "ENV"]
    cache = re.search(r"WAL2LAKE_JAR_CACHE=(\S+)", fetched)
    folder = re.search(r"WAL2LAKE_JARS_DIR=(\S+)", environment)
    assert cache and folder and cache[1] == folder[1]
    # The archive of classes is that of the environment which is copied as a whole.
    assert "wal2lake.lake.spark.classarchive" in fetched
    assert folder[1].startswith("/opt/wal2lake/")


def test_variables_of_the_image_are_settings(tmp_path):
    [environment] = [rest for name, rest in instructions() if name == "ENV"]
    pairs = dict(word.split("=", 1) for word in environment.split())
    (tmp_path / "wal2lake.toml").write_text("")
    assert load(tmp_path, pairs).node.listen_addresses == "*"


# ---- compose --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    [document] = documents("compose/compose.yaml")
    return document


def mounts(compose: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield service, source and target of each mount."""
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            yield name, source, target


def test_files_volumes_and_secrets_of_the_services_are_there(compose):
    for service, source, target in mounts(compose):
        if source.startswith("."):
            assert (DEPLOY / "compose" / source).is_file(), (service, source)
        else:
            assert source in compose["volumes"], (service, source)
        assert target.startswith("/")
    named = {s for v in compose["services"].values() for s in v.get("secrets", [])}
    assert named == set(compose["secrets"])
    example = (DEPLOY / "compose" / "example.env").read_text()
    variables = set(re.findall(r"^(\w+)=$", example, re.MULTILINE))
    assert {s["environment"] for s in compose["secrets"].values()} == variables


def test_images_have_versions_and_no_registry(compose):
    images = {s["image"] for s in compose["services"].values()}
    assert images == {
        "postgres:18",
        f"wal2lake:{__version__}",
        "prom/prometheus:v3.5.0",
        "grafana/grafana:12.1.0",
    }


def test_the_source_decodes_and_all_ports_are_of_this_machine(compose):
    services = compose["services"]
    assert services["postgres"]["command"][1:] == ["-c", "wal_level=logical"]
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)


def test_the_node_of_compose_has_time_to_stop_and_settings_that_load(compose, tmp_path):
    service = compose["services"]["wal2lake"]
    assert int(service["stop_grace_period"].removesuffix("s")) > LIMIT_SECONDS
    text = (DEPLOY / "compose" / "wal2lake.toml").read_text()
    (tmp_path / "wal2lake.toml").write_text(text)
    settings = load(tmp_path, {})
    targets = {
        target: source for name, source, target in mounts(compose) if name == "wal2lake"
    }
    assert targets["/etc/wal2lake/wal2lake.toml"] == "./wal2lake.toml"
    assert targets[argument("VOLUME")] == "lake"
    assert (
        settings.node.ssl_key_file.startswith("/keys/") and targets["/keys"] == "keys"
    )
    published = {port.rsplit(":", 1)[1] for port in service["ports"]}
    web = settings.web.listen.rsplit(":", 1)[1]
    assert published == {str(settings.node.port), web}
    assert published == set(argument("EXPOSE").split())


def test_prometheus_and_grafana_know_each_other_and_the_node(compose):
    [prometheus] = documents("compose/prometheus.yml")
    [job] = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["wal2lake:5482"]}]
    targets = {t: (n, s) for n, s, t in mounts(compose)}
    # Prometheus looks for rules beside its configuration.
    [rules] = prometheus["rule_files"]
    assert targets[f"/etc/prometheus/{rules}"] == (
        "prometheus",
        f"../prometheus/{rules}",
    )
    assert job["tls_config"]["ca_file"].startswith("/keys/")
    secret = Path(job["basic_auth"]["password_file"]).name
    assert secret in compose["services"]["prometheus"]["secrets"]
    [sources] = documents("compose/grafana/datasource.yaml")
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    [dashboards] = documents("compose/grafana/dashboards.yaml")
    folder = dashboards["providers"][0]["options"]["path"]
    assert targets[f"{folder}/wal2lake.json"] == ("grafana", "../grafana/wal2lake.json")


# ---- kubernetes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stateful() -> dict[str, Any]:
    [document] = documents("kubernetes/statefulset.yaml")
    return document


@pytest.fixture(scope="module")
def pod(stateful: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = stateful["spec"]["template"]["spec"]
    return found


def manifests() -> list[dict[str, Any]]:
    [index] = documents("kubernetes/kustomization.yaml")
    return [d for name in index["resources"] for d in documents(f"kubernetes/{name}")]


def test_the_index_has_every_manifest_and_this_version():
    [index] = documents("kubernetes/kustomization.yaml")
    files = {p.name for p in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert set(index["resources"]) == files - {"kustomization.yaml"}
    assert [i["newTag"] for i in index["images"]] == [__version__]


def test_names_and_labels_of_the_manifests_meet(stateful, pod):
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    services = [d for d in manifests() if d["kind"] == "Service"]
    assert all(s["spec"]["selector"] == labels for s in services)
    [headless] = [s for s in services if s["spec"].get("clusterIP") == "None"]
    assert stateful["spec"]["serviceName"] == headless["metadata"]["name"]
    [container] = pod["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert {str(p) for p in ports.values()} == set(argument("EXPOSE").split())
    for service in services:
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    claims = stateful["spec"]["volumeClaimTemplates"]
    volumes = {v["name"] for v in [*pod["volumes"], *(c["metadata"] for c in claims)]}
    assert {m["name"] for m in container["volumeMounts"]} == volumes
    known = {(d["kind"], d["metadata"]["name"]) for d in manifests()}
    assert {("ConfigMap", "wal2lake"), ("Secret", "wal2lake")} <= known


def test_an_error_restarts_no_pod_and_takes_no_reader_away(stateful, pod):
    [container] = pod["containers"]
    # HEALTHCHECK's command: 200 while the supervisor runs, whatever ails subscriptions.
    live = command(argument("HEALTHCHECK"))
    assert container["livenessProbe"]["exec"]["command"] == live
    assert container["startupProbe"]["exec"]["command"] == live
    assert container["readinessProbe"]["exec"]["command"] == [live[0], "serving"]
    assert pod["terminationGracePeriodSeconds"] > LIMIT_SECONDS
    assert stateful["spec"]["replicas"] == 1


def test_the_pod_has_no_rights_that_it_does_not_need(pod):
    user, group = map(int, argument("USER").split(":"))
    context, [container] = pod["securityContext"], pod["containers"]
    assert (context["runAsUser"], context["runAsGroup"]) == (user, group)
    assert context["fsGroup"] == group and context["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # A key in a Secret is root's, and the group may read it: login.certificate takes that.
    modes = [v["secret"]["defaultMode"] for v in pod["volumes"] if "secret" in v]
    assert modes == [0o440, 0o440]


def test_settings_of_the_config_map_load_with_its_comments_too(pod, tmp_path):
    [text] = [
        d["data"]["wal2lake.toml"] for d in manifests() if d["kind"] == "ConfigMap"
    ]
    paths = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert paths["settings"] == "/etc/wal2lake"
    (tmp_path / "wal2lake.toml").write_text(text)
    assert load(tmp_path, {}).node.ssl is False
    lines = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    assert tomllib.loads(lines)["web"]
    (tmp_path / "wal2lake.toml").write_text(lines)
    settings = load(tmp_path, {})
    assert settings.web.listen.endswith(":5482")
    assert settings.node.ssl_key_file == f"{paths['tls']}/tls.key"


def test_the_password_is_where_the_entry_point_looks_for_it(pod):
    [container] = pod["containers"]
    [variable] = container["env"]
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "password"]
    [secret] = [d for d in manifests() if d["kind"] == "Secret"]
    assert (
        variable["value"] == f"{mount['mountPath']}/{next(iter(secret['stringData']))}"
    )
    entry_point = (DEPLOY / "docker" / "entrypoint").read_text()
    assert f"${{{variable['name']}:-}}" in entry_point
    # No password that everybody knows: init refuses an empty one.
    assert secret["stringData"]["password"] == ""


def test_no_file_of_deploy_names_a_registry():
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in {".yaml", ".yml", ""}:
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"\b(?:docker|ghcr|quay|gcr)\.io\b", text), path
