"""The passfile of a node, by which the command line logs in without asking.

The file has libpq's format (``host:port:database:user:password``), so any client can use it:
``psql "host=127.0.0.1 port=5480 dbname=lake passfile=DIR/passfile"``. ``init`` writes the file. The
command line reads the user's name from it, and libpq the password.

Source: PostgreSQL manual, 32.16 (the password file).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.launch.directory.lockfile import is_locked, read_lock
from wal2lake.model import DATABASE

FILE_NAME: Final = "passfile"

_FIELD: Final = re.compile(r"((?:[^:\\]|\\.)*)(?::|$)")


def write_passfile(directory: Path, user: str, password: str) -> None:
    """Create the file, readable only by its owner from the first moment."""
    path = directory / FILE_NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        fields = ("*", "*", DATABASE, _escape(user), _escape(password))
        file.write(":".join(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def passfile_user(directory: Path) -> str | None:
    """Return the user of the first entry; None without a file."""
    try:
        line = (directory / FILE_NAME).read_text(encoding="utf-8").split("\n")[0]
    except OSError:
        return None
    fields = [re.sub(r"\\(.)", r"\1", text) for text in _FIELD.findall(line)]
    return fields[3] if len(fields) > 4 else None


def connection_parameters(
    directory: Path, user: str | None = None
) -> Mapping[str, str]:
    """Return libpq's parameters for the running node; ConfigurationError if none listens.

    The default of ``user`` is the passfile's user, else libpq's default (the OS user).
    """
    facts = read_lock(directory)
    if facts is None or not facts.port:
        if is_locked(directory):
            raise ConfigurationError(
                f'the node in directory "{directory}" is starting and does not listen yet',
                hint=f'Try again when "wal2lake status -D {directory}" says that it is'
                " ready.",
            )
        raise ConfigurationError(
            f'no node is running in directory "{directory}"',
            hint=f"Start it with: wal2lake start -D {directory}",
        )
    parameters = {
        "host": facts.address,
        "port": str(facts.port),
        "dbname": DATABASE,
        "application_name": "wal2lake sql",
    }
    name = user or passfile_user(directory)
    if name is not None:
        parameters["user"] = name
    if (directory / FILE_NAME).exists():
        parameters["passfile"] = str(directory / FILE_NAME)
    return parameters


def conninfo(parameters: Mapping[str, str]) -> str:
    """Join the parameters to one string, quoted for libpq."""
    quoted = {
        name: value.replace("\\", r"\\").replace("'", r"\'")
        for name, value in parameters.items()
    }
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace(":", r"\:")
