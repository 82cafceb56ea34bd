"""``python -m wal2lake.launch MODULE ARGUMENT...``: runs a worker, tied to its supervisor."""

from __future__ import annotations

import sys

from wal2lake.launch.children.child import main

main(sys.argv[1:])
