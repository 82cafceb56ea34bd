"""``conflict_resolution``: the treatment of changes that conflict with the table's rows.

    update_missing = error, public.orders.insert_exists = apply_remote
    public.orders.update_origin_differs = (case when remote.total > local.total
        then 'apply_remote' else 'keep_local' end)
    public.stock.insert_exists = set (qty = local.qty + remote.qty)

The last two use Spark SQL over both rows: an expression that names a resolution, and an expression
for each column that does not get the publisher's value. Such an entry is for one table, because it
names the table's columns.

Comes in: the option's text. Goes out: for a table, the resolution of each type of conflict; the
default is PostgreSQL's. A table has its name here; entries with a table take precedence over
entries without one. Picklable and pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from wal2lake.errors import ConfigurationError, UsageError
from wal2lake.model import ConflictType, Resolution
from wal2lake.pgtypes.choices.entries import divided, names_in

CONFLICT_RESOLUTION: Final = "conflict_resolution"

_BY_TIME: Final = (Resolution.LAST_UPDATE_WINS, Resolution.FIRST_UPDATE_WINS)

_TWO_ROWS: Final = (
    Resolution.ERROR,
    Resolution.SKIP,
    Resolution.APPLY_REMOTE,
    Resolution.KEEP_LOCAL,
    *_BY_TIME,
)

_POSSIBLE: Final[Mapping[ConflictType, tuple[Resolution, ...]]] = {
    ConflictType.INSERT_EXISTS: _TWO_ROWS,
    ConflictType.UPDATE_ORIGIN_DIFFERS: _TWO_ROWS,
    ConflictType.UPDATE_EXISTS: _TWO_ROWS,
    ConflictType.UPDATE_MISSING: (
        Resolution.ERROR,
        Resolution.SKIP,
        Resolution.APPLY_REMOTE,
    ),
    ConflictType.DELETE_ORIGIN_DIFFERS: _TWO_ROWS,
    ConflictType.DELETE_MISSING: (Resolution.ERROR, Resolution.SKIP),
}
"""Without multiple_unique_conflicts, because a table here has at most one unique key."""

_DEFAULTS: Final[Mapping[ConflictType, Resolution]] = {
    ConflictType.INSERT_EXISTS: Resolution.ERROR,
    ConflictType.UPDATE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
    ConflictType.UPDATE_EXISTS: Resolution.ERROR,
    ConflictType.UPDATE_MISSING: Resolution.SKIP,
    ConflictType.DELETE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
    ConflictType.DELETE_MISSING: Resolution.SKIP,
}

_BY_EXPRESSION: Final[Mapping[ConflictType, tuple[Resolution, ...]]] = {
    ConflictType.INSERT_EXISTS: (Resolution.EXPRESSION, Resolution.MERGE),
    ConflictType.UPDATE_EXISTS: (Resolution.EXPRESSION, Resolution.MERGE),
    ConflictType.UPDATE_ORIGIN_DIFFERS: (Resolution.EXPRESSION, Resolution.MERGE),
    ConflictType.DELETE_ORIGIN_DIFFERS: (Resolution.EXPRESSION,),
}
"""Conflict types with two rows; a row that is deleted cannot be merged."""

CONFLICT_CHOICES: Final = (
    Resolution.APPLY_REMOTE,
    Resolution.KEEP_LOCAL,
    Resolution.SKIP,
    Resolution.ERROR,
)
"""Resolutions that an expression may return."""

COMMIT_FACTS: Final = ("local_commit_time", "remote_commit_time", "local_origin")
"""Names that an expression may use in addition to the columns of both rows."""

_NAMES_FACT: Final = re.compile(rf"\b(?:{'|'.join(COMMIT_FACTS)})\b", re.IGNORECASE)

_SET: Final = re.compile(r"set\s*\(", re.IGNORECASE)

_OF_ORIGINS: Final = (
    ConflictType.UPDATE_ORIGIN_DIFFERS,
    ConflictType.DELETE_ORIGIN_DIFFERS,
)


@dataclass(frozen=True, slots=True)
class ConflictExpression:
    """Spark SQL over the conflicting rows ``local`` and ``remote``, and ``COMMIT_FACTS``."""

    text: str
    """The text as written."""
    choice: str | None
    """Expression that returns one of ``CONFLICT_CHOICES``; None: the entry merges rows."""
    values: tuple[tuple[str, str], ...] = ()
    """Columns and the expressions of their values."""


@dataclass(frozen=True, slots=True)
class Resolutions:
    """Resolutions of one table."""

    chosen: Mapping[ConflictType, Resolution] = field(default_factory=dict)
    """Resolutions that differ from PostgreSQL's."""
    expressions: Mapping[ConflictType, ConflictExpression] = field(default_factory=dict)
    """Expressions of the resolutions EXPRESSION and MERGE."""

    def of(self, kind: ConflictType) -> Resolution:
        """Return the resolution of a conflict type."""
        return self.chosen.get(kind, _DEFAULTS[kind])


