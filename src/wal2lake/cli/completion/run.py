"""``wal2lake completion SHELL``: prints the script that the shell reads at its start."""

from __future__ import annotations

import argparse

from wal2lake.cli.completion.describe import describe_program
from wal2lake.cli.completion.shells import SHELLS
from wal2lake.cli.options import build_parser


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(SHELLS[options.shell](describe_program(build_parser())), end="")
    return 0
