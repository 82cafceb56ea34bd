"""``wal2lake status``: reads only files, so it answers at once, whatever the node does.

Exit codes without ``--check`` are pg_ctl's: 0 running, 3 not running, 4 not a node's directory.
With ``--check`` they are ``NodeCondition``: 0 well, 1 late or in trouble, 2 down.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from wal2lake.cli.looking import Looker, NodeCondition, condition, is_node, no_node
from wal2lake.cli.status.document import document
from wal2lake.cli.status.lines import lines
from wal2lake.cli.terminal.errors import print_error
from wal2lake.errors import Wal2LakeError

NOT_RUNNING: Final = 3
NO_DIRECTORY: Final = 4


def run(options: argparse.Namespace) -> int:
    """Print the status; returns the module's exit codes."""
    directory: Path = options.directory.absolute()
    try:
        if not is_node(directory):
            print_error(no_node(directory))
            return NodeCondition.DOWN if options.check else NO_DIRECTORY
        with Looker(directory) as looker:
            look = looker.look()
    except Wal2LakeError as error:
        if not options.check:
            raise
        print_error(error)
        return NodeCondition.DOWN
    if options.json:
        print(json.dumps(document(look), indent=2))
    else:
        print("\n".join(lines(look)))
    if options.check:
        return condition(look)
    return NOT_RUNNING if look.facts.state == "stopped" else 0
