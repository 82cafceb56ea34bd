"""Names and constants as they are pasted into statements."""

from __future__ import annotations

from wal2lake.pgtypes.keywords import quote_literal

__all__ = ["quote_ident", "quote_literal", "quote_literals"]


def quote_ident(name: str) -> str:
    """An identifier, always safe to paste into a statement."""
    return '"' + name.replace('"', '""') + '"'


def quote_literals(texts: tuple[str, ...]) -> str:
    """Several constants, with commas between them."""
    return ", ".join(quote_literal(text) for text in texts)