DEFAULT_RESOLUTIONS: Final = Resolutions()
"""PostgreSQL's resolutions."""


@dataclass(frozen=True, slots=True)
class _Entry:
    table: tuple[str, ...]
    """Schema and name; empty: every table."""
    type: ConflictType
    resolution: Resolution
    expression: ConflictExpression | None = None


@dataclass(frozen=True, slots=True)
class ConflictResolutions:
    """All entries of a subscription."""

    entries: tuple[_Entry, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ConflictResolutions:
        """Parse the option; raises UsageError (22023)."""
        entries: list[_Entry] = []
        for part in _pieces(text):
            entry = _entry(part)
            if any((e.table, e.type) == (entry.table, entry.type) for e in entries):
                raise UsageError(
                    f'"{CONFLICT_RESOLUTION}" has more than one entry for'
                    f' "{divided(part)[0]}"'
                )
            entries.append(entry)
        return cls(tuple(entries))

    def of(self, namespace: str, name: str) -> Resolutions:
        """Return the resolutions of one table."""
        chosen: dict[ConflictType, _Entry] = {}
        for table in ((), (namespace, name)):
            chosen |= {e.type: e for e in self.entries if e.table == table}
        return Resolutions(
            {
                kind: entry.resolution
                for kind, entry in chosen.items()
                if entry.resolution is not _DEFAULTS[kind]
            },
            {
                kind: entry.expression
                for kind, entry in chosen.items()
                if entry.expression is not None
            },
        )

    @property
    def with_expressions(self) -> tuple[tuple[str, str], ...]:
        """Schema and name of the tables with expressions."""
        tables = [e.table for e in self.entries if e.expression is not None]
        return tuple((table[0], table[1]) for table in dict.fromkeys(tables))

    @property
    def asks_for_origins(self) -> str | None:
        """The choice that needs origin and commit time of rows; None: no choice does."""
        for entry in self.entries:
            if entry.resolution in _BY_TIME:
                return f'conflict resolution "{entry.resolution}"'
            expression = entry.expression
            if (
                expression is not None
                and _NAMES_FACT.search(expression.text) is not None
            ):
                return f'conflict resolution "{expression.text}"'
            by_origin = entry.type in _OF_ORIGINS
            if by_origin and entry.resolution is not Resolution.APPLY_REMOTE:
                return f'a resolution of "{entry.type}"'
        return None


def check_tracked(text: str, *, tracked: bool) -> None:
    """Refuse an option's text that needs origins of rows unless they are ``tracked`` (55000)."""
    asks = ConflictResolutions.parse(text).asks_for_origins
    if asks is not None and not tracked:
        raise ConfigurationError(
            f'{asks} requires "track_commit_timestamp" to be enabled',
            sqlstate="55000",
            hint="Set track_commit_timestamp = true under [apply] in wal2lake.toml and"
            " restart the node.",
        )


def _entry(part: str) -> _Entry:
    left, equals, right = divided(part)
    names = names_in(left)
    if not equals or not right or names is None or len(names) not in (1, 3):
        raise UsageError(
            f'invalid entry in "{CONFLICT_RESOLUTION}": "{part.strip()}"',
            hint="Write type = resolution or schema.table.type = resolution, separated"
            " by commas.",
        )
    kind = _type(names[-1])
    expression = _expression(right)
    if expression is None:
        return _Entry(names[:-1], kind, _choice(kind, right))
    resolution = (
        Resolution.MERGE if expression.choice is None else Resolution.EXPRESSION
    )
    if resolution not in _BY_EXPRESSION.get(kind, ()):
        raise UsageError(
            f"{kind} cannot be resolved by {'set' if expression.values else 'expression'}",
            detail="There are not two rows.",
            hint=f"Available resolutions: {', '.join(_POSSIBLE[kind])}"
            f"{', (expression)' if kind in _BY_EXPRESSION else ''}.",
        )
    if len(names) == 1:
        raise UsageError(
            f'expression in "{CONFLICT_RESOLUTION}" is of no table: "{part.strip()}"',
            hint=f"Write schema.table.{kind} = ...",
        )
    return _Entry(names[:-1], kind, resolution, expression)


def _expression(text: str) -> ConflictExpression | None:
    """Parse an expression; None: the text is a word. Raises UsageError (42601)."""
    opens = _SET.match(text)
    if opens is None and not text.startswith("("):
        return None
    start = text.index("(")
    inner = text[start + 1 : -1].strip()
    if _end_of(text, start) != len(text) - 1 or not inner:
        raise _malformed(text)
    if _has_comment(text):
        raise UsageError(
            f'comment in expression of "{CONFLICT_RESOLUTION}": "{text}"',
            sqlstate="42601",
            hint="Leave it out; write - -1 for a minus before a negative number.",
        )
    if opens is None:
        return ConflictExpression(text, inner)
    values: dict[str, str] = {}
    for piece in _pieces(inner):
        end = next((m.end() for m in [_COLUMN.match(piece)] if m is not None), 0)
        names, value = names_in(piece[: end - 1].strip()), piece[end:].strip()
        if not end or names is None or len(names) != 1 or not value:
            raise _malformed(text)
        if names[0] in values:
            raise UsageError(
                f'multiple assignments to same column "{names[0]}"', sqlstate="42601"
            )
        values[names[0]] = value
    return ConflictExpression(text, None, tuple(values.items()))


def _malformed(text: str) -> UsageError:
    return UsageError(
        f'invalid expression in "{CONFLICT_RESOLUTION}": "{text}"',
        sqlstate="42601",
        hint="Write (expression), which is one of"
        f" {', '.join(repr(str(word)) for word in CONFLICT_CHOICES)}, or set (column = expression,"
        " ...), in Spark SQL over local.column and remote.column.",
    )


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of quotes and parentheses."""
    if not text.strip():
        return
    start = 0
    for position, char in _outside(text):
        if char == ",":
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _end_of(text: str, start: int) -> int:
    """Return the position of the matching closing parenthesis; -1: there is none."""
    for position, char in _outside(text[start + 1 :]):
        if char == ")":
            return start + 1 + position
    return -1


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """Yield positions and characters outside of quotes and parentheses, including a closing
    parenthesis that has no opening one in the text."""
    return ((index, char) for index, char, depth in _unquoted(text) if depth == 0)


def _has_comment(text: str) -> bool:
    """Return whether the text has a comment, which Spark would ignore."""
    bare = {index: char for index, char, _ in _unquoted(text)}
    pairs = {char + bare.get(index + 1, "") for index, char in bare.items()}
    return not pairs.isdisjoint(("--", "/*"))


def _unquoted(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield position, character and depth of parentheses of all characters outside of quotes. A
    parenthesis has the depth of its content."""
    depth, quote, skips = 0, "", False
    for position, char in enumerate(text):
        if skips:
            skips = False
        elif quote:
            # Backslashes escape in Spark's strings, not in names outside of parentheses.
            skips = char == "\\" and depth > 0 and quote != "`"
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char == "(":
            depth += 1
            yield position, char, depth
        elif char == ")" and depth > 0:
            depth -= 1
            yield position, char, depth + 1
        else:
            yield position, char, depth


_COLUMN: Final = re.compile(r'\s*(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)\s*=')


def _type(type_name: str) -> ConflictType:
    try:
        kind = ConflictType(type_name)
    except ValueError:
        raise UsageError(
            f'unrecognized conflict type: "{type_name}"',
            hint=f"Available types: {', '.join(_POSSIBLE)}.",
        ) from None
    if kind not in _POSSIBLE:
        raise UsageError(
            f'conflict type "{kind}" has no resolution',
            detail="It cannot occur: a table has one unique key, its primary key.",
            hint=f"Available types: {', '.join(_POSSIBLE)}.",
        )
    return kind


def _choice(kind: ConflictType, text: str) -> Resolution:
    try:
        resolution = Resolution(text.lower())
    except ValueError:
        raise UsageError(
            f'unrecognized conflict resolution: "{text}"',
            hint=f"Available resolutions of {kind}: {', '.join(_POSSIBLE[kind])}.",
        ) from None
    if resolution not in _POSSIBLE[kind]:
        raise UsageError(
            f'conflict resolution "{resolution}" is not possible for {kind}',
            detail="There is no row here that could be kept or compared."
            if kind is ConflictType.UPDATE_MISSING
            else "There is no row on either side.",
            hint=f"Available resolutions: {', '.join(_POSSIBLE[kind])}.",
        )
    return resolution
