"""tsvector and tsquery: one value's text to its binary form. Called through ``values``.

Comes in: text as the output functions write it. Goes out: what is sent of the value that this text
is; ValueError for other text. The text of ``a & (b & c)`` is ``a & b & c``, and as that it is sent:
it means the same, and is what a reader of the text would have.

Sources: tsvectorsend in tsvector.c; tsquerysend and makepol in tsquery.c. The readers are in
``receive.value.textsearch``.
"""

from __future__ import annotations

import re
import struct
from typing import Final

_QUOTED: Final = r"'((?:[^'\\]|''|\\\\)*)'"
_LEXEME: Final = re.compile(rf"{_QUOTED}(?::([0-9A-D,]+))?(?: |\Z)")
_TOKEN: Final = re.compile(rf"{_QUOTED}(?::([*A-D]+))?|([()!&|])|<(-|\d+)>")
_ESCAPED: Final = re.compile(r"''|\\\\")

_POSITION_WEIGHTS: Final = {"A": 3, "B": 2, "C": 1}
_QUERY_WEIGHTS: Final = {"*": 0, "A": 8, "B": 4, "C": 2, "D": 1}

_NOT, _AND, _OR, _PHRASE, _OPEN = "!", "&", "|", "<", "("
_CODES: Final = {_NOT: 1, _AND: 2, _OR: 3, _PHRASE: 4}
_PRIORITY: Final = {_OPEN: 0, _OR: 1, _AND: 2, _PHRASE: 3, _NOT: 4}
_LONGEST: Final = 1 << 14
"""MAXENTRYPOS: of a phrase's distance."""


def tsvector_to_binary(text: bytes) -> bytes:
    """Lexemes in their order, each with positions whose upper two bits are a weight."""
    shown = text.decode()
    lexemes: list[bytes] = []
    at = 0
    while at < len(shown):
        found = _LEXEME.match(shown, at)
        if found is None:
            raise ValueError("not a tsvector")
        places = found[2].split(",") if found[2] else []
        entries = [_entry(place) for place in places]
        lexemes.append(
            _string(found[1])
            + struct.pack(f"!H{len(entries)}H", len(entries), *entries)
        )
        at = found.end()
    return struct.pack("!I", len(lexemes)) + b"".join(lexemes)


def _entry(place: str) -> int:
    weight = _POSITION_WEIGHTS.get(place[-1], 0)
    return weight << 14 | int(place.rstrip("ABCD"))


def tsquery_to_binary(text: bytes) -> bytes:
    """An operator before its operands, the right operand first: the reverse of what a stack of
    operators makes of the text."""
    shown = text.decode()
    items: list[bytes] = []
    waiting: list[tuple[str, bytes]] = []
    at = 0
    while at < len(shown):
        if shown[at] == " ":
            at += 1
            continue
        found = _TOKEN.match(shown, at)
        if found is None:
            raise ValueError("not a tsquery")
        at = found.end()
        if found[1] is not None:
            items.append(_operand(found[1], found[2] or ""))
        elif found[3] == _OPEN:
            waiting.append((_OPEN, b""))
        elif found[3] == ")":
            _unwind(items, waiting, 1)
            if not waiting:
                raise ValueError("not a tsquery")
            waiting.pop()
        else:
            sign = found[3] or _PHRASE
            # NOT stands before its operand: nothing that waits is complete yet.
            _unwind(items, waiting, _PRIORITY[sign] + (sign == _NOT))
            waiting.append((sign, _operator(sign, found[4] or "")))
    _unwind(items, waiting, 1)
    if waiting:
        raise ValueError("not a tsquery")
    return struct.pack("!I", len(items)) + b"".join(reversed(items))


def _unwind(items: list[bytes], waiting: list[tuple[str, bytes]], least: int) -> None:
    while waiting and _PRIORITY[waiting[-1][0]] >= least:
        items.append(waiting.pop()[1])


def _operand(lexeme: str, flags: str) -> bytes:
    weights = sum(_QUERY_WEIGHTS[flag] for flag in flags)
    return bytes((1, weights, "*" in flags)) + _string(lexeme)


def _operator(sign: str, distance: str) -> bytes:
    code = bytes((2, _CODES[sign]))
    if sign != _PHRASE:
        return code
    number = 1 if distance == "-" else int(distance)
    if number > _LONGEST:
        raise ValueError("not a tsquery")
    return code + struct.pack("!H", number)


def _string(quoted: str) -> bytes:
    return _ESCAPED.sub(lambda found: found[0][0], quoted).encode() + b"\0"
