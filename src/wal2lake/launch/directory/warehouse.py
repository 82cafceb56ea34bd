"""Checks that tables can be written to the warehouse.

Takes the warehouse's path or URL; raises ConfigurationError before the node listens, as the first
CREATE TABLE would be too late to report it. A warehouse on this machine is tried; object stores are
refused; other URLs, as HDFS, are not checked. Called by: supervisor.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from wal2lake.errors import ConfigurationError

_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})


def check_warehouse(warehouse: str) -> None:
    """Create the directory if it is missing, and write a file there.

    ConfigurationError if that fails, or for the URL of an object store."""
    url = urlsplit(warehouse)
    if url.scheme in _OBJECT_STORES:
        raise ConfigurationError(
            f'the warehouse "{warehouse}" is in an object store, which is not supported yet',
            sqlstate="0A000",
            detail="Tables can be written there, but reading them, transactions of clients,"
            " compaction and clean-up still need a directory.",
            hint='Set "warehouse" of [spark] to a path, or to a file: URL of a file system'
            " that is mounted here.",
        )
    if url.scheme not in ("", "file"):
        return
    place = Path(unquote(url.path) if url.scheme else warehouse)
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
