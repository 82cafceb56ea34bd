"""``wal2lake start``: this process becomes the node's supervisor.

Runs in the foreground and logs to stderr, for service managers, containers and terminals. SIGTERM
and SIGINT stop it (exit code 0). With ``--daemon`` the supervisor is a process of its own, and this
one ends when the node is ready; the words are pg_ctl's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from wal2lake.cli.terminal.progress import waiting
from wal2lake.errors import ConfigurationError
from wal2lake.launch.start.detached import last_message, start_detached
from wal2lake.launch.start.node import open_standard_streams, run_node
from wal2lake.settings import load

LOG_FILE_NAME: Final = "wal2lake.log"
"""Log file of a node that runs in the background, unless its settings name another."""


def run(options: argparse.Namespace) -> int:
    """Run the node until it is stopped."""
    open_standard_streams()
    overrides: dict[str, str] = {}
    for argument in options.parameters:
        name, separator, value = argument.partition("=")
        if not separator:
            raise ConfigurationError(
                f'invalid argument for option -c: "{argument}"',
                hint="Write -c section.name=value.",
            )
        overrides[name.strip()] = value
    if options.listen is not None:
        overrides.update(parse_listen(options.listen))
    if options.log_file is not None:
        overrides["node.log_file"] = str(options.log_file.absolute())
    if options.daemon:
        return _start_daemon(options, overrides)
    return run_node(options.directory, overrides, os.environ)


def _start_daemon(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    directory: Path = options.directory
    log_file = load(directory, os.environ, overrides).log_file
    if log_file is None:
        log_file = directory.absolute() / LOG_FILE_NAME
        overrides["node.log_file"] = str(log_file)
    with waiting("waiting for server to start") as shown:
        start_detached(
            lambda: run_node(directory, overrides, os.environ, foreground=False),
            directory,
            log_file,
            timeout_seconds=options.timeout,
            on_wait=lambda: shown.tick(lambda: last_message(log_file)),
        )
    print("server started")
    return 0


def parse_listen(text: str) -> dict[str, str]:
    """Parse ``HOST:PORT``, ``:PORT``, ``[IPV6]:PORT`` or a bare ``PORT``."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    if not port.isdecimal() or (not separator and port != text):
        raise ConfigurationError(
            f'invalid argument for option --listen: "{text}"',
            hint="Write HOST:PORT, for example 127.0.0.1:5480 or [::1]:5480.",
        )
    parameters = {"node.port": port}
    if host:
        parameters["node.listen_addresses"] = host
    return parameters
