"""The lease of a warehouse in an object store: one node at a time writes there.

Takes: the URL of a warehouse, the start of a node that wants it. Gives: a lease that is kept while
the node runs, or an error that says who has it. Owns: the object ``_wal2lake/lease`` below the
warehouse, and when a node may believe that the lease is its own. Never: writes anything else.

    record    what the object says; who may take it. Pure
    object    reads and replaces the object, conditionally
    bootclock a clock that goes on while the machine sleeps
    keeper    takes the lease, renews it, gives it up; stands before each write
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal2lake.lake.store.lease.keeper import HeldLease
from wal2lake.lake.store.lease.record import KEY, LEASE_PROOF, LeaseLost, WarehouseInUse

if TYPE_CHECKING:
    from wal2lake.lake.store.options import StoreOptions
    from wal2lake.model import WarehouseHolder

__all__ = ["KEY", "LEASE_PROOF", "HeldLease", "LeaseLost", "WarehouseInUse", "lease_of"]


def lease_of(
    location: str,
    start: WarehouseHolder,
    options: StoreOptions | None = None,
    seconds: float | None = None,
) -> HeldLease:
    """Return the lease of a warehouse in an object store, which is not taken yet. ``options``: of
    the store's client; ``seconds``: the lease's validity; None for those of a node."""
    # obstore takes 80 ms to import.
    from wal2lake.lake.store.clients import bucket_at
    from wal2lake.lake.store.lease.object import LeaseObject
    from wal2lake.lake.store.options import process_options

    scheme, _, rest = location.partition("://")
    name, _, prefix = rest.partition("/")
    bucket = bucket_at(scheme, name, options or process_options())
    root = location.rstrip("/")
    return HeldLease(root, LeaseObject(root, bucket, prefix.strip("/")), start, seconds)
