"""Reads the places that settings name: paths and URLs.

In: the text of a setting. Out: a path or a URL. Called by ``sections`` and ``loading``.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def file_url_path(text: str) -> str | None:
    """Return the percent-decoded path of a ``file:`` URL. None: the text is no such URL, names
    another host, or has a query or fragment (in a path, ``#`` and ``?`` are %23 and %3F)."""
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    if "#" in text or "?" in text:
        return None
    return unquote(parts.path) if parts.path.startswith("/") else None


def store_of_log(chosen: str, warehouse: str) -> str | None:
    """Return the place of the log's store: the setting, else beside a ``warehouse`` in an object
    store; None: there is none."""
    if chosen:
        path = file_url_path(chosen)
        return (path or chosen).rstrip("/")
    scheme, separator, rest = warehouse.partition("://")
    if not separator or scheme == "file" or "/" not in rest:
        return None
    return f"{warehouse}-log"
