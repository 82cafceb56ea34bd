"""Google Cloud Storage's JSON protocol, as far as Spark's connector speaks it. No sockets.

In: a request, as method, path, headers and body. Out: status, headers and body. What is not known
here is answered with 501, so a test cannot pass because something was ignored. Sources: Cloud
Storage, "JSON API", "Resumable uploads", "Batch requests"; RFC 6749 for tokens.
"""

from __future__ import annotations

import base64
import email.message
import email.parser
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""

PREFIXES = ("storage", "upload", "download", "batch")
"""First parts of the paths of this protocol."""

_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


def _crc32c_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = tuple(map(_crc32c_of_byte, range(256)))


@dataclass
class GcsObject:
    """An object."""

    content: bytes
    generation: int
    made: float = field(default_factory=time.time)

    @cached_property
    def crc32c(self) -> str:
        """The checksum that Spark's connector compares after it has written an object."""
        crc = 0xFFFFFFFF
        for byte in self.content:
            crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        return base64.b64encode((crc ^ 0xFFFFFFFF).to_bytes(4)).decode()


@dataclass
class _Session:
    """An upload whose content comes in pieces."""

    key: str
    expected: int | None
    content: bytearray = field(default_factory=bytearray)


class GcsRefusal(Exception):
    """Says why a request is not carried out."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


class GcsBucket:
    """The objects of a bucket; for all threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, GcsObject] = {}
        self.lock = threading.Lock()
        self.generations = count(1)
        self.sessions: dict[str, _Session] = {}

    def create(self, key: str, content: bytes, expected: int | None) -> GcsObject:
        """Make an object if its generation is ``expected``; 0: there must be none."""
        with self.lock:
            present = self.objects.get(key)
            generation = 0 if present is None else present.generation
            if expected not in (None, generation):
                raise GcsRefusal(412, "PreconditionFailed")
            self.objects[key] = GcsObject(content, next(self.generations))
            return self.objects[key]

    def found(self, key: str) -> GcsObject:
        """Return an object."""
        with self.lock:
            if key not in self.objects:
                raise GcsRefusal(404, "NoSuchKey")
            return self.objects[key]

    def remove(self, key: str, expected: int | None) -> GcsObject:
        """Remove an object if its generation is ``expected``."""
        with self.lock:
            if key not in self.objects:
                raise GcsRefusal(404, "NoSuchKey")
            if expected not in (None, self.objects[key].generation):
                raise GcsRefusal(412, "PreconditionFailed")
            return self.objects.pop(key)

    def entries(self, prefix: str, after: str) -> list[tuple[str, GcsObject]]:
        """Return the objects whose names begin with ``prefix`` and come after ``after``."""
        with self.lock:
            return sorted(
                (
                    (name, found)
                    for name, found in self.objects.items()
                    if name.startswith(prefix) and name > after
                ),
                key=lambda entry: entry[0],
            )


def answer_json(
    bucket: GcsBucket, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    """Carry out a request."""
    url = urllib.parse.urlsplit(path)
    asked = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    kind, _, rest = url.path.lstrip("/").partition("/")
    try:
        if kind == "batch" and method == "POST":
            return _batch(bucket, headers, body)
        # Of "storage/v1/b/bucket/o/key" what follows the bucket.
        parts = rest.removeprefix("storage/").split("/")
        if parts[:2] != ["v1", "b"] or len(parts) < 3:
            raise GcsRefusal(501, "NotImplemented")
        if parts[2] != bucket.name:
            raise GcsRefusal(404, "NoSuchBucket")
        names = [urllib.parse.unquote(part) for part in parts[4:]]
        if kind == "upload":
            return _upload(bucket, method, asked, headers, body)
        match method, names:
            case "GET", [] if len(parts) == 3:
                return _sent({"kind": "storage#bucket", "name": bucket.name})
            case "GET", []:
                return _list(bucket, asked)
            case "GET", [key]:
                found = bucket.found(key)
                if asked.get("generation", str(found.generation)) != str(
                    found.generation
                ):
                    raise GcsRefusal(404, "NoSuchKey")
                if asked.get("alt") == "media":
                    return _content(found, headers.get("Range"))
                return _sent(_resource(bucket, key, found))
            case "DELETE", [key]:
                bucket.remove(key, _expected(asked))
                return 204, {}, b""
            case "POST", [source, "rewriteTo", "b", bucket.name, "o", key]:
                copied = bucket.create(
                    key, bucket.found(source).content, _expected(asked)
                )
                resource = _resource(bucket, key, copied)
                return _sent({"done": True, "resource": resource})
            case "POST", [source, "moveTo", "o", key]:
                moved = bucket.found(source)
                made = bucket.create(key, moved.content, _expected(asked))
                bucket.remove(source, moved.generation)
                return _sent(_resource(bucket, key, made))
            case _:
                raise GcsRefusal(501, "NotImplemented")
    except GcsRefusal as refusal:
        error = {"code": refusal.status, "message": refusal.code}
        return _sent({"error": error}, refusal.status)


def _expected(asked: Mapping[str, str]) -> int | None:
    text = asked.get("ifGenerationMatch")
    return None if text is None else int(text)


def _sent(found: Mapping[str, Any], status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(found).encode()


def _resource(bucket: GcsBucket, key: str, found: GcsObject) -> dict[str, Any]:
    made = datetime.fromtimestamp(found.made, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "kind": "storage#object",
        "bucket": bucket.name,
        "name": key,
        "generation": str(found.generation),
        "metageneration": "1",
        "size": str(len(found.content)),
        "timeCreated": made,
        "updated": made,
        "crc32c": found.crc32c,
    }


def _content(found: GcsObject, asked: str | None) -> Answer:
    headers = {
        "x-goog-generation": str(found.generation),
        "Content-Type": "application/octet-stream",
    }
    size = len(found.content)
    if asked is None:
        return 200, headers, found.content
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last) + 1, size) if first and last else size
    if start >= size:
        raise GcsRefusal(416, "InvalidRange")
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return 206, headers, found.content[start:end]


