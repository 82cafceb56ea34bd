"""A worker without work, for the supervisor's tests. Run by wal2lake.launch.children.child.

``tests.fakes.node_child ROLE DIR``: notes its start in DIR/fake/events, starts one grandchild that
leaves the process group as Spark's Python workers do, and waits to be told to stop. Files
in DIR/fake change what it does: ``ROLE.exit`` (exit at once with that code), ``ROLE.stubborn``
(ignore SIGTERM).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from wal2lake.launch import listening_sockets, notify

GRANDCHILD = "import os, time; os.setpgid(0, 0); time.sleep(600)"


def main() -> None:
    role, directory = sys.argv[1], Path(sys.argv[2])
    fake = directory / "fake"

    def note(event: str) -> None:
        with (fake / "events").open("a") as events:
            events.write(f"{time.time()} {role} {os.getpid()} {event}\n")

    note("start")
    behaviour = fake / f"{role}.exit"
    if behaviour.exists():
        os._exit(int(behaviour.read_text()))
    grandchild = subprocess.Popen([sys.executable, "-c", GRANDCHILD])
    note(f"grandchild {grandchild.pid}")

    def stop(number: int, frame: object) -> None:
        note(f"signal {signal.Signals(number).name}")
        if number != signal.SIGHUP and not (fake / f"{role}.stubborn").exists():
            grandchild.kill()
            os._exit(0)

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, stop)
    if role in ("engine", "web"):
        signal.signal(signal.SIGHUP, stop)
    for listener in listening_sockets():
        note(f"listening {listener.getsockname()[1]}")
    if role == "engine":
        notify(directory / "run", "ready")
    note("up")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
