"""``run/web.json``: where the web process listens, for ``wal2lake status`` and for tests.

Written under a temporary name and renamed, like ``status.json``; valid while the process with its
pid runs.

Called by: the web process (``write_web_status``), the command line and tests
(``read_web_status``).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FILE_NAME: Final = "web.json"


@dataclass(frozen=True, slots=True)
class WebStatus:
    """The state of the web process's listeners."""

    pid: int
    urls: tuple[str, ...]
    """Base addresses for clients on this machine, like ``http://127.0.0.1:5481/``."""
    error: str | None = None
    """Reason why an address of the settings is not listened on; it is tried again."""


def write_web_status(run_directory: Path, status: WebStatus) -> None:
    """Replace the file; OSError if that fails."""
    temporary = run_directory / f".{FILE_NAME}.tmp"
    temporary.write_text(json.dumps(asdict(status)) + "\n")
    temporary.replace(run_directory / FILE_NAME)


def read_web_status(run_directory: Path) -> WebStatus | None:
    """Read the last status; None without a valid one."""
    try:
        content: dict[str, Any] = json.loads((run_directory / FILE_NAME).read_text())
        return WebStatus(**{**content, "urls": tuple(content["urls"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
