"""The keyword ``password_command`` of a connection string: a program that prints the password.

In: a connection string, as keywords or as a URI. Out: the string without the keyword, which libpq
does not know, and the password. The program is run at each connect, so a token of a cloud that is
valid for minutes, or a password that is changed in a vault, is always the present one.

The command line is divided into words by the rules of a shell's quotes, and is run without a shell;
``sh -c '...'`` asks for one. The program gets no input and the environment of the process that
connects. It must print one line, the password, and end with exit code 0 within the time for the
connection. What it prints is used for this connection only, and is in no message. What it writes to
stderr is shown in the error, so a program must not write secrets there. The command line itself
counts as a secret, too: messages name the program only.

Source: conninfo_parse() and conninfo_uri_parse_options() in fe-connect.c for the syntax;
run_ssl_passphrase_command() in be-secure-common.c for the texts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg.waiting import Check, readable

PASSWORD_COMMAND: Final = "password_command"

_PAIR: Final = re.compile(
    r"\s*(?P<keyword>[^\s=]+)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<bare>(?:[^\s\\]|\\.)*))",
    re.DOTALL,
)
"""One keyword and its value. A backslash makes the next character literal."""

_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)

_URI: Final = ("postgresql://", "postgres://")

_LONGEST_PASSWORD: Final = 65_535
"""Bytes: tokens have some thousand; more is not a password."""

_SHOWN_STDERR: Final = 500
"""Characters of stderr that an error shows: its end, where programs give the reason."""

_LOOK_SECONDS: Final = 0.1

DEFAULT_SECONDS: Final = 30.0
"""Longest run if nothing limits the time for a connection."""


def command_of(text: str) -> str | None:
    """Return the password_command of a connection string; None if it has none."""
    return _divide(text)[1]


def without_command(text: str) -> str:
    """Return the connection string as libpq takes it."""
    return _divide(text)[0]


def _divide(text: str) -> tuple[str, str | None]:
    """Return the text without the keyword, and its value. Text that libpq will refuse is returned
    as it is."""
    if PASSWORD_COMMAND not in unquote(text):
        return text, None
    if text.startswith(_URI):
        return _divide_uri(text)
    kept: list[str] = []
    command: str | None = None
    position = 0
    while position < len(text.rstrip()):
        pair = _PAIR.match(text, position)
        if pair is None:
            return text, None
        if pair["keyword"] == PASSWORD_COMMAND:
            command = _ESCAPED.sub(r"\1", pair["quoted"] or pair["bare"] or "")
        else:
            kept.append(pair[0].lstrip())
        position = pair.end()
    return (text, None) if command is None else (" ".join(kept), command)


def _divide_uri(text: str) -> tuple[str, str | None]:
    base, mark, query = text.partition("?")
    kept: list[str] = []
    command: str | None = None
    for part in query.split("&") if mark else ():
        name, _, value = part.partition("=")
        if unquote(name) == PASSWORD_COMMAND:
            command = unquote(value)
        else:
            kept.append(part)
    return (base + ("?" + "&".join(kept) if kept else ""), command)


def parse_command(command: str) -> list[str]:
    """Return the words of a command line; 42601 if there is none, or a quote is not closed."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words or "\0" in command:
        raise UsageError(
            f'invalid value for connection option "{PASSWORD_COMMAND}"',
            sqlstate="42601",
            hint="Name a program and its arguments, quoted as for a shell. No shell runs it:"
            " sh -c '...' asks for one.",
        )
    return words


def read_password(
    command: str,
    *,
    timeout_seconds: float = DEFAULT_SECONDS,
    check: Check | None = None,
) -> str:
    """Run the command and return what it prints, without the end of the line.

    Raises PublisherError (08001) if that is no password. ``check`` may end the wait."""
    words = parse_command(command)
    program = Path(words[0]).name
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "invalid argument"
        raise PublisherError(
            f'could not run password_command "{program}": {reason}',
            sqlstate="08001",
            hint="The program must be there, and executable for the node's OS user, on each"
            " machine that connects: with executors on other machines, on those, too.",
        ) from None
    with process:
        try:
            output, complaint = _communicate(process, program, timeout_seconds, check)
        finally:
            _end(process)
    if process.returncode:
        raise _failed(program, _ended_with(process.returncode), complaint)
    return _password(program, output, complaint)


def _communicate(
    process: subprocess.Popen[bytes],
    program: str,
    timeout_seconds: float,
    check: Check | None,
) -> tuple[bytes, bytes]:
    """Return the program's output and its errors. It may leave a background process that keeps
    the pipes open; the wait is for the program."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_seconds
    read: dict[IO[bytes], bytearray] = {
        process.stdout: bytearray(),
        process.stderr: bytearray(),
    }
    open_pipes = list(read)
    while open_pipes or process.poll() is None:
        if check is not None:
            check()
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise _failed(
                program,
                f"it has not ended within {timeout_seconds:g} seconds",
                bytes(read[process.stderr]),
            )
        ended = process.poll() is not None
        pause = 0.0 if ended else min(remaining, _LOOK_SECONDS)
        if not open_pipes:
            time.sleep(min(pause, 0.01))
            continue
        filenos = readable([pipe.fileno() for pipe in open_pipes], pause)
        ready = [pipe for pipe in open_pipes if pipe.fileno() in filenos]
        for pipe in ready:
            block = os.read(pipe.fileno(), 65_536)
            if not block:
                open_pipes.remove(pipe)
            elif len(read[pipe]) <= _LONGEST_PASSWORD:
                read[pipe] += block
        if ended and not ready:
            break
    return bytes(read[process.stdout]), bytes(read[process.stderr])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs of the command, and collect the program."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _password(program: str, output: bytes, complaint: bytes) -> str:
    if len(output) > _LONGEST_PASSWORD:
        raise _failed(program, "it prints too much for a password", complaint)
    try:
        password = output.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _failed(program, "it prints no text in UTF-8", complaint) from None
    if not password:
        raise _failed(program, "it prints nothing", complaint)
    if any(character in password for character in "\n\r\0"):
        raise _failed(program, "it prints more than one line", complaint)
    return password


def _ended_with(code: int) -> str:
    if code > 0:
        return f"child process exited with exit code {code}"
    return f"child process was terminated by signal {-code}"


def _failed(program: str, reason: str, complaint: bytes) -> PublisherError:
    shown = " ".join(complaint.decode(errors="replace").split())
    if len(shown) > _SHOWN_STDERR:
        shown = "..." + shown[-_SHOWN_STDERR:]
    return PublisherError(
        f'password_command "{program}" failed: {reason}',
        sqlstate="08001",
        detail=f"It says: {shown}" if shown else None,
        hint="Run the command as the node's OS user: it must print the password, and nothing"
        " else, on one line.",
    )
