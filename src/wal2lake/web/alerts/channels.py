"""Delivery of one alert: to a webhook, or to a command.

In: a JSON text and the alert's id. Out: nothing, or DeliveryError. A delivery is bounded as a
whole, and so is what is read of an answer, because the other side may hang, send a byte now and
then, or never end.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import selectors
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final, Protocol

from wal2lake import __version__
from wal2lake.errors import Wal2LakeError
from wal2lake.web.alerts.connecting import Deadline, NameLookup

TIMEOUT_SECONDS: Final = 10.0
"""Longest time of a delivery, from the look-up of the name to the answer, or of a command."""

_TEXT_BYTES: Final = 500
"""Bytes of an answer or of a command's output that an error quotes."""

_PART_BYTES: Final = 65_536
"""Capacity of a pipe: read or written at a time."""

_LAST_READS: Final = 4
"""Reads of what a command has left in the pipe. Not to the end: its background may write on."""

_POLL_SECONDS: Final = 0.05
"""Interval in which a command that says nothing is asked whether it has ended."""

_KILLED_SECONDS: Final = 1.0
"""Longest wait for the end of a command that was killed: one in a system call that cannot be
interrupted, of a disk that hangs, ends later."""

_UNKNOWN_OUTCOME: Final = (502, 504)
"""Answers of a gateway that has got none from the server behind it."""


class DeliveryError(Wal2LakeError):
    """An alert was not accepted. It is sent again later."""

    default_sqlstate = "58000"
    doubtful: bool = False
    """True if it may have been accepted all the same: no answer came, or none in time."""


class AlertChannel(Protocol):
    """A way to send alerts."""

    @property
    def name(self) -> str:
        """Name for the log and for the ledger's file."""

    def deliver(self, text: str, facts: Mapping[str, str]) -> None:
        """Send one alert. ``facts``: id and event. DeliveryError if it was not accepted."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error: a POST would be repeated as a GET."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Refuse."""
        return


@dataclass(frozen=True, slots=True)
class Webhook:
    """POST to a URL. An answer of 2xx accepts the alert."""

    url: str
    timeout_seconds: float = TIMEOUT_SECONDS
    _names: NameLookup = field(default_factory=NameLookup, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the channel."""
        return "webhook"

    def deliver(self, text: str, facts: Mapping[str, str]) -> None:
        """Send the JSON as the request's body."""
        url, login = _without_login(self.url)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"wal2lake/{__version__}",
            "Idempotency-Key": f"{facts['id']}-{facts['event']}",
            **login,
        }
        with contextlib.ExitStack() as stack:
            try:
                deadline = stack.enter_context(
                    Deadline(self.timeout_seconds, self._names)
                )
            except OSError as error:
                raise _refused(str(error.strerror), doubtful=False) from None
            opener = urllib.request.build_opener(_NoRedirect, deadline.handler())
            try:
                request = urllib.request.Request(
                    url, data=text.encode(), method="POST", headers=headers
                )
                with (
                    opener.open(request, timeout=self.timeout_seconds) as answer,
                    # The status has accepted it, whatever the body is.
                    contextlib.suppress(OSError, http.client.HTTPException),
                ):
                    answer.read(_TEXT_BYTES)
            except urllib.error.HTTPError as error:
                with error, contextlib.suppress(OSError, http.client.HTTPException):
                    error.read(_TEXT_BYTES)
                raise _refused(
                    f"it answers {error.code} {error.reason}"[:_TEXT_BYTES],
                    doubtful=error.code in _UNKNOWN_OUTCOME,
                ) from None
            except (ValueError, http.client.InvalidURL):
                # The error's text quotes the URL, which may have a secret.
                raise _refused("it is not a valid URL", doubtful=False) from None
            except (OSError, http.client.HTTPException) as error:
                # A URLError comes before the whole request has been sent.
                unsent = isinstance(error, urllib.error.URLError)
                reason = getattr(error, "reason", error)
                words = f"{reason}"[:_TEXT_BYTES].strip() or type(reason).__name__
                if deadline.passed:
                    words = f"it took more than {self.timeout_seconds:g} seconds"
                raise _refused(words, doubtful=not unsent) from None


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its user and password, and the header that has them."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    login, separator, host = authority.rpartition("@")
    if not separator:
        return url, {}
    user, _, password = login.partition(":")
    plain = b":".join(map(urllib.parse.unquote_to_bytes, (user, password)))
    encoded = base64.b64encode(plain).decode()
    shorter = f"{scheme}://{host}{rest[len(authority) :]}"
    return shorter, {"Authorization": f"Basic {encoded}"}


