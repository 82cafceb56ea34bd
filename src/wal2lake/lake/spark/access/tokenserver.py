"""Hands the tokens of a command to Spark, whose connectors run none: a server of the engine's.

In: a shell command, requests of this machine alone. Out: tokens, as a server of OAuth gives them.
Called by ``google`` and ``azure``.

    POST /token     client_secret=...      ->  {"access_token": "...", "expires_in": 3599}

Any user of the machine may connect, so a request must bring a secret, which only the JVM's
environment has; without it the answer is 401. A connector asks if its token will soon end, or was
refused, so each request runs the command, unless it was run within ten seconds. The server ends
with the process. Sources: RFC 6749, sections 4.4 and 5.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from wal2lake.lake.store import (
    CommandCredentials,
    CredentialsCommandFailed,
    read_token,
)

_PATH: Final = "/token"

_MOST_BYTES: Final = 65_536
"""Most bytes of a request; the connectors send some hundred."""

_SECONDS: Final = 10.0
"""Time-out of a connection. A guess: both ends are on one machine."""


class TokenServer:
    """The server; it listens on a port of the loopback interface from the beginning."""

    def __init__(self, command: str) -> None:
        self.secret = secrets.token_urlsafe(32)
        """Secret that a request must bring."""
        self._server = _Listener(("127.0.0.1", 0), _Request)
        self._server.secret = self.secret
        self._server.credentials = CommandCredentials(command, read_token)
        threading.Thread(
            target=self._server.serve_forever, name="token server", daemon=True
        ).start()

    @property
    def url(self) -> str:
        """Where tokens are given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{_PATH}"

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    secret: str
    credentials: CommandCredentials


class _Request(BaseHTTPRequestHandler):
    server: _Listener
    timeout = _SECONDS

    def do_POST(self) -> None:
        """Give a token to whoever has the secret."""
        if self.path != _PATH:
            self._answer(404, {"error": "invalid_request"})
            return
        try:
            size = min(int(self.headers.get("Content-Length") or 0), _MOST_BYTES)
        except ValueError:
            size = 0
        form = urllib.parse.parse_qs(self.rfile.read(max(size, 0)).decode("latin-1"))
        secret = form.get("client_secret", [""])[0]
        if not hmac.compare_digest(secret.encode(), self.server.secret.encode()):
            self._answer(401, {"error": "invalid_client"})
            return
        try:
            self.server.credentials.refused()
            credentials = self.server.credentials.current()
        except CredentialsCommandFailed as error:
            # The command's output is in no error.
            reason = {
                "error": "temporarily_unavailable",
                "error_description": str(error),
            }
            self._answer(503, reason)
            return
        self._answer(
            200,
            {
                "access_token": credentials["token"],
                "token_type": "Bearer",
                "expires_in": _seconds_until(credentials["expires_at"]),
            },
        )

    def _answer(self, status: int, fields: Mapping[str, str | int]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


_WITHOUT_END: Final = 3600
"""Seconds for which a token is taken to be valid if nothing is said about its end: the usual
life of one."""


def _seconds_until(end: datetime | None) -> int:
    if end is None:
        return _WITHOUT_END
    return max(0, int((end - datetime.now(UTC)).total_seconds()))
