"""The arguments of ``wal2lake`` and the exit codes of its subcommands.

``build_parser`` declares every subcommand, and ``EXIT_CODES`` what its exit codes mean. ``--help``,
the reference and the completion of shells are made of both.

Called by: the program, ``completion``, tools/reference.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from wal2lake import __version__

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
    for name, (text, declare) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=text,
            epilog=_exit_codes(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        declare(command)
    return parser


def _exit_codes(command: str) -> str:
    lines = (f"  {code}  {text}" for code, text in EXIT_CODES[command].items())
    return "\n".join(("exit codes:", *lines))


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
    init.add_argument(
        "--from",
        dest="source",
        metavar="URL",
        help="go on as the node whose log and catalog are in this store (log.store); its former"
        " directory is then no node any more",
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
    start.add_argument(
        "-l",
        "--log-file",
        type=Path,
        metavar="FILE",
        help="write the server log to FILE (sets node.log_file)",
    )
    start.add_argument(
        "--daemon",
        action="store_true",
        help="return when the node is ready; it runs on in the background and writes to its"
        " log file (default: wal2lake.log in its directory)",
    )
    start.add_argument(
        "-t",
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long --daemon waits for the node (default: 300)",
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


def _reload_options(reload: argparse.ArgumentParser) -> None:
    _directory(reload)


def _status_options(status: argparse.ArgumentParser) -> None:
    _directory(status)
    status.add_argument(
        "--json",
        action="store_true",
        help="print JSON for programs; names are added to it, never changed",
    )
    status.add_argument(
        "--check",
        action="store_true",
        help="tell by the exit code how the node is: 0 well, 1 late or in trouble, 2 down",
    )


def _top_options(top: argparse.ArgumentParser) -> None:
    _directory(top)
    top.add_argument(
        "--once",
        action="store_true",
        help="print one frame and end, as into a pipe",
    )
    top.add_argument(
        "--page",
        choices=("overview", "tables", "copies", "problems", "publisher"),
        default="overview",
        help="page to begin with (default: overview)",
    )
    top.add_argument(
        "--sort",
        choices=("lag", "rate", "size", "name"),
        default="lag",
        help="order of tables (default: lag, the most behind first)",
    )
    top.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="time between two looks (default: 1)",
    )


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600")
    return seconds


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
    sql.add_argument(
        "--wait-copies",
        action="store_true",
        help="then wait until the tables of all enabled subscriptions are copied",
    )


def _verify_options(verify: argparse.ArgumentParser) -> None:
    verify.add_argument(
        "-D",
        "--directory",
        type=Path,
        metavar="DIR",
        help="the node whose tables are compared with their sources; beside another server, the"
        " node is the other one",
    )
    verify.add_argument("-U", "--username", metavar="NAME", help="connect as this role")
    for name, text in (
        ("source", "a server, a node or PostgreSQL, as a libpq connection string"),
        ("target", "the server whose tables are compared with those of the source"),
        (
            "subscriber",
            "a PostgreSQL server that subscribes to the source; both are compared at one LSN",
        ),
    ):
        verify.add_argument(f"--{name}", metavar="CONNINFO", help=text)
    verify.add_argument(
        "-t",
        "--table",
        dest="tables",
        metavar="TABLE",
        action="append",
        default=[],
        help="compare this table only, written as in SQL; between two servers * and ? are"
        " wildcards, and items=copy.items names the target's table (may be given more than"
        " once)",
    )
    verify.add_argument(
        "-s",
        "--subscription",
        metavar="NAME",
        help="compare the tables of this subscription only",
    )
    verify.add_argument(
        "-p",
        "--publication",
        dest="publications",
        metavar="NAME",
        action="append",
        default=[],
        help="compare what this publication of the source publishes: its tables, columns and"
        " rows (may be given more than once)",
    )
    verify.add_argument(
        "--where", metavar="CONDITION", help="compare the rows that meet this condition"
    )
    verify.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for a subscriber to be at one LSN with the source (default: 60)",
    )
    verify.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="end the comparison of two servers after this time (default: no limit)",
    )
    verify.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="form of the report (default: text)",
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


def _backup_options(backup: argparse.ArgumentParser) -> None:
    _directory(backup)
    backup.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="PATH",
        help="directory of the backup, which must not exist",
    )


def _restore_options(restore: argparse.ArgumentParser) -> None:
    restore.add_argument(
        "backup", type=Path, metavar="PATH", help="directory of the backup"
    )
    restore.add_argument(
        "-D",
        "--directory",
        type=Path,
        required=True,
        metavar="NEWDIR",
        help="the restored node's directory, which must not exist",
    )
    restore.add_argument(
        "--warehouse",
        type=Path,
        metavar="PATH",
        help="directory of the tables, which must not exist (default: warehouse in NEWDIR)",
    )
    restore.add_argument(
        "--log",
        type=Path,
        metavar="PATH",
        help="directory of the change log, which must not exist (default: log in NEWDIR)",
    )


def _completion_options(completion: argparse.ArgumentParser) -> None:
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="shell to complete commands in"
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


_COMMANDS: Final[
    Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]
] = MappingProxyType(
    {
        "init": ("make a new node's directory", _init_options),
        "start": (
            "run a node, in the foreground unless told otherwise",
            _start_options,
        ),
        "stop": ("stop a running node", _stop_options),
        "reload": ("have a running node read its settings again", _reload_options),
        "status": ("show what a node does", _status_options),
        "top": ("show live what a node does", _top_options),
        "sql": ("run SQL at a running node", _sql_options),
        "check": (
            "look at a publisher, change nothing, say what will happen",
            _check_options,
        ),
        "verify": (
            "prove that tables have the same rows as their sources, or as their subscribers",
            _verify_options,
        ),
        "backup": (
            "copy a node, running or stopped, as it is at one moment",
            _backup_options,
        ),
        "restore": ("make a node from a backup", _restore_options),
        "demo": ("run the whole product on an embedded PostgreSQL", _demo_options),
        "completion": (
            "print a shell's completion of this program",
            _completion_options,
        ),
    }
)
"""The purpose of each subcommand, and the function that declares its arguments."""

_ARGUMENTS: Final = "the arguments are wrong"

EXIT_CODES: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        "init": {
            0: "the directory is a node's",
            1: "it could not be made; nothing is left of it",
            2: _ARGUMENTS,
        },
        "start": {
            0: "the node has run, and was stopped; with --daemon: it is ready",
            1: "it could not start, or not in time",
            2: _ARGUMENTS,
        },
        "stop": {
            0: "the node has ended",
            1: "none runs, or it has not ended in time",
            2: _ARGUMENTS,
        },
        "reload": {
            0: "the node was signalled",
            1: "none runs, or its settings have errors",
            2: _ARGUMENTS,
        },
        "status": {
            0: "the node runs, or starts or stops; with --check: every subscription streams and"
            " no table is late",
            1: "the catalog could not be read; with --check: a subscription is disabled, retries"
            " or is down, a table is late or paused, or there is another problem of severity"
            " error",
            2: "the arguments are wrong; with --check: the node does not serve its tables, or"
            " there is none in the directory",
            3: "it does not run (without --check)",
            4: "there is no node in the directory (without --check)",
        },
        "top": {
            0: "it was ended by q or Ctrl-C, or the frame was printed",
            1: "there is no node in the directory, or it cannot be read",
            2: _ARGUMENTS,
        },
        "sql": {
            0: "all statements have succeeded",
            1: "one has failed, and no further one was run; with --wait-copies: a copy cannot go"
            " on",
            2: "no connection, or it was lost, or the arguments are wrong",
        },
        "check": {
            0: "nothing stands in the way of a subscription",
            1: "there are problems, or the server could not be asked",
            2: _ARGUMENTS,
        },
        "verify": {
            0: "all tables are equal",
            1: "at least one is different",
            2: "none is different, but not all could be compared, or the arguments are wrong",
        },
        "backup": {
            0: "the backup is complete",
            1: "it could not be made; nothing is left of it",
            2: _ARGUMENTS,
        },
        "restore": {
            0: "the directory is a node's",
            1: "the backup is incomplete or damaged, or could not be restored; nothing is left"
            " of it",
            2: _ARGUMENTS,
        },
        "demo": {
            0: "all rows were equal",
            1: "they were not, or a step has failed",
            2: _ARGUMENTS,
        },
        "completion": {0: "the script was printed", 2: _ARGUMENTS},
    }
)
"""Meaning of each exit code, by subcommand. Every one ends with 130 when it is interrupted."""
