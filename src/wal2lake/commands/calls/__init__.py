"""Functions that change something, run after the query that called them.

Takes: the function calls recorded by a query, the caller, the node. Gives: results and notices.
Owns: the durable steps of each function. Never: runs under the lock of the embedded engine.

    tablecalls     pause, resume and re-copy one table of a subscription
    origins        pg_replication_origin_*
    slots          create, drop, advance and read slots
    sequencecalls  nextval(), setval(), currval(), lastval()
    xids           txid_current() and pg_current_xact_id()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wal2lake.commands.calls.origins import (
    advance_origin,
    create_origin,
    drop_origin,
    reset_session,
    reset_transaction,
    session_is_set_up,
    session_progress,
    set_up_session,
    set_up_transaction,
)
from wal2lake.commands.calls.sequencecalls import (
    current_value,
    last_value,
    next_value,
    set_value,
)
from wal2lake.commands.calls.slots import (
    Reader,
    advance_slot,
    copy_slot,
    create_slot,
    current_lsn,
    drop_slot,
)
from wal2lake.commands.calls.tablecalls import (
    pause_table,
    recopy_table,
    resume_table,
    warn_apart,
)
from wal2lake.commands.calls.xids import assigned_xid, current_xid
from wal2lake.commands.maintenance import visible_lsn
from wal2lake.local.node import Caller, EngineParts

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "wal2lake.pause_table": pause_table,
    "wal2lake.resume_table": resume_table,
    "wal2lake.recopy_table": recopy_table,
    "wal2lake.visible_lsn": visible_lsn,
    "pg_replication_origin_advance": advance_origin,
    "pg_replication_origin_create": create_origin,
    "pg_replication_origin_drop": drop_origin,
    "pg_replication_origin_session_setup": set_up_session,
    "pg_replication_origin_session_reset": reset_session,
    "pg_replication_origin_session_is_setup": session_is_set_up,
    "pg_replication_origin_session_progress": session_progress,
    "pg_replication_origin_xact_setup": set_up_transaction,
    "pg_replication_origin_xact_reset": reset_transaction,
    "pg_create_logical_replication_slot": create_slot,
    "pg_copy_logical_replication_slot": copy_slot,
    "pg_drop_replication_slot": drop_slot,
    "pg_replication_slot_advance": advance_slot,
    "pg_current_wal_lsn": current_lsn,
    "pg_current_xact_id": current_xid,
    "pg_current_xact_id_if_assigned": assigned_xid,
    "nextval": next_value,
    "setval": set_value,
    "currval": current_value,
    "lastval": last_value,
    **{
        name: Reader(name)
        for name in (
            "pg_logical_slot_get_changes",
            "pg_logical_slot_peek_changes",
            "pg_logical_slot_get_binary_changes",
            "pg_logical_slot_peek_binary_changes",
        )
    },
}

MAKE_SLOTS: Final = frozenset(
    {"pg_create_logical_replication_slot", "pg_copy_logical_replication_slot"}
)
"""Functions that need a transaction that has written nothing."""

NUMBERS: Final = frozenset({"pg_current_xact_id", "pg_current_xact_id_if_assigned"})
"""Functions about the running transaction, which therefore stays open."""

SEQUENCES: Final = frozenset({"nextval", "setval", "currval", "lastval"})
"""Functions of sequences, which see those that the block has made. All others see the committed
catalog and change it at once, whatever becomes of the block."""

READS: Final = {
    *MAKE_SLOTS,
    *NUMBERS,
    "currval",
    "lastval",
    "pg_current_wal_lsn",
    "pg_drop_replication_slot",
    "pg_logical_slot_get_changes",
    "pg_logical_slot_get_binary_changes",
    "pg_logical_slot_peek_changes",
    "pg_logical_slot_peek_binary_changes",
    "pg_replication_origin_session_is_setup",
    "pg_replication_origin_session_progress",
    "pg_replication_slot_advance",
    "wal2lake.visible_lsn",
}
"""Functions that a read-only transaction may call, because they change no table."""


def perform(
    node: EngineParts, caller: Caller, function: str, arguments: Sequence[object]
) -> Any:
    """Run the function and return its result. Its effects are durable on return."""
    return _FUNCTIONS[function](node, caller, *arguments)


__all__ = ["MAKE_SLOTS", "NUMBERS", "READS", "SEQUENCES", "perform", "warn_apart"]
