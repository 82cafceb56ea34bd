"""Reads the OAuth tokens of Google and Azure that a command has printed. Pure.

In: JSON. Out: a token and its end, in the form that obstore wants. Each of these prints one:

    az account get-access-token --resource https://storage.azure.com
        {"accessToken": "...", "expires_on": 1767225600, "expiresOn": "2026-01-01 01:00:00.000000"}
    gcloud config config-helper --format=json
        {"credential": {"access_token": "...", "token_expiry": "2026-01-01T00:00:00Z"}}
    a server of tokens
        {"access_token": "...", "expires_in": 3599}

``expiresOn`` is local time, and older programs print nothing else. Sources: the manuals of both
programs; RFC 6749, section 5.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from wal2lake.lake.store.access.command import CredentialsCommandFailed


def read_token(printed: str) -> dict[str, Any]:
    """Read what a command has printed. CredentialsCommandFailed if this is no token in force."""
    try:
        document = json.loads(printed)
    except ValueError:
        raise CredentialsCommandFailed("its output is not JSON") from None
    if isinstance(document, dict) and isinstance(document.get("credential"), dict):
        document = document["credential"]
    if not isinstance(document, dict):
        raise CredentialsCommandFailed("its output is not a JSON object")
    token = document.get("accessToken") or document.get("access_token")
    if not (token and isinstance(token, str)):
        raise CredentialsCommandFailed(
            'its output has no "accessToken" or "access_token"'
        )
    try:
        end = _end_of(document)
    except (ValueError, TypeError, OverflowError):
        raise CredentialsCommandFailed(
            "the end of its token is not a time that is known here"
        ) from None
    if end is not None and end <= datetime.now(UTC):
        raise CredentialsCommandFailed("its credentials have expired")
    return {"token": token, "expires_at": end}


def _end_of(document: Mapping[str, Any]) -> datetime | None:
    """Return the end of a token; None if nothing is said about it."""
    if "expires_on" in document:
        return datetime.fromtimestamp(float(document["expires_on"]), UTC)
    if "expires_in" in document:
        return datetime.now(UTC) + timedelta(seconds=float(document["expires_in"]))
    if "token_expiry" in document:
        end = datetime.fromisoformat(document["token_expiry"])
        return end.replace(tzinfo=UTC) if end.tzinfo is None else end
    if "expiresOn" in document:
        # A time without a zone is taken for local time.
        return datetime.fromisoformat(document["expiresOn"]).astimezone(UTC)
    return None
