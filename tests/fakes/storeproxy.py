"""A proxy in front of an object store that does to requests what networks and stores do.

    client  ->  127.0.0.1:proxy.port  ->  server

Faults are planned for the next requests of a kind; everything else passes unchanged. ``seen`` has
each request, with what was done to it.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class Fault(Enum):
    """What happens to one request."""

    CUT_REQUEST = "half of the request reaches the server, then both connections end"
    CUT_ANSWER = "the server carries it out; half of its answer arrives"
    LOSE_ANSWER = "the server carries it out; the connection ends without an answer"
    NO_ANSWER = "the server carries it out; nothing comes back for a long time"
    DELAY = "the server carries it out; the answer comes late"
    REFUSE = "it is answered with a status and does not reach the server"
    REFUSE_DONE = "the server carries it out; it is answered with a status"


@dataclass(frozen=True)
class Planned:
    """A fault for the next request of a kind."""

    fault: Fault
    status: int = 0
    code: str = "InternalError"
    seconds: float = 0.0
    """Time before the answer, for NO_ANSWER and DELAY."""


class StoreProxy:
    """The proxy; a context manager. ``ignored``: headers that do not reach the server."""

    def __init__(self, port: int, ignored: tuple[str, ...] = ()) -> None:
        self.server_port = port
        self.ignored = {name.lower() for name in ignored}
        self.lock = threading.Lock()
        self.plans: list[tuple[str, str, Planned]] = []
        self.seen: list[tuple[str, str, Fault | None]] = []
        self.expired = 0
        """Number of requests that were refused because their key had expired."""
        self._expiring: dict[str, tuple[str, str]] = {}
        self._ended: set[str] = set()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        # By default it takes half a second to notice that it is to end.
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.01,), daemon=True
        )

    def plan(self, method: str, part: str, *faults: Planned) -> None:
        """Do this to the next requests of a method whose decoded path has ``part``, one after
        another."""
        with self.lock:
            self.plans.extend((method, part, fault) for fault in faults)

    def expire(self, key: str, method: str, part: str) -> None:
        """Let an access key expire with the first request that it signs of a method whose path has
        ``part``."""
        with self.lock:
            self._expiring[key] = method, part

    def is_expired(self, method: str, path: str, authorization: str) -> bool:
        """Whether the key of a request has expired. Source: Signature Version 4, "Credential"."""
        found = re.search(r"Credential=([^/]+)/", authorization)
        if found is None:
            return False
        key = found[1]
        with self.lock:
            wanted, part = self._expiring.get(key, ("", ""))
            if method == wanted and part in urllib.parse.unquote(path):
                self._ended.add(key)
            self.expired += key in self._ended
            return key in self._ended

    def count(self, method: str, part: str) -> int:
        """Number of requests of a method whose path has ``part``."""
        with self.lock:
            return sum(m == method and part in path for m, path, _ in self.seen)

    def take(self, method: str, path: str) -> Planned | None:
        """Return the fault that is planned for a request."""
        path = urllib.parse.unquote(path)
        with self.lock:
            found = None
            for index, (wanted, part, fault) in enumerate(self.plans):
                if wanted == method and part in path:
                    found = fault
                    del self.plans[index]
                    break
            self.seen.append((method, path, None if found is None else found.fault))
            return found

    def __enter__(self) -> StoreProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are two writes: the second would wait 40 ms for the client's ACK.
    disable_nagle_algorithm = True
    proxy: StoreProxy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        authorization = self.headers.get("Authorization") or ""
        if self.proxy.is_expired(self.command, self.path, authorization):
            self._send_status(Planned(Fault.REFUSE, 400, "ExpiredToken"))
            return
        planned = self.proxy.take(self.command, self.path)
        fault = None if planned is None else planned.fault
        if fault is Fault.CUT_REQUEST:
            self._forward(body[: len(body) // 2], whole=False)
            self._end()
            return
        if planned is not None and fault is Fault.REFUSE:
            self._send_status(planned)
            return
        status, headers, content = self._forward(body)
        if fault is Fault.LOSE_ANSWER:
            self._end()
        elif planned is not None and fault is Fault.NO_ANSWER:
            time.sleep(planned.seconds)
            self._end()
        elif planned is not None and fault is Fault.REFUSE_DONE:
            self._send_status(planned)
        else:
            if planned is not None and fault is Fault.DELAY:
                time.sleep(planned.seconds)
            cut = len(content) // 2 if fault is Fault.CUT_ANSWER else len(content)
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[:cut])
            if fault is Fault.CUT_ANSWER:
                self._end()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815

    def _forward(
        self, body: bytes, *, whole: bool = True
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.server_port)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in self.proxy.ignored:
                    connection.putheader(name, value)
            connection.endheaders()
            if body:
                connection.send(body)
            if not whole:
                return 0, [], b""
            answer = connection.getresponse()
            content = answer.read()
            headers = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in ("transfer-encoding", "connection")
            ]
            if not any(name.lower() == "content-length" for name, _ in headers):
                headers.append(("Content-Length", str(len(content))))
            return answer.status, headers, content
        finally:
            connection.close()

    def _send_status(self, planned: Planned) -> None:
        body = f"<Error><Code>{planned.code}</Code></Error>".encode()
        self.send_response_only(planned.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _end(self) -> None:
        """End the connection where it is."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
