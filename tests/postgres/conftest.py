"""What the tests of this layer share: a connection whose settings fix how values are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from wal2lake.testing.postgres import PostgresServer

_SESSION = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"
    " -c timezone=UTC -c bytea_output=hex -c client_encoding=UTF8"
)


@pytest.fixture
def connection(
    postgres_server: Callable[[int], PostgresServer],
) -> Iterator[psycopg.Connection[Any]]:
    """A session at PostgreSQL 18, for tests that make no more than temporary tables."""
    conninfo = postgres_server(18).conninfo("postgres")
    with psycopg.connect(conninfo, options=_SESSION, autocommit=True) as connection:
        yield connection