def _refused(why: str, *, doubtful: bool) -> DeliveryError:
    error = DeliveryError(
        f"the alerts' webhook cannot be used: {why}",
        hint="Check alerts.webhook_url. The alert is sent again.",
    )
    error.doubtful = doubtful
    return error


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the shell, with the JSON on its standard input. Exit code 0 accepts it."""

    command: str
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def name(self) -> str:
        """Name of the channel."""
        return "command"

    def deliver(self, text: str, facts: Mapping[str, str]) -> None:
        """Run the command, in a process group of its own that is killed if it takes too long.

        What it leaves in the background goes on, and is not waited for."""
        environ = {f"WAL2LAKE_ALERT_{name.upper()}": v for name, v in facts.items()}
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        except OSError as error:
            raise _failed(str(error.strerror)) from None
        except ValueError as error:
            raise _failed(str(error)) from None
        try:
            output = _exchange(process, text.encode(), self.timeout_seconds)
        finally:
            _end(process)
        if output is None:
            raise _failed(
                f"it took more than {self.timeout_seconds:g} seconds", doubtful=True
            )
        if process.returncode != 0:
            words = output.decode("utf-8", "replace").strip()
            raise _failed(
                f"exit code {process.returncode}{': ' if words else ''}{words}"
            )


def _exchange(
    process: subprocess.Popen[bytes], text: bytes, seconds: float
) -> bytes | None:
    """Write to a process until it ends; returns the end of what it says, or None if it takes
    longer.

    Its own end counts, not that of its output, which a process that it leaves in the background may
    keep open."""
    stdin, stderr = process.stdin, process.stderr
    assert stdin is not None and stderr is not None
    ends = time.monotonic() + seconds
    unsent, output = memoryview(text), b""
    with selectors.DefaultSelector() as pipes, stdin, stderr:
        for pipe in (stdin, stderr):
            os.set_blocking(pipe.fileno(), False)
        pipes.register(stdin, selectors.EVENT_WRITE)
        pipes.register(stderr, selectors.EVENT_READ)
        while process.poll() is None:
            if time.monotonic() > ends:
                return None
            for key, _ in pipes.select(_POLL_SECONDS):
                if key.fileobj is stderr:
                    more = _read(stderr)
                    output = (output + (more or b""))[-_TEXT_BYTES:]
                    if more == b"":
                        pipes.unregister(stderr)
                    continue
                unsent = unsent[_write(stdin, unsent) :]
                if not unsent:
                    pipes.unregister(stdin)
                    stdin.close()
        for _ in range(_LAST_READS):
            output = (output + (_read(stderr) or b""))[-_TEXT_BYTES:]
    return output


def _read(pipe: IO[bytes]) -> bytes | None:
    """Read a part; returns None if there is none now, and nothing at the end."""
    try:
        return os.read(pipe.fileno(), _PART_BYTES)
    except BlockingIOError:
        return None


def _write(pipe: IO[bytes], text: memoryview) -> int:
    """Write a part; returns its length."""
    try:
        return os.write(pipe.fileno(), text[:_PART_BYTES])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        # A command need not read its input.
        return len(text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that has not ended, with its group."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # In a system call that cannot be interrupted, it ends later.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_SECONDS)


def _failed(why: str, *, doubtful: bool = False) -> DeliveryError:
    error = DeliveryError(
        f"the alerts' command failed: {why}",
        hint="Check alerts.command. The alert is sent again.",
    )
    error.doubtful = doubtful
    return error
