"""Log lines of processes that share one stderr. A line and its newline were two writes, so lines
of two processes ran together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

PROGRAM = """
from wal2lake.errors import UsageError
from wal2lake.observe import configure, get_logger
configure("receiver")
get_logger().info("has started")
get_logger().info("long " + "x" * 20000)
get_logger().error("stopped", error=UsageError("no", hint="try it"))
get_logger().warning("cleared", subscription="s", detail="It did not match.")
"""


def test_a_line_and_its_newline_are_one_write() -> None:
    # Reads of a datagram socket give back exactly what each write wrote.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stderr=theirs.fileno(),
            env=environ,
            timeout=60,
            check=True,
        )
        ours.setblocking(False)
        lines = [ours.recv(1 << 16).decode() for _ in range(4)]
    assert lines[0].endswith("LOG:  has started\n")
    assert lines[1].endswith("xxx\n")
    assert lines[1].count("\n") == 1
    assert lines[2].endswith("HINT:  try it\n")
    assert lines[2].count("\n") == 3
    first, second = lines[3].splitlines()
    assert first.endswith("WARNING:  cleared  subscription=s")
    assert second.endswith("DETAIL:  It did not match.")
