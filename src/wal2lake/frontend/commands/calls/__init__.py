"""Functions that change something, once the query that called them has run.

Takes: requests of the system views' functions, who asks, the node. Gives: notices. Owns: what they
do, in durable steps. Never: holds the lock of the embedded engine.

    tables     pause, resume and re-copy one table of a subscription
    origins    pg_replication_origin_advance
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wal2lake.frontend.commands.calls.origins import advance_origin
from wal2lake.frontend.commands.calls.tables import (
    pause_table,
    recopy_table,
    resume_table,
    warn_apart,
)
from wal2lake.frontend.commands.node import Caller, Node

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "wal2lake.pause_table": pause_table,
    "wal2lake.resume_table": resume_table,
    "wal2lake.recopy_table": recopy_table,
    "pg_replication_origin_advance": advance_origin,
}


def perform(
    node: Node, caller: Caller, function: str, arguments: Sequence[object]
) -> None:
    """Do it; durable on return."""
    _FUNCTIONS[function](node, caller, *arguments)


__all__ = ["perform", "warn_apart"]
