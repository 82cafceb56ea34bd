"""``wal2lake demo``: the whole product, on a PostgreSQL of its own, in about a minute.

    1. starts a real PostgreSQL, fills a shop and keeps using it
    2. creates and starts a node, runs CREATE SUBSCRIPTION on it
    3. shows the copy of the existing rows, then the changes as they follow
    4. kills every process of the node with SIGKILL, and starts it again
    5. ends the use of the shop, waits until the node has caught up, and compares every row

The demo uses only what a user has: the command line, SQL on both sides, the source's
pg_stat_replication. The exit code is 0 if everything was equal, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wal2lake.cli.demo.compare import compare_tables, describe
from wal2lake.cli.demo.workload import SCHEMA, TABLES, LedgerEntry, ShopWorkload
from wal2lake.cli.looking import Looker
from wal2lake.cli.terminal.copybars import CopyBars
from wal2lake.cli.terminal.errors import print_error
from wal2lake.cli.terminal.progress import late_spinner
from wal2lake.errors import PublisherError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.pg.client import Client
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import WaitTimeout, wait_until

_COPY_SECONDS: Final = 300.0
_CATCH_UP_SECONDS: Final = 600.0
"""Limits for a slow and busy machine."""

_COPIED: Final = ("f", "s", "r")
"""pg_subscription_rel.srsubstate of tables whose copy is complete."""

_REPORT_SECONDS: Final = 2.0

_SUBSCRIPTION: Final = "shop"


def run(options: argparse.Namespace) -> int:
    """Run the demo; returns the module's exit codes."""
    # A kill, too, then ends PostgreSQL and the node in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="wal2lake-demo-"))
    directory = folder / "node"
    say = _Story()
    try:
        with contextlib.ExitStack() as stack:
            demo = _Demo(directory, options.seconds, say, stack)
            try:
                equal = demo.run()
            except (Wal2LakeError, AssertionError, RuntimeError, OSError) as error:
                _print_failure(error, demo.node)
                return 1
        if options.keep:
            _print_how_to_look(directory)
        else:
            say.line("run with --keep to look at the tables afterwards")
        return 0 if equal else 1
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Story:
    """Prints lines with the seconds since the start."""

    begin: float = field(default_factory=time.monotonic)

    def line(self, text: str) -> None:
        """Print a line at once, also into a pipe."""
        print(f"{time.monotonic() - self.begin:6.1f} s  {text}", flush=True)


class _Demo:
    """The steps of one demo; ``stack`` ends everything that they start."""

    def __init__(
        self,
        directory: Path,
        seconds: float,
        say: _Story,
        stack: contextlib.ExitStack,
    ) -> None:
        self._seconds = seconds
        self._say = say
        self._stack = stack
        # One port for both starts, so that a browser goes on after the kill.
        self._page = f"127.0.0.1:{_unused_port()}"
        self.node = Node(directory, settings={"web.listen": self._page})

    def run(self) -> bool:
        """Run all steps; True if everything was equal."""
        server = self._start_postgres()
        workload = self._start_workload(server)
        self._start_node()
        self._subscribe(server)
        self._watch_copy(workload)
        self._watch_changes(server, workload, self._seconds / 2)
        self._kill_and_restart()
        self._watch_changes(server, workload, self._seconds / 2)
        return self._compare(server, workload)

    def _start_postgres(self) -> PostgresServer:
        with late_spinner("starting PostgreSQL"):
            server = self._stack.enter_context(PostgresServer(18))
        version = server.psql("show server_version")
        self._say.line(f"PostgreSQL {version} runs on port {server.port}")
        server.psql(SCHEMA)
        return server

    def _start_workload(self, server: PostgresServer) -> ShopWorkload:
        workload = ShopWorkload(server.conninfo())
        workload.start()
        self._stack.callback(workload.close)
        wait_until(lambda: workload.has_begun, describe="the first transaction")
        rows = server.psql(
            "select (select count(*) from shop.customers)"
            " + (select count(*) from shop.orders)"
            " + (select count(*) from shop.payments)"
        )
        self._say.line(f"a shop with {int(rows):,} rows in 3 tables, in constant use")
        return workload

    def _start_node(self) -> None:
        self.node.init("-U", "demo")
        self._stack.callback(self.node.close)
        with late_spinner("starting the node"):
            self.node.start()
        self._say.line(
            f"wal2lake node runs on port {self.node.port}; its page, until the demo"
            f" ends: http://{self._page}/"
        )

    def _subscribe(self, server: PostgresServer) -> None:
        conninfo = server.conninfo().replace("'", "''")
        self.node.sql(
            f"create subscription {_SUBSCRIPTION} connection '{conninfo}'"
            f" publication shop"
        )
        self._say.line("create subscription shop connection '...' publication shop")

    def _watch_copy(self, workload: ShopWorkload) -> None:
        deadline = time.monotonic() + _COPY_SECONDS
        shown = ""
        with (
            self.node.connect() as client,
            Looker(self.node.directory) as looker,
            CopyBars() as bars,
        ):
            while True:
                bars.show(looker.look().facts)
                rows = client.rows(
                    "select tablename, state, rows_copied, error"
                    " from wal2lake.sync_progress order by tablename"
                )
                text = ", ".join(
                    f"{table} {int(copied or 0):,}{' done' if state in _COPIED else ''}"
                    for table, state, copied, _ in rows
                )
                if text != shown and not bars.drawn:
                    self._say.line(f"copying: {text}")
                    shown = text
                if rows and all(state in _COPIED for _, state, _, _ in rows):
                    break
                _check(workload)
                if time.monotonic() > deadline:
                    raise WaitTimeout(f"not copied within {_COPY_SECONDS:g} s: {rows}")
                time.sleep(0.25)
        self._say.line("all existing rows are copied; changes follow")

    def _watch_changes(
        self, server: PostgresServer, workload: ShopWorkload, seconds: float
    ) -> None:
        deadline = time.monotonic() + seconds
        with Client(server.conninfo()) as source:
            before, before_applied = workload.now, self._applied(source, workload)
            while (remaining := deadline - time.monotonic()) > 0:
                time.sleep(min(_REPORT_SECONDS, max(remaining, 0.05)))
                _check(workload)
                now, applied = workload.now, self._applied(source, workload)
                self._say.line(_progress(before, now, before_applied, applied))
                before, before_applied = now, applied

    def _applied(self, source: Client, workload: ShopWorkload) -> LedgerEntry | None:
        rows = source.rows(
            "select replay_lsn from pg_stat_replication"
            f" where application_name = '{_SUBSCRIPTION}'"
        )
        if not rows or rows[0][0] is None:
            return None
        return workload.at(Lsn.parse(rows[0][0]))

    def _wait_applied(self, workload: ShopWorkload, end: Lsn) -> None:
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        reported_at = time.monotonic()
        with self.node.connect() as client:
            while True:
                text = client.rows("select applied_lsn from wal2lake.log")
                reached = Lsn.parse(text[0][0]) if text and text[0][0] else Lsn(0)
                if reached >= end:
                    return
                if time.monotonic() > deadline:
                    raise WaitTimeout(
                        f"the node has not applied {end} within {_CATCH_UP_SECONDS:g} s"
                    )
                if time.monotonic() - reported_at > 2 * _REPORT_SECONDS:
                    reported_at = time.monotonic()
                    entry = workload.at(reached)
                    remaining = workload.now.total - (
                        entry.total if entry is not None else 0
                    )
                    self._say.line(f"the node catches up, {remaining:,} changes to go")
                time.sleep(0.1)

    def _kill_and_restart(self) -> None:
        pids = self.node.pids()
        self.node.kill("tree")
        self._say.line(f"kill -9 of all {len(pids)} processes of the node")
        with late_spinner("starting the node"):
            self.node.start()
        self._say.line("the node is started again and goes on where it was")

    def _compare(self, server: PostgresServer, workload: ShopWorkload) -> bool:
        end = workload.stop()
        self._say.line(
            f"the shop is closed after {workload.transactions:,} transactions and"
            f" {workload.now.total:,} row changes, at LSN {end}"
        )
        self._wait_applied(workload, end)
        self._say.line(f"the node has applied everything up to {end}; comparing")
        with (
            Client(server.conninfo()) as source,
            self.node.connect() as copy,
            late_spinner("comparing"),
        ):
            differences = compare_tables(source, copy, "shop", TABLES)
        for difference in differences:
            for text in describe(difference):
                self._say.line(text)
        equal = all(difference.is_equal for difference in differences)
        total = sum(difference.rows for difference in differences)
        self._say.line(
            f"EQUAL: all {total:,} rows, every column, at LSN {end}"
            if equal
            else "NOT EQUAL: this is a bug in wal2lake, please report it"
        )
        return equal


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _progress(
    before: LedgerEntry,
    now: LedgerEntry,
    before_applied: LedgerEntry | None,
    applied: LedgerEntry | None,
) -> str:
    seconds = max(now.noted_at - before.noted_at, 1e-3)
    text = f"source {(now.total - before.total) / seconds:7,.0f} changes/s"
    if applied is None:
        return f"{text}   the node is catching up"
    if before_applied is not None:
        rate = (applied.total - before_applied.total) / seconds
        text += f"   applied {rate:7,.0f}/s"
    behind = [a - b for a, b in zip(now.changes, applied.changes, strict=True)]
    lag = ", ".join(f"{n} {b:,}" for n, b in zip(TABLES, behind, strict=True))
    return f"{text}   {now.noted_at - applied.noted_at:4.1f} s behind ({lag} changes)"


def _check(workload: ShopWorkload) -> None:
    if workload.failure is not None:
        raise workload.failure


def _print_failure(error: Exception, node: Node) -> None:
    if isinstance(error, Wal2LakeError):
        print_error(error)
    else:
        print_error(PublisherError(str(error).split("\n")[0]))
    tail = node.log_text().splitlines()[-20:]
    if tail:
        print("\nthe end of the node's log:", *tail, sep="\n    ")


def _print_how_to_look(directory: Path) -> None:
    print("\n".join(("", *_how_to_look(directory))))


def _how_to_look(directory: Path) -> Iterator[str]:
    tables = directory / "warehouse" / "shop"
    yield f"The tables are ordinary Delta tables in {tables}"
    yield '  with any reader:  python -c "import deltalake; print(deltalake.DeltaTable('
    yield f"                    '{tables}/orders').version())\""
    yield f"  through a node:   wal2lake start -D {directory}"
    yield f"                    wal2lake sql -D {directory}"
    yield "(The demo's PostgreSQL is gone, so the node will say that it cannot reach it.)"
