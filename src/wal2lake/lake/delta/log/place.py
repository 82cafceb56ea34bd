"""One file of a table's log, whole from the moment that it has its name.

Called by ``firstversion`` and ``commit``. Source: link(2): it fails if the name is there, which
is the mutual exclusion that Delta's protocol asks of whoever writes a version.
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
"""A JSON object of Delta's."""


def place(
    path: Path,
    text: str,
    give_name: Callable[[Path, Path], None],
    *,
    durable: bool = False,
) -> os.stat_result:
    """Write a file under another name and give it this one: ``os.link`` fails if it is there,
    ``os.replace`` does not. ``durable``: the content is on the disk before; the name is when the
    directory has been synced."""
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        made = written.stat()
        give_name(written, path)
    finally:
        with suppress(FileNotFoundError):
            written.unlink()
    return made


def dump(value: object) -> str:
    """JSON as Delta writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
