"""The view that is shown, and how keys change it. Pure.

A terminal sends a special key as an escape sequence; ``names_of_keys`` takes apart what one read
has brought.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

FAR: Final = 10
"""Lines of a page up or down."""


class TopPage(StrEnum):
    """A page of the view."""

    OVERVIEW = "overview"
    """Subscriptions by stage, the latest tables, copies and problems."""
    TABLES = "tables"
    """All tables."""
    COPIES = "copies"
    """All running copies."""
    PROBLEMS = "problems"
    """All problems with their remedies."""
    PUBLISHER = "publisher"
    """The node's own slots and subscribers."""


class SortOrder(StrEnum):
    """An order of tables."""

    LAG = "lag"
    """Most behind first."""
    RATE = "rate"
    """Most rows per second first."""
    SIZE = "size"
    """Largest first."""
    NAME = "name"
    """By subscription, schema and name."""


@dataclass(frozen=True, slots=True)
class TopView:
    """The page that is shown, and how."""

    page: TopPage = TopPage.OVERVIEW
    sort: SortOrder = SortOrder.LAG
    scroll: int = 0
    """Lines of the page that are above the screen."""
    ended: bool = False


_PAGES: Final = {
    "o": TopPage.OVERVIEW,
    "t": TopPage.TABLES,
    "c": TopPage.COPIES,
    "p": TopPage.PROBLEMS,
    "d": TopPage.PUBLISHER,
}
"""``d`` is for downstream."""

KEY_HELP: Final = (
    ("o", "overview"),
    ("t", "tables"),
    ("c", "copies"),
    ("p", "problems"),
    ("d", "publisher"),
    ("s", "sort"),
    ("q", "quit"),
)

_SCROLLS: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -FAR,
    "page down": FAR,
    " ": FAR,
}

_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1bOH": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "\x1bOF": "end",
    "\x1b[Z": "back tab",
}


def names_of_keys(text: str) -> Iterator[str]:
    """Yield each key of what was read; an unknown escape sequence is left out."""
    while text:
        if text[0] != "\x1b":
            yield text[0]
            text = text[1:]
            continue
        sequence = next((s for s in _SEQUENCES if text.startswith(s)), None)
        if sequence is not None:
            yield _SEQUENCES[sequence]
            text = text[len(sequence) :]
        elif text[1:2] in ("[", "O"):
            end = next((i for i, c in enumerate(text[2:], 3) if c >= "@"), len(text))
            text = text[end:]
        else:
            text = text[1:]


def pressed(view: TopView, key: str, last: int) -> TopView:
    """Return the view after a key. ``last`` is the largest useful scroll."""
    pages, orders = list(TopPage), list(SortOrder)
    if key in ("q", "\x03", "\x04"):
        return replace(view, ended=True)
    if key in _PAGES:
        return replace(view, page=_PAGES[key], scroll=0)
    if key in ("\t", "back tab"):
        step = 1 if key == "\t" else -1
        following = pages[(pages.index(view.page) + step) % len(pages)]
        return replace(view, page=following, scroll=0)
    if key == "s":
        following_order = orders[(orders.index(view.sort) + 1) % len(orders)]
        return replace(view, sort=following_order, scroll=0)
    if key == "home":
        return replace(view, scroll=0)
    if key == "end":
        return replace(view, scroll=last)
    if key in _SCROLLS:
        scroll = min(max(view.scroll + _SCROLLS[key], 0), last)
        return replace(view, scroll=scroll)
    return view
