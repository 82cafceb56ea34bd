"""Identifiers and constants, from their text and back into it.

Comes in: names and values. Goes out: what PostgreSQL stores of an unquoted name, and text that
reads back as the same name or value.

Sources: src/backend/parser/scansup.c; quote_identifier() in ruleutils.c; quote.c.
"""

from __future__ import annotations

from typing import Final

NAME_BYTES: Final = 63
"""NAMEDATALEN - 1: longer identifiers are cut, as PostgreSQL does."""

_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def fold(name: str) -> str:
    """An unquoted identifier as PostgreSQL stores it: only ASCII letters fold."""
    return name.translate(_FOLD)


def truncate_identifier(name: str) -> str:
    """As much of a name as PostgreSQL keeps; never a part of a character."""
    raw = name.encode()
    if len(raw) <= NAME_BYTES:
        return name
    return raw[:NAME_BYTES].decode(errors="ignore")


def quote_literal(text: str) -> str:
    """quote_literal(): an escape string where there are backslashes."""
    quoted = "'" + text.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted
