"""``->`` and ``->>``: a member of a json or jsonb value.

Comes in: the text of a value, and a key or a place. Goes out: the member's text, as it stands
there: the text of a jsonb value is canonical, and so are its parts'.

Source: get_worker() in jsonfuncs.c, jsonb_object_field(), jsonb_array_element() and their kin.
"""

from __future__ import annotations

from json import JSONDecoder
from typing import Final

from wal2lake.errors import UsageError

_SPACE: Final = " \t\n\r"

_DECODER: Final = JSONDecoder(parse_float=str, parse_int=str)


def member(value: bytes, wanted: bytes | int) -> bytes | None:
    """``->``: of an object by its key, of an array by its place, which may count from the end;
    None is NULL: there is none."""
    found = _found(value, wanted)
    return None if found is None else found.encode()


def member_text(value: bytes, wanted: bytes | int) -> bytes | None:
    """``->>``: a string without its quotes, and null as NULL."""
    found = _found(value, wanted)
    if found is None or found == "null":
        return None
    if not found.startswith('"'):
        return found.encode()
    text: str = _DECODER.decode(found)
    if "\0" in text:
        raise UsageError(
            "unsupported Unicode escape sequence",
            sqlstate="22P05",
            detail="\\u0000 cannot be converted to text.",
        )
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _invalid() from None


def _found(value: bytes, wanted: bytes | int) -> str | None:
    text = value.decode()
    try:
        if isinstance(wanted, bytes):
            return _of_object(text, wanted.decode())
        return _of_array(text, wanted)
    except (ValueError, IndexError, RecursionError):
        raise _invalid() from None


def _invalid() -> UsageError:
    return UsageError("invalid input syntax for type json", sqlstate="22P02")


def _of_object(text: str, key: str) -> str | None:
    at = _past_space(text, 0)
    if text[at] != "{":
        return None
    found = None
    at = _past_space(text, at + 1)
    while text[at] == '"':
        name, at = _DECODER.raw_decode(text, at)
        at = _past_space(text, at)
        start, end = _value(text, at + 1)
        if name == key:
            # The last one of that name, as in PostgreSQL; jsonb has one.
            found = text[start:end]
        at = _past_space(text, end)
        if text[at] != ",":
            break
        at = _past_space(text, at + 1)
    return found


def _of_array(text: str, place: int) -> str | None:
    at = _past_space(text, 0)
    if text[at] != "[":
        return None
    items = []
    at = _past_space(text, at + 1)
    while text[at] != "]":
        start, end = _value(text, at)
        items.append((start, end))
        at = _past_space(text, end)
        if text[at] == ",":
            at += 1
    if not -len(items) <= place < len(items):
        return None
    start, end = items[place]
    return text[start:end]


def _value(text: str, at: int) -> tuple[int, int]:
    """Where a value begins and ends."""
    start = _past_space(text, at)
    return start, _DECODER.raw_decode(text, start)[1]


def _past_space(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at
