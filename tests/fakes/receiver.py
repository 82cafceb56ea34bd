"""The receiver of a subscription to a publisher on a socket, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tests.fakes.walsender import FakeWalsender

from wal2lake.catalog import Catalog, ProgressFile, Subscription
from wal2lake.changelog import ChangeLog
from wal2lake.changelog.confirmed import Confirmed, ConfirmedFile
from wal2lake.model import Lsn, Oid
from wal2lake.observe.telemetry import Telemetry
from wal2lake.receive.walreceiver import WalReceiver
from wal2lake.settings import LogSettings, Settings
from wal2lake.testing.waits import wait_until

SUBSCRIPTION = Oid(1)


class Receiver:
    """The receiver of a subscription to a fake publisher, in this process."""

    def __init__(self, directory: Path, publisher: FakeWalsender) -> None:
        self.settings = Settings(
            directory=directory, log=LogSettings(segment_interval_ms=10)
        )
        self.settings.run_directory.mkdir(parents=True)
        self.catalog = Catalog.create(self.settings.catalog_file, "boss", None)
        self.catalog.create_subscription(
            Subscription(
                SUBSCRIPTION, "s", Oid(10), True, publisher.conninfo, "s", ("p",)
            ),
            [],
        )
        self.log = self.settings.log_directory / str(int(SUBSCRIPTION))

    def run(
        self, until: Callable[[], object], telemetry: Telemetry | None = None
    ) -> BaseException | None:
        """One run, until something holds or it ends by itself; what ended it."""
        subscription = self.catalog.subscription(SUBSCRIPTION)
        assert subscription is not None
        log = ChangeLog.open(self.log, self.settings.log)
        ended: list[BaseException] = []
        with ProgressFile(self.settings.run_directory, SUBSCRIPTION) as progress:
            receiver = WalReceiver(
                self.catalog, subscription, self.settings, log, progress, telemetry
            )

            def work() -> None:
                try:
                    receiver.run(threading.Event())
                except BaseException as error:
                    ended.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            try:
                wait_until(lambda: ended or until(), describe="it ends, or is there")
            finally:
                receiver.request_stop()
                thread.join(30)
                log.close()
        assert not thread.is_alive()
        return ended[0] if ended else None

    def confirmed(self) -> Confirmed | None:
        """What is on record."""
        with ConfirmedFile.open(self.log) as one:
            return one.last

    def confirm(self, position: int, slot: str = "s") -> None:
        """As if that had been confirmed while nothing was pending."""
        with ConfirmedFile.open(self.log) as one:
            one.record(slot, Lsn(position))
