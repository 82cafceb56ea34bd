"""When two-phase commit begins: PostgreSQL's way from pending to enabled.

    subtwophasestate   then
    d                  never asked for
    p                  not asked for as long as a table is being copied: what is prepared meanwhile
                       arrives at its COMMIT PREPARED. Once all are ready the walreceiver
                       starts again and asks; when the publisher has accepted, e
    e                  asked for at each start

A subscription without tables stays at p, so that a REFRESH can still copy. Publishers below
PostgreSQL 15 cannot: they are never asked, and the state stays at p.

Called by the walreceiver, on the reader's thread.

Source: AllTablesyncsReady() in tablesync.c, run_apply_worker() in worker.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.catalog import Catalog, Subscription
from wal2lake.model import SyncState
from wal2lake.observe import get_logger

_LOOK_SECONDS: Final = 1.0
"""How often the tables' states are asked for while it is pending. A guess, as good as the
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
        """Whether this connection asks for it."""
        if server_version < _FIRST_VERSION:
            self._pending = False
            return False
        if self._pending:
            return self._all_ready()
        return self._subscription.two_phase == "e"

    def accepted(self) -> None:
        """The publisher streams with it now."""
        if self._pending:
            self._catalog.set_options(self._subscription.oid, {"two_phase": "e"})
            self._pending = False
            get_logger().info(
                f'two_phase of subscription "{self._subscription.name}" is enabled'
            )

    def look(self, now: float) -> None:
        """While it is pending: have the receiver started again once all tables are ready."""
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
