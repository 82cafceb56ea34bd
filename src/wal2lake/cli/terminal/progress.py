"""Signs on a terminal that a command works: a spinner with the time.

Only a terminal gets them, on stderr; a pipe gets the bare text, and nothing that moves. rich is
imported when something is drawn, so that other commands start quickly.

Called by: subcommands.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
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

    def tick(self, phase: Callable[[], str]) -> None:
        """Draw the spinner, with what is being waited for; ``phase`` is called if it is drawn."""
        if not self._drawn:
            return
        if self._progress is None:
            self._progress = spinner(self._text, threaded=False)
        now = phase()
        shown = f"{self._text}: {now}" if now else self._text
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
    from rich.table import Column

    progress = Progress(
        SpinnerColumn(),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=threaded,
        transient=True,
        redirect_stdout=False,
        # A notice that comes meanwhile is printed above the spinner.
        redirect_stderr=threaded,
    )
    progress.add_task(text, total=None)
    progress.start()
    return progress


@contextlib.contextmanager
def late_spinner(text: str) -> Iterator[None]:
    """Draw a spinner on a terminal while the block runs, after the first two seconds."""
    # The reader of a pipe may be a pager, which draws on the same terminal.
    if not (is_drawn(sys.stderr) and sys.stdout.isatty()):
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


@contextlib.contextmanager
def byte_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with bytes, rate and time left on a terminal; yields what advances it."""
    if not (is_drawn(sys.stderr) and sys.stdout.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    task = progress.add_task(text, total=total)
    with progress:
        yield lambda count: progress.update(task, advance=count)
