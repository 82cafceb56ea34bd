"""What the snapshot's keeper says of errors: once, then counted, with their details."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from wal2lake.catalog import Subscription, SubscriptionRel
from wal2lake.errors import PublisherError
from wal2lake.model import Oid, SyncState
from wal2lake.receive.keeper import SnapshotKeeper
from wal2lake.testing.waits import wait_until

SUBSCRIPTION = Subscription(
    oid=Oid(16384),
    name="s",
    owner=Oid(10),
    conninfo="",
    publications=("p",),
    enabled=True,
    slot_name="s",
)


class FailingCatalog:
    """Its keeper cannot take a step."""

    def __init__(self) -> None:
        self.asked = 0

    def subscription(self, subid: Oid) -> Subscription:
        self.asked += 1
        raise PublisherError("connection refused", sqlstate="08001")

    def release_snapshot(self, subid: Oid) -> None:
        """There is none."""

    def end_attempts(self, attempts: Any) -> None:
        self.attempts = attempts

    def note_error(self, *arguments: Any) -> None:
        """Nobody reads it."""


def test_an_error_of_the_keeper_is_said_once_then_counted() -> None:
    catalog: Any = FailingCatalog()
    streaming = threading.Event()
    streaming.set()
    with capture_logs() as log:
        keeper = SnapshotKeeper(
            catalog,
            SUBSCRIPTION,
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


@pytest.mark.parametrize(
    ("sqlstate", "text"),
    [
        ("42P01", 'table "public.t" not found on publisher'),
        (
            "42501",
            'could not start initial contents copy for table "public.t": refused',
        ),
    ],
)
def test_each_error_of_a_table_keeps_its_detail_and_its_hint(
    sqlstate: str, text: str
) -> None:
    catalog: Any = FailingCatalog()
    keeper = SnapshotKeeper(
        catalog,
        SUBSCRIPTION,
        threading.Event(),
        retry_interval_seconds=1,
        max_lock_wait_seconds=0,
    )
    rel = SubscriptionRel(
        Oid(16384), Oid(16385), "public", "t", SyncState.INIT, None, epoch=1
    )
    error = PublisherError("refused", sqlstate=sqlstate, detail="Why.", hint="Do this.")
    keeper._note_failure(rel, error)
    ((_, told, code, _),) = catalog.attempts
    assert told == f"{text}\nDETAIL:  Why.\nHINT:  Do this."
    assert code == sqlstate
