"""Checks that tables can be written to the warehouse, and that no other node does.

Takes the settings; raises ConfigurationError before the node listens, as the first CREATE TABLE
would be too late to report it. A warehouse on this machine is tried and locked
(``warehouselock``); one in S3 or Azure is tried, and its lease taken, by a program of its own
(``engine.storetrial``), so that this process imports no client of a store; Google's store is
refused; other URLs, as HDFS, are not checked. Called by: supervisor.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from wal2lake.errors import ConfigurationError
from wal2lake.launch.directory.warehouselock import FILE_NAME, WarehouseLock
from wal2lake.launch.requests import run_program
from wal2lake.model import WarehouseHolder
from wal2lake.observe import get_logger
from wal2lake.settings import Settings

_SCHEMES: Final[Mapping[str, str]] = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "abfss": "abfss",
    "abfs": "abfss",
}
"""Schemes of object stores, and what the node calls each; others are Hadoop's."""

_SPARE_SECONDS: Final = 60
"""Time that a trial has beyond that for attempts: to start, to find credentials, to clean up."""

_OPERATIONS: Final = 14
"""Operations of a trial, each of which is repeated for ``retry_timeout_ms``."""

_LEASE_SECONDS: Final = 60
"""Least time for which the lease of the same node elsewhere is waited for; twice this node's
``request_timeout_ms`` if that is more. A holder with a longer time-out has a longer lease: the
trial may then end before it, and another start waits again."""


def check_warehouse(settings: Settings, environ: Mapping[str, str]) -> None:
    """Create the directory if it is missing, and write a file there; or write an object.

    ``environ`` has the settings of [store] (``fixed_at_start``). ConfigurationError if that fails,
    or for the URL of an object store that is not supported."""
    warehouse = settings.warehouse
    url = urlsplit(warehouse)
    # urlsplit gives a scheme in small letters; Hadoop and the node's stores insist on them.
    scheme = _SCHEMES.get(url.scheme)
    if scheme is not None and not warehouse.startswith(f"{scheme}:"):
        own = f"{scheme}{warehouse[len(url.scheme) :]}"
        raise ConfigurationError(
            f'invalid value for parameter "spark.warehouse": "{warehouse}"',
            hint=f'Write it as "{own}".',
        )
    if url.scheme == "az":
        # With an account it has become an abfss URL.
        raise ConfigurationError(
            f'the warehouse "{warehouse}" names no storage account',
            hint='Set "account" of [store].',
        )
    if url.scheme == "gs":
        raise ConfigurationError(
            f'the warehouse "{warehouse}" is in an object store that is not supported yet',
            sqlstate="0A000",
            detail="Tables can be written there, but Spark has no connector to read them.",
            hint='Set "warehouse" of [spark] to a URL like s3://bucket/lake or az://container/lake,'
            " to a path, or to a file: URL of a file system that is mounted here.",
        )
    if scheme is not None:
        _check_bucket(settings, url.netloc, environ)
        return
    place = _directory(settings)
    if place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ConfigurationError(
            f'could not write to the warehouse "{place}": {error.strerror}',
            hint='Set "warehouse" of [spark] to a directory that the node\'s operating'
            " system user may write.",
        ) from error


def warehouse_lock(settings: Settings, start: WarehouseHolder) -> WarehouseLock | None:
    """Return the lock of a warehouse on this machine, which is not taken yet."""
    place = _directory(settings)
    return None if place is None else WarehouseLock(place / FILE_NAME, start)


def _directory(settings: Settings) -> Path | None:
    """Return the path of a warehouse on this machine."""
    url = urlsplit(settings.warehouse)
    if url.scheme not in ("", "file"):
        return None
    return Path(unquote(url.path) if url.scheme else settings.warehouse)


def _check_bucket(settings: Settings, bucket: str, environ: Mapping[str, str]) -> None:
    if not bucket:
        raise ConfigurationError(
            f'the warehouse "{settings.warehouse}" names no bucket',
            hint="Write it as s3://bucket/lake.",
        )
    _check_azure(settings)
    tried = _try(settings, environ)
    if tried is not None:
        raise ConfigurationError(
            f"could not use the warehouse: {tried['message']}",
            sqlstate=tried["sqlstate"],
            detail=tried["detail"],
            hint=tried["hint"],
            original=tried["original"],
        )


def _check_azure(settings: Settings) -> None:
    """Refuse what Spark's connector for Azure cannot do, or not yet."""
    if not settings.warehouse.startswith("abfss:"):
        return
    if not settings.spark.is_local:
        raise ConfigurationError(
            "a cluster cannot write to a warehouse in Azure yet",
            sqlstate="0A000",
            hint='Set "master" of [spark] to local[*], or "warehouse" to a bucket in S3 or to a'
            " directory that all machines of the cluster mount.",
        )
    for name in ("credentials_command", "anonymous"):
        if getattr(settings.store, name):
            raise ConfigurationError(
                f'parameter "store.{name}" cannot be used for a warehouse in Azure yet',
                sqlstate="0A000",
                detail="Spark's connector reads tables there with a key, a signature, or an"
                " identity.",
                hint='Remove it, and set "account_key" or "sas_token" of [store] or nothing:'
                " then the identity in the environment or of the machine is used.",
            )


def _try(
    settings: Settings, environ: Mapping[str, str]
) -> dict[str, str | None] | None:
    """Run the trial; return the fields of its error."""
    place = settings.warehouse
    seconds = _SPARE_SECONDS + _OPERATIONS * settings.store.retry_timeout_ms / 1000
    seconds += max(_LEASE_SECONDS, 2 * settings.store.request_timeout_ms / 1000)
    waits = _Waits()
    try:
        command = [sys.executable, "-m", "wal2lake.engine.storetrial", place]
        done = run_program(command, environ, seconds, waits.look)
    except subprocess.TimeoutExpired:
        return _failed(f"no end of a trial within {seconds:g} seconds", None)
    if done.returncode == 0:
        return None
    try:
        # The error is the last line.
        error_fields: dict[str, str | None] = json.loads(
            done.stdout.strip().splitlines()[-1]
        )
    except (ValueError, IndexError):
        last = done.stderr.strip().rpartition("\n")[2]
        return _failed("the trial of it has ended", last)
    return error_fields


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


def _failed(message: str, original: str | None) -> dict[str, str | None]:
    hint = "Look at the object store, and start the node again."
    fields = ("58030", None, hint, original)
    return {"message": message} | dict(
        zip(("sqlstate", "detail", "hint", "original"), fields, strict=True)
    )
