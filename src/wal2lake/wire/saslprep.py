"""SASLprep (RFC 4013) as PostgreSQL applies it to passwords.

In: a password as the user typed it. Out: the bytes that SCRAM hashes. Both ends must agree, and the
other end is libpq, so this module follows PostgreSQL's interpretation of the RFC, including its
deviations:

- pure ASCII is used unchanged, including control characters;
- prohibited and unassigned characters are searched in the mapped text before normalisation;
- a password that fails (also bytes that are not UTF-8) is used raw, never refused, because the
  server cannot see from a stored verifier what its password was.

Source: src/common/saslprep.c (pg_saslprep); RFC 3454, tables B and C.
"""

from __future__ import annotations

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)
"""RFC 4013, sections 2.3 and 2.5 (unassigned code points of Unicode 3.2)."""


def saslprep(password: bytes) -> bytes:
    """Prepare a password; returns it unchanged if the profile refuses it."""
    if password.isascii():
        return password
    try:
        text = password.decode("utf-8")
    except UnicodeDecodeError:
        return password
    prepared = _prepare(text)
    return password if prepared is None else prepared.encode("utf-8")


def _prepare(text: str) -> str | None:
    """Return the prepared text, or None if the profile refuses it."""
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c
        for c in text
        if not stringprep.in_table_b1(c)
    )
    if not mapped:
        return None
    normal = unicodedata.normalize("NFKC", mapped)
    if any(prohibits(c) for c in mapped for prohibits in _PROHIBITED):
        return None
    return normal if _is_well_directed(mapped) else None


def _is_well_directed(text: str) -> bool:
    """RFC 3454, section 6: right-to-left text must be right-to-left throughout."""
    if not any(map(stringprep.in_table_d1, text)):
        return True
    if any(map(stringprep.in_table_d2, text)):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
