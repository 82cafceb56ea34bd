"""The snapshot's keeper says an error once, and then how often it has come."""

from __future__ import annotations

import threading
from typing import Any

from structlog.testing import capture_logs

from wal2lake.catalog import Subscription
from wal2lake.errors import PublisherError
from wal2lake.model import Oid
from wal2lake.receive.keeper import SnapshotKeeper
from wal2lake.testing.waits import wait_until


class FailingCatalog:
    """Its keeper cannot take a step."""

    def __init__(self) -> None:
        self.asked = 0

    def subscription(self, subid: Oid) -> Subscription:
        self.asked += 1
        raise PublisherError("connection refused", sqlstate="08001")

    def release_snapshot(self, subid: Oid) -> None:
        """There is none."""

    def note_error(self, *arguments: Any) -> None:
        """Nobody reads it."""


def test_an_error_of_the_keeper_is_said_once_then_counted() -> None:
    catalog: Any = FailingCatalog()
    streaming = threading.Event()
    streaming.set()
    subscription = Subscription(
        oid=Oid(16384),
        name="s",
        owner=Oid(10),
        conninfo="",
        publications=("p",),
        enabled=True,
        slot_name="s",
    )
    with capture_logs() as log:
        keeper = SnapshotKeeper(
            catalog,
            subscription,
            streaming,
            retry_interval_seconds=0.001,
            max_lock_wait_seconds=0,
        )
        keeper.start()
        wait_until(lambda: catalog.asked > 20)
        keeper.stop()
    text = "could not hold a snapshot for the copy"
    assert [one["event"] for one in log] == [
        text,
        f"the same error for the 10th time: {text}: connection refused",
    ]
