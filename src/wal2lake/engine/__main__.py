"""The engine's process: ``python -m wal2lake.engine -D DIR``.

Where the rooms are put together: catalog, Spark session, apply and tablesync workers, and the
listener with its sessions. Started by the supervisor, which owns the port: clients that come
before Spark is up are told so (57P03) instead of being refused.

Signals: SIGTERM ends it in order (clients are cut off, the batches in hand are finished or
abandoned); SIGUSR2 waits for the clients first; SIGHUP reads the settings again. SIGKILL is fine
too. If the JVM dies the engine ends, and the supervisor starts both again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from wal2lake.archive import ArchiveKeeper, Superseded
from wal2lake.catalog import Catalog
from wal2lake.commands.subscription import (
    AutoRefresh,
    UnfinishedCommands,
    remove_orphans,
)
from wal2lake.door import Door, Entrance, Listener, ListenerSettings
from wal2lake.engine.assembly import (
    assemble,
    catalog_client,
    iceberg_client,
    session_options,
)
from wal2lake.engine.measuring import EngineMeasures
from wal2lake.engine.publishing import PublisherHalf, in_force
from wal2lake.engine.running import RunningEngine
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.engine.viewsource import ViewSource
from wal2lake.errors import ConfigurationError, Wal2LakeError
from wal2lake.lake.spark import (
    SessionOptions,
    SparkSession,
    heap_bytes,
    session_alive,
    start_session,
    stop_session,
    warm_up,
)
from wal2lake.lake.store import (
    HeldLease,
    LeaseLost,
    WarehouseInUse,
    is_object_store,
    lease_of,
)
from wal2lake.launch.children.child import (
    EXIT_CONFIGURATION,
    EXIT_WAREHOUSE_TAKEN,
    listening_sockets,
)
from wal2lake.launch.wakeup import CHANGED, READY, notify
from wal2lake.local.access import is_member, may_connect
from wal2lake.local.catalogs import CatalogWorker, MirroredEntries, WantedEntries
from wal2lake.local.commits.prepared import finish_interrupted
from wal2lake.local.mirrors import MirrorWorker
from wal2lake.local.node import EngineParts
from wal2lake.local.retention import RetentionWorker, Vacuum
from wal2lake.local.transaction.recovery import recover
from wal2lake.model import DATABASE, HOLDER, WarehouseHolder
from wal2lake.observe import configure, get_logger
from wal2lake.observe.telemetry import Telemetry, TelemetryFile
from wal2lake.settings import Settings, load
from wal2lake.sql.backend import Backend, SessionContext
from wal2lake.sql.parameters.node import node_parameters
from wal2lake.sql.sysviews import SystemCatalog

_WATCH_SECONDS: Final = 0.5
"""How soon the death of the JVM is noticed."""

_TELL_SECONDS: Final = 5.0
"""Interval at which the supervisor is told again that the engine is ready, because the word may be
lost: the socket's queue is full, or its file is gone. Chosen arbitrarily."""


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="wal2lake.engine")
    parser.add_argument("-D", dest="directory", type=Path, required=True)
    options = parser.parse_args(arguments)
    configure("engine")
    try:
        return _Engine(lambda: load(options.directory, os.environ)).run()
    except WarehouseInUse as error:
        get_logger().critical(error.message, error=error)
        return EXIT_WAREHOUSE_TAKEN
    except Superseded as error:
        # Another machine has the warehouse, too, or waits for its lease.
        get_logger().critical(error.message, error=error)
        return EXIT_WAREHOUSE_TAKEN
    except ConfigurationError as error:
        get_logger().critical(error.message, error=error)
        return EXIT_CONFIGURATION
    except Wal2LakeError as error:
        get_logger().critical(error.message, error=error)
        return 1


