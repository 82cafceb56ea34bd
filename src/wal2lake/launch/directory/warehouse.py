"""Whether tables can be written where the settings want them.

In: the warehouse's path or URL. Out: nothing, or a ConfigurationError before the node listens: the
first CREATE TABLE would be a late moment to hear of it. What is not on this machine is looked at by
nobody here. Called by: supervisor.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from wal2lake.errors import ConfigurationError


def check_warehouse(warehouse: str) -> None:
    """Make the directory if it is missing, and write a file there; ConfigurationError if that
    cannot be done."""
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
