"""``wal2lake verify`` in the test's own process: most of the time of a run is its start."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from wal2lake.cli.__main__ import main


@dataclass(frozen=True)
class Verified:
    """What a run has printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of a report in JSON, by name."""
        assert self.stdout, self.stderr
        return {each["table"]: each for each in json.loads(self.stdout)["tables"]}


def verify(*arguments: str) -> Verified:
    """Run the command."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main(["verify", *arguments])
    return Verified(code, stdout.getvalue(), stderr.getvalue())
