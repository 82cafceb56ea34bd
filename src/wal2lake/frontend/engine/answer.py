"""The rows of a query that is still running.

In: its batches, and what it holds (a job, a reader). Out: the batches; all is let go at their end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from wal2lake.frontend.backend import Batch


class Answer:
    """A query's rows. What is behind them ends with the last one, with an error, and with
    ``close``, also if no row was ever taken."""

    def __init__(self, rows: Iterator[Batch], held: ExitStack) -> None:
        self._rows = rows
        self._held = held

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Batch:
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop what is unfinished."""
        self._held.close()
