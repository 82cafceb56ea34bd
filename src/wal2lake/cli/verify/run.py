"""``wal2lake verify -D DIR``: has a running node compare tables with their sources.

The node does the work (VERIFY). Each table is reported on stderr as it is done, and all of them on
stdout at the end. Exit codes: 0 all are equal, 1 some are different, 2 some could not be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal2lake.cli.sql import failure_lines
from wal2lake.cli.terminal.errors import print_error
from wal2lake.cli.terminal.progress import is_drawn, spinner
from wal2lake.cli.terminal.words import clean
from wal2lake.cli.verify.report import (
    NOT_COMPARABLE,
    VerifiedTable,
    exit_code,
    lines,
)
from wal2lake.errors import PublisherError, Wal2LakeError
from wal2lake.launch.directory.passfile import connection_parameters, conninfo
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_ident


def run(options: argparse.Namespace) -> int:
    """Ask the node and print the report; returns the exit code."""
    try:
        answer = _ask(options)
    except Wal2LakeError as error:
        print_error(error)
        return NOT_COMPARABLE
    if isinstance(answer, Failure):
        print("\n".join(failure_lines(answer)), file=sys.stderr)
        return NOT_COMPARABLE
    if not answer:
        print("there is no table to compare", file=sys.stderr)
        return NOT_COMPARABLE
    print("\n".join(lines(answer)))
    return exit_code(answer)


def _ask(options: argparse.Namespace) -> list[VerifiedTable] | Failure:
    statement = "VERIFY"
    if options.tables:
        # A name is written as in SQL, with quotes where it needs them.
        statement += f" TABLE {', '.join(options.tables)}"
    if options.subscription is not None:
        statement += f" SUBSCRIPTION {quote_ident(options.subscription)}"
    parameters = connection_parameters(options.directory, options.username)
    with (
        _told() as tell,
        Client(conninfo(parameters), on_notice=tell) as client,
    ):
        outcome = next(client.run(statement), None)
    if outcome is None:
        raise PublisherError("the node has not answered")
    if isinstance(outcome, Failure):
        return outcome
    return [VerifiedTable.of(row) for row in outcome.rows]


@contextmanager
def _told() -> Iterator[Callable[[Failure], None]]:
    """Yield a function that shows the node's word about each table as it is done."""
    if not (is_drawn(sys.stderr) and sys.stdout.isatty()):
        yield lambda notice: print(clean(notice.message), file=sys.stderr, flush=True)
        return
    progress = spinner("comparing", threaded=True)
    done = 0

    def show(notice: Failure) -> None:
        nonlocal done
        done += 1
        text = f"comparing: {done} done, {clean(notice.message)}"
        progress.update(progress.task_ids[0], description=text)

    try:
        yield show
    finally:
        progress.stop()
