"""One S3 server for every test of this folder that a process runs, and system views of made-up
tables.

An S3 server takes seconds to start, so tests share it and keep their objects apart by prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.catalog_source import FakeSource
from tests.fakes.objectstores import Server, environment_of, s3_server
from tests.fakes.storeproxy import StoreProxy

from wal2lake.sql.sysviews import SystemCatalog


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """An S3 server with a bucket."""
    with s3_server() as server:
        yield server


@pytest.fixture
def proxy(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """A proxy that counts the requests; the environment describes it as the store."""
    with (
        StoreProxy(s3.port) as found,
        environment_of(s3, monkeypatch, found.port),
    ):
        yield found


@pytest.fixture
def source() -> FakeSource:
    """What the system views show."""
    return FakeSource()


@pytest.fixture
def catalog(source: FakeSource) -> Iterator[SystemCatalog]:
    """The system views of ``source``."""
    catalog = SystemCatalog(source)
    yield catalog
    catalog.close()
