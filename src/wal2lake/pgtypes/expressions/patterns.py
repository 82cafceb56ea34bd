"""Regular expressions of row filters that have the same meaning in any locale.

Comes in: a pattern of PostgreSQL (ARE). Goes out: a Python pattern that matches the same texts, or
None if the pattern is not supported. Supported are:

    characters, . ^ $, \\ before a character that is no letter or digit, \\d \\f \\n \\r \\t \\v
    [...] and [^...] with characters and ranges, without classes
    * + ? {m} {m,} {m,n}, each optionally followed by ?
    | ( ) (?: )

A repeated group must not contain a repetition or an alternative: Python would try every division
of a text among them. A pattern that ignores case (``~*``) must be ASCII, because the case of other
letters depends on the locale.

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
"""Characters that cannot begin an atom."""


class _Unsupported(Exception):
    """The pattern is not supported."""


@lru_cache(maxsize=256)
def regular_expression(pattern: str, *, ignores_case: bool) -> re.Pattern[str] | None:
    """Return a Python pattern to search for; None: the pattern is not supported."""
    if ignores_case and not pattern.isascii():
        return None
    reader = _Reader(pattern)
    try:
        python, _ = reader.alternatives()
        if reader.rest:
            return None
    except (_Unsupported, RecursionError):
        return None
    flags = re.DOTALL | re.ASCII | (re.IGNORECASE if ignores_case else 0)
    return re.compile(python, flags)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0

    @property
    def rest(self) -> str:
        """Text that has not been read."""
        return self._pattern[self._position :]

    def _next(self) -> str:
        char = self._pattern[self._position : self._position + 1]
        if not char:
            raise _Unsupported
        self._position += 1
        return char

    def alternatives(self) -> tuple[str, bool]:
        """Read up to a closing parenthesis; also return whether the group may be repeated."""
        python, simple = self._branch()
        while self.rest.startswith("|"):
            self._position += 1
            branch, _ = self._branch()
            python, simple = f"{python}|{branch}", False
        return python, simple

    def _branch(self) -> tuple[str, bool]:
        parts, simple = [], True
        while self.rest and self.rest[0] not in "|)":
            char = self._next()
            if char in "^$":
                parts.append(r"\A" if char == "^" else r"\Z")
                if _QUANTIFIER.match(self.rest):
                    raise _Unsupported
                continue
            part, repeats = self._atom(char)
            quantifier = self._quantifier()
            if quantifier[:1] not in ("", "?") and not repeats:
                raise _Unsupported
            parts.append(part + quantifier)
            simple = simple and repeats and not quantifier
        return "".join(parts), simple

    def _quantifier(self) -> str:
        match = _QUANTIFIER.match(self.rest)
        if match is None:
            if self.rest.startswith("{"):
                raise _Unsupported
            return ""
        low, comma, high = match.groups()
        last = high or (None if comma else low)
        if low is not None and int(last or low) > _MOST:
            raise _Unsupported
        if low is not None and (int(low) > _MOST or int(low) > int(last or _MOST)):
            raise _Unsupported
        self._position += match.end()
        if self.rest[:1] in ("*", "+", "?", "{"):
            raise _Unsupported
        return match[0]

    def _atom(self, char: str) -> tuple[str, bool]:
        """Read an atom; also return whether it may be repeated."""
        match char:
            case ".":
                return ".", True
            case "[":
                return self._bracket(), True
            case "\\":
                return self._escape(), True
            case "(":
                if self.rest.startswith("?:"):
                    self._position += 2
                if self.rest[:1] in ("?", "*"):
                    raise _Unsupported
                inner, simple = self.alternatives()
                if self._next() != ")":
                    raise _Unsupported
                return f"(?:{inner})", simple
        if char in _SPECIAL:
            raise _Unsupported
        return re.escape(char), True

    def _escape(self) -> str:
        char = self._next()
        if char == "d":
            return "[0-9]"
        if char in "fnrtv":
            return f"\\{char}"
        if char.isalnum() or not char.isascii():
            raise _Unsupported
        return re.escape(char)

    def _bracket(self) -> str:
        negated = self.rest.startswith("^")
        self._position += negated
        parts: list[str] = []
        while True:
            char = self._next()
            if char == "]" and parts:
                break
            if char in "[\\":
                # A class or an escape.
                raise _Unsupported
            if self.rest.startswith("-") and self.rest[1:2] not in ("]", ""):
                self._position += 1
                last = self._next()
                if last in "[\\-" or last < char or char == "-":
                    raise _Unsupported
                parts.append(f"{re.escape(char)}-{re.escape(last)}")
                if self.rest.startswith("-") and self.rest[1:2] != "]":
                    raise _Unsupported
            else:
                parts.append(re.escape(char))
        return f"[{'^' if negated else ''}{''.join(parts)}]"
