"""``Catalog``'s methods about what stops the workers of subscriptions; see ``store``."""

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
    """Errors, counts of them, and what is left out."""

    def errors(self) -> list[SubscriptionError]:
        """Return the present errors of subscriptions; those of single tables are in ``rels``."""
        with self._database.reading() as connection:
            return subscriptions.errors(connection)

    def note_error(
        self,
        oid: Oid,
        worker: WorkerKind,
        text: str | None,
        sqlstate: str | None = None,
    ) -> None:
        """Note and count the error of one attempt of a worker; None: the attempt succeeded, and the
        worker no longer stops the subscription. Other workers' errors stay. The caller handles an
        error already: a failure to write this one goes to the log, and no second error is
        raised."""
        with self._database.reading() as connection:
            known = subscriptions.error_of(connection, oid, worker)
        if known == text and (text is None or not subscriptions.counts(worker)):
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
        """ALTER SUBSCRIPTION ... SKIP; 0: none. UsageError (55006) if another transaction is
        being left out at this moment: some tables may be beyond it already."""
        with self._database.transaction() as transaction:
            subscriptions.set_skip(transaction, oid, lsn)

    def begin_skip(self, oid: Oid, lsn: Lsn) -> bool:
        """Leaving out the transaction begins; False if it is not to be left out any more."""
        with self._database.transaction() as transaction:
            return subscriptions.begin_skip(transaction, oid, lsn)

    def disable_if_asked(self, oid: Oid, generation: int, error: BaseException) -> None:
        """disable_on_error: after an error that a worker has noted, the subscription is
        disabled instead of tried again.

        ``generation``: the subscription's when the worker began. The error of an earlier one
        says nothing of the subscription as it is now: somebody may have mended the cause and
        enabled it since. What may pass by itself (a server that cannot be reached, a full
        disk, another writer's commit) is tried again all the same. Source:
        DisableSubscriptionAndExit() in worker.c.
        """
        if isinstance(error, Wal2LakeError) and error.retry is Retry.LATER:
            return
        with self._database.transaction() as transaction:
            found = subscriptions.subscription_by_oid(transaction, oid)
            if found is None or not (found.enabled and found.disable_on_error):
                return
            if found.generation != generation:
                return
            subscriptions.update_subscription(
                transaction, oid, {"enabled": False}, bump=True
            )
        get_logger().info(
            f'subscription "{found.name}" has been disabled because of an error'
        )

    def stats(self) -> list[SubscriptionStats]:
        """How often the workers of subscriptions have failed."""
        with self._database.reading() as connection:
            return subscriptions.stats(connection)

    def reset_stats(self, oid: Oid | None) -> None:
        """Count from zero: one subscription's errors, or with None those of all."""
        with self._database.transaction() as transaction:
            subscriptions.reset_stats(transaction, oid)
