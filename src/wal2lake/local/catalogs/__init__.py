"""Registers the tables in a catalog of others while the engine runs.

Takes: the node's tables, a client of the catalog. Gives: entries that lead to the tables; what is
registered, in a file that survives restarts. Owns: the thread that registers. Never: delays
replication, or touches an entry of others.

    wanted      the entry that each table should have
    registry    the steps from what is registered to what is wanted
    worker      takes them, and waits longer and longer while the catalog does not answer
"""

from wal2lake.local.catalogs.registry import Registry
from wal2lake.local.catalogs.wanted import WantedEntries
from wal2lake.local.catalogs.worker import CatalogWorker

__all__ = ["CatalogWorker", "Registry", "WantedEntries"]
