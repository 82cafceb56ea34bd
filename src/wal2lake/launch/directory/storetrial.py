"""Tries object stores, and the log's store wherever it is, before the node listens.

Takes: a place, the settings. Raises ConfigurationError if the place cannot be used. The trial is a
program of its own (``engine.storetrial``), so that this process imports no client of a store.
Called by: ``warehouse``, supervisor.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.launch.requests import run_program
from wal2lake.observe import get_logger
from wal2lake.settings import Settings

_SPARE_SECONDS: Final = 60
"""Time that a trial has beyond that for attempts: to start, to find credentials, to clean up."""

_OPERATIONS: Final = 14
"""Operations of a trial, each of which is repeated for ``retry_timeout_ms``."""

_LEASE_SECONDS: Final = 60
"""Least time for which the lease of the same node elsewhere is waited for; twice this node's
``request_timeout_ms`` if that is more. A holder with a longer time-out has a longer lease: the
trial may then end before it, and another start waits again."""


def check_log_store(settings: Settings, environ: Mapping[str, str]) -> None:
    """Try the store of segments and catalog, if the settings name one; once it has the claim of
    this node's directory, it is not tried again.

    ``environ`` has the settings of [store] (``fixed_at_start``). ConfigurationError if it cannot be
    used."""
    place = settings.log_store
    if place is not None:
        directory = str(settings.directory)
        run_trial("the log's store", place, settings, environ, "--log", directory)


def run_trial(
    name: str,
    place: str,
    settings: Settings,
    environ: Mapping[str, str],
    *arguments: str,
) -> None:
    """Run the trial of a place. ConfigurationError, which calls it ``name``, if it cannot be
    used."""
    seconds = _SPARE_SECONDS + _OPERATIONS * settings.store.retry_timeout_ms / 1000
    seconds += max(_LEASE_SECONDS, 2 * settings.store.request_timeout_ms / 1000)
    waits = _Waits()
    command = [sys.executable, "-m", "wal2lake.engine.storetrial", place, *arguments]
    try:
        done = run_program(command, environ, seconds, waits.look)
    except subprocess.TimeoutExpired:
        raise _failed(name, f"no end of a trial within {seconds:g} seconds") from None
    if done.returncode == 0:
        return
    try:
        # The error is the last line.
        fields: dict[str, str | None] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().rpartition("\n")[2]
        raise _failed(name, "the trial of it has ended", last) from None
    raise ConfigurationError(
        f"could not use {name}: {fields['message']}",
        sqlstate=fields["sqlstate"],
        detail=fields["detail"],
        hint=fields["hint"],
        original=fields["original"],
    )


def _failed(name: str, reason: str, original: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"could not use {name}: {reason}",
        sqlstate="58030",
        hint="Look at the object store, and start the node again.",
        original=original,
    )


class _Waits:
    """Logs once what the trial waits for."""

    def __init__(self) -> None:
        self._is_said = False

    def look(self, printed: bytes) -> None:
        """Read what the trial has printed so far."""
        line, end, _ = printed.partition(b"\n")
        if end and not self._is_said:
            self._is_said = True
            with contextlib.suppress(ValueError, KeyError):
                get_logger().info(
                    "waiting until the lease of the warehouse has ended, or is renewed: "
                    + json.loads(line)["waits"]
                )
