"""Signs on a terminal that a command works: a spinner with the time, and bars.

Only a terminal gets them, on stderr; a pipe gets the bare text, and nothing that moves. rich is
imported when something is drawn, so that other commands start quickly.

Called by: subcommands.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

LATE_SECONDS: Final = 2.0
"""A command that answers sooner shows nothing."""


def is_drawn(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Waiting:
    """A wait that polls: ``tick`` moves the spinner. It starts no thread, so the caller may
    fork."""

    def __init__(self, text: str, *, drawn: bool) -> None:
        """``waiting`` makes it."""
        self._text = text
        self._drawn = drawn
        self._progress: Progress | None = None

    def tick(self, phase: str = "") -> None:
        """Draw the spinner, with what is being waited for."""
        if not self._drawn:
            return
        if self._progress is None:
            self._progress = spinner(self._text, threaded=False)
        shown = f"{self._text}: {phase}" if phase else self._text
        self._progress.update(self._progress.task_ids[0], description=shown)
        self._progress.refresh()

    def stop(self) -> None:
        """Erase the spinner."""
        if self._progress is not None:
            self._progress.stop()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[Waiting]:
    """Show that the block waits. Prints as pg_ctl does: the text, and ``done`` or ``stopped
    waiting`` behind it."""
    drawn = is_drawn(sys.stderr) and sys.stdout.isatty()
    if not drawn:
        print(f"{text}...", end="", flush=True)
    shown = Waiting(text, drawn=drawn)
    end = " stopped waiting"
    try:
        yield shown
        end = " done"
    finally:
        shown.stop()
        print(f"{text}...{end}" if drawn else end, flush=True)


def spinner(text: str, *, threaded: bool) -> Progress:
    """Return a started spinner with the time since now; ``threaded``: it moves by itself."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=threaded,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task(text, total=None)
    progress.start()
    return progress


@contextlib.contextmanager
def late_spinner(text: str) -> Iterator[None]:
    """Draw a spinner on a terminal while the block runs, after the first two seconds."""
    if not is_drawn(sys.stderr):
        yield
        return
    ended = threading.Event()

    def draw() -> None:
        if not ended.wait(LATE_SECONDS):
            progress = spinner(text, threaded=True)
            ended.wait()
            progress.stop()

    thread = threading.Thread(target=draw, name="spinner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