class _Engine:
    """The parts, in the order they start; ``stop`` goes backwards."""

    def __init__(self, read: Callable[[], Settings]) -> None:
        """``read`` gives the settings as they are now."""
        self._stopping = self._draining = self._reloading = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Before they are read: what is written to the file later is told.
        signal.signal(signal.SIGHUP, self._on_signal)
        self._read = read
        self._settings = settings = read()
        self._catalog = Catalog(settings.catalog_file, settings.warehouse)
        self._telemetry = Telemetry()
        limits = ListenerSettings(
            max_connections=settings.node.max_connections,
            max_wal_senders=settings.publish.max_wal_senders,
            authentication_timeout_s=settings.node.authentication_timeout_ms / 1000,
        )
        self._entrance = Entrance.of(settings)
        self._listener = Listener(listening_sockets(), limits, self._entrance)

    def run(self) -> int:
        """Start everything, wait, stop everything."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, self._on_signal)
        self._listener.start()
        lease = _lease(self._settings.warehouse)
        options = session_options(self._settings)
        spark = start_session(options)
        try:
            alive = self._serve(spark, options)
        finally:
            stop_session(spark)
        if lease is not None and alive:
            lease.release()
        return 0 if alive else 1

    def _serve(self, spark: SparkSession, options: SessionOptions) -> bool:
        """Run on a session until told to stop; False if its JVM has died."""
        with TelemetryFile(self._settings.run_directory, "engine", self._telemetry):
            return self._serve_measured(spark, options)

    def _serve_measured(self, spark: SparkSession, options: SessionOptions) -> bool:
        settings = self._settings
        archive = ArchiveKeeper(
            settings, self._catalog, lambda: self._on_signal(signal.SIGTERM, None)
        )
        # Before anything writes to tables, which may be another directory's by now.
        archive.start()
        self._catalog.secured = archive.secure
        assembly = assemble(
            spark,
            options,
            settings,
            self._catalog,
            lambda: _tell(settings, CHANGED),
            self._telemetry,
        )
        node = assembly.node
        recover(node)
        remove_orphans(node)
        unfinished, refresh = UnfinishedCommands(node), AutoRefresh(node)
        node.apply.start()
        node.sync.start()
        unfinished.start()
        refresh.start()
        publisher = PublisherHalf(node, self._listener.sessions)
        publisher.start()
        finish_interrupted(node)
        retention = RetentionWorker(node, Vacuum(node))
        retention.start()
        mirrored = MirroredEntries(node)
        iceberg = CatalogWorker(mirrored, partial(iceberg_client, spark))

        mirrored.shown = iceberg.hurry
        mirrors = MirrorWorker(node, mirrored.show)
        assembly.tables.register_background(mirrors)
        mirrors.start()
        catalogs = CatalogWorker(WantedEntries(node), partial(catalog_client, spark))
        for worker in (catalogs, iceberg):
            worker.start()
        state = RunningEngine(assembly, publisher, self._listener)
        measures = EngineMeasures(
            self._telemetry,
            self._catalog,
            assembly.tables,
            publisher,
            self._listener.sessions,
            lambda: heap_bytes(spark),
        )
        measures.start()
        source = ViewSource(self._catalog, settings, state)
        self._open_doors(node, source, publisher)
        self._tell_ready()
        get_logger().info("node is ready to accept connections")
        if not self._catalog.subscriptions():
            warm_up(spark, settings.executors_store or str(settings.exchange_directory))

        alive = self._wait(
            lambda: _watch(spark, node),
            (
                node,
                node.apply,
                node.sync,
                source,
                unfinished,
                refresh,
                publisher,
                retention,
                mirrors,
                catalogs,
                iceberg,
            ),
        )
        for worker in (catalogs, iceberg):
            worker.stop()
        mirrors.stop()
        archive.stop()
        retention.stop()
        measures.stop()
        publisher.stop()
        self._listener.stop()
        refresh.stop()
        unfinished.stop()
        node.sync.stop()
        node.apply.stop(settings.node.shutdown_timeout_ms / 2000)
        return alive

    def _open_doors(
        self, node: EngineParts, source: ViewSource, publisher: PublisherHalf
    ) -> None:
        system = SystemCatalog(source)
        door = Door(
            database=DATABASE,
            roles=self._catalog.role,
            mock_secret=hashlib.sha256(
                f"mock {self._catalog.system_identifier}".encode()
            ).digest(),
            node_parameters=lambda: node_parameters(
                self._settings, self._listener.address[1]
            ),
            may_connect=lambda role: may_connect(self._catalog, role),
            is_member=lambda user, role: is_member(self._catalog, user, role),
        )

        def factory(context: SessionContext) -> Backend:
            return LakeBackend(node, system, context)

        self._listener.ready(door, factory, replication=publisher.replication)

    def _wait(self, alive: Callable[[], bool], parts: Sequence[_Reloadable]) -> bool:
        """False: the JVM has died. True: told to stop."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        while not self._stopping:
            poll.poll(_WATCH_SECONDS * 1000)
            if time.monotonic() >= self._tell_at:
                self._tell_ready()
            with suppress(BlockingIOError):
                os.read(self._wake_read, 64)
            if not self._stopping and not alive():
                get_logger().error("Spark has ended")
                return False
            if self._reloading:
                self._reloading = False
                self._reload(parts)
            if self._draining and self._listener.drain(_WATCH_SECONDS):
                return True
        return True

    def _tell_ready(self) -> None:
        self._tell_at = time.monotonic() + _TELL_SECONDS
        _tell(self._settings, f"{READY} {os.getpid()}")

    def _reload(self, parts: Sequence[_Reloadable]) -> None:
        """Give them the settings as the file has them now. Those that need a restart are in
        the environment (``fixed_at_start``), where the file does not change them."""
        try:
            self._settings = in_force(self._read(), self._settings)
        except Wal2LakeError as error:
            # The supervisor could read it: it has been written to again.
            get_logger().error("could not reload the settings", error=error)
            return
        self._entrance.reload(self._settings, get_logger())
        for part in parts:
            part.reload(self._settings)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # This runs anywhere in the main thread, which may hold the very lock of an Event.
        if number == signal.SIGUSR2:
            self._draining = True
        elif number == signal.SIGHUP:
            self._reloading = True
        else:
            self._stopping = True
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"s")


class _Reloadable(Protocol):
    """A part that obeys settings which may change."""

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""


def _lease(warehouse: str) -> HeldLease | None:
    """Go on with the lease that the node's start has taken, and let nothing be written without it.
    None for a warehouse without one. WarehouseInUse if another node has it by now."""
    if HOLDER not in os.environ or not is_object_store(warehouse):
        return None
    lease = lease_of(warehouse, WarehouseHolder.parse(os.environ[HOLDER]))
    lease.take()
    lease.fence()
    lease.keep(_end_at_once)
    return lease


def _end_at_once(loss: LeaseLost) -> None:
    """End the process, which cannot write any more."""
    get_logger().critical(loss.message, error=loss)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(EXIT_WAREHOUSE_TAKEN)


def _watch(spark: SparkSession, node: EngineParts) -> bool:
    """Return whether Spark lives; notice a jump of the clock."""
    node.ages.look()
    return session_alive(spark)


def _tell(settings: Settings, word: str) -> None:
    notify(settings.run_directory, word)


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # All is closed. Taking the interpreter apart takes time, and DuckDB's module tells the
    # server log what it finds then.
    os._exit(code)
