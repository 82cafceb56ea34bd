"""Names and constants as they are pasted into statements."""

from __future__ import annotations


def quote_ident(name: str) -> str:
    """An identifier, always safe to paste into a statement."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A string constant, standard_conforming_strings on or off."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


def quote_literals(texts: tuple[str, ...]) -> str:
    """Several constants, with commas between them."""
    return ", ".join(quote_literal(text) for text in texts)
