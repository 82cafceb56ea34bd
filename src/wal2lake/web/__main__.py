"""The web process: ``python -m wal2lake.web -D DIR``, started by the supervisor.

Signals: SIGTERM and SIGINT end it, SIGHUP reads the settings again (addresses and certificate). It
ends with the supervisor, and lives while the engine is down. A crash costs what it serves and
nothing else; the supervisor starts it again, with the engine's pauses.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog
from wal2lake.errors import Wal2LakeError
from wal2lake.launch.directory.webstatus import WebStatus, write_web_status
from wal2lake.observe import configure, get_logger
from wal2lake.settings import Settings, load
from wal2lake.web.alerts import Alerts
from wal2lake.web.app import WebContext, make_app
from wal2lake.web.bounds import limit_tls_buffers
from wal2lake.web.iceberg import IcebergCatalog
from wal2lake.web.listening import RETRY_SECONDS, Listening, redirect_logs
from wal2lake.web.page import open_page
from wal2lake.web.reading import NodeReadings
from wal2lake.web.visitors import Visitors

_COLLECT: Final = (100_000, 20, 20)
"""Thresholds of the garbage collector. A reading of 1,000 tables makes 100,000 objects without a
cycle; with Python's thresholds, half of its time goes into looking at them again and again."""


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="wal2lake.web")
    parser.add_argument("-D", dest="directory", type=Path, required=True)
    options = parser.parse_args(arguments)
    configure("web")
    redirect_logs()
    gc.set_threshold(*_COLLECT)
    limit_tls_buffers()
    try:
        asyncio.run(_WebProcess(lambda: load(options.directory, os.environ)).run())
    except Wal2LakeError as error:
        get_logger().critical(error.message, error=error)
        return 1
    return 0


class _WebProcess:
    """The parts of the process, and its only loop."""

    def __init__(self, read: Callable[[], Settings]) -> None:
        """``read`` returns the settings as the file has them now."""
        self._read = read

    async def run(self) -> None:
        """Serve until SIGTERM."""
        loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._stopping = self._reloading = False
        # Before the settings are read, so that no later change is missed.
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self._settings = self._read()
        self._alerts = Alerts(self._settings)
        self._readings = NodeReadings(self._settings, observe=self._alerts.observe)
        page = open_page(self._readings, lambda: self._settings)
        catalog = Catalog(self._settings.catalog_file, self._settings.warehouse)
        visitors = Visitors(catalog)
        iceberg = IcebergCatalog(lambda: self._settings, visitors)
        context = WebContext(lambda: self._settings, self._readings, page, iceberg)
        listening = Listening(
            lambda address: make_app(
                context, None if address.is_loopback else visitors
            ),
            lambda: self._settings,
        )
        following = loop.create_task(self._readings.follow())
        page.start()
        try:
            while not self._stopping:
                await listening.apply()
                self._tell(listening)
                # A process that fails before this leaves the alerts to one that serves.
                self._alerts.start()
                await self._wait(RETRY_SECONDS if listening.error else None)
                if self._reloading:
                    self._take_settings()
                    listening.reload_certificate()
        finally:
            context.stopping.set()
            following.cancel()
            page.stop()
            iceberg.stop()
            await listening.close()
            self._readings.close()
            self._alerts.stop()

    async def _wait(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return
        self._event.clear()

    def _take_settings(self) -> None:
        self._reloading = False
        try:
            self._settings = self._read()
        except Wal2LakeError as error:
            # The supervisor could read it: it has been written to again.
            get_logger().error("could not reload the settings", error=error)
            return
        self._readings.reload(self._settings)
        self._alerts.reload(self._settings)

    def _tell(self, listening: Listening) -> None:
        status = WebStatus(os.getpid(), listening.urls, listening.error)
        try:
            write_web_status(self._settings.run_directory, status)
        except OSError as error:
            get_logger().error(f"could not write the status file: {error.strerror}")

    def _stop(self) -> None:
        self._stopping = True
        self._event.set()

    def _reload(self) -> None:
        self._reloading = True
        self._event.set()


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
