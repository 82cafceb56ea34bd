"""Waiting for a failpoint of a node. Comes in: where its failpoints are armed. Goes out: the point
that was armed has been reached, which removes its file."""

from __future__ import annotations

from pathlib import Path

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def wait_reached(node: Node, points: Path, name: str) -> None:
    """Wait until ``node`` reaches the failpoint that was armed in ``points``."""
    wait_until(
        lambda: not (points / name).exists(),
        timeout_seconds=60,
        describe=lambda: f"{name} is reached\n{node.log_text()[-3000:]}",
    )
