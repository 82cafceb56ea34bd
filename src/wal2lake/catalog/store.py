"""The catalog's store: records in, records out, one SQLite transaction per method.

Every process opens its own store. A connection belongs to the thread that made it and never crosses
a fork. A method returns only after the commit is durable (synchronous=FULL), and raises
StorageError (53100, 58030) if the file cannot be read or written. ``change_counter`` grows with
every commit of any process, so a cache can check cheaply whether it is stale.

The methods are in ``parts``, by subject, with their guarantees and transactions. The SQL of each
table is in the module of its name (``namespaces``, ``tables``, ``comments``, ``subscriptions``,
``copies``, ``published``, ``remote``; ``access.roles``).

Called by: commands and system views (commands, sql), the supervisor (launch), workers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from wal2lake.catalog.database import (
    BUSY_TIMEOUT_SECONDS,
    Database,
    create_database,
    take_oid,
)
from wal2lake.catalog.images import CatalogImages
from wal2lake.catalog.parts.attempts import Attempts
from wal2lake.catalog.parts.copies import Copies
from wal2lake.catalog.parts.histories import Histories
from wal2lake.catalog.parts.objects import Objects
from wal2lake.catalog.parts.publications import Publications
from wal2lake.catalog.parts.published import PublishedStates
from wal2lake.catalog.parts.schemas import Schemas
from wal2lake.catalog.parts.slots import Slots
from wal2lake.catalog.parts.subscriptions import Subscriptions
from wal2lake.catalog.xids import TransactionNumbers
from wal2lake.model import Oid


class Catalog(
    Objects,
    Publications,
    Subscriptions,
    Attempts,
    Copies,
    PublishedStates,
    Schemas,
    Slots,
    Histories,
):
    """The durable facts of one node."""

    def __init__(
        self,
        path: Path,
        warehouse: str | None = None,
        *,
        migrate: bool = False,
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> None:
        """Open an existing catalog. Raises ConfigurationError if it is missing or has another
        version. ``warehouse``: base of the tables' locations, from the settings; None for the
        directory beside the catalog. ``migrate``: whether to upgrade an older catalog, as the start
        of the node does. ``busy_timeout_seconds``: how long a method waits for a lock of another
        process before it raises StorageError."""
        self._database = Database(
            path, warehouse, migrate=migrate, busy_timeout_seconds=busy_timeout_seconds
        )
        self._authority = None
        self._feeds = None
        self.xids = TransactionNumbers(self._database)
        """Numbers of transactions that begin on this node."""
        self.images = CatalogImages(self._database)
        """Images for another machine."""

    @classmethod
    def create(cls, path: Path, superuser: str, password: str | None) -> Catalog:
        """Create a catalog with its first role and schema public."""
        create_database(path, superuser, password)
        return cls(path)

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()

    def copied_to(self, target: Path) -> AbstractContextManager[None]:
        """Copy the catalog to ``target``, and keep writers out while the context is open."""
        return self._database.copied_to(target)

    # ---- the node ---------------------------------------------------------------

    @property
    def system_identifier(self) -> int:
        """This node's system identifier, as IDENTIFY_SYSTEM reports it: 64 bits."""
        return int(self._database.meta("system_identifier"))

    def sync_name(self, subid: Oid) -> str:
        """Return the name of a subscription's copies at the publisher: of their temporary slot,
        their sessions, and the mark of these sessions."""
        return f"pg_{subid}_sync_{self.system_identifier}"

    def new_oid(self) -> Oid:
        """Return an OID that no object of this node had before."""
        return self.new_oids(1)[0]

    def new_oids(self, count: int) -> list[Oid]:
        """Return ``count`` new OIDs."""
        with self._database.transaction() as transaction:
            return [take_oid(transaction) for _ in range(count)]
