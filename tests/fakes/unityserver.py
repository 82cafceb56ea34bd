"""A Unity Catalog for tests, which checks each request and answer by the OpenAPI description.

No registry has the reference server. ``corpus/unity/api.json`` is the part of its description that
says what schemas and tables are. What is not in it fails: another path or method, a property that
is unknown, of another type or missing, a value that is none of an enumeration.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

DESCRIPTION: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "pure/corpus/unity/api.json").read_text()
)

ROOT = "/api/2.1/unity-catalog"

_TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def check(value: Any, schema: dict[str, Any], place: str) -> None:
    """Fail unless a value is as a schema says."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        check(value, DESCRIPTION["components"]["schemas"][name], place)
        return
    kind = schema.get("type")
    if kind is not None:
        assert isinstance(value, _TYPES[kind]), f"{place} is no {kind}: {value!r}"
    assert "enum" not in schema or value in schema["enum"], f"{place}: {value!r}"
    if kind == "array":
        for number, one in enumerate(value):
            check(one, schema["items"], f"{place}[{number}]")
    if kind == "object":
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            assert name in value, f"{place} has no {name}"
        for name, one in value.items():
            if name in known:
                check(one, known[name], f"{place}.{name}")
            else:
                more = schema.get("additionalProperties")
                assert more, f"{place}.{name} is not known"
                check(one, more, f"{place}.{name}")


class UnityServer:
    """A server with one catalog. ``tables`` and ``schemas`` are by full name."""

    def __init__(self, catalog: str = "lake", token: str = "") -> None:
        self.catalog = catalog
        self.token = token
        self.tables: dict[str, dict[str, Any]] = {}
        self.schemas: dict[str, dict[str, Any]] = {}
        self.wrong: list[str] = []
        """Violations of the description."""
        self.asked: list[str] = []
        self.forbidden: set[str] = set()
        """Full names of tables that nobody is allowed to see."""
        self.refused_columns: set[str] = set()
        """Names of columns that no table may have."""
        served = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                status, content = served.answer(
                    self.command, self.path, body, self.headers.get("Authorization")
                )
                sent = json.dumps(content).encode() if content is not None else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> UnityServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(
        self, method: str, path: str, body: Any, authorization: str | None
    ) -> tuple[int, Any]:
        """Return status and content."""
        self.asked.append(f"{method} {path}")
        if self.token and authorization != f"Bearer {self.token}":
            return 401, _error("UNAUTHENTICATED", "no such token")
        try:
            return self._described(method, unquote(urlsplit(path).path), body)
        except AssertionError as error:
            self.wrong.append(f"{method} {path}: {error}")
            return 400, _error("INVALID_ARGUMENT", str(error))

    def _described(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        assert path.startswith(ROOT), "another interface"
        template, name = _template(path.removeprefix(ROOT))
        operation = DESCRIPTION["paths"].get(template, {}).get(method.lower())
        assert operation is not None, "no such operation"
        wanted = operation.get("requestBody")
        assert (wanted is None) == (body is None), "a body that is not expected"
        if wanted is not None:
            check(body, wanted["content"]["application/json"]["schema"], "request")
        status, content = getattr(self, f"_{operation['operationId']}")(name or body)
        if status == 200:
            schema = operation["responses"]["200"]["content"]["application/json"]
            check(content or {}, schema["schema"] or {}, "answer")
        return status, content

    def _getSchema(self, name: str) -> tuple[int, Any]:  # noqa: N802
        return _found(self.schemas, name, "SCHEMA")

    def _createSchema(self, body: dict[str, Any]) -> tuple[int, Any]:  # noqa: N802
        if body["catalog_name"] != self.catalog:
            return 404, _error("CATALOG_NOT_FOUND", "no such catalog")
        return _made(self.schemas, f"{self.catalog}.{body['name']}", body, "SCHEMA")

    def _getTable(self, name: str) -> tuple[int, Any]:  # noqa: N802
        if name in self.forbidden:
            return 403, _error("PERMISSION_DENIED", "no such right")
        return _found(self.tables, name, "TABLE")

    def _createTable(self, body: dict[str, Any]) -> tuple[int, Any]:  # noqa: N802
        schema = f"{body['catalog_name']}.{body['schema_name']}"
        if schema not in self.schemas:
            return 404, _error("SCHEMA_NOT_FOUND", "no such schema")
        if self.refused_columns & {column["name"] for column in body["columns"]}:
            return 400, _error("INVALID_ARGUMENT", "no such column, please")
        return _made(self.tables, f"{schema}.{body['name']}", body, "TABLE")

    def _deleteTable(self, name: str) -> tuple[int, Any]:  # noqa: N802
        if self.tables.pop(name, None) is None:
            return 404, _error("TABLE_NOT_FOUND", "no such table")
        return 200, None


def _template(path: str) -> tuple[str, str | None]:
    """Return a path as the description has it, and the name in it."""
    found = re.fullmatch(r"/(schemas|tables)(?:/([^/]+))?", path)
    assert found is not None, f"no such path: {path}"
    return (
        (path, None) if found[2] is None else (f"/{found[1]}/{{full_name}}", found[2])
    )


def _error(code: str, message: str) -> dict[str, str]:
    return {"error_code": code, "message": message}


def _found(known: dict[str, Any], name: str, kind: str) -> tuple[int, Any]:
    if name not in known:
        return 404, _error(f"{kind}_NOT_FOUND", f"{name} is not there")
    return 200, known[name]


def _made(
    known: dict[str, Any], name: str, body: dict[str, Any], kind: str
) -> tuple[int, Any]:
    if name in known:
        # As the reference server answers.
        return 400, _error(f"{kind}_ALREADY_EXISTS", f"{name} is there")
    known[name] = body
    return 200, body
