"""Servers of versions that the wheel does not have, fetched once by the test run itself.

They are kept outside the checkout, beside Spark's jars (``WAL2LAKE_TEST_POSTGRES`` names
another folder). Where they cannot be had, for want of a network or of npm, tests that need
them are skipped with the reason.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from wal2lake.testing.postgres import OLDER_VERSIONS, available_versions

PUBLISHERS = (14, 15, 16, 17, 18)
"""Versions that a subscription may have as its publisher."""

_FETCH = Path(__file__).parent.parent / "tools" / "fetch-postgres"

_FETCH_SECONDS = 120.0
"""23 MB; took 3 s where it was measured."""


class Unavailable(Exception):
    """There is no such server here, and it cannot be fetched; the message says why."""


@functools.cache
def _fetched(version: int, directory: Path) -> Path | str:
    """Where its files are, or why they are not. One attempt for each test run."""
    try:
        done = subprocess.run(
            [_FETCH, str(version), directory],
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return done.stderr.strip() or f"fetch-postgres ended with {done.returncode}"
    return directory / str(version)


def installation(version: int) -> int | Path:
    """What PostgresServer takes for a major version. Raises Unavailable."""
    if version in available_versions():
        return version
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home else Path("~/.cache").expanduser()
    chosen = os.environ.get(OLDER_VERSIONS)
    found = _fetched(
        version, Path(chosen) if chosen else base / "wal2lake" / "postgres"
    )
    if isinstance(found, str):
        raise Unavailable(found)
    return found
