"""What the workloads run on: a source, a native subscriber, a node. Each starts when it is
first asked for and is removed at the end, whatever happens.

Source and native subscriber are PostgreSQL 18 of the demo's wheel, fsync on, as installed but for
the sizes in ``_SERVER``, which keep checkpoints out of the measurement on both alike.

Comes in: options. Goes out: servers, connections, timed waits, results. Used by every workload
that needs a server.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, TypeVar

import psutil

from benchmarks.options import Options
from benchmarks.report import Result, Target
from benchmarks.usage import Usage
from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

T = TypeVar("T")
M = TypeVar("M")

APPLICATION_NAME: Final = "bench"
"""Of our own connections, so that a subscriber's can be told from them."""

_SERVER: Final = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_slot_wal_keep_size": "-1",
    "max_connections": "600",
    "max_prepared_transactions": "20",
    "synchronous_commit": "on",
}

_POLL_SECONDS: Final = 0.05
"""How finely the end of something that takes seconds is looked for."""

_NUDGE_SECONDS: Final = 0.1

LONGEST_SECONDS: Final = 1800.0
"""A wait that takes longer fails: something is broken, not slow."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the two subscribers that are compared."""

    name: str
    """``native`` or ``node``."""
    pid: int
    """The root of its processes."""
    connected: Callable[[], AbstractContextManager[Client]]


