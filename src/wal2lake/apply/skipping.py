"""ALTER SUBSCRIPTION ... SKIP: decides which transaction of a batch is skipped.

In: a subscription, its next batch, its tables. Out: a ``Skip``, if the subscription has a skip-LSN.
As in PostgreSQL, the next transaction is skipped if its finish LSN equals the skip-LSN. If the LSNs
differ, the transaction is applied and the skip-LSN is cleared with a warning. Empty transactions,
and transactions that concern no participating table, do not count.

The flag ``skipping`` in the catalog says that the skip has begun. After a crash some tables may
then be beyond the transaction; the other tables skip it, too. Without the flag, a table beyond the
transaction has applied it, and to skip it in the other tables would tear it.

The finish LSN is the commit LSN that errors name. For a prepared transaction it is the LSN of
COMMIT PREPARED. (PostgreSQL uses the LSN of PREPARE, but here PREPARE applies nothing that can
fail.)

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
    """A skip-LSN that the next batch skips or clears."""

    subscription: str
    lsn: Lsn
    """The skip-LSN of the subscription."""
    next: Lsn
    """Finish LSN of the next transaction."""
    leaves_out: bool
    """Whether ``next`` is the skip-LSN and no table has applied the transaction."""
    begun: bool
    """Whether the skip began before a crash."""

    @property
    def position(self) -> Lsn | None:
        """First position after the skipped transaction. None if no transaction is skipped."""
        return Lsn(self.lsn + 1) if self.leaves_out else None

    def decided(self, reached: Lsn) -> Lsn | None:
        """Return the skip-LSN if the next transaction, skipped or applied, is below ``reached``."""
        return self.lsn if self.next < reached else None

    def report(self) -> None:
        """Write the decision to the server log."""
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
    """Decide whether the batch skips a transaction. On return the beginning of the skip is durable.

    Returns None if the subscription has no skip-LSN or the batch has no transaction that counts.
    ``decided``: position from which transactions without a participating table count."""
    lsn = subscription.skip_lsn
    if not lsn:
        return None
    following = _next_transaction(catalog, subscription, reader, batch, decided)
    if following is None:
        return None
    # A table beyond the transaction, though no skip has begun, applied it before a
    # crash.
    leaves_out = following == lsn and (
        subscription.skipping
        or not any(table.visible and table.cursor > lsn for table in tables)
    )
    if leaves_out and not subscription.skipping:
        if not catalog.begin_skip(subscription.oid, lsn):
            # The skip-LSN was changed or cleared meanwhile.
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
    """Return the finish LSN of the batch's first transaction that must be applied here."""
    finish_lsns = [
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
            commit_lsn = first_row(reader, file, part.position)
            if commit_lsn is not None:
                finish_lsns.append(commit_lsn)
    return min(finish_lsns, default=None)
