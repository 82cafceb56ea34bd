"""Tables of text, one line a row, in the width that there is. Pure.

The flexible column gets the space that the others leave; a text that is too long
ends with an ellipsis. Widths are counted in terminal cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from wal2lake.cli.terminal.words import clean


@dataclass(frozen=True, slots=True)
class ColumnStyle:
    """One column."""

    title: str
    right: bool = False
    flexible: bool = False
    """It gets what the others leave."""
    wide_only: bool = False
    """It is left out on a terminal of fewer than ``WIDE`` columns."""
    width: int | None = None


WIDE = 120
"""Columns of a terminal that shows everything."""


def cell(text: str, style: str = "") -> Text:
    """Return a cell; nothing in the text is taken for markup or obeyed by the terminal."""
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")


def heading(text: str) -> Text:
    """Return the line above a part."""
    return cell(text, "bold")


def table_of(
    styles: Sequence[ColumnStyle],
    rows: Sequence[Sequence[RenderableType]],
    width: int,
) -> Table:
    """Return the table; it has one line more than rows."""
    shown = [i for i, s in enumerate(styles) if width >= WIDE or not s.wide_only]
    table = Table(
        box=None,
        expand=True,
        width=width,
        padding=(0, 2, 0, 0) if width >= WIDE else (0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="dim",
    )
    for i in shown:
        style = styles[i]
        table.add_column(
            style.title,
            justify="right" if style.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if style.flexible else None,
            width=style.width,
        )
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    return table
