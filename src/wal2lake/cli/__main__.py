"""The command ``wal2lake``: passes arguments to a subcommand, and prints errors on one line.

Each subcommand is a module or package of this room with a ``run`` that returns the exit code. It is
imported only when it is used, so that the process of ``wal2lake start``, which becomes the
supervisor, stays small.

``options`` has the exit codes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from wal2lake.cli.options import build_parser
from wal2lake.cli.terminal.errors import print_error
from wal2lake.errors import Wal2LakeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        command = importlib.import_module(f"wal2lake.cli.{options.command}")
        run: Callable[[argparse.Namespace], int] = command.run
        code = run(options)
        # Flush here, as the interpreter would report a reader that is gone.
        sys.stdout.flush()
        return code
    except Wal2LakeError as error:
        print_error(error)
        return 1
    except BrokenPipeError:
        # The reader (head, a pager) has gone; the interpreter must not complain when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
