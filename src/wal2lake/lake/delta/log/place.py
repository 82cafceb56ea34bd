"""Writes one file of a table's log, complete as soon as it has its name.

Called by ``firstversion`` and ``commit``. Source: link(2): it fails if the name exists, which is
the mutual exclusion that Delta's protocol requires of the writers of a version.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

Object = Mapping[str, Any]
"""A JSON object in Delta's log."""


def place(
    path: Path,
    text: str,
    give_name: Callable[[Path, Path], None],
    *,
    durable: bool = False,
) -> os.stat_result:
    """Write a temporary file and give it the name ``path``: ``os.link`` fails if the name exists,
    ``os.replace`` does not.

    ``durable``: the content is fsynced before; the name is durable once the directory has been
    synced.
    """
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        status = written.stat()
        give_name(written, path)
    finally:
        with suppress(FileNotFoundError):
            written.unlink()
    return status


def dump(value: object) -> str:
    """Return a value as JSON text in Delta's form."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
