"""Delivery of one alert: to a webhook, or to a command.

In: a JSON text and the alert's id. Out: nothing, or DeliveryError. A delivery is bounded as a
whole, and so is what is read of an answer, because the other side may hang, send a byte now and
then, or never end.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import urllib.error
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
        request = urllib.request.Request(
            self.url,
            data=text.encode(),
            method="POST",
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"wal2lake/{__version__}",
                "Idempotency-Key": f"{facts['id']}-{facts['event']}",
            },
        )
        with contextlib.ExitStack() as stack:
            try:
                deadline = stack.enter_context(
                    Deadline(self.timeout_seconds, self._names)
                )
            except OSError as error:
                raise _refused(str(error.strerror), doubtful=False) from None
            opener = urllib.request.build_opener(_NoRedirect, deadline.handler())
            try:
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
                    f"it answers {error.code} {error.reason}",
                    doubtful=error.code in _UNKNOWN_OUTCOME,
                ) from None
            except (OSError, ValueError, http.client.HTTPException) as error:
                # A URLError comes before the whole request has been sent.
                unsent = isinstance(error, urllib.error.URLError | ValueError)
                reason = getattr(error, "reason", error)
                words = f"{reason}"[:_TEXT_BYTES].strip() or type(reason).__name__
                if deadline.passed:
                    words = f"it took more than {self.timeout_seconds:g} seconds"
                raise _refused(words, doubtful=not unsent) from None


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

        What it leaves in the background goes on."""
        environ = {f"WAL2LAKE_ALERT_{name.upper()}": v for name, v in facts.items()}
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        except OSError as error:
            raise _failed(str(error.strerror)) from None
        with process:
            try:
                _, said = process.communicate(text.encode(), self.timeout_seconds)
            except subprocess.TimeoutExpired:
                _kill(process)
                raise _failed(
                    f"it took more than {self.timeout_seconds:g} seconds",
                    doubtful=True,
                ) from None
        if process.returncode != 0:
            words = said[-_TEXT_BYTES:].decode("utf-8", "replace").strip()
            raise _failed(
                f"exit code {process.returncode}{': ' if words else ''}{words}"
            )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _failed(why: str, *, doubtful: bool = False) -> DeliveryError:
    error = DeliveryError(
        f"the alerts' command failed: {why}",
        hint="Check alerts.command. The alert is sent again.",
    )
    error.doubtful = doubtful
    return error
