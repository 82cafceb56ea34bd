"""Sends requests with JSON to the HTTP service of a catalog, by the standard library.

Comes in: a method, a path, an object. Goes out: the answer's object, or the error of the status.
Called by the clients of such services, which say what a status means.

A token is that of the settings, what the command prints, or what an OAuth server gives for the
credential. The service may refuse one that has ended: then another is taken, once. A redirect is
not followed, since the token would go to another host with it.

Source: RFC 6749, section 4.4 (Client Credentials Grant).
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.catalogs.options import CatalogOptions
from wal2lake.lake.catalogs.port import EntryRefused
from wal2lake.lake.store.access.command import CredentialsCommandFailed, run_command

_TEXT: Final = 500
"""Characters of an answer that an error quotes."""

_MOST_BYTES: Final = 64 << 20
"""Longest answer that is read. A table with 10,000 columns has 3 MB, one with 10,000 snapshots
8 MB."""

_TOKEN_SECONDS: Final = 60.0
"""Age from which a refused token is replaced: servers say 403 for a token that has ended, too, and
a table that is not allowed must not ask for one each time. A guess."""

_TOKEN: Final = re.compile(r"[!-~]+")

_REFUSED: Final = (401, 403, 419)
"""Statuses of a token that may have ended; 419 is that of Iceberg's REST catalogs."""

SaidBy = Callable[[Any], tuple[str, str]]
"""Returns code and message of a service's error; raises LookupError or the like for another
document."""


_MISSING: Final = (404, 405, 406, 501)
"""Statuses of a service that does not have a path."""


class EndpointMissing(EntryRefused):
    """The service does not have a path."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect the error that its status is."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        """Follow nothing."""


class JsonService:
    """An HTTP service."""

    def __init__(
        self,
        options: CatalogOptions,
        base: str,
        words: SaidBy,
        failed: Callable[[int, str, str], Wal2LakeError],
    ) -> None:
        """``base``: URL that paths are added to. ``failed`` returns the error for a status, with
        the code and the message that the service has given."""
        self._options = options
        self.base = base
        self._said = words
        self._failed = failed
        self._token = options.token
        self._token_at = 0.0
        self._opener = urllib.request.build_opener(_NoRedirects)

    def forget(self) -> None:
        """Forget a token that was printed or given."""
        self._token = self._options.token

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: int = 0,
        may_be_missing: bool = False,
    ) -> dict[str, Any] | None:
        """Return the JSON object of an answer; None if the server says that the object does not
        exist, with the status that is expected. ``may_be_missing``: raise EndpointMissing if the
        service does not have the path."""
        try:
            return self._answer(method, path, body)
        except urllib.error.HTTPError as error:
            with error:
                code, message = self._words(error)
            # A page of something else on the way to the server is no word about the object.
            if error.code == expected and code:
                return None
            # NoSuchTableException and the like are about what is at the path.
            missing = error.code in _MISSING and not code.startswith("NoSuch")
            if may_be_missing and missing:
                raise EndpointMissing(message) from None
            raise self._error(error, code, message) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            shown = str(reason) or type(error).__name__
            raise self._options.unreachable(shown) from None

    def _answer(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """Send a request; once more with another token if the one before may have ended."""
        for again in (False, True):
            request = urllib.request.Request(
                f"{self.base}{path}",
                data=None if body is None else json.dumps(body).encode(),
                method=method,
                headers=self._headers(),
            )
            try:
                text = self._read(request)
                break
            except urllib.error.HTTPError as error:
                if again or error.code not in _REFUSED or not self._is_old():
                    raise
                error.close()
                self.forget()
        return self._object(text)

    def _read(self, request: urllib.request.Request) -> bytes:
        seconds = self._options.timeout_seconds
        with self._opener.open(request, timeout=seconds) as answer:
            content: bytes = answer.read(_MOST_BYTES)
        return content

    def _object(self, text: bytes) -> dict[str, Any]:
        try:
            document = json.loads(text) if text.strip() else {}
        except ValueError:
            raise self._options.unreachable("its answer is not JSON") from None
        if not isinstance(document, dict):
            raise self._options.unreachable("its answer is not a JSON object")
        return document

    def _is_old(self) -> bool:
        """Whether the token may have ended since it was printed or given."""
        changes = bool(self._options.command or self._options.credential)
        return changes and time.monotonic() - self._token_at >= _TOKEN_SECONDS

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if not self._token:
            if self._options.command:
                self._token, self._token_at = self._printed(), time.monotonic()
            elif self._options.credential:
                self._token, self._token_at = self._given(), time.monotonic()
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _printed(self) -> str:
        try:
            printed = run_command(self._options.command).strip()
            if not _TOKEN.fullmatch(printed):
                raise CredentialsCommandFailed("its output is not a token")
        except CredentialsCommandFailed as error:
            raise self._options.failed_command(error) from None
        return printed

    def _given(self) -> str:
        """Return a token for the credential."""
        client, _, secret = self._options.credential.partition(":")
        form: Mapping[str, str] = {
            "grant_type": "client_credentials",
            "client_id": client,
            "client_secret": secret,
            **({"scope": self._options.scope} if self._options.scope else {}),
        }
        request = urllib.request.Request(
            self._options.oauth_uri
            or f"{self._options.uri.rstrip('/')}/v1/oauth/tokens",
            data=urllib.parse.urlencode(form).encode(),
            method="POST",
        )
        try:
            answer = self._object(self._read(request))
        except urllib.error.HTTPError as error:
            with error:
                code, message = self._words(error)
            if error.code in (400, 401, 403):
                raise self._options.not_let_in(message) from None
            raise self._error(error, code, message) from None
        token = answer.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise self._options.not_let_in("it has given no token")
        return token

    def _error(
        self, error: urllib.error.HTTPError, code: str, message: str
    ) -> Wal2LakeError:
        if 300 <= error.code < 400:
            place = urllib.parse.urlsplit(error.headers.get("Location") or "").netloc
            host = place.rpartition("@")[2] or "unknown"
            return self._options.unreachable(f"it redirects to another place ({host})")
        if error.code == 401:
            self.forget()
            return self._options.not_let_in(message)
        if error.code == 403:
            return self._options.denied(message)
        return self._failed(error.code, code, message)

    def _words(self, error: urllib.error.HTTPError) -> tuple[str, str]:
        """Return the service's error code and words."""
        try:
            text = error.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            text = ""
        try:
            code, text = self._said(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError):
            code = text = ""
        return code, text[:_TEXT] or f"{error.code} {error.reason}"
