"""Opens the archive of a running node.

In: settings, the catalog. Out: the store with the claim of this directory; None if the settings
name no store. Called by each process that puts something there: receivers, the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.archive import layout
from wal2lake.archive.catalogs import CatalogArchive
from wal2lake.archive.claims import Claims, NodeClaim, claim_of_node
from wal2lake.archive.segments import SegmentArchive
from wal2lake.catalog import Catalog, Subscription, log_number
from wal2lake.errors import ConfigurationError
from wal2lake.lake.store import LocalStore, Store, store_at
from wal2lake.settings import Settings


@dataclass(frozen=True, slots=True)
class NodeArchive:
    """The archive of one node, for one process."""

    settings: Settings
    store: Store
    claim: NodeClaim
    catalogs: CatalogArchive

    def check(self) -> None:
        """Raise Superseded if another directory has become this node."""
        Claims(self.store).check(self.claim)

    def segments(self, subscription: Subscription) -> SegmentArchive:
        """Open the segments of a subscription. Raises StorageError."""
        return SegmentArchive(
            self.settings.log_directory / str(int(subscription.oid)),
            self.store,
            log=name_of(subscription),
            generation=self.claim.generation,
            generations=Claims(self.store).generations(),
        )

    def remove_dropped(self, catalog: Catalog) -> None:
        """Remove the logs that no subscription of the catalog has any more."""
        keys = self.store.list_below(layout.LOGS, lambda folder: True)
        logs_in_use = {
            name_of(subscription) for subscription in catalog.subscriptions()
        }
        gone = [
            key
            for key in sorted(keys)
            if (log := layout.log_of(key)) is not None and log not in logs_in_use
        ]
        self.store.delete_all(gone)


def name_of(subscription: Subscription) -> str:
    """Return the name of a subscription's log in the store."""
    return layout.log_name(int(subscription.oid), log_number(subscription.options))


def store_of_log(location: str) -> Store:
    """Return the store at a location. Raises ConfigurationError."""
    store = store_at(location)
    if store is None:
        raise ConfigurationError(
            f'"{location}" is not in a storage that can have a log',
            hint="Write it as s3://bucket/prefix, or as the path of a mounted directory.",
        )
    if isinstance(store, LocalStore):
        # The catalog has passwords.
        store.is_private = True
    return store


def open_archive(settings: Settings, catalog: Catalog) -> NodeArchive | None:
    """Open a node's archive; None: its settings name no store.

    Makes the first claim. Raises StorageError, Superseded, ConfigurationError."""
    location = settings.log_store
    if location is None:
        return None
    store = store_of_log(location)
    claim = claim_of_node(settings.directory, store, catalog.system_identifier)
    catalogs = CatalogArchive(catalog, settings, store, claim)
    return NodeArchive(settings, store, claim, catalogs)
