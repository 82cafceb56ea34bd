"""Says who a supervisor is: the start of a node that may hold a warehouse.

In: the node's system identifier, its directory, the supervisor's marker. Out: a
``WarehouseHolder``. Called by: supervisor.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from wal2lake.model import WarehouseHolder

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
"""A random text that the kernel makes when it starts; all containers of a machine have the same."""


def this_start(node: int, directory: Path, marker: str) -> WarehouseHolder:
    """Describe the supervisor that has ``marker``, in a directory whose lock it holds."""
    inode, _, token = marker.rpartition(":")
    return WarehouseHolder(
        node=str(node),
        token=token,
        boot=_boot(),
        inode=inode,
        directory=str(directory),
        host=platform.node(),
        pid=os.getpid(),
        since=datetime.now(UTC).isoformat(" ", "seconds"),
    )


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
