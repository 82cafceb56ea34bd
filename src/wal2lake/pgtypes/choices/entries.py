"""``target = choice, target = choice``: the syntax of type_mappings and value_policies.

Comes in: an option's text. Goes out: entries in the order of the text, and the most specific entry
for a column. Pure. Called by ``types`` and ``policies``.

A target is

    *                          every column (policies only)
    numeric, timestamp(3)[]    a built-in type; without a modifier it means all modifiers
    mood, public.mood          a type that is not built in, in any or in one schema
    public.orders.note         a column, by its name at the publisher

The number of dots distinguishes types and columns. Names are folded to lower case unless they are
quoted, as in SQL. The most specific entry wins: column, type with its modifier, type, ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from wal2lake.errors import UndefinedObjectError, UsageError, Wal2LakeError
from wal2lake.pgtypes.registry.type_names import parse_type_name

Choice = TypeVar("Choice")

_NAME: Final = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_NAMES: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*\Z")
_ONE_NAME: Final = re.compile(_NAME)


class Match(IntEnum):
    """How specific a target is; higher wins."""

    ALL = 1
    """``*``."""
    TYPE = 2
    """A type with any modifier."""
    EXACT = 3
    """A type with its modifier."""
    COLUMN = 4
    """One column."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the publisher."""

    namespace: str
    table: str
    name: str
    type_oid: int
    typmod: int = -1
    type_name: str | None = None
    """``schema.name`` of a type that is not built in."""
    dimensions: int = 0
    domain: str | None = None
    """``schema.name`` of the column's domain; ``type_oid`` is the base type."""

    @property
    def qualified(self) -> str:
        """``schema.table.column`` for messages."""
        return f"{self.namespace}.{self.table}.{self.name}"


@dataclass(frozen=True, slots=True)
class ChoiceTarget:
    """The target of an entry."""

    text: str
    """The target's text as written."""
    match: Match
    names: tuple[str, ...] = ()
    """Parts of the name of a column, or of a type that is not built in."""
    type_oid: int = 0
    """OID of a built-in type."""
    typmod: int = -1

    def fits(self, column: SourceColumn) -> bool:
        """Return whether the target includes this column."""
        if self.match is Match.COLUMN:
            return self.names == (column.namespace, column.table, column.name)
        if self.match is Match.ALL:
            return True
        if self.type_oid:
            if self.match is Match.EXACT and self.typmod != column.typmod:
                return False
            return self.type_oid == column.type_oid
        named = (column.domain, column.type_name)
        return any(
            self.names == tuple(name.split(".", 1))[-len(self.names) :]
            for name in named
            if name is not None
        )


@dataclass(frozen=True, slots=True)
class ChoiceEntry(Generic[Choice]):
    """One ``target = choice``."""

    target: ChoiceTarget
    choice: Choice


def parse_entries(
    option: str, text: str, read: Callable[[ChoiceTarget, str], Choice]
) -> tuple[ChoiceEntry[Choice], ...]:
    """Parse all entries; ``read`` converts the text of a choice. UsageError (22023) for an invalid
    entry, and for a repeated target."""
    entries: list[ChoiceEntry[Choice]] = []
    for part in parts_of(text):
        left, equals, right = divided(part)
        if not equals or not left or not right:
            raise UsageError(
                f'invalid entry in "{option}": "{part.strip()}"',
                hint="Write type = choice or schema.table.column = choice, separated by"
                " commas.",
            )
        target = _target(option, left)
        if any(
            (e.target.match, e.target.names, e.target.type_oid, e.target.typmod)
            == (target.match, target.names, target.type_oid, target.typmod)
            for e in entries
        ):
            raise UsageError(f'"{option}" has more than one entry for "{left}"')
        entries.append(ChoiceEntry(target, read(target, right)))
    return tuple(entries)


def best_entry(
    entries: tuple[ChoiceEntry[Choice], ...], column: SourceColumn
) -> ChoiceEntry[Choice] | None:
    """Return the most specific entry for a column; None: there is none."""
    fitting = [e for e in entries if e.target.fits(column)]
    return max(fitting, key=_specific, default=None)


def _specific(entry: ChoiceEntry[Choice]) -> tuple[int, int]:
    # The name of a domain is more specific than its base type, with or without a modifier.
    return len(entry.target.names), entry.target.match


def _target(option: str, text: str) -> ChoiceTarget:
    if text == "*":
        return ChoiceTarget(text, Match.ALL)
    names = names_in(text)
    if names is not None and len(names) == 3:
        return ChoiceTarget(text, Match.COLUMN, names)
    try:
        oid, typmod = parse_type_name(text)
    except UndefinedObjectError:
        if names is None and text.endswith("[]"):
            names = _array_of(names_in(text[:-2].strip()))
        if names is not None and len(names) < 3:
            return ChoiceTarget(text, Match.TYPE, names)
        raise _no_target(option, text) from None
    except Wal2LakeError:
        raise _no_target(option, text) from None
    if "(" in text:
        return ChoiceTarget(text, Match.EXACT, (), int(oid), typmod)
    return ChoiceTarget(text, Match.TYPE, (), int(oid))


def _no_target(option: str, text: str) -> UsageError:
    return UsageError(
        f'"{text}" in "{option}" is neither a type nor a column',
        hint="Name a type (numeric, timestamp(3), public.mood) or a column"
        " (schema.table.column).",
    )


def names_in(text: str) -> tuple[str, ...] | None:
    """Split a qualified name; None: the text is not a name."""
    if _NAMES.match(text) is None:
        return None
    return tuple(
        name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
        for name in _ONE_NAME.findall(text)
    )


def _array_of(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the publisher's name of the array type (makeArrayTypeName)."""
    if names is None:
        return None
    return (*names[:-1], ("_" + names[-1]).encode()[:63].decode(errors="ignore"))


def parts_of(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of quotes and brackets."""
    if not text.strip():
        return
    start = 0
    for position in _outside(text, ","):
        yield text[start:position]
        start = position + 1
    yield text[start:]


def divided(text: str) -> tuple[str, bool, str]:
    """Return the text left of the equals sign, whether there is one, and the text right of it."""
    position = next(_outside(text, "="), None)
    if position is None:
        return text.strip(), False, ""
    return text[:position].strip(), True, text[position + 1 :].strip()


def _outside(text: str, mark: str) -> Iterator[int]:
    depth, quoted = 0, False
    for position, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "(<":
            depth += 1
        elif char in ")>":
            depth -= 1
        elif char == mark and depth == 0:
            yield position
