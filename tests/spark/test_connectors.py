"""Spark's connectors for Google and Azure with each kind of credentials, in a JVM without Spark.

The node's own client writes an object; the connector reads it and writes another, which the client
reads. The servers refuse requests without credentials.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from tests.fakes.objectstores import (
    Server,
    azure_server,
    closed_gcs_server,
    gcs_account,
)
from tests.fakes.tls_front import Authority

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark.access import access_to
from wal2lake.lake.spark.access.needs import SparkAccess
from wal2lake.lake.store import StoreOptions, store_at

pytestmark = pytest.mark.slow


@contextmanager
def java(access: SparkAccess, *options: str) -> Iterator[Any]:
    """Run a JVM with the connector's jar and variables."""
    jars = locate_jars(JarSource.from_environment(os.environ), os.environ, access.jars)
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.extraClassPath", ":".join(map(str, jars)))
    conf.set("spark.driver.memory", "512m")
    conf.set("spark.driver.extraJavaOptions", " ".join(options))
    with pytest.MonkeyPatch.context() as patch:
        # The JVM inherits them.
        for name, value in access.environment.items():
            patch.setenv(name, value)
        gateway = launch_gateway(conf)
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


def both_ways(java: Any, access: SparkAccess, url: str, options: StoreOptions) -> None:
    """Read by the connector what the client has written, and the other way."""
    store = store_at(url, options)
    assert store is not None
    hadoop = java.org.apache.hadoop
    conf = hadoop.conf.Configuration()
    for name, value in {**access.settings, **access.secrets}.items():
        conf.set(name.removeprefix("spark.hadoop."), value)
    files = hadoop.fs.FileSystem.newInstance(java.java.net.URI(url), conf)
    store.put("Übrige Dinge/100 %25.parquet", b"from the node")
    path = hadoop.fs.Path(url, "Übrige Dinge/100 %25.parquet")
    stream = files.open(path)
    stream.seek(5)
    assert bytes(iter(stream.read, -1)) == b"the node"
    stream.close()
    written = files.create(hadoop.fs.Path(url, "a/b"), False)
    written.write(bytearray(b"from Spark"))
    written.close()
    assert store.read("a/b") == b"from Spark"
    files.close()


@pytest.mark.parametrize("kind", ["file", "machine", "command"])
def test_google_knows_the_connector_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with closed_gcs_server() as server:
        # Both programs ask the machine's server of tokens there.
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.port}")
        cache = JarSource.from_environment(os.environ).cache
        monkeypatch.setenv("WAL2LAKE_JAR_CACHE", str(cache))
        monkeypatch.setenv("HOME", str(tmp_path))
        options = google_options(server, tmp_path, kind)
        url = f"{server.url}/tables"
        access = access_to(url, options, os.environ, tmp_path)
        with java(access) as machine:
            both_ways(machine, access, url, options)


def google_options(server: Server, directory: Path, kind: str) -> StoreOptions:
    """The options of a node for one kind of credentials."""
    config = {"endpoint": server.endpoint}
    command = ""
    if kind == "file":
        file = directory / "key.json"
        file.write_text(gcs_account(server.endpoint))
        config["credentials_file"] = str(file)
    elif kind == "command":
        command = dict(server.config)["credentials_command"]
    return StoreOptions(tuple(config.items()), credentials_command=command)


def test_azure_knows_the_connector_by_the_tokens_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "keys")
    trusted = tmp_path / "trusted"
    subprocess.run(
        [
            *("keytool", "-importcert", "-noprompt", "-alias", "ca"),
            *("-storepass", "secret", "-keystore", trusted),
            *("-file", authority.certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    printed = tmp_path / "printed"
    printed.write_text(json.dumps({"accessToken": token(), "expires_in": 3600}))
    with azure_server(authority.issue("server", "azurite")) as server:
        options = StoreOptions(
            (("endpoint", server.endpoint),), credentials_command=f"cat '{printed}'"
        )
        url = f"{server.url}/tables"
        access = access_to(url, options, {}, tmp_path)
        store = f"-Djavax.net.ssl.trustStore={trusted}"
        with java(access, store, "-Djavax.net.ssl.trustStorePassword=secret") as found:
            both_ways(found, access, url, options)


def token() -> str:
    """A token as Azure's server gives one; Azurite does not check the signature."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": now + 3600,
    }
    parts = [{"alg": "RS256", "typ": "JWT"}, claims, "signature"]
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()) for p in parts]
    return b".".join(part.rstrip(b"=") for part in encoded).decode()
