"""States of one table in one subscription (pg_subscription_rel.srsubstate).

i -> d -> f -> (w -> c) -> s -> r. Only the first kind may be written to the catalog: the
hand-over states w and c live in memory, and their enum is a different type so that
they cannot be persisted by mistake.

Source: src/include/catalog/pg_subscription_rel.h.
"""

from __future__ import annotations

from enum import Enum


class SyncState(Enum):
    """The durable states."""

    INIT = "i"
    """Known to the subscription; nothing copied."""
    DATASYNC = "d"
    """Being copied; finished ranges are recorded."""
    FINISHEDCOPY = "f"
    """The whole copy is one durable commit of the table, cursor included."""
    SYNCDONE = "s"
    """Caught up with the apply worker at srsublsn."""
    READY = "r"
    """Replicated by the apply worker like every other table."""


class HandoverState(Enum):
    """The states that exist in memory only."""

    SYNCWAIT = "w"
    """The copy waits for the apply worker."""
    CATCHUP = "c"
    """The apply worker has named the LSN to catch up to."""
