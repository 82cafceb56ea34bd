"""Decides when two-phase commit begins, as PostgreSQL does: pending, then enabled.

    subtwophasestate   option two_phase of START_REPLICATION
    d                  never set
    p                  not set while a table is being copied: a prepared transaction then arrives
                       at its COMMIT PREPARED. Once all tables are ready, the walreceiver
                       restarts and sets it; when the publisher has accepted, the state is e
    e                  set at each start

A subscription without tables stays at p, so that a REFRESH can still copy tables. Publishers before
PostgreSQL 15 do not have the option, so the state stays at p.

Called by the walreceiver, on the reader's thread.

Source: AllTablesyncsReady() in tablesync.c, run_apply_worker() in worker.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.catalog import Catalog, Subscription
from wal2lake.model import SyncState
from wal2lake.observe import get_logger

_LOOK_SECONDS: Final = 1.0
"""Interval between looks at the tables' states while the state is pending. Chosen like the
supervisor's poll that follows."""

_FIRST_VERSION: Final = 150000


class TwoPhaseState:
    """Two-phase state of one run of the receiver."""

    def __init__(self, catalog: Catalog, subscription: Subscription) -> None:
        self._catalog = catalog
        self._subscription = subscription
        self._pending = subscription.two_phase == "p"
        self._looked = 0.0

    def wanted(self, server_version: int) -> bool:
        """Whether this connection sets two_phase."""
        if server_version < _FIRST_VERSION:
            self._pending = False
            return False
        if self._pending:
            return self._all_ready()
        return self._subscription.two_phase == "e"

    def accepted(self) -> None:
        """Note that the publisher streams with two_phase."""
        if self._pending:
            self._catalog.set_options(self._subscription.oid, {"two_phase": "e"})
            self._pending = False
            get_logger().info(
                f'two_phase of subscription "{self._subscription.name}" is enabled'
            )

    def check(self, now: float) -> None:
        """While the state is pending, restart the receiver once all tables are ready."""
        if not self._pending or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if self._all_ready():
            self._pending = False
            get_logger().info(
                "logical replication apply worker for subscription"
                f' "{self._subscription.name}" will restart so that two_phase can be'
                " enabled"
            )
            self._catalog.update_subscription(self._subscription.oid, bump=True)

    def _all_ready(self) -> bool:
        rels = self._catalog.rels(self._subscription.oid)
        return bool(rels) and all(rel.state is SyncState.READY for rel in rels)
