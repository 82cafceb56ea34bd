"""Facts that processes of a node share by mapped memory, without a lock.

Takes: a subscription's positions and commit times from the receiver and the engine, as they come.
Gives: the same to every process of the node, at once. Owns: ``run/sub-<oid>.progress`` and
``run/sub-<oid>.times``. Never: holds what is not durable elsewhere, waits for another process.

    words        a file of 64-bit words that is mapped
    progress     how far a subscription is
    committimes  when the transactions were committed that a stage has not passed
"""

from wal2lake.catalog.mapped.committimes import CommitTimes
from wal2lake.catalog.mapped.progress import Progress, ProgressFile, read_progress

__all__ = ["CommitTimes", "Progress", "ProgressFile", "read_progress"]