class Stage:
    """A context manager; everything it has started is gone after it."""

    def __init__(self, options: Options) -> None:
        """Nothing is started yet."""
        self.options = options
        self.results: list[Result] = []
        self._ending = ExitStack()
        self._source: PostgresServer | None = None
        self._native: PostgresServer | None = None
        self._node: Node | None = None
        self._node_usage: Usage | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()

    # ---- servers ------------------------------------------------------------------

    @property
    def source(self) -> PostgresServer:
        """The publisher."""
        if self._source is None:
            self._source = self._start_server()
        return self._source

    @property
    def native(self) -> PostgresServer:
        """PostgreSQL as the subscriber."""
        if self._native is None:
            self._native = self._start_server()
        return self._native

    def _start_server(self) -> PostgresServer:
        # Ctrl-C while it starts must find it: close is the server's own exit handler then.
        server = PostgresServer(18, fsync=True, fresh=True, settings=_SERVER)
        self._ending.callback(server.close)
        return server

    @property
    def node(self) -> Node:
        """Ours, with its default settings."""
        if self._node is None:
            folder = self.folder
            node = Node(folder / "node")
            self._ending.callback(node.close)
            node.init("-U", "postgres").start()
            self._node = node
            self._node_usage = Usage({"node": node.pids()[0]})
            self._ending.enter_context(self._node_usage)
        return self._node

    @property
    def node_usage(self) -> Usage:
        """CPU and memory of the node since it was ready."""
        _ = self.node
        assert self._node_usage is not None
        return self._node_usage

    @property
    def folder(self) -> Path:
        """A temporary folder of this run, on the disk that TMPDIR names."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="wal2lake-bench-"))
            self._ending.callback(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    @contextmanager
    def at_source(self) -> Iterator[Client]:
        """A connection to the source."""
        conninfo = self.source.conninfo(application_name=APPLICATION_NAME)
        with Client(conninfo) as client:
            yield client

    @contextmanager
    def at_native(self) -> Iterator[Client]:
        """A connection to the native subscriber."""
        with Client(self.native.conninfo()) as client:
            yield client

    @contextmanager
    def at_node(self) -> Iterator[Client]:
        """A connection to the node's front door."""
        with self.node.connect(application_name=APPLICATION_NAME) as client:
            yield client

    def peers(self) -> list[Peer]:
        """The subscribers, in the order in which they are measured."""
        native = Peer("native", self.native.pid, self.at_native)
        return [native, self.ours] if self.options.node else [native]

    @property
    def ours(self) -> Peer:
        """The node among them."""
        return Peer("node", self.node.pids()[0], self.at_node)

    def subscribe(
        self, client: Client, name: str, publication: str, options: str = ""
    ) -> None:
        """CREATE SUBSCRIPTION to the source; returns as soon as the command does."""
        client.rows(
            f"create subscription {name}"
            f" connection {quote_literal(self.source.conninfo())}"
            f" publication {publication} {options}"
        )

    @contextmanager
    def quick_slots(self) -> Iterator[None]:
        """While it lasts, the source logs its running transactions often, so that creating
        a slot on an idle server does not wait for the next periodic record (15 s)."""
        stop = threading.Event()

        def nudge() -> None:
            with self.at_source() as source:
                while not stop.wait(_NUDGE_SECONDS):
                    source.rows("select pg_log_standby_snapshot()")

        thread = threading.Thread(target=nudge, name="nudge", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # ---- results ------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Tell a person what is going on."""
        print(f"[load {os.getloadavg()[0]:4.1f}] {text}", flush=True)

    def add(
        self,
        workload: str,
        what: str,
        unit: str,
        ours: float | None,
        native: float | None = None,
        target: Target | None = None,
    ) -> None:
        """Keep a result for the table."""
        self.results.append(Result(workload, what, unit, ours, native, target))

    def facts(self) -> dict[str, object]:
        """On what this was measured."""
        return {
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "python": platform.python_version(),
            "system": platform.platform(),
            "load_average": os.getloadavg(),
            "rows_scale": self.options.rows_scale,
        }


@dataclass(frozen=True, slots=True)
class Comparison(Generic[M]):
    """What a workload measured of each peer, and the results made of it."""

    stage: Stage
    workload: str
    measured: Mapping[str, M]
    """By the peer's name."""

    def add(
        self,
        what: str,
        unit: str,
        of: Callable[[M], float | None],
        target: Target | None = None,
    ) -> None:
        """One figure of both."""
        ours, native = (
            of(self.measured[name]) if name in self.measured else None
            for name in ("node", "native")
        )
        self.stage.add(self.workload, what, unit, ours, native, target)


def wait_exactly(
    condition: Callable[[], T],
    what: str,
    *,
    pause_seconds: float = _POLL_SECONDS,
) -> T:
    """The condition's first true value, looked for at even distances (``wait_until``'s
    pauses grow, which would show in the figures)."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LONGEST_SECONDS:g} s: {what}")
        time.sleep(pause_seconds)
    return value


def wait_ready(client: Client, subscription: str) -> None:
    """Until all tables of a subscription are in state r."""
    wait_exactly(
        lambda: states(client, subscription) == {"r"}, f"{subscription} is ready"
    )


def assert_same(stage: Stage, peer: Peer, queries: Sequence[str]) -> None:
    """AssertionError if a query has another answer than at the source."""
    with peer.connected() as client, stage.at_source() as source:
        for query in queries:
            expected, actual = source.rows(query), client.rows(query)
            if actual != expected:
                raise AssertionError(
                    f"{peer.name} differs from the source: {actual}, expected {expected}"
                )


def states(client: Client, subscription: str) -> set[str]:
    """srsubstate of all tables of a subscription; the same query on both."""
    rows = client.rows(
        "select r.srsubstate from pg_subscription_rel r"
        " join pg_subscription s on s.oid = r.srsubid"
        f" where s.subname = '{subscription}'"
    )
    return {str(row[0]) for row in rows}


def slot_is_active(source: Client, slot: str) -> bool:
    """Somebody streams from the slot."""
    rows = source.rows(
        f"select active from pg_replication_slots where slot_name = '{slot}'"
    )
    return bool(rows) and rows[0][0] == "t"


def drop_subscription(client: Client, name: str) -> None:
    """DROP, again if the server that has the slot was too slow to let it go."""
    for attempt in range(3):
        try:
            client.rows(f"drop subscription if exists {name}")
            return
        except PublisherError:
            if attempt == 2:
                raise
