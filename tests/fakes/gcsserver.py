"""A server of Google Cloud Storage: the XML protocol, as far as obstore speaks it.

One bucket in memory. The JSON protocol is in ``gcsjson``. The server gives tokens, too, as
Google's, and as a machine's metadata server does. A request that is not known here is answered with
501, so a test cannot pass because something was ignored. Sources: Cloud Storage, "XML API overview"
and "Request preconditions"; Compute Engine, "Metadata server".

    python -m tests.fakes.gcsserver BUCKET PORT     with TOKEN in the environment

delta-rs keeps Python's lock while it waits for a server, which must then be another process.
"""

from __future__ import annotations

import base64
import email.utils
import gzip
import json
import os
import re
import signal
import sys
import threading
import urllib.parse
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from xml.sax.saxutils import escape

from tests.fakes.gcsjson import (
    PREFIXES,
    GcsBucket,
    GcsObject,
    GcsRefusal,
    answer_json,
)

_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")

_PAGE = 3
"""Names in one page of a list, few enough for several pages."""


ACCOUNT = "node@project.example"
"""The service account whose own tokens the server accepts."""

TOKENS = "/token"
"""Path of the server of tokens."""


class _Http(ThreadingHTTPServer):
    store: GcsServer


class GcsServer:
    """The server; a context manager. ``port`` is where to connect."""

    def __init__(
        self, bucket: str, page: int = _PAGE, token: str = "", port: int = 0
    ) -> None:
        """``page``: most names in one page of a list. ``token``: what each request must bring, and
        what the server of tokens gives; empty: requests need none."""
        self.bucket = GcsBucket(bucket)
        self.page = page
        self.token = token
        self.given: list[str] = []
        """How tokens were asked for: grant types, or ``metadata``."""
        self.uploads: dict[str, dict[int, bytes]] = {}
        """Parts by upload and number."""
        self._http = _Http(("127.0.0.1", port), _Handler)
        self._http.store = self
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> GcsServer:
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
    server: _Http

    @property
    def store(self) -> GcsServer:
        return self.server.store

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def do_PUT(self) -> None:
        self._respond()

    def do_DELETE(self) -> None:
        self._respond()

    def _respond(self) -> None:
        body = self._body()
        if body is None:
            # The client has gone in the middle of its request, which does nothing then.
            self.close_connection = True
            return
        path = urllib.parse.urlsplit(self.path).path
        try:
            if path == TOKENS:
                self._give(dict(urllib.parse.parse_qsl(body.decode()))["grant_type"])
            elif path == "/" or path.startswith("/computeMetadata/"):
                if self.headers.get("Metadata-Flavor") != "Google":
                    raise GcsRefusal(403, "Forbidden")
                self._give("metadata")
            elif not self._is_known():
                raise GcsRefusal(401, "AuthenticationRequired")
            elif path.split("/")[1] in PREFIXES:
                headers = dict(self.headers.items())
                bucket = self.store.bucket
                status, told, found = answer_json(
                    bucket, self.command, self.path, headers, body
                )
                self._send(status, found, told)
            else:
                getattr(self, f"_{self.command.lower()}")(body)
        except GcsRefusal as refusal:
            answer = f"<Error><Code>{refusal.code}</Code></Error>".encode()
            headers = {"Content-Type": "application/xml"}
            self._send(refusal.status, answer, headers)

    def _body(self) -> bytes | None:
        """Read the request's body; None if it ends before its time."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            if len(body) < size:
                return None
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return body

    def _give(self, asked: str) -> None:
        """Give a token."""
        self.store.given.append(asked)
        if "/service-accounts" in self.path and not self.path.split("?")[0].endswith(
            "/token"
        ):
            answer, kind = ACCOUNT.encode(), "application/text"
        else:
            token = {"access_token": self.store.token, "expires_in": 3600}
            answer = json.dumps({**token, "token_type": "Bearer"}).encode()
            kind = "application/json"
        self._send(200, answer, {"Content-Type": kind, "Metadata-Flavor": "Google"})

    def _is_known(self) -> bool:
        """Whether a request brings the token, or one that the account has signed itself. The
        signature is not checked."""
        if not self.store.token:
            return True
        kind, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if kind != "Bearer" or token == self.store.token:
            return kind == "Bearer"
        _, _, claims = token.rpartition(".")[0].partition(".")
        try:
            found = json.loads(base64.urlsafe_b64decode(claims + "=="))
        except ValueError:
            return False
        return bool(found["iss"] == ACCOUNT)

    def _post(self, body: bytes) -> None:
        """Begin or complete an upload in parts."""
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        key = urllib.parse.unquote(url.path.lstrip("/").partition("/")[2])
        bucket = self.store.bucket
        if list(asked) == ["uploads"]:
            with bucket.lock:
                upload = str(next(bucket.generations))
                self.store.uploads[upload] = {}
            answer = (
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
            self._send(200, answer.encode(), {"Content-Type": "application/xml"})
        elif list(asked) == ["uploadId"]:
            with bucket.lock:
                parts = self.store.uploads.pop(asked["uploadId"])
            named = [int(n) for n in _PART.findall(body.decode())]
            assert named == sorted(parts), named
            content = b"".join(parts[number] for number in named)
            created = bucket.create(key, content, None)
            answer = (
                f'<CompleteMultipartUploadResult><ETag>"{created.generation}"</ETag>'
                "</CompleteMultipartUploadResult>"
            )
            headers = {"x-goog-generation": str(created.generation)}
            self._send(200, answer.encode(), headers)
        else:
            raise GcsRefusal(501, "NotImplemented")

    def _put_part(self, query: str, content: bytes) -> None:
        asked = dict(urllib.parse.parse_qsl(query))
        if set(asked) != {"partNumber", "uploadId"}:
            raise GcsRefusal(501, "NotImplemented")
        number = int(asked["partNumber"])
        with self.store.bucket.lock:
            self.store.uploads[asked["uploadId"]][number] = content
        self._send(200, b"", {"ETag": f'"part{number}"'})

    def _put(self, content: bytes) -> None:
        query = urllib.parse.urlsplit(self.path).query
        if query:
            self._put_part(query, content)
            return
        key = self._key()
        expected = self.headers.get("x-goog-if-generation-match")
        source = self.headers.get("x-goog-copy-source")
        if source is not None:
            named = urllib.parse.unquote(source.lstrip("/").partition("/")[2])
            content = self.store.bucket.found(named).content
        created = self.store.bucket.create(
            key, content, None if expected is None else int(expected)
        )
        self._answer(200, b"", created)

    def _get(self, body: bytes) -> None:
        url = urllib.parse.urlsplit(self.path)
        if url.query:
            self._list(dict(urllib.parse.parse_qsl(url.query)))
            return
        found = self.store.bucket.found(self._key())
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, found.content, found)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, size = int(first), len(found.content)
        if start >= size:
            raise GcsRefusal(416, "InvalidRange")
        end = min(int(last) + 1 if last else size, size)
        self._answer(
            206, found.content[start:end], found, f"bytes {start}-{end - 1}/{size}"
        )

    def _head(self, body: bytes) -> None:
        found = self.store.bucket.found(self._key())
        self._answer(200, found.content, found)

    def _delete(self, body: bytes) -> None:
        self._answer(204, b"", self.store.bucket.remove(self._key(), None))

    def _key(self) -> str:
        """Return the object's name."""
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = url.path.lstrip("/").partition("/")
        if url.query or not key:
            raise GcsRefusal(501, "NotImplemented")
        if bucket != self.store.bucket.name:
            raise GcsRefusal(404, "NoSuchBucket")
        return urllib.parse.unquote(key)

    def _list(self, asked: dict[str, str]) -> None:
        bucket = urllib.parse.urlsplit(self.path).path.strip("/")
        if asked.pop("list-type", None) != "2":
            raise GcsRefusal(501, "NotImplemented")
        if bucket != self.store.bucket.name:
            raise GcsRefusal(404, "NoSuchBucket")
        prefix, after = asked.pop("prefix", ""), asked.pop("start-after", "")
        after = max(after, asked.pop("continuation-token", ""))
        asked.pop("max-keys", None)
        if asked:
            raise GcsRefusal(501, "NotImplemented")
        entries = self.store.bucket.entries(prefix, after)
        page = entries[: self.store.page]
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(one.content)}</Size>"
            f"<LastModified>{datetime.fromtimestamp(one.made, UTC).isoformat()}"
            "</LastModified>"
            f'<ETag>"{one.generation}"</ETag></Contents>'
            for name, one in page
        )
        more = len(entries) > len(page)
        token = (
            f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>"
            if more
            else ""
        )
        body = (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{items}</ListBucketResult>"
        ).encode()
        self._send(200, body, {"Content-Type": "application/xml"})

    def _answer(
        self, status: int, body: bytes, found: GcsObject, range_: str | None = None
    ) -> None:
        headers = {
            "ETag": f'"{found.generation}"',
            "x-goog-generation": str(found.generation),
            "Last-Modified": email.utils.formatdate(found.made, usegmt=True),
        }
        if range_ is not None:
            headers["Content-Range"] = range_
        self._send(status, body, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    with GcsServer(
        sys.argv[1], page=1000, token=os.environ["TOKEN"], port=int(sys.argv[2])
    ):
        signal.pause()
