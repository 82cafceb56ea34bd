"""Quotes identifiers and constants for SQL text."""

from __future__ import annotations

from wal2lake.pgtypes.keywords import quote_literal

__all__ = ["quote_ident", "quote_literal", "quote_literals"]


def quote_ident(name: str) -> str:
    """Return the identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_literals(texts: tuple[str, ...]) -> str:
    """Return the constants, quoted and separated by commas."""
    return ", ".join(quote_literal(text) for text in texts)
