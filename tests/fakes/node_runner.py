"""``wal2lake start`` with fake children: ``node_runner.py DIR [--daemon]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wal2lake.catalog import Catalog
from wal2lake.errors import ConfigurationError
from wal2lake.launch.children.collector import collecting
from wal2lake.launch.children.group import Commands
from wal2lake.launch.detached import start_detached
from wal2lake.launch.directory.lockfile import LockFile
from wal2lake.launch.supervisor import Supervisor
from wal2lake.observe import configure
from wal2lake.settings import Settings, load

CHILD = (sys.executable, "-m", "wal2lake.launch", "tests.fakes.node_child")


def main() -> int:
    directory = Path(sys.argv[1])
    configure("supervisor")
    settings = load(directory, os.environ)

    def reload() -> Settings:
        return load(directory, os.environ)

    def run(echo: bool = True) -> int:
        with (
            LockFile.acquire(directory.resolve()) as lock,
            collecting(settings, reload, echo=echo) as collector,
        ):
            return Supervisor(
                settings,
                catalog=Catalog(settings.catalog_file),
                commands=Commands(
                    engine=(*CHILD, "engine", str(directory)),
                    web=(*CHILD, "web", str(directory)),
                    receiver=lambda subid: (
                        *CHILD,
                        f"receiver{int(subid)}",
                        str(directory),
                    ),
                ),
                reload=reload,
                environ=os.environ,
                lock=lock,
                collector=collector,
            ).run()

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
