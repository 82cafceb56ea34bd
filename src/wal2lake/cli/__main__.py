"""The command ``wal2lake``: passes arguments to a subcommand, and prints errors on one line.

Each subcommand is a module or package of this room with a ``run`` that returns the exit code. It is
imported only when it is used, so that the process of ``wal2lake start``, which becomes the
supervisor, stays small.

Exit codes: 0 done, 1 refused or failed, 2 wrong arguments or no connection, 3 (status)
not running, 4 (status) no node in the directory, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from wal2lake import __version__
from wal2lake.cli.errors import print_error
from wal2lake.errors import Wal2LakeError

_EPILOG: Final = """\
A first look, with everything in one command:   wal2lake demo
A node of your own:                             wal2lake init -D DIR
                                                wal2lake start -D DIR
                                                wal2lake sql -D DIR
"""


class _Parser(argparse.ArgumentParser):
    """Prints argument errors in the form of PostgreSQL's programs."""

    def error(self, message: str) -> NoReturn:
        """Print two lines and exit with 2."""
        print(f"wal2lake: error: {message}", file=sys.stderr)
        print(
            f'wal2lake: hint: Try "{self.prog} --help" for more information.',
            file=sys.stderr,
        )
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        command = importlib.import_module(f"wal2lake.cli.{options.command}")
        run: Callable[[argparse.Namespace], int] = command.run
        code = run(options)
        # Flush here, as the interpreter would report a reader that is gone.
        sys.stdout.flush()
        return code
    except Wal2LakeError as error:
        print_error(error)
        return 1
    except BrokenPipeError:
        # The reader (head, a pager) has gone; the interpreter must not complain when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands (DESIGN 2.1)."""
    parser = _Parser(
        prog="wal2lake",
        description="PostgreSQL logical replication with a Spark lakehouse on either"
        " end.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"wal2lake {__version__}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _init_options(commands.add_parser("init", help="make a new node's directory"))
    _start_options(commands.add_parser("start", help="run a node in the foreground"))
    _stop_options(commands.add_parser("stop", help="stop a running node"))
    status = commands.add_parser("status", help="say what a node does")
    _directory(status)
    status.add_argument("--json", action="store_true", help="for programs")
    _sql_options(commands.add_parser("sql", help="talk SQL to a running node"))
    _check_options(
        commands.add_parser(
            "check", help="look at a publisher, change nothing, say what will happen"
        )
    )
    _demo_options(
        commands.add_parser("demo", help="the whole product on an embedded PostgreSQL")
    )
    return parser


def _init_options(init: argparse.ArgumentParser) -> None:
    _directory(init)
    init.add_argument(
        "-U", "--username", metavar="NAME", help="superuser (default: your OS user)"
    )
    init.add_argument(
        "-A",
        "--auth",
        choices=("scram-sha-256", "trust"),
        default="scram-sha-256",
        help="authentication of clients (default: scram-sha-256)",
    )
    init.add_argument(
        "--pwfile",
        type=Path,
        metavar="FILE",
        help="read the superuser's password from FILE (default: make one up)",
    )


def _start_options(start: argparse.ArgumentParser) -> None:
    _directory(start)
    start.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:5480)",
    )
    start.add_argument(
        "-c",
        dest="parameters",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a parameter of wal2lake.toml, for example -c spark.master=local[4]",
    )


def _stop_options(stop: argparse.ArgumentParser) -> None:
    _directory(stop)
    stop.add_argument(
        "-m",
        "--mode",
        choices=("smart", "fast", "immediate"),
        default="fast",
        help="smart: wait for clients to leave; fast (default): disconnect them;"
        " immediate: end now",
    )
    stop.add_argument(
        "-t",
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the end (default: 60)",
    )


def _sql_options(sql: argparse.ArgumentParser) -> None:
    _directory(sql)
    sql.add_argument("-U", "--username", metavar="NAME", help="connect as this role")
    sql.add_argument(
        "-c",
        "--command",
        dest="commands",
        metavar="SQL",
        action="append",
        default=[],
        help="run this and exit (may be given more than once)",
    )
    sql.add_argument(
        "-f",
        "--file",
        dest="files",
        metavar="FILE",
        action="append",
        default=[],
        help="run the statements of a file and exit; - is standard input",
    )
    sql.add_argument("-A", "--no-align", action="store_true", help="unaligned output")
    sql.add_argument(
        "-t", "--tuples-only", action="store_true", help="rows only, no names or counts"
    )


def _check_options(check: argparse.ArgumentParser) -> None:
    check.add_argument("conninfo", metavar="CONNINFO", help="libpq connection string")
    check.add_argument(
        "--publication",
        "-p",
        dest="publications",
        metavar="NAME",
        action="append",
        default=[],
        help="publication to look at (may be given more than once; default: all)",
    )


def _demo_options(demo: argparse.ArgumentParser) -> None:
    demo.add_argument(
        "--keep", action="store_true", help="leave the node's directory behind"
    )
    demo.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="N",
        help="how long the workload runs (default: 30)",
    )


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-D",
        "--directory",
        type=Path,
        required=True,
        metavar="DIR",
        help="the node's directory",
    )


if __name__ == "__main__":
    sys.exit(main())
