"""A node behind a proxy that does what networks and stores do, and the faults of each kind of file.

Comes in: an S3 server with a proxy in front of it. Goes out: a running node whose requests go
through the proxy, requests that will fail, and rows as delta-rs reads them past the proxy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import deltalake
import pyarrow as pa
from tests.fakes.objectstores import BUCKET, Server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.lake.store.lease import KEY
from wal2lake.observe.failpoints import VARIABLE
from wal2lake.testing.node import Node

FAULTS = {
    "PUT": (
        Planned(Fault.CUT_REQUEST),
        Planned(Fault.CUT_ANSWER),
        Planned(Fault.LOSE_ANSWER),
        Planned(Fault.REFUSE, 500),
        Planned(Fault.REFUSE, 503, "SlowDown"),
        Planned(Fault.REFUSE_DONE, 500),
        Planned(Fault.REFUSE_DONE, 503, "SlowDown"),
        Planned(Fault.DELAY, seconds=0.5),
    ),
    "GET": (
        Planned(Fault.CUT_ANSWER),
        Planned(Fault.LOSE_ANSWER),
        Planned(Fault.REFUSE, 500),
        Planned(Fault.REFUSE, 503, "SlowDown"),
        Planned(Fault.NO_ANSWER, seconds=0.5),
        Planned(Fault.DELAY, seconds=0.5),
    ),
    "DELETE": (
        Planned(Fault.LOSE_ANSWER),
        Planned(Fault.REFUSE_DONE, 500),
    ),
}

CONDITIONAL = (
    *FAULTS["PUT"],
    Planned(Fault.REFUSE, 409, "ConditionalRequestConflict"),
    Planned(Fault.REFUSE_DONE, 409, "ConditionalRequestConflict"),
    Planned(Fault.REFUSE, 412, "PreconditionFailed"),
    Planned(Fault.REFUSE_DONE, 412, "PreconditionFailed"),
)
"""Faults of a request with a condition: commits, and the lease."""

KINDS = {
    ".parquet": FAULTS["PUT"],
    "deletion_vector": FAULTS["PUT"],
    ".crc": FAULTS["PUT"],
    ".json": CONDITIONAL,
    KEY: CONDITIONAL,
}
"""Files by a part of their names, with what may happen to their PUT."""


@contextmanager
def node_behind(
    proxy: StoreProxy, directory: Path, points: Path, **more: object
) -> Iterator[tuple[Node, str]]:
    """A running node whose requests go through the proxy, and its warehouse."""
    points.mkdir()
    warehouse = f"s3://{BUCKET}/{uuid4().hex}"
    settings = {
        "spark.warehouse": warehouse,
        "spark.driver_memory": "1g",
        "store.endpoint": f"http://127.0.0.1:{proxy.port}",
        "store.region": "us-east-1",
        "store.access_key_id": "key",
        "store.secret_access_key": "secret",
        "subscription.wal_retrieve_retry_interval_ms": 200,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    with Node(directory, settings=settings, environ={VARIABLE: str(points)}) as node:
        yield node.init().start(), warehouse


def plan_some(proxy: StoreProxy, dice: random.Random, count: int) -> None:
    """Let the next requests of some kinds fail, some of them twice."""
    for _ in range(count):
        part, faults = dice.choice(list(KINDS.items()))
        proxy.plan("PUT", part, *dice.choices(faults, k=dice.randint(1, 2)))
        proxy.plan("GET", "_delta_log", dice.choice(FAULTS["GET"]))
        proxy.plan("DELETE", "", dice.choice(FAULTS["DELETE"]))


def rows_past_the_proxy(
    server: Server, warehouse: str, table: str, sql: str
) -> list[tuple[object, ...]]:
    """Return the rows of a query of a table, which is ``t`` there, by delta-rs."""
    options = {
        "endpoint": f"http://127.0.0.1:{server.port}",
        "allow_http": "true",
        "region": "us-east-1",
        "access_key_id": "key",
        "secret_access_key": "secret",
    }
    opened = deltalake.DeltaTable(
        f"{warehouse}/{table.replace('.', '/')}", storage_options=options
    )
    answer = deltalake.QueryBuilder().register("t", opened).execute(sql)
    return [tuple(row.values()) for row in pa.table(answer.read_all()).to_pylist()]
