"""One frame of the view, for a terminal of any size.

    wal2lake top  /srv/node                    03:02:01 UTC
    ready (PID 1) on 127.0.0.1:5480, up 2 hours
    engine 800 MB, jvm 1 GB, 50 GB free for the catalog

    (the page)

    o overview  t tables  c copies  p problems  d publisher  s sort: lag  q quit

Pure: facts, rates and view in; a renderable of the given height out. Without a height, for
pipes, everything is shown. Called by ``run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from wal2lake.cli.looking import Look
from wal2lake.cli.terminal.words import problem_headline, problem_lines
from wal2lake.cli.top.columns import ColumnStyle, cell, heading, table_of
from wal2lake.cli.top.keys import KEY_HELP, SortOrder, TopPage, TopView
from wal2lake.cli.top.overview import SUBSCRIPTION_COLUMNS, header, subscription_row
from wal2lake.cli.top.publisher import (
    SENDER_COLUMNS,
    SLOT_COLUMNS,
    sender_rows,
    slot_rows,
)
from wal2lake.cli.top.rates import RecentRates
from wal2lake.cli.top.tables import (
    COPY_COLUMNS,
    TABLE_COLUMNS,
    copy_rows,
    sorted_tables,
    table_row,
)
from wal2lake.health import Problem, Severity

_ORDERS: Final = {
    SortOrder.LAG: "most behind first",
    SortOrder.RATE: "most rows per second first",
    SortOrder.SIZE: "largest first",
    SortOrder.NAME: "by name",
}

_PIPE_TABLES: Final = 20
"""Tables of an overview without a height; the page of tables has all."""

_LEAST_ROWS: Final = 3
"""Rows that a part of the overview has on a terminal that is too small for all parts."""

Row = Sequence[RenderableType]


@dataclass(frozen=True, slots=True)
class TopFrame:
    """A frame, and how far its page can be scrolled."""

    content: RenderableType
    last: int
    """Largest useful scroll."""


@dataclass(frozen=True, slots=True)
class _Page:
    """A page as lines, of which a part is shown; its first lines are headings and stay."""

    lines: Sequence[RenderableType]
    rows: int
    """Lines of the page's list, all of it."""
    shown: int
    """Lines of the list that are shown."""


def frame(
    look: Look,
    rates: RecentRates,
    view: TopView,
    *,
    width: int,
    height: int | None,
    error: str | None = None,
) -> TopFrame:
    """Return the frame; ``error`` says why the last look has failed."""
    top = [*header(look, error, width), Text("")]
    if height is None:
        page = _page(look, rates, view, width, None)
        return TopFrame(Group(*top, *page.lines), 0)
    room = max(height - len(top) - 1, 1)
    page = _page(look, rates, view, width, room)
    last = max(page.rows - page.shown, 0)
    content = Layout()
    content.split_column(
        Layout(Group(*top), size=len(top)),
        Layout(Group(*page.lines)),
        Layout(_footer(view, page, width), size=1),
    )
    return TopFrame(content, last)


