"""``wal2lake top``: looks at the node once a second and draws what it sees.

Only files are read: the view works while the engine is down, and says so. A terminal gets the
alternate screen, which is left as it was; a pipe gets one frame. Ends with q or Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.live import Live

from wal2lake.cli.looking import Look, Looker
from wal2lake.cli.top.frame import TopFrame, frame
from wal2lake.cli.top.keys import SortOrder, TopPage, TopView, names_of_keys, pressed
from wal2lake.cli.top.rates import RecentRates
from wal2lake.errors import Wal2LakeError

_POLL_SECONDS: Final = 0.25
"""Longest time until a changed size of the terminal is seen."""

_ONCE_SECONDS: Final = 1.0
"""Time between the two looks that the rates of one frame need."""


def run(options: argparse.Namespace) -> int:
    """Show the node; returns 0 when the user ends it."""
    directory: Path = options.directory
    view = TopView(TopPage(options.page), SortOrder(options.sort))
    with Looker(directory) as looker:
        # What cannot be read at all is an error of the command; later ones are shown.
        look = looker.look()
        rates = RecentRates()
        rates.add(look.facts)
        if options.once or not sys.stdout.isatty():
            return _once(looker, look, rates, view)
        screen = _Screen(looker, look, rates, view, options.interval)
        with contextlib.suppress(KeyboardInterrupt), _ended_by_signals(screen.end):
            screen.run()
    return 0


def _once(looker: Looker, look: Look, rates: RecentRates, view: TopView) -> int:
    if look.facts.state != "stopped":
        time.sleep(_ONCE_SECONDS)
        look = looker.look()
        rates.add(look.facts)
    console = Console()
    console.print(frame(look, rates, view, width=console.width, height=None).content)
    return 0


class _Screen:
    """The view on a terminal."""

    def __init__(
        self,
        looker: Looker,
        look: Look,
        rates: RecentRates,
        view: TopView,
        interval_seconds: float,
    ) -> None:
        self._looker = looker
        self._look = look
        self._rates = rates
        self._view = view
        self._interval = interval_seconds
        self._error: str | None = None
        self._console = Console()
        self._is_ended = False

    def end(self) -> None:
        """Have ``run`` return soon."""
        self._is_ended = True

    def run(self) -> None:
        """Draw until a key ends it."""
        with (
            Live(
                console=self._console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live,
            _keyboard() as keyboard,
        ):
            due = time.monotonic() + self._interval
            while not self._view.ended and not self._is_ended:
                shown = self._frame()
                live.update(shown.content, refresh=True)
                size = self._console.size
                while self._console.size == size and not self._is_ended:
                    left = due - time.monotonic()
                    if left <= 0:
                        self._see()
                        due = time.monotonic() + self._interval
                        break
                    keys = _read(keyboard, min(left, _POLL_SECONDS))
                    if keys:
                        for key in names_of_keys(keys):
                            self._view = pressed(self._view, key, shown.last)
                        break

    def _frame(self) -> TopFrame:
        width, height = self._console.size
        return frame(
            self._look,
            self._rates,
            self._view,
            width=width,
            height=height,
            error=self._error,
        )

    def _see(self) -> None:
        try:
            self._look = self._looker.look()
        except Wal2LakeError as error:
            # The last look stays; the node may be on its way to another version.
            self._error = error.message
        else:
            self._error = None
            self._rates.add(self._look.facts)


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Take keys one by one from standard input; None if it is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read(keyboard: int | None, seconds: float) -> str:
    """Wait for keys; returns what was pressed."""
    if keyboard is None:
        time.sleep(seconds)
        return ""
    if not select.select([keyboard], [], [], seconds)[0]:
        return ""
    # An end of the input, for example of a closed terminal, ends the view.
    return os.read(keyboard, 1024).decode(errors="replace") or "q"


@contextlib.contextmanager
def _ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the view and leave the terminal as it was.

    An exception of a handler would be lost if it came in a destructor or a callback. So the first
    signal only says that the view shall end, and a second one interrupts what hangs.
    """
    seen: list[int] = []

    def on_signal(number: int, of: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        end()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
