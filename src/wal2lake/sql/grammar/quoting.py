"""Folds and cuts identifiers, and quotes constants.

Comes in: names and values. Goes out: the form in which PostgreSQL stores an unquoted name, and
text that reads back as the same value.

Sources: src/backend/parser/scansup.c; quote_identifier() in ruleutils.c; quote.c.
"""

from __future__ import annotations

from typing import Final

NAME_BYTES: Final = 63
"""NAMEDATALEN - 1. Longer identifiers are cut, as in PostgreSQL."""

_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def fold(name: str) -> str:
    """An unquoted identifier as PostgreSQL stores it: only ASCII letters are folded."""
    return name.translate(_FOLD)


def truncate_identifier(name: str) -> str:
    """Cut a name to NAME_BYTES, at the end of a character."""
    raw = name.encode()
    if len(raw) <= NAME_BYTES:
        return name
    return raw[:NAME_BYTES].decode(errors="ignore")


def quote_literal(text: str) -> str:
    """quote_literal(): an escape string, with a space before it, if there are backslashes."""
    quoted = "'" + text.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted
