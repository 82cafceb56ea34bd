"""Prints an error of ours as PostgreSQL's programs print theirs.

    wal2lake: error: directory "x" exists but is not empty
    wal2lake: hint: ...

Takes a Wal2LakeError; prints lines to stderr. Called by the program for errors that a subcommand
raises, and by subcommands that continue after an error.

Source: PostgreSQL's src/common/logging.c.
"""

from __future__ import annotations

import sys

from wal2lake.errors import Wal2LakeError


def print_error(error: Wal2LakeError) -> None:
    """Print the message, and a line for the detail and the hint."""
    print(f"wal2lake: error: {error.message}", file=sys.stderr)
    for label in ("detail", "hint"):
        text = getattr(error, label)
        if text:
            print(f"wal2lake: {label}: {text}", file=sys.stderr)
