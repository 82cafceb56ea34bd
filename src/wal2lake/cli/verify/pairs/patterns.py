"""Names of tables on the command line, with psql's wildcards. Pure.

Comes in: the arguments of ``--table``. Goes out: which tables they choose, and the name that a
table has at the target. Called by ``comparing``.

    items                a table of this name in any schema
    shop.*               all tables of a schema; * stands for any characters, ? for one
    "Shop"."a.b"         in double quotes a name is taken as it is, else in lower case
    items=copy.items     the target's table has another name; without wildcards

Source: PostgreSQL manual, psql (Patterns).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wal2lake.errors import UndefinedObjectError, UsageError

TableName = tuple[str, str]
"""Schema and table."""


@dataclass(frozen=True, slots=True)
class TablePattern:
    """One argument."""

    text: str
    schema: re.Pattern[str] | None
    """None: any schema."""
    table: re.Pattern[str]
    target: TableName | None = None
    """The name at the target; None: the same."""

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Read an argument. Raises UsageError (42602) if it names no table."""
        parts = _parts(text, "=")
        names = [_names(part, text) for part in parts]
        if len(names) > 2:
            raise _invalid(text)
        schema = _pattern(names[0][0]) if len(names[0]) == 2 else None
        target = None
        if len(names) == 2:
            plain = [_plain(part) for part in names[1]]
            if None in plain or len(plain) != 2 or _plain(names[0][-1]) is None:
                raise UsageError(
                    f'"{text}" does not name one table on each side of "="',
                    sqlstate="42602",
                    hint="Write the target with its schema, and no wildcard:"
                    " items=copy.items",
                )
            target = (str(plain[0]), str(plain[1]))
        return cls(text, schema, _pattern(names[0][-1]), target)

    def matches(self, name: TableName) -> bool:
        """Whether the pattern chooses the table."""
        return (
            self.schema is None or self.schema.fullmatch(name[0]) is not None
        ) and self.table.fullmatch(name[1]) is not None


def chosen_tables(
    patterns: Sequence[TablePattern], tables: Sequence[TableName]
) -> list[tuple[TableName, TableName]]:
    """Return the chosen tables, each with its name at the target, in the order of ``tables``.

    Without a pattern all are chosen. Raises UndefinedObjectError (42P01) for a pattern that chooses
    none, and UsageError (42602) for one that gives several tables one name.
    """
    if not patterns:
        return [(name, name) for name in tables]
    targets: dict[TableName, TableName] = {}
    for pattern in patterns:
        matching = [name for name in tables if pattern.matches(name)]
        if not matching:
            raise UndefinedObjectError(
                f'no table matches "{pattern.text}"', sqlstate="42P01"
            )
        if pattern.target is not None and len(matching) > 1:
            raise UsageError(
                f'"{pattern.text}" matches tables of several schemas', sqlstate="42602"
            )
        for name in matching:
            targets[name] = pattern.target or targets.get(name, name)
    return [(name, targets[name]) for name in tables if name in targets]


def _names(text: str, whole: str) -> list[str]:
    names = _parts(text, ".")
    if len(names) > 2 or not all(names):
        raise _invalid(whole)
    return names


def _invalid(text: str) -> UsageError:
    return UsageError(f'invalid name of a table: "{text}"', sqlstate="42602")


def _parts(text: str, mark: str) -> list[str]:
    """Divide the text at each mark outside of quotes."""
    parts, quoted = [""], False
    for character in text:
        quoted ^= character == '"'
        if character == mark and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    if quoted:
        raise UsageError(f'unterminated quoted identifier: "{text}"', sqlstate="42602")
    return parts


def _pattern(name: str) -> re.Pattern[str]:
    wildcards = {"*": ".*", "?": "."}
    return re.compile(
        "".join(
            re.escape(character)
            if literal
            else wildcards.get(character, re.escape(character))
            for character, literal in _characters(name)
        ),
        re.DOTALL,
    )


def _plain(name: str) -> str | None:
    """Return the name without quotes; None if it has wildcards."""
    characters = list(_characters(name))
    if any(not literal and character in "*?" for character, literal in characters):
        return None
    return "".join(character for character, _ in characters)


def _characters(name: str) -> Sequence[tuple[str, bool]]:
    """Return each character of the name, and whether it was quoted."""
    characters: list[tuple[str, bool]] = []
    quoted, place = False, 0
    while place < len(name):
        character = name[place]
        if character == '"':
            if quoted and name[place + 1 : place + 2] == '"':
                characters.append(('"', True))
                place += 1
            else:
                quoted = not quoted
        else:
            characters.append((character if quoted else character.lower(), quoted))
        place += 1
    return characters
