"""tsvector and tsquery: one value's text to its binary form. Called through ``values``.

Comes in: text from the output functions. Goes out: the binary form of the value with this text;
ValueError for other text. The text of ``a & (b & c)`` is ``a & b & c``, and is sent as that: it
has the same meaning, and is the value of a reader of the text.

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
"""MAXENTRYPOS, the maximal distance of a phrase."""


def tsvector_to_binary(text: bytes) -> bytes:
    """Lexemes in their order, each with positions; the upper two bits of a position are its
    weight."""
    shown = text.decode()
    lexemes: list[bytes] = []
    position = 0
    while position < len(shown):
        match = _LEXEME.match(shown, position)
        if match is None:
            raise ValueError("not a tsvector")
        places = match[2].split(",") if match[2] else []
        entries = [_entry(place) for place in places]
        lexemes.append(
            _string(match[1])
            + struct.pack(f"!H{len(entries)}H", len(entries), *entries)
        )
        position = match.end()
    return struct.pack("!I", len(lexemes)) + b"".join(lexemes)


def _entry(place: str) -> int:
    weight = _POSITION_WEIGHTS.get(place[-1], 0)
    return weight << 14 | int(place.rstrip("ABCD"))


def tsquery_to_binary(text: bytes) -> bytes:
    """An operator precedes its operands, and the right operand is first: the reverse of the order
    in which a stack of operators processes the text."""
    shown = text.decode()
    items: list[bytes] = []
    waiting: list[tuple[str, bytes]] = []
    position = 0
    while position < len(shown):
        if shown[position] == " ":
            position += 1
            continue
        match = _TOKEN.match(shown, position)
        if match is None:
            raise ValueError("not a tsquery")
        position = match.end()
        if match[1] is not None:
            items.append(_operand(match[1], match[2] or ""))
        elif match[3] == _OPEN:
            waiting.append((_OPEN, b""))
        elif match[3] == ")":
            _unwind(items, waiting, 1)
            if not waiting:
                raise ValueError("not a tsquery")
            waiting.pop()
        else:
            sign = match[3] or _PHRASE
            # NOT precedes its operand, so no waiting operator is complete yet.
            _unwind(items, waiting, _PRIORITY[sign] + (sign == _NOT))
            waiting.append((sign, _operator(sign, match[4] or "")))
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
    return _ESCAPED.sub(lambda match: match[0][0], quoted).encode() + b"\0"
