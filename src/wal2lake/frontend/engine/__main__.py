"""The engine's process: ``python -m wal2lake.frontend.engine -D DIR``.

Where the rooms are put together: catalog, Spark session, apply and tablesync workers, and the
listener with its sessions. Started by the supervisor, which owns the port: clients that come
before Spark is up are told so (57P03) instead of being refused.

Signals: SIGTERM ends it in order (clients are cut off, the batches in hand are finished or
abandoned); SIGUSR2 waits for the clients first. SIGKILL is fine too. If the JVM dies the
engine ends, and the supervisor starts both again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.catalog import Catalog
from wal2lake.errors import ConfigurationError, Wal2LakeError
from wal2lake.frontend.backend import Backend, SessionContext
from wal2lake.frontend.commands.access import may_connect
from wal2lake.frontend.commands.node import Node, SubscriptionLocks
from wal2lake.frontend.commands.subscription import UnfinishedCommands
from wal2lake.frontend.door import AuthMethod, Door, Listener, ListenerSettings
from wal2lake.frontend.engine.lakebackend import LakeBackend
from wal2lake.frontend.engine.viewsource import ViewSource
from wal2lake.frontend.parameters.node import node_parameters
from wal2lake.frontend.sysviews import SystemCatalog
from wal2lake.lake.batches import Batches
from wal2lake.lake.delta.tables import DeltaTables
from wal2lake.lake.query import Queries
from wal2lake.lake.spark.executors import Executors
from wal2lake.lake.spark.jars import JarSource, locate_jars
from wal2lake.lake.spark.session import (
    SessionOptions,
    jvm_alive,
    start_session,
    stop_session,
)
from wal2lake.lake.warmup import warm_up
from wal2lake.launch.child import EXIT_CONFIGURATION, listening_sockets
from wal2lake.launch.wakeup import CHANGED, READY, notify
from wal2lake.observe import configure, get_logger
from wal2lake.pg import limit_connecting
from wal2lake.settings import Settings, load
from wal2lake.tablesync.worker import TableSync

DATABASE: Final = "lake"

_WATCH_SECONDS: Final = 0.5
"""How soon the death of the JVM is noticed."""


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="wal2lake.frontend.engine")
    parser.add_argument("-D", dest="directory", type=Path, required=True)
    options = parser.parse_args(arguments)
    configure("engine")
    try:
        settings = load(options.directory, os.environ)
        return _Engine(settings).run()
    except ConfigurationError as error:
        get_logger().critical(error.message, error=error)
        return EXIT_CONFIGURATION
    except Wal2LakeError as error:
        get_logger().critical(error.message, error=error)
        return 1


class _Engine:
    """The parts, in the order they start; ``stop`` goes backwards."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalog = Catalog(settings.catalog_file)
        self._stop = threading.Event()
        self._drain = threading.Event()
        limits = ListenerSettings(
            max_connections=settings.node.max_connections,
            authentication_timeout_s=settings.node.authentication_timeout_ms / 1000,
        )
        self._listener = Listener(listening_sockets(), limits)

    def run(self) -> int:
        """Start everything, wait, stop everything."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, lambda *_: self._stop.set())
        signal.signal(signal.SIGUSR2, lambda *_: self._drain.set())
        self._listener.start()
        settings = self._settings
        limit = limit_connecting(settings.subscription.connect_timeout_ms)
        # The ranges of a copy are read there.
        for_executors = {f"spark.executorEnv.{k}": v for k, v in limit.items()}
        environment = dict(os.environ)
        if settings.spark.jars_dir:
            environment["WAL2LAKE_JARS_DIR"] = settings.spark.jars_dir
        options = SessionOptions(
            jars=locate_jars(JarSource.from_environment(environment), environment),
            local_dir=settings.run_directory / "spark",
            warehouse=settings.warehouse,
            master=settings.spark.master,
            driver_memory=settings.spark.driver_memory,
            extra={**for_executors, **settings.spark.conf},
        )
        spark = start_session(options)
        try:
            tables = DeltaTables(spark)
            locks = SubscriptionLocks()
            batches = Batches(
                spark,
                tables,
                settings.run_directory / "staging",
                cores=options.cores,
                upsert_bytes=settings.apply.upsert_bytes,
            )
            apply = ApplyLauncher(self._catalog, settings, tables, batches, locks.of)
            sync = TableSync(
                self._catalog, settings, tables, Executors(spark), options.cores
            )
            node = Node(
                catalog=self._catalog,
                settings=settings,
                tables=tables,
                queries=Queries(spark),
                apply=apply,
                sync=sync,
                locks=locks,
                changed=lambda: _tell(settings, CHANGED),
            )
            unfinished = UnfinishedCommands(node)
            apply.start()
            sync.start()
            unfinished.start()
            self._open_doors(node)
            _tell(settings, READY)
            get_logger().info("node is ready to accept connections")
            if not self._catalog.subscriptions():
                warm_up(spark, settings.run_directory / "warm-up")
            alive = self._wait(lambda: jvm_alive(spark))
            self._listener.stop()
            unfinished.stop()
            sync.stop()
            apply.stop(settings.node.shutdown_timeout_ms / 2000)
        finally:
            stop_session(spark)
        return 0 if alive else 1

    def _open_doors(self, node: Node) -> None:
        settings = self._settings
        system = SystemCatalog(
            ViewSource(self._catalog, settings, self._listener.sessions)
        )
        door = Door(
            database=DATABASE,
            roles=self._catalog.role,
            method=AuthMethod(settings.node.authentication),
            mock_secret=hashlib.sha256(
                f"mock {self._catalog.system_identifier}".encode()
            ).digest(),
            node_parameters=node_parameters(settings),
            may_connect=lambda role: may_connect(self._catalog, role),
        )

        def factory(context: SessionContext) -> Backend:
            return LakeBackend(node, system, context)

        self._listener.ready(door, factory)

    def _wait(self, alive: Callable[[], bool]) -> bool:
        """False: the JVM has died. True: told to stop."""
        while not self._stop.wait(_WATCH_SECONDS):
            if not alive():
                get_logger().error("Spark's Java virtual machine has ended")
                return False
            if self._drain.is_set() and self._listener.drain(_WATCH_SECONDS):
                return True
        return True


def _tell(settings: Settings, word: str) -> None:
    notify(settings.run_directory, word)


if __name__ == "__main__":
    sys.exit(main())
