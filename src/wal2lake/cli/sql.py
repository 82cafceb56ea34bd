"""``wal2lake sql``: the essentials of psql, for machines without psql.

``-c`` sends its string unchanged. ``-f``, standard input and the prompt send single statements. A
script stops at the first error, with exit code 1; a failed connection is exit code 2. The output
has psql's format (``print``).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from wal2lake.cli.copywait import wait_copies
from wal2lake.cli.terminal.errors import print_error
from wal2lake.cli.terminal.print import Layout, render
from wal2lake.cli.terminal.progress import late_spinner
from wal2lake.errors import (
    ConfigurationError,
    PublisherError,
    SqlSyntaxError,
    reason_of,
)
from wal2lake.launch.directory.passfile import connection_parameters, conninfo
from wal2lake.model import DATABASE
from wal2lake.pg.client import Client, Failure, ResultRows
from wal2lake.sql.grammar import split_statements

NO_CONNECTION: Final = 2

_CHANGES: Final = ("INSERT", "UPDATE", "DELETE", "MERGE")

_HELP: Final = """\
Type SQL and end it with a semicolon.
  \\?   this help
  \\q   leave (also Ctrl-D)
psql itself works too: psql "host=HOST port=PORT dbname=lake passfile=DIR/passfile"
"""


def run(options: argparse.Namespace) -> int:
    """Connect, run the given statements or prompt for some; returns the exit code."""
    layout = Layout(aligned=not options.no_align, tuples_only=options.tuples_only)
    parameters = connection_parameters(options.directory, options.username)
    try:
        client = Client(conninfo(parameters), on_notice=_print_failure)
    except PublisherError as error:
        print_error(error)
        return NO_CONNECTION
    with client:
        try:
            if options.commands or options.files:
                code = _script(client, options, layout)
            elif not sys.stdin.isatty():
                code = _statements(client, sys.stdin.read(), layout)
            else:
                code = _prompt(client, layout)
        except PublisherError as error:
            print_error(error)
            return NO_CONNECTION
    if code == 0 and options.wait_copies:
        return wait_copies(options.directory)
    return code


def _script(client: Client, options: argparse.Namespace, layout: Layout) -> int:
    for text in options.commands:
        if _is_backslash(text) or not _run(client, text, layout):
            return 1
    for name in options.files:
        if _statements(client, _read(name), layout):
            return 1
    return 0


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}: {reason_of(error)}") from None


def _is_backslash(text: str) -> bool:
    """Return whether the text is a command of psql, after reporting that as an error."""
    command = text.lstrip()
    if not command.startswith("\\"):
        return False
    name = command.split()[0]
    _print_failure(
        Failure(
            "ERROR",
            "42601",
            f"{name}: backslash commands are psql's",
            hint="Use psql itself, or ask the views: select * from pg_tables.",
        )
    )
    return True


def _statements(client: Client, text: str, layout: Layout) -> int:
    try:
        statements = split_statements(text)
    except SqlSyntaxError as error:
        _print_failure(Failure("ERROR", error.sqlstate, error.message))
        return 1
    for statement in statements:
        if _is_backslash(statement.text) or not _run(client, statement.text, layout):
            return 1
    return 0


def _run(client: Client, text: str, layout: Layout) -> bool:
    """Run one query string; False if the server reports an error."""
    good = True
    outcomes = client.run(text)
    while True:
        with late_spinner("running"):
            outcome = next(outcomes, None)
        if outcome is None:
            break
        if isinstance(outcome, Failure):
            sys.stdout.flush()
            _print_failure(outcome, text)
            good = False
        else:
            _print_rows(outcome, layout)
    sys.stdout.flush()
    return good


def _print_rows(outcome: ResultRows, layout: Layout) -> None:
    if outcome.columns:
        print("\n".join(render(outcome, layout)))
    # With RETURNING, both rows and tag are printed.
    changes = outcome.tag.startswith(_CHANGES)
    if outcome.tag and not layout.tuples_only and (changes or not outcome.columns):
        print(outcome.tag)


def _print_failure(failure: Failure, text: str = "") -> None:
    print("\n".join(failure_lines(failure, text)), file=sys.stderr)


def failure_lines(failure: Failure, text: str = "") -> Iterator[str]:
    """Yield an error or notice as psql prints it, with the line of its position."""
    yield f"{failure.severity}:  {failure.message}"
    if failure.position and text:
        before = text[: failure.position - 1]
        number = before.count("\n") + 1
        begin = before.rfind("\n") + 1
        line = text[begin:].split("\n", 1)[0]
        head = f"LINE {number}: "
        yield head + line
        yield " " * (len(head) + failure.position - 1 - begin) + "^"
    for label in ("detail", "hint", "context"):
        value = getattr(failure, label)
        if value:
            yield f"{label.upper()}:  {value}"


def _prompt(client: Client, layout: Layout) -> int:
    # Enable line editing and history, if this Python has them.
    with contextlib.suppress(ImportError):
        import_module("readline")
    print(f"wal2lake ({client.server_version}), database {DATABASE}. \\? for help.")
    pending = ""
    while True:
        mark = "-" if pending else "="
        try:
            line = input(f"{DATABASE}{mark}{client.in_transaction}> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            pending = ""
            continue
        if not pending and line.strip().startswith("\\"):
            if line.strip() in ("\\q", "\\quit"):
                return 0
            if line.strip() != "\\?":
                print(f"invalid command {line.strip()}", file=sys.stderr)
            print(_HELP, end="")
            continue
        pending = f"{pending}\n{line}" if pending else line
        pending = _run_complete(client, pending, layout)


def _run_complete(client: Client, text: str, layout: Layout) -> str:
    """Run the statements that end with a semicolon; returns the unfinished rest."""
    try:
        statements = split_statements(text)
    except SqlSyntaxError:
        # A quote or comment is open, so the next line continues it.
        return text
    if not statements:
        return ""
    last = statements[-1]
    rest = text[last.offset + len(last.text) :]
    open_end = ";" not in rest
    for statement in statements[:-1] if open_end else statements:
        if not _run(client, statement.text, layout):
            break
    return text[last.offset :] if open_end else ""
