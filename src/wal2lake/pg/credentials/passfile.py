"""Says why a passfile gives no password: libpq tells a program nothing of that.

In: the keywords of a connection that the server has refused. Out: a hint. libpq reads the file at
each connect. It ignores, without an error, a file that is not there, that others may read, or that
has no line for the server; the connection then fails as one without a password.

Source: passwordFromFile() in fe-connect.c.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_REFUSALS: Final = ("no password supplied", "password authentication failed")
"""Texts of libpq and of the server; a wrong password is an old one of the file."""


def passfile_hint(message: str, parameters: Mapping[str, str]) -> str | None:
    """Return the remedy if the connection names a passfile and lacked a (right) password."""
    path = parameters.get("passfile")
    if not path or not any(text in message for text in _REFUSALS):
        return None
    if parameters.get("password"):
        return 'The connection string has a password, so its "passfile" is not read.'
    try:
        state = Path(path).stat()
    except OSError as error:
        return f'The passfile "{path}" cannot be read: {error.strerror}.'
    if not stat.S_ISREG(state.st_mode):
        return f'The passfile "{path}" is not a plain file, so libpq ignores it.'
    if state.st_mode & 0o077:
        return (
            f'Others may read the passfile "{path}", so libpq ignores it: its mode must be'
            " 0600 or less."
        )
    return (
        f'Look at the line of the passfile "{path}" for this server:'
        " host:port:database:user:password. A replication connection is of its database."
    )
