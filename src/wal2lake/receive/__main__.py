"""Process of one subscription's receiver: ``python -m wal2lake.receive -D DIR --subscription OID``.

Started by the supervisor. Recovers the log, then runs one connection. Exits with 0 on SIGTERM, and
with 1 after any error, which it reports in the server log and in the catalog. The supervisor
decides when to start it again. disable_on_error applies to errors after the publisher has begun to
stream; earlier errors are retried.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from wal2lake.catalog import Catalog, ProgressFile, Subscription, WorkerKind
from wal2lake.catalog.mapped.progress import receiver_name
from wal2lake.changelog import ChangeLog
from wal2lake.errors import Wal2LakeError, description_of, sqlstate_of
from wal2lake.model import Oid
from wal2lake.observe import configure, get_logger
from wal2lake.observe.telemetry import Telemetry, TelemetryFile, read_process
from wal2lake.pg import limit_connecting
from wal2lake.receive.keeper import SnapshotKeeper
from wal2lake.receive.walreceiver import WalReceiver
from wal2lake.settings import Settings, load


def main(arguments: list[str] | None = None) -> int:
    """Run the receiver and return the exit code."""
    parser = argparse.ArgumentParser(prog="wal2lake.receive")
    parser.add_argument("-D", dest="directory", type=Path, required=True)
    parser.add_argument("--subscription", type=int, required=True)
    options = parser.parse_args(arguments)
    configure("receiver")
    # The reader hands gulps to two threads that hold the interpreter for long. Give the reader
    # its turn sooner than after the default 5 ms.
    sys.setswitchinterval(0.001)
    settings = load(options.directory, os.environ)
    limit_connecting(settings.subscription.connect_timeout_ms)
    catalog = Catalog(settings.catalog_file, settings.warehouse)
    subscription = catalog.subscription(Oid(options.subscription))
    if subscription is None or subscription.slot_name is None:
        return 0
    streaming = threading.Event()
    telemetry, name = Telemetry(), receiver_name(subscription.oid)
    # A receiver ends with each error, and its counters go on.
    before = read_process(settings.run_directory, name)
    if before is not None:
        telemetry.resume(before)
    with TelemetryFile(settings.run_directory, name, telemetry):
        try:
            return _run(settings, catalog, subscription, streaming, telemetry)
        except Exception as error:
            _count(telemetry, subscription, WorkerKind.RECEIVER, error)
            _report(catalog, subscription, error, streaming=streaming.is_set())
            return 1


def _count(
    telemetry: Telemetry,
    subscription: Subscription,
    worker: WorkerKind,
    error: Exception,
) -> None:
    telemetry.count(
        "errors_total",
        subscription=subscription.name,
        worker=worker.value,
        sqlstate=sqlstate_of(error),
    )


def _report(
    catalog: Catalog, subscription: Subscription, error: Exception, *, streaming: bool
) -> None:
    """Report an error in the catalog and in the log. An internal error is logged with its
    traceback."""
    text = f'walreceiver for subscription "{subscription.name}" ended'
    if isinstance(error, Wal2LakeError):
        described = error.describe()
        if _previous_error(catalog, subscription) == described:
            # The previous process logged the error in full, and the catalog shows its time.
            get_logger().error(f"{text} by the same error: {error.message}")
        else:
            get_logger().error(f"{text}: {error.message}", error=error)
    else:
        described = description_of(error)
        get_logger().error(f"{text}: internal error", exc_info=error)
    catalog.note_error(
        subscription.oid, WorkerKind.RECEIVER, described, sqlstate_of(error)
    )
    if streaming:
        # PostgreSQL, too, disables the subscription for errors after START_REPLICATION on either
        # side, and not for a failed connection, password or slot: start_apply() in worker.c.
        catalog.disable_if_asked(subscription.oid, subscription.generation, error)


def _previous_error(catalog: Catalog, subscription: Subscription) -> str | None:
    """Return the error that stopped the previous process, if it is still recorded."""
    for entry in catalog.errors():
        if entry.subid == subscription.oid and entry.worker is WorkerKind.RECEIVER:
            return entry.error
    return None


def _run(
    settings: Settings,
    catalog: Catalog,
    subscription: Subscription,
    streaming: threading.Event,
    telemetry: Telemetry,
) -> int:
    directory = settings.log_directory / str(int(subscription.oid))
    log = ChangeLog.open(
        directory,
        settings.log,
    )
    with ProgressFile(settings.run_directory, subscription.oid) as progress:
        logged = log.logged
        progress.set(
            receiver_pid=os.getpid(), received=logged, logged=logged, sealed=log.sealed
        )
        # Checked after the pid is set: a command that ends receivers first writes the catalog,
        # then reads the pid.
        now = catalog.subscription(subscription.oid)
        if now is None or not now.runs:
            progress.set(receiver_pid=0)
            log.close()
            return 0
        receiver = WalReceiver(
            catalog, subscription, settings, log, progress, telemetry
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: receiver.request_stop())
        keeper = SnapshotKeeper(
            catalog,
            subscription,
            streaming,
            retry_interval_seconds=settings.subscription.wal_retrieve_retry_interval_ms
            / 1000,
            max_lock_wait_seconds=settings.subscription.max_lock_wait_ms / 1000,
            count_error=partial(_count, telemetry, subscription, WorkerKind.SNAPSHOT),
        )
        keeper.start()
        try:
            receiver.run(streaming)
        finally:
            keeper.stop()
            progress.set(receiver_pid=0)
            if not receiver.at_work:
                log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
