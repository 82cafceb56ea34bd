"""Bars of running copies, one for each table, with the time left.

Only a terminal gets them, on stderr. Tables wait, are copied, join the stream and are ready; a bar
is full when its table's copy has ended.

Called by: ``sql --wait-copies``, the demo.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final

from wal2lake.cli.terminal.progress import is_drawn
from wal2lake.cli.terminal.words import clean, seconds_text
from wal2lake.health import NodeFacts, SubscriptionFacts, TableFacts
from wal2lake.model import Oid, SyncState

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_MOST_BARS: Final = 10
"""Bars that are shown at once; a line counts the other tables."""

_BEFORE: Final = (SyncState.INIT, SyncState.DATASYNC)

Key = tuple[Oid, Oid]


def is_copied(table: TableFacts) -> bool:
    """Return whether the table's initial copy has ended."""
    return table.state not in _BEFORE


class CopyBars:
    """The bars. A context manager; ``show`` does nothing if standard error is no terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._bars: dict[Key, TaskID] = {}
        self._total: TaskID | None = None

    def __enter__(self) -> CopyBars:
        if is_drawn(sys.stderr) and sys.stdout.isatty():
            self._progress = _progress()
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def drawn(self) -> bool:
        """Whether there are bars at all."""
        return self._progress is not None

    def show(self, facts: NodeFacts) -> None:
        """Draw the copies of these facts."""
        if self._progress is None:
            return
        tables = [(s, t) for s in facts.subscriptions for t in s.tables]
        for subscription, table in tables:
            self._show_table(facts, subscription, table)
        copied = sum(is_copied(table) for _, table in tables)
        if self._total is None:
            self._total = self._progress.add_task("all tables", total=1.0, left="")
        self._progress.update(
            self._total,
            completed=copied / max(len(tables), 1),
            left=f"{copied:,} of {len(tables):,} tables",
        )
        self._progress.refresh()

    def _show_table(
        self, facts: NodeFacts, subscription: SubscriptionFacts, table: TableFacts
    ) -> None:
        assert self._progress is not None
        key = (subscription.oid, table.oid)
        bar = self._bars.get(key)
        copy = table.copy
        if copy is None:
            if bar is not None and is_copied(table):
                self._progress.remove_task(bar)
                del self._bars[key]
            return
        if bar is None:
            if len(self._bars) >= _MOST_BARS:
                return
            bar = self._progress.add_task(clean(table.qualified), total=1.0, left="")
            self._bars[key] = bar
        share, ends = copy.share, copy.ends_at
        left = None if ends is None else (ends - facts.taken_at).total_seconds()
        text = f"{copy.rows:,} rows"
        if left is not None and left > 0:
            text += f", {seconds_text(left)} left"
        self._progress.update(bar, completed=share or 0.0, left=text)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
