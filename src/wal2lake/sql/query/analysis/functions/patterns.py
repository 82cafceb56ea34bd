"""Translates regular expressions that mean the same in PostgreSQL and in Java.

Comes in: constant patterns and the texts to match. Goes out: operands. Called by ``rules`` and
``calls``.

PostgreSQL's advanced regular expressions and Java's look alike but differ in meaning. A pattern is
parsed here, and written anew for Java. Only these constructs are accepted:

    characters, ``.``, ``[...]`` with ranges, ``\\d \\s`` and their classes, ``^ $``
    groups, ``|``, and ``* + ? {m,n}`` of single characters and classes

PostgreSQL takes the longest match, and Java the first one that it finds. Both are the same for a
pattern without alternatives whose repeated parts are single characters. If the length of the match
matters, other patterns are refused. ``\\w`` is refused: it depends on the database's locale.

Sources: PostgreSQL manual 9.7.3; java.util.regex.Pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from wal2lake.sql.query.analysis.functions.strings import (
    constant_text,
    text,
)
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, plain

_TEXT: Final = plain(t.TEXT)
_TEXTS: Final = plain(1009)

_SHORTHANDS: Final = {
    "d": "0-9",
    "s": r" \t\n\x0B\f\r",
}
_CLASSES: Final = {
    "[:digit:]": "0-9",
    "[:space:]": r" \t\n\x0B\f\r",
    "[:xdigit:]": "0-9A-Fa-f",
}
_CONTROL: Final = {"n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f"}
_BOUND: Final = re.compile(r"\{(\d{1,3})(?:(,)(\d{1,3})?)?\}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that means the same in both systems."""

    java: str
    groups: int
    """The number of capturing groups."""
    plain: bool
    """Whether Java finds the longest match."""
    empty: bool
    """Whether the pattern may match the empty string."""


