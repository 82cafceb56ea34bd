"""Regular expressions of row filters: those that mean the same in any locale.

Comes in: a pattern of PostgreSQL's (ARE). Goes out: one of Python's that matches the same texts; or
nothing. What is here:

    characters, . ^ $, \\ before what is no letter or digit, \\d \\f \\n \\r \\t \\v
    [...] and [^...] with characters and ranges, without classes
    * + ? {m} {m,} {m,n}, each maybe with ? behind it
    | ( ) (?: )

A group that is repeated has neither a repetition nor an alternative in it: Python would try every
way to divide a text among them. Without regard to case (``~*``) a pattern has ASCII only: which
case other letters have is a locale's to say.

Source: the manual, 9.7.3; regc_lex.c, regcomp.c.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{([0-9]{1,3})(?:(,)([0-9]{1,3})?)?\})\??")
_MOST: Final = 255
"""DUPMAX."""
_SPECIAL: Final = frozenset("*+?{|)")
"""Characters of which none begins an atom."""


class _Other(Exception):
    """It is not among them."""


@lru_cache(maxsize=256)
def regular_expression(pattern: str, *, ignores_case: bool) -> re.Pattern[str] | None:
    """To be searched for in a text; None: it is none of those."""
    if ignores_case and not pattern.isascii():
        return None
    reader = _Reader(pattern)
    try:
        python, _ = reader.alternatives()
        if reader.rest:
            return None
    except (_Other, RecursionError):
        return None
    flags = re.DOTALL | re.ASCII | (re.IGNORECASE if ignores_case else 0)
    return re.compile(python, flags)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def rest(self) -> str:
        """Text that has not been read."""
        return self._pattern[self._at :]

    def _next(self) -> str:
        found = self._pattern[self._at : self._at + 1]
        if not found:
            raise _Other
        self._at += 1
        return found

    def alternatives(self) -> tuple[str, bool]:
        """Up to a closing parenthesis; whether they may be repeated."""
        found, simple = self._branch()
        while self.rest.startswith("|"):
            self._at += 1
            more, _ = self._branch()
            found, simple = f"{found}|{more}", False
        return found, simple

    def _branch(self) -> tuple[str, bool]:
        parts, simple = [], True
        while self.rest and self.rest[0] not in "|)":
            char = self._next()
            if char in "^$":
                parts.append(r"\A" if char == "^" else r"\Z")
                if _QUANTIFIER.match(self.rest):
                    raise _Other
                continue
            part, repeats = self._atom(char)
            quantifier = self._quantifier()
            if quantifier[:1] not in ("", "?") and not repeats:
                raise _Other
            parts.append(part + quantifier)
            simple = simple and repeats and not quantifier
        return "".join(parts), simple

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self.rest)
        if found is None:
            if self.rest.startswith("{"):
                raise _Other
            return ""
        low, comma, high = found.groups()
        last = high or (None if comma else low)
        if low is not None and int(last or low) > _MOST:
            raise _Other
        if low is not None and (int(low) > _MOST or int(low) > int(last or _MOST)):
            raise _Other
        self._at += found.end()
        if self.rest[:1] in ("*", "+", "?", "{"):
            raise _Other
        return found[0]

    def _atom(self, char: str) -> tuple[str, bool]:
        """And whether it may be repeated."""
        match char:
            case ".":
                return ".", True
            case "[":
                return self._bracket(), True
            case "\\":
                return self._escape(), True
            case "(":
                if self.rest.startswith("?:"):
                    self._at += 2
                if self.rest[:1] in ("?", "*"):
                    raise _Other
                inner, simple = self.alternatives()
                if self._next() != ")":
                    raise _Other
                return f"(?:{inner})", simple
        if char in _SPECIAL:
            raise _Other
        return re.escape(char), True

    def _escape(self) -> str:
        char = self._next()
        if char == "d":
            return "[0-9]"
        if char in "fnrtv":
            return f"\\{char}"
        if char.isalnum() or not char.isascii():
            raise _Other
        return re.escape(char)

    def _bracket(self) -> str:
        negated = self.rest.startswith("^")
        self._at += negated
        parts: list[str] = []
        while True:
            char = self._next()
            if char == "]" and parts:
                break
            if char in "[\\":
                # A class, an escape.
                raise _Other
            if self.rest.startswith("-") and self.rest[1:2] not in ("]", ""):
                self._at += 1
                last = self._next()
                if last in "[\\-" or last < char or char == "-":
                    raise _Other
                parts.append(f"{re.escape(char)}-{re.escape(last)}")
                if self.rest.startswith("-") and self.rest[1:2] != "]":
                    raise _Other
            else:
                parts.append(re.escape(char))
        return f"[{'^' if negated else ''}{''.join(parts)}]"
