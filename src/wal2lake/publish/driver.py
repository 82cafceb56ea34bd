"""Drives a plugin: transactions in, callbacks out.

In: the log, a slot's position, a plugin. Out: the plugin's messages, through ``Context.write``; how
far everything has been decoded. Called by the walsender, and by the SQL functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal2lake.changelog import LogReader
from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.publish.decoding.transactions import (
    Run,
    Transaction,
    changes_of,
    transactions_above,
)
from wal2lake.publish.plugins.port import Context, OutputPlugin


class Decoding:
    """Of one slot, from a position on."""

    def __init__(
        self,
        reader: LogReader,
        plugin: OutputPlugin,
        context: Context,
        start: Lsn,
    ) -> None:
        self._reader = reader
        self._plugin = plugin
        self._context = context
        self.position = start
        """Everything below has been decoded."""
        self.xid = 0
        """Of the transaction that is being decoded."""

    def advance(self, go_on: Callable[[], bool] = lambda: True) -> int:
        """Decode what is in the log; how many transactions that were. ``go_on`` is asked
        between two of them."""
        count = 0
        for transaction, runs in transactions_above(self._reader, self.position):
            if not self._plugin.filter_by_origin(transaction.origin):
                self._transaction(transaction, runs)
            self.position = transaction.end_lsn
            count += 1
            if not go_on():
                break
        return count

    def _transaction(self, transaction: Transaction, runs: Iterator[Run]) -> None:
        plugin, context = self._plugin, self._context
        self.xid = int(transaction.xid)
        with self._callback("begin"):
            plugin.begin(context, transaction)
        for run in runs:
            with self._callback("change"):
                if plugin.run(context, transaction, run):
                    continue
            for op, change in changes_of(transaction, run):
                if op == "T":
                    with self._callback("truncate"):
                        plugin.truncate(
                            context, transaction, (run.relation,), 0, change.lsn
                        )
                    continue
                with self._callback("change"):
                    plugin.change(context, transaction, run.relation, change)
        with self._callback("commit"):
            plugin.commit(context, transaction)

    @contextmanager
    def _callback(self, name: str) -> Iterator[None]:
        try:
            yield
        except Wal2LakeError as error:
            if error.context is None:
                error.context = callback_context(self._context, self._plugin, name)
            raise
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise InternalError(
                f"{type(error).__name__}: {error}",
                context=callback_context(self._context, self._plugin, name),
            ) from error


def callback_context(context: Context, plugin: OutputPlugin, name: str) -> str:
    """PostgreSQL's context of an error in a callback."""
    return (
        f'slot "{context.slot}", output plugin "{context.plugin}",'
        f" in the {name} callback"
    )
