"""Checks that tables can be written to the warehouse.

Takes the warehouse's path or URL; raises ConfigurationError before the node listens, as the first
CREATE TABLE would be too late to report it. Only a warehouse on this machine is checked. Called by:
supervisor.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from wal2lake.errors import ConfigurationError


def check_warehouse(warehouse: str) -> None:
    """Create the directory if it is missing, and write a file there.

    ConfigurationError if that fails."""
    url = urlsplit(warehouse)
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
