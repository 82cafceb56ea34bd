"""Gets credentials from a command, of S3 as here.

In: a shell command. Out: the credentials that it prints, in the form that obstore wants. The
command prints what a ``credential_process`` of AWS's programs does:

    {"Version": 1, "AccessKeyId": "...", "SecretAccessKey": "...",
     "SessionToken": "...", "Expiration": "2026-01-01T00:00:00Z"}

The last two are optional. What a command for another cloud prints ``tokens`` reads.

The credentials are kept here, and the command is run again when less than a tenth of their time is
left, or five minutes. If it fails then, the old ones serve until they end. A store may refuse them
before (a key was revoked, a clock is wrong); then the command is run again at once, but not twice
within ten seconds. After a failure it is not run for ten seconds, whoever asks, so that a command
that hangs does not hold up one request after the other.

obstore asks before each request if those that it has end within five minutes, so it is told that
they do, whatever their end is.

Its output is in no error. Source: AWS CLI user guide, "Sourcing credentials with an external
process".
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

COMMAND_SECONDS: Final = 30.0
"""Most time for one run. A guess: a command asks a server or two."""

_EARLY: Final = timedelta(minutes=5)
"""Most time before their end at which credentials are replaced. A request takes less."""

_EARLY_PART: Final = 10
"""Credentials with a short life are replaced when this part of it is left."""

_AFTER_FAILURE: Final = 10.0
"""Seconds from the end of a run that failed to the next run. A guess."""

_AFTER_REFUSAL: Final = 10.0
"""Age in seconds from which refused credentials are replaced: other requests may have been sent
with those before them. A guess."""

_ASKED_AGAIN: Final = timedelta(minutes=4)
"""Time to their end that obstore is told, less than the five minutes that it keeps them for."""


class CredentialsCommandFailed(Exception):
    """Says why a command gave no credentials. obstore puts the text into its own error."""


class CommandCredentials:
    """The credentials of a command, as obstore's ``credential_provider``; for all threads."""

    def __init__(
        self, command: str, read: Callable[[str], dict[str, Any]] | None = None
    ) -> None:
        """``read`` gets credentials from what the command prints; None: those of S3."""
        self._command = command
        self._read = read or read_credentials
        self._lock = threading.Lock()
        self._credentials: dict[str, Any] | None = None
        self._read_at = -math.inf
        """Like all times without a date: of the machine's monotonic clock."""
        self._again_at: datetime | None = None
        self._failure = ""
        self._paused_until = -math.inf

    def refused(self) -> None:
        """Note that the store has refused the credentials."""
        with self._lock:
            if self._read_at + _AFTER_REFUSAL <= time.monotonic():
                self._again_at = datetime.now(UTC)

    def __call__(self) -> dict[str, Any]:
        """Return the credentials; run the command if there are none, or they end soon."""
        credentials = self.current()
        until = datetime.now(UTC) + _ASKED_AGAIN
        end = credentials["expires_at"]
        return {**credentials, "expires_at": until if end is None else min(end, until)}

    def current(self) -> dict[str, Any]:
        """Return the credentials with their own end; run the command if there are none, or they
        end soon."""
        with self._lock:
            if self._is_due() and self._paused_until <= time.monotonic():
                self._run()
            credentials = self._credentials
            if credentials is None or (self._failure and _has_ended(credentials)):
                raise CredentialsCommandFailed(self._failure)
            return credentials

    def _is_due(self) -> bool:
        return self._credentials is None or (
            self._again_at is not None and self._again_at <= datetime.now(UTC)
        )

    def _run(self) -> None:
        """Run the command. After a failure the credentials stay as they are."""
        try:
            credentials = self._read(run_command(self._command))
        except CredentialsCommandFailed as error:
            self._failure = str(error)
            self._paused_until = time.monotonic() + _AFTER_FAILURE
        else:
            self._credentials, self._failure = credentials, ""
            self._read_at = time.monotonic()
            self._again_at = _again_at(credentials["expires_at"], datetime.now(UTC))


def _has_ended(credentials: dict[str, Any]) -> bool:
    end = credentials["expires_at"]
    return end is not None and end <= datetime.now(UTC)


def run_command(command: str, *, seconds: float = COMMAND_SECONDS) -> str:
    """Run a command, and return what it prints. It is killed, with all that it has started, if it
    takes longer than ``seconds``."""
    try:
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CredentialsCommandFailed(f"it could not be started: {error}") from None
    with process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise CredentialsCommandFailed(
                f"it did not end within {seconds:g} seconds"
            ) from None
    if process.returncode != 0:
        raise CredentialsCommandFailed(f"its exit code is {process.returncode}")
    return printed


def read_credentials(printed: str) -> dict[str, Any]:
    """Read what a command has printed. CredentialsCommandFailed if these are no credentials that
    are in force."""
    try:
        document = json.loads(printed)
    except ValueError:
        raise CredentialsCommandFailed("its output is not JSON") from None
    if not isinstance(document, dict):
        raise CredentialsCommandFailed("its output is not a JSON object")
    texts = {}
    for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"):
        value = document.get(name)
        if not (value is None or isinstance(value, str)):
            raise CredentialsCommandFailed(f'"{name}" of its output is not a text')
        texts[name] = value
    for name in ("AccessKeyId", "SecretAccessKey"):
        if not texts[name]:
            raise CredentialsCommandFailed(f'its output has no "{name}"')
    return {
        "access_key_id": texts["AccessKeyId"],
        "secret_access_key": texts["SecretAccessKey"],
        "token": texts["SessionToken"],
        "expires_at": _expiration(texts["Expiration"]),
    }


def _expiration(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        raise CredentialsCommandFailed(
            '"Expiration" of its output is not a time in ISO 8601'
        ) from None
    if end.tzinfo is None:
        end = end.replace(tzinfo=UTC)
    if end <= datetime.now(UTC):
        raise CredentialsCommandFailed("its credentials have expired")
    return end


def _again_at(end: datetime | None, now: datetime) -> datetime | None:
    """Return the time from which the command is run again; None: never."""
    return None if end is None else end - min(_EARLY, (end - now) / _EARLY_PART)
