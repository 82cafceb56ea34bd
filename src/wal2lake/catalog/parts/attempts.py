"""``Catalog``'s methods about errors of subscriptions' workers."""

from __future__ import annotations

from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.records import (
    SubscriptionError,
    SubscriptionStats,
    WorkerKind,
)
from wal2lake.catalog.replication import subscriptions
from wal2lake.errors import Retry, StorageError, Wal2LakeError
from wal2lake.model import Lsn, Oid
from wal2lake.observe import get_logger


class Attempts(CatalogPart):
    """Errors, their counts, and skipped transactions."""

    def errors(self) -> list[SubscriptionError]:
        """Return the present errors of subscriptions. Errors of single tables are in ``rels``."""
        with self._database.reading() as connection:
            return subscriptions.errors(connection)

    def note_error(
        self,
        oid: Oid,
        worker: WorkerKind,
        text: str | None,
        sqlstate: str | None = None,
    ) -> None:
        """Record and count the error of a worker's attempt. None if the attempt succeeded: the
        worker's error is cleared, those of other workers stay. If the error cannot be written, that
        is only logged, because the caller handles an error already."""
        with self._database.reading() as connection:
            recorded = subscriptions.error_of(connection, oid, worker)
        if recorded == text and (text is None or not subscriptions.counts(worker)):
            return
        try:
            with self._database.transaction() as transaction:
                if text is None:
                    subscriptions.clear_error(transaction, oid, worker)
                    return
                subscriptions.note_error(transaction, oid, worker, text, sqlstate)
                subscriptions.count_error(transaction, oid, worker)
        except StorageError as error:
            if text is None:
                raise
            get_logger().error("could not note an error", error=error)

    @change
    def set_skip(self, oid: Oid, lsn: Lsn) -> None:
        """Set the skip-LSN (ALTER SUBSCRIPTION ... SKIP); 0 for none. Raises UsageError (55006) if
        another transaction is being skipped: some tables may be beyond it already."""
        with self._database.transaction() as transaction:
            subscriptions.set_skip(transaction, oid, lsn)

    def begin_skip(self, oid: Oid, lsn: Lsn) -> bool:
        """Begin to skip the transaction. Return False if it is not to be skipped any more."""
        with self._database.transaction() as transaction:
            return subscriptions.begin_skip(transaction, oid, lsn)

    def disable_if_asked(self, oid: Oid, generation: int, error: BaseException) -> None:
        """Disable the subscription after a worker's error, if disable_on_error is set.

        ``generation``: the subscription's when the worker began. An error of an earlier generation
        is ignored: a user may have removed the cause and enabled the subscription since. Temporary
        errors (an unreachable server, a full disk, another writer's commit) are retried all the
        same. Source: DisableSubscriptionAndExit() in worker.c.
        """
        if isinstance(error, Wal2LakeError) and error.retry is Retry.LATER:
            return
        with self._database.transaction() as transaction:
            subscription = subscriptions.subscription_by_oid(transaction, oid)
            if subscription is None or not (
                subscription.enabled and subscription.disable_on_error
            ):
                return
            if subscription.generation != generation:
                return
            subscriptions.update_subscription(
                transaction, oid, {"enabled": False}, bump=True
            )
        get_logger().info(
            f'subscription "{subscription.name}" has been disabled because of an error'
        )

    def stats(self) -> list[SubscriptionStats]:
        """Return the counts of workers' errors."""
        with self._database.reading() as connection:
            return subscriptions.stats(connection)

    def reset_stats(self, oid: Oid | None) -> None:
        """Reset the counts of one subscription, or of all if ``oid`` is None."""
        with self._database.transaction() as transaction:
            subscriptions.reset_stats(transaction, oid)
