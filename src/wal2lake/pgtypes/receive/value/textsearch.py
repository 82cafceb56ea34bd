"""tsvector and tsquery: one binary value to text. Called through ``scalar``.

Sources: tsvectorsend and tsvectorout in tsvector.c; tsquerysend, tsqueryout and infix in
tsquery.c.
"""

from __future__ import annotations

from wal2lake.pgtypes.binary import incorrect_format
from wal2lake.pgtypes.receive.value.cursor import ValueCursor

_VALUE, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}
_POSITION_WEIGHTS = ("", "C", "B", "A")
_QUERY_WEIGHTS = ((8, "A"), (4, "B"), (2, "C"), (1, "D"))
_MAX_DEPTH = 400
"""Maximal depth of nested operators, because Python's own stack is limited."""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def read_tsvector(data: bytes) -> str:
    """Lexemes, each with positions; the upper two bits of a position are its weight."""
    cursor = ValueCursor(data)
    shown = []
    for _ in range(cursor.number("I")):
        lexeme = _quoted(cursor.string())
        places = []
        for _ in range(cursor.number("H")):
            entry = cursor.number("H")
            places.append(f"{entry & 0x3FFF}{_POSITION_WEIGHTS[entry >> 14]}")
        shown.append(f"{lexeme}:{','.join(places)}" if places else lexeme)
    cursor.end()
    return " ".join(shown)


def read_tsquery(data: bytes) -> str:
    """The tree: an operator precedes its operands, and the right operand is first."""
    cursor = ValueCursor(data)
    if cursor.number("I") == 0:
        cursor.end()
        return ""
    text = _infix(cursor, 0, -1, right_of_phrase=False)
    cursor.end()
    return text


def _infix(
    cursor: ValueCursor, depth: int, outer: int, *, right_of_phrase: bool
) -> str:
    kind = cursor.number("B")
    if kind == _VALUE:
        weight, prefix = cursor.number("B"), cursor.number("B")
        text = _quoted(cursor.string())
        flags = "*" if prefix else ""
        flags += "".join(letter for bit, letter in _QUERY_WEIGHTS if weight & bit)
        return f"{text}:{flags}" if flags else text
    operator = cursor.number("b")
    if kind != _OPERATOR or operator not in _PRIORITY or depth > _MAX_DEPTH:
        raise incorrect_format()
    priority = _PRIORITY[operator]
    parentheses = priority < outer
    if operator == _NOT:
        text = "!" + _infix(cursor, depth + 1, priority, right_of_phrase=False)
    else:
        parentheses = parentheses or (operator == _PHRASE and right_of_phrase)
        sign = {_AND: "&", _OR: "|"}.get(operator)
        if sign is None:
            distance = cursor.number("H")
            sign = "<->" if distance == 1 else f"<{distance}>"
        phrase = operator == _PHRASE
        right = _infix(cursor, depth + 1, priority, right_of_phrase=phrase)
        left = _infix(cursor, depth + 1, priority, right_of_phrase=False)
        text = f"{left} {sign} {right}"
    return f"( {text} )" if parentheses else text
