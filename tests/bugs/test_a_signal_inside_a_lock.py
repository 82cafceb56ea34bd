"""A signal handler runs anywhere in the main thread, also while that is inside ``Event.set`` and
holds its lock. One that set the same Event waited for its own thread, until the supervisor killed
the receiver."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import Catalog, Subscription
from wal2lake.model import Oid
from wal2lake.receive.walreceiver import WalReceiver
from wal2lake.settings import Settings

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_a_receiver_can_be_told_to_stop_while_it_stops(tmp_path: Path) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "boss", None)
    subscription = Subscription(Oid(20000), "s", Oid(10), True, "host=h", "s", ("p",))
    empty: Any = SimpleNamespace(last_segment=None)
    unused: Any = None
    receiver = WalReceiver(
        catalog, subscription, Settings(directory=tmp_path), empty, unused
    )
    event: Any = receiver._stop
    handler = threading.Thread(target=receiver.request_stop, daemon=True)
    with event._cond:
        handler.start()
        handler.join(10)
        assert not handler.is_alive()
