"""Registers tables in catalogs of others while the engine runs.

Takes: the node's tables and mirrors, clients of the catalogs. Gives: entries that lead to them;
what is registered, in files that survive restarts. Owns: the threads that register. Never: delays
replication, or touches an entry of others.

    wanted      the entry that each table should have
    mirrored    the entry that each mirror should have in an Iceberg catalog
    rules       whose an entry is, and what is to be done about it
    registry    the steps from what is registered to what is wanted
    worker      takes them, and waits longer and longer while the catalog does not answer
"""

from wal2lake.local.catalogs.mirrored import MirroredEntries
from wal2lake.local.catalogs.registry import Registry
from wal2lake.local.catalogs.rules import MarkRules, MirrorRules
from wal2lake.local.catalogs.wanted import WantedEntries
from wal2lake.local.catalogs.worker import CatalogWorker

__all__ = [
    "CatalogWorker",
    "MarkRules",
    "MirrorRules",
    "MirroredEntries",
    "Registry",
    "WantedEntries",
]
