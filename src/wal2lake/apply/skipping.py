"""ALTER SUBSCRIPTION ... SKIP: which transaction of a batch is left out.

In: a subscription, the batch that is next, its tables. Out: a ``Skip``, if one was asked for.
PostgreSQL's rule: the next transaction is left out if its finish LSN is the one that was named;
if it is another one and is applied, the name is cleared with a warning. Empty transactions, and
those of which no table takes part, are not sent or not looked at, and do not count.

``skipping`` in the catalog says that leaving it out has begun. A crash may leave some tables
beyond it then, and the others follow. Without that mark a table that is beyond it has applied
it, and leaving out the rest would tear it.

The finish LSN is the commit LSN that errors name; of a prepared transaction that of its COMMIT
PREPARED (PostgreSQL's is the PREPARE's, which nothing fails at here).

Source: maybe_start_skipping_changes() and clear_subscription_skip_lsn() in worker.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.apply.batch import Batch
from wal2lake.apply.participants import Participants
from wal2lake.apply.targets import check_others, first_row
from wal2lake.catalog import Catalog, Subscription
from wal2lake.changelog import LogReader
from wal2lake.model import Lsn
from wal2lake.observe import get_logger


@dataclass(frozen=True, slots=True)
class Skip:
    """A SKIP that is to be decided by a batch."""

    subscription: str
    lsn: Lsn
    """The finish LSN that was named."""
    next: Lsn
    """That of the next transaction."""
    leaves_out: bool
    """It is the one that was named, and no table has applied it."""
    begun: bool
    """Leaving it out had begun when a crash came."""

    @property
    def position(self) -> Lsn | None:
        """Where changes begin behind what is left out; None: nothing is."""
        return Lsn(self.lsn + 1) if self.leaves_out else None

    def decided(self, reached: Lsn) -> Lsn | None:
        """The LSN, once the next transaction is below ``reached``: left out, or applied."""
        return self.lsn if self.next < reached else None

    def report(self) -> None:
        """Write the decisions to the server log."""
        if self.begun or self.leaves_out:
            get_logger().info(
                f"logical replication completed skipping transaction at LSN {self.lsn}",
                subscription=self.subscription,
            )
            return
        get_logger().warning(
            f'skip-LSN of subscription "{self.subscription}" cleared',
            detail=f"Remote transaction's finish WAL location (LSN) {self.next} did not"
            f" match skip-LSN {self.lsn}.",
        )


def begin_skip(
    catalog: Catalog,
    subscription: Subscription,
    tables: Participants,
    reader: LogReader,
    batch: Batch,
    decided: Lsn,
) -> Skip | None:
    """Decide about the subscription's SKIP; None: it has none, or the batch has no transaction for
    it. ``decided``: position from which transactions that no table takes part in count. The
    beginning of the skip is durable on return."""
    lsn = subscription.skip_lsn
    if not lsn:
        return None
    following = _next_transaction(catalog, subscription, reader, batch, decided)
    if following is None:
        return None
    # A table that is beyond it, before anything has begun, had applied it when a crash came.
    leaves_out = following == lsn and (
        subscription.skipping
        or not any(table.visible and table.cursor > lsn for table in tables)
    )
    if leaves_out and not subscription.skipping:
        if not catalog.begin_skip(subscription.oid, lsn):
            # Another one has been named meanwhile, or none.
            return None
        get_logger().info(
            f"logical replication starts skipping transaction at LSN {lsn}",
            subscription=subscription.name,
        )
    return Skip(subscription.name, lsn, following, leaves_out, subscription.skipping)


def _next_transaction(
    catalog: Catalog,
    subscription: Subscription,
    reader: LogReader,
    batch: Batch,
    decided: Lsn,
) -> Lsn | None:
    """The finish LSN of the first transaction that somebody here has to apply."""
    found = [
        failure.cut
        for failure in check_others(
            catalog,
            reader,
            batch.others,
            subid=subscription.oid,
            position=decided,
            cut=None,
        )
    ]
    for part in batch.tables:
        for file in part.files:
            at = first_row(reader, file, part.position)
            if at is not None:
                found.append(at)
    return min(found, default=None)
