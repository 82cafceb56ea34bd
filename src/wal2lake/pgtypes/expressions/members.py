"""``->`` and ``->>``: a member of a json or jsonb value.

Comes in: the text of a value, and a key or an index. Goes out: the member's text, unchanged: the
text of a jsonb value is canonical, and so is the text of its parts.

Source: get_worker(), jsonb_object_field(), jsonb_array_element() etc. in jsonfuncs.c.
"""

from __future__ import annotations

from json import JSONDecoder
from typing import Final

from wal2lake.errors import UsageError

_SPACE: Final = " \t\n\r"

_DECODER: Final = JSONDecoder(parse_float=str, parse_int=str)


def member(value: bytes, wanted: bytes | int) -> bytes | None:
    """``->``: a member of an object by its key, or of an array by its index, which is negative
    from the end. None is NULL: there is no such member."""
    text = _find_member(value, wanted)
    return None if text is None else text.encode()


def member_text(value: bytes, wanted: bytes | int) -> bytes | None:
    """``->>``: as ``->``, but a string without its quotes, and null as NULL."""
    member_json = _find_member(value, wanted)
    if member_json is None or member_json == "null":
        return None
    if not member_json.startswith('"'):
        return member_json.encode()
    text: str = _DECODER.decode(member_json)
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


def _find_member(value: bytes, wanted: bytes | int) -> str | None:
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
    position = _past_space(text, 0)
    if text[position] != "{":
        return None
    member_json = None
    position = _past_space(text, position + 1)
    while text[position] == '"':
        name, position = _DECODER.raw_decode(text, position)
        position = _past_space(text, position)
        start, end = _value(text, position + 1)
        if name == key:
            # The last member with the name counts, as in PostgreSQL; jsonb has only one.
            member_json = text[start:end]
        position = _past_space(text, end)
        if text[position] != ",":
            break
        position = _past_space(text, position + 1)
    return member_json


def _of_array(text: str, place: int) -> str | None:
    position = _past_space(text, 0)
    if text[position] != "[":
        return None
    items = []
    position = _past_space(text, position + 1)
    while text[position] != "]":
        start, end = _value(text, position)
        items.append((start, end))
        position = _past_space(text, end)
        if text[position] == ",":
            position += 1
    if not -len(items) <= place < len(items):
        return None
    start, end = items[place]
    return text[start:end]


def _value(text: str, position: int) -> tuple[int, int]:
    """Return start and end of a value."""
    start = _past_space(text, position)
    return start, _DECODER.raw_decode(text, start)[1]


def _past_space(text: str, position: int) -> int:
    while text[position : position + 1] and text[position] in _SPACE:
        position += 1
    return position
