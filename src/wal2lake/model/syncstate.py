"""States of one table in one subscription (pg_subscription_rel.srsubstate).

i -> d -> f -> s -> r, all of them durable. PostgreSQL's w and c are states of a hand-over
between two processes, in memory; here the apply worker takes over at a commit.

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
