"""txid_current() and pg_current_xact_id(): the number of the caller's transaction.

Source: pg_current_xact_id() and pg_current_xact_id_if_assigned() in xid8funcs.c; manual, 9.27.8.
"""

from __future__ import annotations

from wal2lake.local.node import Caller
from wal2lake.local.ports import HasCatalog


def current_xid(node: HasCatalog, caller: Caller) -> int | None:
    """Return the transaction's number, after assigning one if it has none."""
    return caller.number(True)


def assigned_xid(node: HasCatalog, caller: Caller) -> int | None:
    """Return the transaction's number; None if it has none yet."""
    return caller.number(False)