class _Reader:
    """Parses one pattern by recursive descent."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.place = 0
        self.groups = 0
        self.plain = True

    def refuse(self) -> Exception:
        return t.refuse(
            f'the regular expression "{self.source}"',
            "Characters, [classes], groups, | and * + ? {m,n} are understood.",
        )

    def read(self) -> Pattern:
        if not self.source or self.source.startswith("***"):
            raise self.refuse()
        java, empty = self._alternatives(0)
        if self.place < len(self.source):
            raise self.refuse()
        return Pattern(java, self.groups, self.plain, empty)

    def _alternatives(self, depth: int) -> tuple[str, bool]:
        branches = [self._branch(depth)]
        while self.source[self.place : self.place + 1] == "|":
            self.place += 1
            self.plain = False
            branches.append(self._branch(depth))
        return "|".join(b for b, _ in branches), any(e for _, e in branches)

    def _branch(self, depth: int) -> tuple[str, bool]:
        parts: list[str] = []
        empty = True
        start = self.place
        while self.place < len(self.source) and self.source[self.place] not in "|)":
            part, single, may_be_empty = self._atom(depth)
            repeat, may_repeat_zero = self._repeat()
            if repeat and not single:
                if part in (r"\A", r"\z"):
                    raise self.refuse()
                self.plain = False
            empty = empty and (may_be_empty or may_repeat_zero)
            parts.append(part + repeat)
        if self.place == start or (
            depth == 0 and self.source[self.place : self.place + 1] == ")"
        ):
            raise self.refuse()
        return "".join(parts), empty

    def _repeat(self) -> tuple[str, bool]:
        character = self.source[self.place : self.place + 1]
        if character in ("*", "+", "?") and character:
            self.place += 1
            quantifier, may_be_empty = character, character != "+"
        elif character == "{":
            bound = _BOUND.match(self.source, self.place)
            if bound is None or int(bound[1]) > 255 or int(bound[3] or 0) > 255:
                raise self.refuse()
            if bound[3] and int(bound[3]) < int(bound[1]):
                raise self.refuse()
            self.place = bound.end()
            quantifier, may_be_empty = bound[0], int(bound[1]) == 0
        else:
            return "", False
        if self.source[self.place : self.place + 1] in (
            "*",
            "+",
            "?",
            "{",
        ) and self.place < len(self.source):
            # A second quantifier: non-greedy, or an error.
            raise self.refuse()
        return quantifier, may_be_empty

    def _atom(self, depth: int) -> tuple[str, bool, bool]:
        """Java's text, whether the atom is one character, whether it may match nothing."""
        character = self.source[self.place]
        self.place += 1
        if character == "(":
            return self._group(depth)
        if character == "[":
            return self._class(), True, False
        if character == ".":
            return r"[\x00-\x{10FFFF}]", True, False
        if character == "^":
            return r"\A", False, True
        if character == "$":
            return r"\z", False, True
        if character == "\\":
            return self._escape(), True, False
        if character in "*+?{":
            raise self.refuse()
        return _literal(character), True, False

    def _group(self, depth: int) -> tuple[str, bool, bool]:
        capture = True
        if self.source[self.place : self.place + 1] == "?":
            if self.source[self.place : self.place + 2] != "?:":
                raise self.refuse()
            self.place += 2
            capture = False
        else:
            self.groups += 1
        inner, empty = self._alternatives(depth + 1)
        if self.source[self.place : self.place + 1] != ")":
            raise self.refuse()
        self.place += 1
        return ("(" if capture else "(?:") + inner + ")", False, empty

    def _escape(self) -> str:
        letter = self.source[self.place : self.place + 1]
        self.place += 1
        if letter.lower() in _SHORTHANDS and letter:
            inside = _SHORTHANDS[letter.lower()]
            return f"[{'^' if letter.isupper() else ''}{inside}]"
        if letter in _CONTROL:
            return _CONTROL[letter]
        if not letter or letter.isalnum() or not letter.isascii():
            raise self.refuse()
        return _literal(letter)

    def _class(self) -> str:
        negated = self.source[self.place : self.place + 1] == "^"
        self.place += negated
        inside: list[str] = []
        first = True
        while True:
            character = self.source[self.place : self.place + 1]
            if not character:
                raise self.refuse()
            if character == "]" and not first:
                self.place += 1
                break
            first = False
            named = next(
                (n for n in _CLASSES if self.source.startswith(n, self.place)), None
            )
            if named is not None:
                self.place += len(named)
                inside.append(_CLASSES[named])
                continue
            low = self._member()
            if len(low) > 2 and not low.startswith("\\"):
                inside.append(low)
                continue
            after = self.source[self.place : self.place + 2]
            if after[:1] == "-" and after[1:] not in ("]", ""):
                self.place += 1
                high = self._member()
                if not (low.isalnum() and high.isalnum() and low <= high):
                    raise self.refuse()
                inside.append(f"{low}-{high}")
                continue
            inside.append(low)
        return f"[{'^' if negated else ''}{''.join(inside)}]"

    def _member(self) -> str:
        character = self.source[self.place]
        self.place += 1
        if character == "[" and self.source[self.place : self.place + 1] in (
            ":",
            ".",
            "=",
        ):
            raise self.refuse()
        if character == "\\":
            letter = self.source[self.place : self.place + 1]
            self.place += 1
            if letter in _SHORTHANDS:
                return _SHORTHANDS[letter]
            if letter in _CONTROL:
                return _CONTROL[letter]
            if not letter or letter.isalnum():
                raise self.refuse()
            return _literal(letter)
        return _literal(character)


def _literal(character: str) -> str:
    if character.isalnum() or character in " _" or not character.isascii():
        return character
    if character < " ":
        return f"\\x{ord(character):02x}"
    return "\\" + character


def read(name: str, operand: Operand) -> Pattern:
    """Parse a constant pattern; raises 0A000 if the systems might differ in its meaning."""
    return _Reader(constant_text(name, operand)).read()


def _java(pattern: str, fold: bool = False) -> exp.Expression:
    return exp.Literal.string(("(?i)" if fold else "") + pattern)


def matches(operand: Operand, pattern: Operand, fold: bool, zone: str) -> Operand:
    """Translate ``~`` and ``~*``."""
    java_pattern = read("~", pattern)
    if fold and not java_pattern.java.isascii():
        raise t.refuse("~* with letters beyond ASCII")
    # The operator of char sees the blanks.
    seen = operand.node
    if operand.type.oid != t.BPCHAR:
        seen = text("~", operand, zone)
    node = spark("(:x rlike :p)", x=seen, p=_java(java_pattern.java, fold))
    return Operand(node, plain(t.BOOL))


