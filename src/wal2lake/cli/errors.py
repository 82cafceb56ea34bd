"""An error of ours on the terminal, as PostgreSQL's programs print theirs.

    wal2lake: error: directory "x" exists but is not empty
    wal2lake: hint: ...

In: a Wal2LakeError. Out: lines on stderr. Called by the program for what a subcommand raises,
and by subcommands that go on after an error.

Source: PostgreSQL's src/common/logging.c.
"""

from __future__ import annotations

import sys

from wal2lake.errors import Wal2LakeError


def print_error(error: Wal2LakeError) -> None:
    """One line, and one for each further field that it has."""
    print(f"wal2lake: error: {error.message}", file=sys.stderr)
    for label in ("detail", "hint"):
        text = getattr(error, label)
        if text:
            print(f"wal2lake: {label}: {text}", file=sys.stderr)
