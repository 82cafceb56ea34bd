"""``wal2lake start`` with fake children: ``node_runner.py DIR [--daemon] [--eager] [--patient]``.

``--eager``: with a spare process, which comes again at once. ``--patient``: a round comes from
signals and words alone, as if a poll took minutes. While there is a file DIR/fake/fault,
the supervisor's rounds raise the exception that it names, and after a blank the method that raises
it (``FAULTS``)."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wal2lake.catalog import Catalog
from wal2lake.errors import ConfigurationError
from wal2lake.launch import supervisor
from wal2lake.launch.children import spare
from wal2lake.launch.children.collector import LogCollector
from wal2lake.launch.children.group import Children, Commands
from wal2lake.launch.children.nodelog import node_log
from wal2lake.launch.directory.lockfile import LockFile
from wal2lake.launch.requests import check_request, held
from wal2lake.launch.start.detached import start_detached
from wal2lake.launch.start.node import open_standard_streams, starting
from wal2lake.launch.supervisor import Supervisor
from wal2lake.launch.wakeup import Wakeup
from wal2lake.observe import configure
from wal2lake.settings import Settings, load

CHILD = (sys.executable, "-m", "wal2lake.launch", "tests.fakes.node_child")

SPARE = (sys.executable, "-m", "wal2lake.launch", "--spare", "wal2lake.cli")


FAULTS = {
    "running": Children,
    "kill_lost": Children,
    "wait": Wakeup,
    "_fork": LogCollector,
    "check_warehouse": supervisor,
}
"""Functions that can fail, the first one by default, or with the word "hang" not return."""


def plant_faults(file: Path) -> None:
    for name, owner in FAULTS.items():
        setattr(owner, name, failing(name, getattr(owner, name), file))


def failing(name: str, whole: Callable[..., Any], file: Path) -> Callable[..., Any]:
    def method(*arguments: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            kind, _, where = file.read_text().partition(" ")
            if kind and name == (where or "running"):
                if kind == "hang":
                    (file.parent / "hangs").touch()
                    time.sleep(600)
                raise vars(builtins)[kind]("planted")
        return whole(*arguments)

    return method


def main() -> int:
    if "--eager" in sys.argv:
        vars(spare).update(QUIET_SECONDS=0.05, RETRY_SECONDS=0.1)
    if "--patient" in sys.argv:
        vars(supervisor).update(POLL_SECONDS=600.0)
    directory = Path(sys.argv[1])
    open_standard_streams()
    configure("supervisor")
    plant_faults(directory / "fake" / "fault")
    settings = load(directory, os.environ)

    def reload() -> Settings:
        return load(directory, os.environ)

    def run(echo: bool = True) -> int:
        with (
            held(),
            starting(),
            LockFile.acquire(directory, check_request) as lock,
            node_log(settings, reload, echo=echo) as log,
            starting(),
        ):
            catalog = Catalog(settings.catalog_file, busy_timeout_seconds=0.2)
            return Supervisor(
                settings,
                catalog=catalog,
                commands=Commands(
                    engine=(*CHILD, "engine", str(directory)),
                    web=(*CHILD, "web", str(directory)),
                    receiver=lambda subid: (
                        *CHILD,
                        f"receiver{int(subid)}",
                        str(directory),
                    ),
                    spare=SPARE if "--eager" in sys.argv else (),
                ),
                reload=reload,
                environ=os.environ,
                lock=lock,
                log=log,
                node=catalog.system_identifier,
            ).run()
        return 0

    try:
        if "--daemon" in sys.argv:
            assert settings.log_file is not None
            pid = start_detached(
                lambda: run(echo=False),
                directory,
                settings.log_file,
                timeout_seconds=float(os.environ.get("FAKE_TIMEOUT", "20")),
            )
            print(pid)
            return 0
        return run()
    except ConfigurationError as error:
        print(error.describe(), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
