"""States of one table in one subscription (pg_subscription_rel.srsubstate).

i -> d -> f -> s -> r. All are durable. PostgreSQL's w and c exist in memory only, while two
processes hand a table over; here the apply worker takes the table over at a commit.

Source: src/include/catalog/pg_subscription_rel.h.
"""

from __future__ import annotations

from enum import Enum


class SyncState(Enum):
    """The durable states."""

    INIT = "i"
    """The subscription has the table; nothing has been copied."""
    DATASYNC = "d"
    """The table is being copied; finished ranges are recorded."""
    FINISHEDCOPY = "f"
    """The whole copy is one durable commit of the table, which includes the cursor."""
    SYNCDONE = "s"
    """Caught up with the apply worker at srsublsn."""
    READY = "r"
    """The apply worker replicates the table like every other one."""
