"""A server of Google Cloud Storage's XML protocol, as far as obstore speaks it.

One bucket in memory. A request that is not known here is answered with 501, so a test cannot pass
because something was ignored. Source: Cloud Storage, "XML API overview" and "Request
preconditions".
"""

from __future__ import annotations

import email.utils
import re
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import TracebackType
from xml.sax.saxutils import escape

_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")

_PAGE = 3
"""Names in one page of a list, few enough for several pages."""


@dataclass
class _Object:
    content: bytes
    generation: int
    made: float = field(default_factory=time.time)


class GcsServer:
    """The server; a context manager. ``port`` is where to connect."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.objects: dict[str, _Object] = {}
        self.lock = threading.Lock()
        self.generations = count(1)
        self.uploads: dict[str, dict[int, bytes]] = {}
        """Parts by upload and number."""
        handler = type("Handler", (_Handler,), {"store": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
    store: GcsServer

    def do_POST(self) -> None:
        """Begin or complete an upload in parts."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        key = urllib.parse.unquote(url.path.lstrip("/").partition("/")[2])
        if list(asked) == ["uploads"]:
            upload = str(next(self.store.generations))
            with self.store.lock:
                self.store.uploads[upload] = {}
            answer = (
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
            self._send(200, answer.encode(), {"Content-Type": "application/xml"})
        elif list(asked) == ["uploadId"]:
            with self.store.lock:
                parts = self.store.uploads.pop(asked["uploadId"])
                named = [int(n) for n in _PART.findall(body.decode())]
                assert named == sorted(parts), named
                content = b"".join(parts[number] for number in named)
                created = _Object(content, next(self.store.generations))
                self.store.objects[key] = created
            answer = (
                f'<CompleteMultipartUploadResult><ETag>"{created.generation}"</ETag>'
                "</CompleteMultipartUploadResult>"
            )
            headers = {"x-goog-generation": str(created.generation)}
            self._send(200, answer.encode(), headers)
        else:
            self._refuse(501, "NotImplemented")

    def _put_part(self, query: str, content: bytes) -> None:
        asked = dict(urllib.parse.parse_qsl(query))
        if set(asked) != {"partNumber", "uploadId"}:
            self._refuse(501, "NotImplemented")
            return
        number = int(asked["partNumber"])
        with self.store.lock:
            self.store.uploads[asked["uploadId"]][number] = content
        self._send(200, b"", {"ETag": f'"part{number}"'})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        query = urllib.parse.urlsplit(self.path).query
        if query:
            self._put_part(query, content)
            return
        key = self._key()
        if key is None:
            return
        expected = self.headers.get("x-goog-if-generation-match")
        source = self.headers.get("x-goog-copy-source")
        with self.store.lock:
            if source is not None:
                named = urllib.parse.unquote(source.lstrip("/").partition("/")[2])
                copied = self.store.objects.get(named)
                if copied is None:
                    self._refuse(404, "NoSuchKey")
                    return
                content = copied.content
            present = self.store.objects.get(key)
            generation = 0 if present is None else present.generation
            if expected is not None and int(expected) != generation:
                self._refuse(412, "PreconditionFailed")
                return
            created = _Object(content, next(self.store.generations))
            self.store.objects[key] = created
        self._answer(200, b"", created)

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if url.query:
            self._list(dict(urllib.parse.parse_qsl(url.query)))
            return
        found = self._found()
        if found is None:
            return
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, found.content, found)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, size = int(first), len(found.content)
        if start >= size:
            self._refuse(416, "InvalidRange")
            return
        end = min(int(last) + 1 if last else size, size)
        self._answer(
            206, found.content[start:end], found, f"bytes {start}-{end - 1}/{size}"
        )

    def do_HEAD(self) -> None:
        found = self._found()
        if found is not None:
            self._answer(200, found.content, found)

    def do_DELETE(self) -> None:
        key = self._key()
        if key is None:
            return
        with self.store.lock:
            found = self.store.objects.pop(key, None)
        if found is None:
            self._refuse(404, "NoSuchKey")
        else:
            self._answer(204, b"", found)

    def _found(self) -> _Object | None:
        key = self._key()
        if key is None:
            return None
        with self.store.lock:
            found = self.store.objects.get(key)
        if found is None:
            self._refuse(404, "NoSuchKey")
        return found

    def _key(self) -> str | None:
        """Return the object's name; None: the request was refused."""
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = url.path.lstrip("/").partition("/")
        if url.query or not key:
            self._refuse(501, "NotImplemented")
            return None
        if bucket != self.store.bucket:
            self._refuse(404, "NoSuchBucket")
            return None
        return urllib.parse.unquote(key)

    def _list(self, asked: dict[str, str]) -> None:
        bucket = urllib.parse.urlsplit(self.path).path.strip("/")
        if asked.pop("list-type", None) != "2":
            self._refuse(501, "NotImplemented")
            return
        if bucket != self.store.bucket:
            self._refuse(404, "NoSuchBucket")
            return
        prefix, after = asked.pop("prefix", ""), asked.pop("start-after", "")
        after = max(after, asked.pop("continuation-token", ""))
        asked.pop("max-keys", None)
        if asked:
            self._refuse(501, "NotImplemented")
            return
        with self.store.lock:
            names = sorted(
                n for n in self.store.objects if n.startswith(prefix) and n > after
            )
            page = [(name, self.store.objects[name]) for name in names[:_PAGE]]
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(one.content)}</Size>"
            f"<LastModified>{datetime.fromtimestamp(one.made, UTC).isoformat()}"
            "</LastModified>"
            f'<ETag>"{one.generation}"</ETag></Contents>'
            for name, one in page
        )
        more = len(names) > len(page)
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
        self, status: int, body: bytes, found: _Object, range_: str | None = None
    ) -> None:
        headers = {
            "ETag": f'"{found.generation}"',
            "x-goog-generation": str(found.generation),
            "Last-Modified": email.utils.formatdate(found.made, usegmt=True),
        }
        if range_ is not None:
            headers["Content-Range"] = range_
        self._send(status, body, headers)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code></Error>".encode()
        self._send(status, body, {"Content-Type": "application/xml"})

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