def _list(bucket: GcsBucket, asked: Mapping[str, str]) -> Answer:
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    most = int(asked.get("maxResults", 1000))
    items: list[dict[str, Any]] = []
    folders: list[str] = []
    after = last = asked.get("pageToken", "")
    more = False
    for name, found in bucket.entries(prefix, ""):
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        folder = name[: cut + 1] if cut >= 0 else ""
        if (folder or name) <= after or folder in folders:
            continue
        if name < asked.get("startOffset", ""):
            continue
        if len(items) + len(folders) == most:
            more = True
            break
        last = folder or name
        if folder:
            folders.append(folder)
        if not folder or (
            folder == name and asked.get("includeTrailingDelimiter") == "true"
        ):
            items.append(_resource(bucket, name, found))
    answer: dict[str, Any] = {"kind": "storage#objects", "items": items}
    if folders:
        answer["prefixes"] = folders
    if more:
        answer["nextPageToken"] = last
    return _sent(answer)


def _upload(
    bucket: GcsBucket,
    method: str,
    asked: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
) -> Answer:
    match method, asked.get("uploadType"):
        case "POST", "multipart":
            found, content = _parts(headers, body)
            described = json.loads(str(found.get_payload()))
            key = asked.get("name") or described["name"]
            made = bucket.create(key, content, _expected(asked))
            return _sent(_resource(bucket, key, made))
        case "POST", "resumable":
            key = asked.get("name") or json.loads(body)["name"]
            with bucket.lock:
                session = str(next(bucket.generations))
                bucket.sessions[session] = _Session(key, _expected(asked))
            place = (
                f"http://{headers['Host']}/upload/storage/v1/b/{bucket.name}/o"
                f"?uploadType=resumable&upload_id={session}"
            )
            return 200, {"Location": place}, b""
        case "PUT", "resumable":
            return _piece(bucket, asked["upload_id"], headers["Content-Range"], body)
        case _:
            raise GcsRefusal(501, "NotImplemented")


def _piece(bucket: GcsBucket, name: str, said: str, body: bytes) -> Answer:
    """Take a piece of an upload; its last one tells the size of the object."""
    range_ = _RANGE.fullmatch(said)
    assert range_ is not None, said
    with bucket.lock:
        session = bucket.sessions[name]
        if range_[1] is not None:
            assert int(range_[1]) == len(session.content), said
            session.content += body
        size = len(session.content)
        is_whole = range_[2] == str(size)
    if is_whole:
        made = bucket.create(session.key, bytes(session.content), session.expected)
        return _sent(_resource(bucket, session.key, made))
    return 308, {"Range": f"bytes=0-{size - 1}"} if size else {}, b""


def _parts(
    headers: Mapping[str, str], body: bytes
) -> tuple[email.message.Message, bytes]:
    """Return the description of an object, and its content, as they are."""
    message = email.message.Message()
    message["Content-Type"] = headers["Content-Type"]
    boundary = f"--{message.get_param('boundary')}".encode()
    _, first, second, _ = body.split(boundary)
    described = email.parser.BytesParser().parsebytes(first.strip(b"\r\n"))
    content = second.partition(b"\r\n\r\n")[2]
    return described, content.removesuffix(b"\r\n")


def _batch(bucket: GcsBucket, headers: Mapping[str, str], body: bytes) -> Answer:
    """Carry out requests that are parts of one."""
    head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    message = email.parser.BytesParser().parsebytes(head + body)
    boundary = "batch_answer"
    answered = b""
    for part in message.get_payload():
        assert isinstance(part, email.message.Message)
        line, _, rest = str(part.get_payload()).lstrip().partition("\n")
        method, path, *_ = line.split()
        path = path[path.index("/storage/") :]
        inner = email.message_from_string(rest)
        payload = str(inner.get_payload()).encode()
        status, told, content = answer_json(
            bucket, method, path, dict(inner.items()), payload
        )
        told["Content-Length"] = str(len(content))
        lines = [f"{name}: {value}\r\n" for name, value in told.items()]
        answered += (
            f"--{boundary}\r\nContent-Type: application/http\r\n"
            f"Content-ID: <response-{str(part['Content-ID']).strip('<>')}>\r\n\r\n"
            f"HTTP/1.1 {status} Answer\r\n{''.join(lines)}\r\n"
        ).encode()
        answered += content + b"\r\n"
    answered += f"--{boundary}--\r\n".encode()
    return 200, {"Content-Type": f"multipart/mixed; boundary={boundary}"}, answered
