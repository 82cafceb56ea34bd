"""password_command of a connection string, and what a passfile is said to lack."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg import check_password_given, parse_conninfo, redact
from wal2lake.pg.credentials import (
    command_of,
    passfile_hint,
    read_password,
    without_command,
)


@pytest.mark.parametrize(
    ("text", "kept", "command"),
    [
        (
            "host=a password_command='vault read -x' user=b",
            "host=a user=b",
            "vault read -x",
        ),
        ("password_command=token", "", "token"),
        (" host = a\tpassword_command = token ", "host = a", "token"),
        (
            r"password_command='sh -c \'cat \\\\x\'' dbname='a b'",
            "dbname='a b'",
            r"sh -c 'cat \\x'",
        ),
        (r"password_command=cat\ file host=a", "host=a", "cat file"),
        (
            "postgresql://u@h/d?password_command=cat%20%2Ff&sslmode=require",
            "postgresql://u@h/d?sslmode=require",
            "cat /f",
        ),
        ("postgres://h/?password_command=a", "postgres://h/", "a"),
        # The word as a value is none of the keyword's.
        ("host=a user=password_command", "host=a user=password_command", None),
        ("host='password_command=x'", "host='password_command=x'", None),
        ("host=a", "host=a", None),
    ],
)
def test_the_keyword_is_taken_out(text: str, kept: str, command: str | None) -> None:
    assert command_of(text) == command
    assert without_command(text) == kept
    parse_conninfo(text)


def test_bad_strings_are_refused() -> None:
    for text in (
        "password_command=''",
        "password_command='cat \"open'",
    ):
        with pytest.raises(UsageError) as refused:
            parse_conninfo(text)
        assert refused.value.sqlstate == "42601"
        assert str(refused.value.hint).startswith(
            "Name a program and its arguments, quoted as for a shell. No shell runs it:"
        )
    with pytest.raises(UsageError, match="mutually exclusive"):
        parse_conninfo("password=a password_command=b")
    with pytest.raises(UsageError, match="invalid connection string syntax"):
        parse_conninfo("password_command='never closed")
    with pytest.raises(UsageError) as refused:
        check_password_given("host=a password_command='cat f'")
    assert refused.value.sqlstate == "42501"
    assert refused.value.message == (
        'permission denied to set connection option "password_command"'
    )
    shown = redact("host=a password_command='vault -token=s3cret'")
    assert shown == "host=a password_command=********"


def failed(command: str, timeout_seconds: float = 20.0) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        read_password(command, timeout_seconds=timeout_seconds)
    assert caught.value.sqlstate == "08001"
    return caught.value


def test_a_password_is_one_line_of_a_program_that_ends_well(tmp_path: Path) -> None:
    assert read_password("printf 'a b\\n'") == "a b"
    assert read_password("printf '%s' ' spaces stay '") == " spaces stay "
    # No shell: nothing is expanded.
    assert read_password("echo $HOME * 'x;y'") == "$HOME * x;y"
    assert read_password("sh -c 'echo $((1+1))'") == "2"
    # A process that it leaves behind keeps nobody waiting, and is ended.
    begun = time.monotonic()
    assert read_password("sh -c 'sleep 30 & echo now'", timeout_seconds=20) == "now"
    assert time.monotonic() - begun < 10

    error = failed("sh -c 'echo no ticket >&2; echo s3cret; exit 3'")
    assert error.message == (
        'password_command "sh" failed: child process exited with exit code 3'
    )
    assert error.detail == "It says: no ticket"
    assert "s3cret" not in error.describe()
    assert str(error.hint).startswith(
        "Run the command as the node's OS user: it must print"
    )
    assert "terminated by signal 9" in failed("sh -c 'kill -9 $$'").message
    assert "prints nothing" in failed("true").message
    assert "more than one line" in failed("printf 'a\\nb\\n'").message
    assert "no text in UTF-8" in failed("printf '\\377'").message
    assert "too much" in failed("head -c 200000 /dev/zero").message
    assert (
        len(str(failed("sh -c 'head -c 9000 /dev/zero | tr \"\\0\" x >&2'").detail))
        < 600
    )
    begun = time.monotonic()
    assert (
        "has not ended within 0.2 seconds"
        in failed("sleep 30", timeout_seconds=0.2).message
    )
    assert time.monotonic() - begun < 10
    missing = failed(f"{tmp_path}/nothing --token=s3cret")
    assert missing.message == (
        'could not run password_command "nothing": No such file or directory'
    )
    assert str(missing.hint).startswith("The program must be there, and executable for")


def test_a_check_ends_the_wait() -> None:
    class _Cancelled(Exception):
        pass

    def check() -> None:
        raise _Cancelled

    with pytest.raises(_Cancelled):
        read_password("sleep 30", check=check)


def test_a_passfile_that_libpq_ignores_is_named(tmp_path: Path) -> None:
    refused = "connection to server failed: fe_sendauth: no password supplied"
    path = tmp_path / "passfile"
    given = {"passfile": str(path)}
    assert passfile_hint("could not connect", given) is None
    assert passfile_hint(refused, {}) is None
    assert "cannot be read: No such file" in str(passfile_hint(refused, given))
    path.write_text("*:*:*:*:x\n")
    path.chmod(0o644)
    assert "Others may read the passfile" in str(passfile_hint(refused, given))
    path.chmod(0o600)
    assert "Look at the line of the passfile" in str(passfile_hint(refused, given))
    assert "is not a plain file, so libpq ignores it." in str(
        passfile_hint(refused, {"passfile": str(tmp_path)})
    )
    assert passfile_hint(refused, {**given, "password": "x"}) == (
        'The connection string has a password, so its "passfile" is not read.'
    )
