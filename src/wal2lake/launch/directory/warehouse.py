"""Checks that tables can be written to the warehouse, and that no other node does.

Takes the settings; raises ConfigurationError before the node listens, as the first CREATE TABLE
would be too late to report it. A warehouse on this machine is tried and locked
(``warehouselock``); one in an object store is tried, and its lease taken (``storetrial``); other
URLs, as HDFS, are not checked. Called by: supervisor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from wal2lake.errors import ConfigurationError
from wal2lake.launch.directory.storetrial import run_trial
from wal2lake.launch.directory.warehouselock import FILE_NAME, WarehouseLock
from wal2lake.model import WarehouseHolder
from wal2lake.settings import Settings

_SCHEMES: Final[Mapping[str, str]] = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "abfss": "abfss",
    "abfs": "abfss",
    "gs": "gs",
}
"""Schemes of object stores, and what the node calls each; others are Hadoop's."""


def check_warehouse(settings: Settings, environ: Mapping[str, str]) -> None:
    """Create the directory if it is missing, and write a file there; or write an object.

    ``environ`` has the settings of [store] (``fixed_at_start``). ConfigurationError if that
    fails."""
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
    _check_access(settings)
    run_trial("the warehouse", settings.warehouse, settings, environ)


def _check_access(settings: Settings) -> None:
    """Refuse what Spark's connectors for Azure and Google cannot do."""
    scheme = urlsplit(settings.warehouse).scheme
    store = settings.store
    if scheme == "abfss" and store.anonymous:
        raise ConfigurationError(
            'parameter "store.anonymous" cannot be used for a warehouse in Azure',
            sqlstate="0A000",
            detail="Spark's connector sends no requests without credentials.",
            hint='Remove it, and set "account_key", "sas_token" or "credentials_command" of'
            " [store] or nothing: then the identity in the environment or of the machine is"
            " used.",
        )
    if (
        scheme in ("abfss", "gs")
        and store.credentials_command
        and not settings.spark.is_local
    ):
        key = "account_key" if scheme == "abfss" else "credentials_file"
        raise ConfigurationError(
            'parameter "store.credentials_command" cannot be used on a cluster for this warehouse',
            sqlstate="0A000",
            detail="Spark's connector gets the command's tokens on the node's machine alone.",
            hint=f'Remove it, and set "{key}" of [store] or nothing: then the identity of each'
            " worker's machine is used.",
        )
