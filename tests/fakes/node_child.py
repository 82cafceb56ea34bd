"""A worker without work, for the supervisor's tests. Run by wal2lake.launch.children.child.

``tests.fakes.node_child ROLE DIR``: notes its start in DIR/fake/events, starts one grandchild that
leaves the process group as Spark's Python workers do, and waits to be told to stop. Files
in DIR/fake change what it does: ``ROLE.exit`` (exit at once with that code),
``ROLE.stopped`` (exit with that code when told to stop), ``ROLE.stubborn`` (ignore SIGTERM),
``ROLE.silent`` (never say that it is ready). While there is ``chaos``, each child
throws dice for when and how it ends, whether it listens, and whether more grandchildren come.
"""

from __future__ import annotations

import os
import random
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
    dice = random.Random(f"{os.getpid()} {time.time()}")
    ends_at = _throw(dice) if (fake / "chaos").exists() else None
    behaviour = fake / f"{role}.exit"
    if behaviour.exists():
        os._exit(int(behaviour.read_text()))
    grandchild = subprocess.Popen([sys.executable, "-c", GRANDCHILD])
    note(f"grandchild {grandchild.pid}")

    def stop(number: int, frame: object) -> None:
        note(f"signal {signal.Signals(number).name}")
        if ends_at is not None and (fake / "chaos").exists() and dice.random() < 0.3:
            return
        if number != signal.SIGHUP and not (fake / f"{role}.stubborn").exists():
            grandchild.kill()
            code = fake / f"{role}.stopped"
            os._exit(int(code.read_text()) if code.exists() else 0)

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, stop)
    if role in ("engine", "web"):
        signal.signal(signal.SIGHUP, stop)
    for listener in listening_sockets():
        note(f"listening {listener.getsockname()[1]}")
    note("up")
    while True:
        if role == "engine" and not (fake / "engine.silent").exists():
            notify(directory / "run", f"ready {os.getpid()}")
        time.sleep(0.1 if ends_at else 1.0)
        if ends_at is not None and time.monotonic() > ends_at:
            _end(dice)


def _throw(dice: random.Random) -> float:
    """End at once, or return when to end."""
    if dice.random() < 0.2:
        _end(dice)
    for _ in range(dice.randrange(3)):
        subprocess.Popen([sys.executable, "-c", GRANDCHILD])
    return time.monotonic() + dice.expovariate(1.0)


def _end(dice: random.Random) -> None:
    if dice.random() < 0.3:
        os.kill(os.getpid(), dice.choice([signal.SIGKILL, signal.SIGABRT]))
    os._exit(dice.choice([0, 1, 2, 78]))


if __name__ == "__main__":
    main()
