"""Names the files of a table's log, and writes JSON as Delta does. Pure.

Source: Delta transaction log protocol, "Delta Log Entries", "Version Checksum File".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

Object = Mapping[str, Any]
"""A JSON object in Delta's log."""

_SCHEME: Final = re.compile(r"^file:/+")

LOG: Final = "_delta_log"
"""The log's folder in a table's store."""


def same_path(path: str) -> str:
    """Return a path of an action that is the same however its writer has encoded it."""
    return unquote(_SCHEME.sub("/", path))


def commit_key(version: int) -> str:
    """Return the key of a version's commit."""
    return f"{LOG}/{version:020}.json"


def checksum_key(version: int) -> str:
    """Return the key of a version's checksum file."""
    return f"{LOG}/{version:020}.crc"


def dump(value: object) -> str:
    """Return a value as JSON text in Delta's form."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def content_of(lines: Iterable[str]) -> bytes:
    """Return the content of a file of these lines."""
    return "".join(f"{line}\n" for line in lines).encode()
