"""The catalog's store: records in, records out, one SQLite transaction a method.

Every process opens its own; a connection belongs to the thread that made it and never
crosses a fork. A method returns only after the commit is durable (synchronous=FULL), and raises
StorageError (53100, 58030) if the file cannot be read or written.
``change_counter`` grows with every commit of any process, so a cache can ask cheaply
whether it is stale.

What callers may rely on, and where transactions begin and end, is in ``parts``, by what the
methods are about; the SQL of each table is in the module of its name (``namespaces``, ``tables``,
``comments``, ``subscriptions``, ``copies``, ``published``, ``remote``; ``access.roles``).

Called by: commands and system views (commands, sql), the supervisor (launch), workers.
"""

from __future__ import annotations

from pathlib import Path

from wal2lake.catalog.database import Database, create_database, take_oid
from wal2lake.catalog.parts.attempts import Attempts
from wal2lake.catalog.parts.copies import Copies
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
):
    """The durable facts of one node."""

    def __init__(
        self, path: Path, warehouse: str | None = None, *, migrate: bool = False
    ) -> None:
        """Open an existing catalog; ConfigurationError if missing or of another version.
        ``warehouse``: the settings', which tables' places are relative to; None: beside the
        catalog. ``migrate``: bring an older one up to date (who starts the node does)."""
        self._database = Database(path, warehouse, migrate=migrate)
        self._authority = None
        self.xids = TransactionNumbers(self._database)
        """Numbers of transactions that begin on this node."""

    @classmethod
    def create(cls, path: Path, superuser: str, password: str | None) -> Catalog:
        """Make a new catalog with its first role and schema public."""
        create_database(path, superuser, password)
        return cls(path)

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()

    # ---- the node ---------------------------------------------------------------

    @property
    def system_identifier(self) -> int:
        """This node's own, as IDENTIFY_SYSTEM would report it: 64 bits."""
        return int(self._database.meta("system_identifier"))

    def sync_name(self, subid: Oid) -> str:
        """Return the name by which publishers know a subscription's copies: the name of their
        temporary slot, of their sessions, and of these sessions' mark."""
        return f"pg_{subid}_sync_{self.system_identifier}"

    def new_oid(self) -> Oid:
        """A number that no object of this node had before."""
        return self.new_oids(1)[0]

    def new_oids(self, count: int) -> list[Oid]:
        """Return ``count`` new OIDs."""
        with self._database.transaction() as transaction:
            return [take_oid(transaction) for _ in range(count)]
