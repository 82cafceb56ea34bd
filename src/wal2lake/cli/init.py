"""``wal2lake init``: creates a node's directory, as initdb creates a cluster's.

    wal2lake.toml     every setting, commented out
    catalog.sqlite    the catalog, with its first superuser
    passfile          libpq's password file for that user, mode 0600 (not with trust)
    log/ warehouse/ run/

With ``--from`` the directory is made from a store's objects (``comeback``).

Everything is 0700. The settings come last, and get their final name only when complete. A directory
without settings is no node, so an interrupted init leaves nothing that could be started. An init
that fails removes what it has created.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog
from wal2lake.cli.terminal.progress import late_spinner
from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.launch.directory.passfile import write_passfile
from wal2lake.settings import FILE_NAME, render_default_toml
from wal2lake.wire.scram import SALT_BYTES, create_verifier

_SUBDIRECTORIES: Final = ("log", "warehouse", "run")

_PASSWORD_BYTES: Final = 18
"""144 bits, which are 24 characters."""

_NAME_BYTES: Final = 63
"""NAMEDATALEN - 1."""


def run(options: argparse.Namespace) -> int:
    """Create the directory and print the next step."""
    directory: Path = options.directory.absolute()
    if options.source is not None:
        # Brings Arrow, which a new node does not need.
        from wal2lake.cli.comeback import fetch

        if options.username or options.pwfile or options.auth == "trust":
            raise ConfigurationError(
                "options -U, -A and --pwfile cannot be used with --from",
                hint="Roles and settings come from the store.",
            )
        with new_directory(directory):
            fetch(options.source, directory, options.directory)
        return 0
    user = _superuser(options.username)
    password = None if options.auth == "trust" else _password(options.pwfile)
    with late_spinner("making the node"), new_directory(directory):
        for name in _SUBDIRECTORIES:
            (directory / name).mkdir(mode=0o700)
        verifier = None
        if password is not None:
            salt = secrets.token_bytes(SALT_BYTES)
            verifier = str(create_verifier(password, salt))
            write_passfile(directory, user, password)
        Catalog.create(directory / "catalog.sqlite", user, verifier).close()
        chosen = {} if options.auth != "trust" else {"node.authentication": "trust"}
        _write_durably(directory / FILE_NAME, render_default_toml(chosen))
        _sync_directory(directory)
        _sync_directory(directory.parent)
    print(f'made a wal2lake node in "{directory}", superuser "{user}"')
    if password is None:
        print("warning: trust authentication lets every local user in as anybody")
    elif options.pwfile is None:
        print(f'the password is in "{directory / "passfile"}"')
    print("\nSuccess. You can now start it:\n")
    print(f"    wal2lake start -D {options.directory}\n")
    return 0


def _superuser(user: str | None) -> str:
    if user is None:
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            raise ConfigurationError(
                f"could not look up effective user ID {os.geteuid()}:"
                " user does not exist",
                hint="Name the superuser with -U.",
            ) from None
    if not user or len(user.encode()) > _NAME_BYTES:
        raise ConfigurationError(
            f'superuser name "{user}" must have 1 to {_NAME_BYTES} bytes'
        )
    if user.startswith("pg_"):
        raise ConfigurationError(
            f'superuser name "{user}" is disallowed; role names cannot begin with "pg_"'
        )
    return user


def _password(pwfile: Path | None) -> str:
    if pwfile is None:
        return secrets.token_urlsafe(_PASSWORD_BYTES)
    try:
        with pwfile.open(encoding="utf-8") as file:
            line = file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f'could not open file "{pwfile}" for reading: {reason_of(error)}'
        ) from None
    if not line:
        raise ConfigurationError(f'password file "{pwfile}" is empty')
    return line


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[None]:
    """Create the directory, or take an empty one; remove (or empty) it if the block fails."""
    for parent in directory.resolve().parents:
        if (parent / "catalog.sqlite").exists() and (parent / FILE_NAME).exists():
            raise ConfigurationError(
                f'directory "{directory}" is inside the directory of another node,'
                f' "{parent}"',
                hint="A node's directory is its own: choose another place.",
            )
    made = not directory.exists()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigurationError(
                f'directory "{directory}" exists but is not empty',
                hint="If you want to make a new node, either remove or empty the"
                f' directory "{directory}" or run wal2lake init with an argument other'
                f' than "{directory}".',
            )
        directory.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(
            f'could not create directory "{directory}": {error.strerror}'
        ) from None
    try:
        yield
    except BaseException as error:
        for entry in directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        if made:
            directory.rmdir()
        if isinstance(error, OSError):
            raise ConfigurationError(
                f'could not write to directory "{directory}": {error.strerror}'
            ) from None
        raise


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