def like(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate regexp_like()."""
    value = Operand(text(name, operands[0], zone), _TEXT)
    return matches(value, operands[1], False, zone)


def _definite(name: str, operand: Operand) -> Pattern:
    pattern = read(name, operand)
    if not pattern.plain:
        raise t.refuse(
            f"{name}() with a regular expression that has alternatives, or repeats a"
            " group"
        )
    return pattern


def replace(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate regexp_replace() of the first match, or of all matches with ``g``."""
    pattern = _definite(name, operands[1])
    flags = constant_text(name, operands[3]) if len(operands) == 4 else ""
    if set(flags) - set("gi") or ("i" in flags and not pattern.java.isascii()):
        raise t.refuse(f'regexp_replace() with the flags "{flags}"')
    replacement = constant_text(name, operands[2])
    everywhere = "g" in flags
    if everywhere and pattern.empty:
        raise t.refuse("regexp_replace() of all matches, of which some may be empty")
    java_replacement = _replacement(replacement, pattern.groups, 0 if everywhere else 2)
    java = pattern.java
    if not everywhere:
        # The text before the first match is kept.
        java, java_replacement = (
            rf"\A([\x00-\x{{10FFFF}}]*?)({pattern.java})",
            "$1" + java_replacement,
        )
    node = spark(
        "regexp_replace(:x, :p, :r)",
        x=text(name, operands[0], zone),
        p=_java(java, "i" in flags),
        r=exp.Literal.string(java_replacement),
    )
    return Operand(node, _TEXT)


def _replacement(replacement: str, groups: int, before: int) -> str:
    """Rewrite PostgreSQL's ``\\1`` and ``\\&`` as Java's ``$1`` and ``$0``."""

    def reference(match_: re.Match[str]) -> str:
        escape = match_[1]
        if escape == "&":
            return f"${before}"
        if escape is not None and escape.isdigit() and escape != "0":
            if int(escape) > groups:
                return ""
            return f"${int(escape) + before}"
        if escape == "\\":
            return r"\\"
        raise t.refuse(f'regexp_replace() with the replacement "{replacement}"')

    if groups + before > 9:
        raise t.refuse("regexp_replace() with so many groups")
    if re.search(r"\\[1-9&]\d", replacement):
        raise t.refuse(f'regexp_replace() with the replacement "{replacement}"')
    parts = re.split(r"(\\.|\\\Z)", replacement, flags=re.DOTALL)
    java_parts = []
    for part in parts:
        if part.startswith("\\"):
            match_ = re.fullmatch(r"\\(.)?", part, re.DOTALL)
            assert match_ is not None
            java_parts.append(reference(match_))
        else:
            java_parts.append(part.replace("$", r"\$"))
    return "".join(java_parts)


def match(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate regexp_match(): the groups of the first match, or the whole match."""
    pattern = _definite(name, operands[1])
    places = range(1, pattern.groups + 1) if pattern.groups else (0,)
    p = _quoted(pattern.java)
    items = ", ".join(f"regexp_extract(:x, {p}, {place})" for place in places)
    node = let(
        f"if(:x rlike {p}, array({items}), null)",
        x=text(name, operands[0], zone),
    )
    return Operand(node, _TEXTS)


def extracted(operand: Operand, pattern_operand: Operand, zone: str) -> Operand:
    """Translate substring(text from pattern)."""
    pattern = _definite("substring", pattern_operand)
    p = _quoted(pattern.java)
    place = 1 if pattern.groups else 0
    node = let(
        f"if(:x rlike {p}, regexp_extract(:x, {p}, {place}), null)",
        x=text("substring", operand, zone),
    )
    return Operand(node, _TEXT)


def split(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate regexp_split_to_array()."""
    pattern = _definite(name, operands[1])
    if pattern.empty:
        raise t.refuse(f"{name}() at what may be empty")
    value = text(name, operands[0], zone)
    return Operand(spark("split(:x, :p, -1)", x=value, p=_java(pattern.java)), _TEXTS)


def _quoted(pattern: str) -> str:
    inner = pattern.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inner}'"
