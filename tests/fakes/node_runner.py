"""``wal2lake start`` with fake children: ``node_runner.py DIR``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wal2lake.catalog import Catalog
from wal2lake.errors import ConfigurationError
from wal2lake.launch.children.group import Commands
from wal2lake.launch.supervisor import Supervisor
from wal2lake.observe import configure
from wal2lake.settings import load

CHILD = (sys.executable, "-m", "wal2lake.launch", "tests.fakes.node_child")


def main() -> int:
    directory = Path(sys.argv[1])
    configure("supervisor")
    settings = load(directory, os.environ)
    supervisor = Supervisor(
        settings,
        catalog=Catalog(settings.catalog_file),
        commands=Commands(
            engine=(*CHILD, "engine", str(directory)),
            web=(*CHILD, "web", str(directory)),
            receiver=lambda subid: (*CHILD, f"receiver{int(subid)}", str(directory)),
        ),
        reload=lambda: load(directory, os.environ),
        environ=os.environ,
    )
    try:
        return supervisor.run()
    except ConfigurationError as error:
        print(error.describe(), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
