"""``wal2lake verify``: chooses what is compared, and prints the report.

    -D DIR                          a node compares its tables with their sources (VERIFY)
    --source X --target Y           tables of two servers; -D DIR stands for one that is not given
    --source X --subscriber Y       a subscriber of X at one LSN; -D DIR stands for X

Progress is shown on stderr, the report on stdout at the end. Exit codes: 0 all are equal, 1 some
are different, 2 some could not be compared.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from wal2lake.cli.sql import failure_lines
from wal2lake.cli.terminal.errors import print_error
from wal2lake.cli.verify.display import Display, displayed
from wal2lake.cli.verify.ofnode import ask_node
from wal2lake.cli.verify.pairreport import code_of, pair_document, pair_lines, word_of
from wal2lake.cli.verify.pairs import (
    CANCELED,
    PairRequest,
    PairResult,
    TablePattern,
    compare_servers,
    compare_subscriber,
)
from wal2lake.cli.verify.report import NOT_COMPARABLE, document, exit_code, lines
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.launch.directory.passfile import connection_parameters, conninfo
from wal2lake.pg import limit_connecting
from wal2lake.pg.client import Failure
from wal2lake.settings import SubscriptionSettings


def run(options: argparse.Namespace) -> int:
    """Compare, and print the report; returns the exit code."""
    try:
        _check_options(options)
        if options.source or options.target or options.subscriber:
            return _pairs(options)
        return _node(options)
    except Wal2LakeError as error:
        print_error(error)
        return NOT_COMPARABLE


def _check_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together."""
    problem = _problem(options)
    if problem is not None:
        raise UsageError(problem, hint='Try "wal2lake verify --help".')


def _problem(options: argparse.Namespace) -> str | None:
    servers = sum(map(bool, (options.directory, options.source, options.target)))
    if options.subscriber:
        if options.target:
            return "--target and --subscriber are mutually exclusive"
        if options.publications:
            return "--publication is the subscription's own with --subscriber"
        if servers != 1:
            return "--subscriber needs the server it subscribes to: -D or --source"
        return None
    if options.source or options.target:
        if servers != 2:
            return "two servers are needed: two of -D, --source and --target"
        if options.subscription:
            return "--subscription needs -D alone, or --subscriber"
        return None
    if not servers:
        return "no server is given: -D, --source, --target or --subscriber"
    if options.where or options.publications or options.timeout is not None:
        return "--where, --publication and --timeout need two servers"
    return None


# ---- a node's tables and their sources ---------------------------------------------------


def _node(options: argparse.Namespace) -> int:
    with displayed() as display:
        answer = ask_node(
            _conninfo(options), options.tables, options.subscription, display.done
        )
    if isinstance(answer, Failure):
        print("\n".join(failure_lines(answer)), file=sys.stderr)
        return NOT_COMPARABLE
    if not answer:
        print("there is no table to compare", file=sys.stderr)
        return NOT_COMPARABLE
    print(document(answer) if options.format == "json" else "\n".join(lines(answer)))
    return exit_code([each.code for each in answer])


def _conninfo(options: argparse.Namespace) -> str:
    return conninfo(connection_parameters(options.directory, options.username))


# ---- two servers -------------------------------------------------------------------------


def _pairs(options: argparse.Namespace) -> int:
    limit_connecting(SubscriptionSettings().connect_timeout_ms)
    request = PairRequest(
        options.source or _conninfo(options),
        options.subscriber or options.target or _conninfo(options),
        tuple(map(TablePattern.parse, options.tables)),
        tuple(options.publications),
        options.where,
    )
    results: list[PairResult] = []
    with _ending(options.timeout) as check, displayed() as display:
        progress = _CheckedProgress(display, check)
        compared = (
            compare_subscriber(
                request, options.subscription, options.wait, check, progress
            )
            if options.subscriber
            else compare_servers(request, check, progress)
        )
        for result in compared:
            display.done(f"{result.table}: {word_of(result)}")
            results.append(result)
    if not results:
        print("there is no table to compare", file=sys.stderr)
        return NOT_COMPARABLE
    as_json = options.format == "json"
    print(pair_document(results) if as_json else "\n".join(pair_lines(results)))
    return exit_code([code_of(result) for result in results])


class _CheckedProgress:
    """Shows progress, and ends the comparison when it shall end."""

    def __init__(self, display: Display, check: Callable[[], None]) -> None:
        self.begin = display.begin
        self._read = display.read
        self._check = check

    def read(self, rows: int) -> None:
        """Add rows to those that have been read."""
        self._check()
        self._read(rows)


@contextmanager
def _ending(seconds: float | None) -> Iterator[Callable[[], None]]:
    """Give a function that raises when the time is over, or Ctrl-C was pressed. Each wait for a
    server calls it, in whatever thread, and cancels the server's statement."""
    deadline = None if seconds is None else time.monotonic() + seconds
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        # The second one does not wait for a server.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        if deadline is not None and time.monotonic() >= deadline:
            raise UsageError(
                f"the comparison has not ended within {seconds:g} s",
                sqlstate=CANCELED,
                hint="Allow more time (--timeout), or compare fewer tables at once.",
            )

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
