"""Passwords that are no part of a connection string, read anew at each connect.

Takes: connection strings. Gives: the password that a command prints, or the reason why a password
file gives none. Owns: the processes of such commands, for as long as they run. Never: keeps, logs
or shows a password.

    command     password_command
    passfile    what libpq does not say of a passfile
"""

from wal2lake.pg.credentials.command import (
    DEFAULT_SECONDS,
    PASSWORD_COMMAND,
    command_of,
    parse_command,
    read_password,
    without_command,
)
from wal2lake.pg.credentials.passfile import passfile_hint

__all__ = [
    "DEFAULT_SECONDS",
    "PASSWORD_COMMAND",
    "command_of",
    "parse_command",
    "passfile_hint",
    "read_password",
    "without_command",
]
"""Public names of this folder."""
