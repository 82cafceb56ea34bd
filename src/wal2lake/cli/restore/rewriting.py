"""Changes values in the text of ``wal2lake.toml``, and leaves everything else as it is. Pure.

The former line stays as a comment. Called by ``run``.
"""

from __future__ import annotations

import json
import re
from typing import Final

_HEADER: Final = re.compile(r"\s*\[\s*([A-Za-z_.\"-]+)\s*\]\s*(?:#.*)?")


def with_value(text: str, section: str, name: str, value: str | None) -> str:
    """Return the text with ``name`` of ``[section]`` set; None: with its default."""
    lines, current, place = [], "", None
    assigned = re.compile(rf"\s*\"?{re.escape(name)}\"?\s*=")
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            current = header[1]
        elif current == section and assigned.match(line):
            line = f"# before the restore: {line.strip()}"
        lines.append(line)
        if header and current == section:
            place = len(lines)
    if value is not None:
        if place is None:
            lines.append(f"[{section}]")
            place = len(lines)
        lines.insert(place, f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