def _footer(view: TopView, page: _Page, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for key, name in KEY_HELP:
        active = name == view.page
        line.append(f"{key} ", "bold")
        shown = f"{name}: {view.sort}" if key == "s" else name
        line.append(shown, "reverse" if active else "dim").append(" ")
    if page.rows > page.shown:
        end = min(view.scroll + page.shown, page.rows)
        position = f"{end}/{page.rows}"
        if line.cell_len + len(position) < width:
            line.append(position, "dim")
    return line


def _page(
    look: Look, rates: RecentRates, view: TopView, width: int, room: int | None
) -> _Page:
    if view.page is TopPage.OVERVIEW:
        return _overview(look, rates, view, width, room)
    if view.page is TopPage.TABLES:
        rows = [
            table_row(s, t, rates) for s, t in sorted_tables(look, rates, view.sort)
        ]
        count = "1 table" if len(rows) == 1 else f"{len(rows)} tables"
        title = f"{count}, {_ORDERS[view.sort]}"
        return _listed(title, TABLE_COLUMNS, rows, view, width, room)
    if view.page is TopPage.COPIES:
        copies = list(copy_rows(look))
        count = f"{len(copies)} copies" if len(copies) != 1 else "1 copy"
        title = f"{count}, by subscription" if copies else "no table is being copied"
        return _listed(title, COPY_COLUMNS, copies, view, width, room)
    if view.page is TopPage.PROBLEMS:
        return _problems(look, view, width, room)
    return _publisher(look, view, width, room)


def _listed(
    title: str,
    columns: Sequence[ColumnStyle],
    rows: Sequence[Row],
    view: TopView,
    width: int,
    room: int | None,
) -> _Page:
    if not rows:
        return _Page([heading(title)], 0, 0)
    shown = len(rows) if room is None else max(room - 2, 1)
    begin = min(view.scroll, max(len(rows) - shown, 0))
    table = table_of(columns, rows[begin : begin + shown], width)
    return _Page([heading(title), table], len(rows), shown)


def _overview(
    look: Look, rates: RecentRates, view: TopView, width: int, room: int | None
) -> _Page:
    subscriptions = [subscription_row(look, s, rates) for s in look.facts.subscriptions]
    copies = list(copy_rows(look))
    headlines = [_headline(look, problem) for problem in look.problems]
    entries = sorted_tables(look, rates, view.sort)
    sizes = _shares(
        [len(subscriptions), len(headlines), len(copies), len(entries)], room
    )
    rows = [table_row(s, t, rates) for s, t in entries[: sizes[3]]]
    parts: list[RenderableType] = []
    if subscriptions:
        parts.append(table_of(SUBSCRIPTION_COLUMNS, subscriptions[: sizes[0]], width))
    else:
        parts.append(cell("no subscriptions"))
    if sizes[1]:
        hidden = len(headlines) - sizes[1]
        more = f" ({hidden} more: p)" if hidden else ""
        parts.extend((Text(""), heading(f"problems{more}"), *headlines[: sizes[1]]))
    if sizes[2]:
        parts.extend((Text(""), table_of(COPY_COLUMNS, copies[: sizes[2]], width)))
    if rows:
        title = f"tables, {_ORDERS[view.sort]}"
        parts.extend((Text(""), heading(title), table_of(TABLE_COLUMNS, rows, width)))
    return _Page(parts, 0, 0)


def _shares(counts: list[int], room: int | None) -> list[int]:
    """Return how many rows of subscriptions, problems, copies and tables are shown.

    Each part has first a few rows, in this order; then what is left goes to the parts in the
    order of their urgency.
    """
    if room is None:
        return [*counts[:3], min(counts[3], _PIPE_TABLES)]
    # Blank lines and titles, which a part has only if it has rows.
    extra = [1, 2, 2, 3]
    shares = [0, 0, 0, 0]
    for part, count in enumerate(counts):
        if count and room > extra[part]:
            shares[part] = min(count, _LEAST_ROWS, room - extra[part])
            room -= shares[part] + extra[part]
    for part in (1, 0, 2, 3):
        if shares[part]:
            added = min(counts[part] - shares[part], room)
            # Many tables must not be pushed out by many problems.
            if part != 3:
                added = min(added, room // 2)
            shares[part] += added
            room -= added
    return shares


def _headline(look: Look, problem: Problem) -> Text:
    text = problem_headline(problem, look.facts.taken_at).replace("\n", " ")
    return cell(text, _color(problem))


def _color(problem: Problem) -> str:
    return "red" if problem.severity is Severity.ERROR else "yellow"


def _problems(look: Look, view: TopView, width: int, room: int | None) -> _Page:
    count = len(look.problems)
    title = f"{count} problem{'' if count == 1 else 's'}" if count else "no problems"
    console = Console(width=width, no_color=True, file=None)
    lines: list[Text] = []
    for problem in look.problems:
        first, *more = problem_lines(problem, look.facts.taken_at)
        lines.extend(_wrapped(console, first, _color(problem), width))
        for line in more:
            lines.extend(_wrapped(console, line, "", width))
        lines.append(Text(""))
    shown = len(lines) if room is None else max(room - 1, 1)
    begin = min(view.scroll, max(len(lines) - shown, 0))
    return _Page([heading(title), *lines[begin : begin + shown]], len(lines), shown)


def _wrapped(console: Console, line: str, style: str, width: int) -> list[Text]:
    """Return the line in parts that fit; those behind the first one are indented as it is."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    text = Text(line.strip(), style=style)
    parts = text.wrap(console, max(width - len(indent), 20))
    first = indent[:-2]
    return [
        Text(first if number == 0 else indent, no_wrap=True).append_text(part)
        for number, part in enumerate(parts)
    ]


def _publisher(look: Look, view: TopView, width: int, room: int | None) -> _Page:
    facts = look.facts
    senders, slots = list(sender_rows(facts)), list(slot_rows(facts))
    if not senders and not slots:
        return _Page([heading("no slots and no subscribers")], 0, 0)
    lines: list[RenderableType] = []
    if senders:
        most = len(senders) if room is None else max(room // 3, 1)
        lines.append(heading(f"{len(senders)} connected, behind {facts.published_lsn}"))
        lines.extend((table_of(SENDER_COLUMNS, senders[:most], width), Text("")))
        room = None if room is None else room - min(len(senders), most) - 3
    title = f"{len(slots)} slot{'' if len(slots) == 1 else 's'}, most held back first"
    page = _listed(title, SLOT_COLUMNS, slots, view, width, room)
    return _Page([*lines, *page.lines], page.rows, page.shown)
