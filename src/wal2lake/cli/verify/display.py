"""Progress while tables are compared, on stderr: a spinner on a terminal, else a line for each
table that is done.

Called by: ``run``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from wal2lake.cli.terminal.progress import is_drawn, spinner
from wal2lake.cli.terminal.words import clean

if TYPE_CHECKING:
    from rich.progress import Progress

_DRAW_SECONDS: Final = 0.1
"""Interval between two counts of rows."""


class Display:
    """Shows the user how far the comparison is. ``displayed`` makes it."""

    def __init__(self, progress: Progress | None) -> None:
        """``progress``: a spinner; None: there is no terminal."""
        self._progress = progress
        self._text = ""
        self._rows = 0
        self._drawn_at = 0.0

    def begin(self, table: str, number: int, total: int) -> None:
        """Show which table is being compared, the ``number``-th of ``total``; 0: none yet."""
        place = f" ({number} of {total})" if number else ""
        self._text, self._rows = f"{clean(table)}{place}", 0
        self._draw()

    def read(self, rows: int) -> None:
        """Add rows to those that have been read of the table."""
        self._rows += rows
        if self._progress is not None:
            now = time.monotonic()
            if now - self._drawn_at >= _DRAW_SECONDS:
                self._drawn_at = now
                self._draw()

    def done(self, text: str) -> None:
        """Show the outcome of a table."""
        if self._progress is None:
            print(clean(text), file=sys.stderr, flush=True)
            return
        self._text, self._rows = clean(text), 0
        self._draw()

    def _draw(self) -> None:
        if self._progress is not None:
            rows = f": {self._rows:,} rows" if self._rows else ""
            self._progress.update(
                self._progress.task_ids[0],
                description=f"comparing {self._text}{rows}",
            )


@contextmanager
def displayed() -> Iterator[Display]:
    """Show progress while the block runs."""
    if not (is_drawn(sys.stderr) and sys.stdout.isatty()):
        yield Display(None)
        return
    progress = spinner("comparing", threaded=True)
    try:
        yield Display(progress)
    finally:
        progress.stop()
