"""``wal2lake start``: this process becomes the node's supervisor.

Runs in the foreground and logs to stderr, for service managers, containers and terminals. SIGTERM
and SIGINT stop it (exit code 0).
"""

from __future__ import annotations

import argparse
import os

from wal2lake.errors import ConfigurationError
from wal2lake.launch.supervisor import run_node


def run(options: argparse.Namespace) -> int:
    """Run the node until it is stopped."""
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
    return run_node(options.directory, overrides, os.environ)


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
