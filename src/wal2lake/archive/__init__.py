"""The part of a node that outlives its machine: its log and its catalog, in a store.

Takes: sealed segments, the catalog, the files of the node's directory. Gives: the position below
which the store has everything; a new directory of the same node. Owns: the objects below
``log.store`` and their names. Never: removes what the newest stored catalog may need; decides what
is confirmed to a publisher.

    opening     a running node's archive, from its settings; start here
    layout      names of the objects (pure)
    claims      which directory is the node: the newest claim
    catalogs    the catalog, with the files beside it, after each change that matters
    segments    the sealed segments of one subscription
    prepared    the transactions that are prepared at their end
    keeping     the engine's thread, for nodes without receivers
    placing     segments as a cluster's executors find them
    fetching    the way back: ``wal2lake init --from``
"""

from wal2lake.archive.catalogs import CatalogArchive
from wal2lake.archive.claims import ClaimFile, Claims, NodeClaim, Superseded
from wal2lake.archive.fetching import FetchedNode, fetch_node
from wal2lake.archive.keeping import ArchiveKeeper
from wal2lake.archive.opening import NodeArchive, open_archive, store_of_log
from wal2lake.archive.placing import StoredLog, staging_url
from wal2lake.archive.segments import SegmentArchive

__all__ = [
    "ArchiveKeeper",
    "CatalogArchive",
    "ClaimFile",
    "Claims",
    "FetchedNode",
    "NodeArchive",
    "NodeClaim",
    "SegmentArchive",
    "StoredLog",
    "Superseded",
    "fetch_node",
    "open_archive",
    "staging_url",
    "store_of_log",
]
