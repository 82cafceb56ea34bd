"""How long Spark's connectors repeat requests that a store refuses: for ``store.retry_timeout_ms``,
as the node's own client does. In a JVM without Spark, with a proxy in front of each server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from tests.fakes.objectstores import Server, azure_server, gcs_server, s3_server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy
from tests.spark.test_connectors import java

from wal2lake.lake.spark.access import access_to
from wal2lake.lake.store import StoreOptions, store_at

pytestmark = pytest.mark.slow

SECONDS = 6.0
"""Time for attempts."""

FEW = 4
"""Refused requests that are repeated within that time."""

REFUSED = {
    "busy": Planned(Fault.REFUSE, 503, "SlowDown"),
    "broken": Planned(Fault.REFUSE, 500),
    "silent": Planned(Fault.LOSE_ANSWER),
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(s3_server, id="s3"),
        pytest.param(azure_server, id="azure"),
        pytest.param(gcs_server, id="google"),
    ],
)
def test_a_connector_gives_up_when_the_nodes_own_client_does(
    tmp_path: Path, make: Callable[[], AbstractContextManager[Server]]
) -> None:
    with make() as server, StoreProxy(server.port) as proxy:
        options = StoreOptions(
            server.options(proxy.port).config,
            attempts_seconds=SECONDS,
            request_seconds=5.0,
            anonymous=server.anonymous,
        )
        url = f"{server.url}/tables"
        store = store_at(url, server.options())
        assert store is not None
        store.put("t/a", b"content")
        access = access_to(url, options, os.environ, tmp_path)
        with java(access) as machine:
            files = opened(machine, url, access.settings, access.secrets)
            path = machine.org.apache.hadoop.fs.Path(url, "t/a")
            assert read(files, path) == b"content"
            for name, planned in REFUSED.items():
                # A short fault costs no statement.
                for method in ("HEAD", "GET"):
                    proxy.plan(method, "", *[planned] * (FEW // 2))
                assert read(files, path) == b"content", name
                proxy.plans.clear()
                # A long one ends after the time for attempts.
                for method in ("HEAD", "GET"):
                    proxy.plan(method, "", *[planned] * 5000)
                begun = time.monotonic()
                with pytest.raises(Py4JJavaError):
                    read(files, path)
                took = time.monotonic() - begun
                proxy.plans.clear()
                print(f"{server.url} {name}: {took:.1f} s")
                assert took < 3 * SECONDS, name
            files.close()


def opened(machine: Any, url: str, *settings: Any) -> Any:
    """A file system of Hadoop with these settings."""
    hadoop = machine.org.apache.hadoop
    conf = hadoop.conf.Configuration()
    for some in settings:
        for name, value in some.items():
            conf.set(name.removeprefix("spark.hadoop."), value)
    return hadoop.fs.FileSystem.newInstance(machine.java.net.URI(url), conf)


def read(files: Any, path: Any) -> bytes:
    """The content of a file."""
    stream = files.open(path)
    try:
        return bytes(iter(stream.read, -1))
    finally:
        stream.close()
