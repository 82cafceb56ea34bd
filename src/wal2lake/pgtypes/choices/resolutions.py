"""``conflict_resolution``: what becomes of a change that meets another row than the publisher's.

    update_missing = error, public.orders.insert_exists = apply_remote
    public.orders.update_origin_differs = (case when remote.total > local.total
        then 'apply_remote' else 'keep_local' end)
    public.stock.insert_exists = set (qty = local.qty + remote.qty)

The last two are Spark SQL over both rows: one that names a resolution, and one for each column that
is not to have the publisher's value. They are of one table each, for they name its columns.

Comes in: the option's text. Goes out: for a table, the resolution of each type of conflict;
what nobody chooses is PostgreSQL's. A table is named as it is here, and its entries win over
those without one. Picklable and pure.
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
"""Without multiple_unique_conflicts: a table here has one unique key at most."""

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
"""Where there are two rows; of one that is deleted there is nothing to merge."""

CONFLICT_CHOICES: Final = (
    Resolution.APPLY_REMOTE,
    Resolution.KEEP_LOCAL,
    Resolution.SKIP,
    Resolution.ERROR,
)
"""Resolutions that an expression may return."""

COMMIT_FACTS: Final = ("local_commit_time", "remote_commit_time", "local_origin")
"""Names that an expression may use besides the columns of both rows."""

_NAMES_FACT: Final = re.compile(rf"\b(?:{'|'.join(COMMIT_FACTS)})\b", re.IGNORECASE)

_SET: Final = re.compile(r"set\s*\(", re.IGNORECASE)

_OF_ORIGINS: Final = (
    ConflictType.UPDATE_ORIGIN_DIFFERS,
    ConflictType.DELETE_ORIGIN_DIFFERS,
)


@dataclass(frozen=True, slots=True)
class ConflictExpression:
    """Spark SQL over ``local`` and ``remote``, the rows that meet, and ``COMMIT_FACTS``."""

    text: str
    """The text as it was written."""
    choice: str | None
    """Names one of ``CONFLICT_CHOICES``; None: it merges."""
    values: tuple[tuple[str, str], ...] = ()
    """Columns, and what they get."""


@dataclass(frozen=True, slots=True)
class Resolutions:
    """Resolutions of one table."""

    chosen: Mapping[ConflictType, Resolution] = field(default_factory=dict)
    """Only what is not PostgreSQL's."""
    expressions: Mapping[ConflictType, ConflictExpression] = field(default_factory=dict)
    """For those that are EXPRESSION or MERGE."""

    def of(self, kind: ConflictType) -> Resolution:
        """Return the resolution of a conflict type."""
        return self.chosen.get(kind, _DEFAULTS[kind])


DEFAULT_RESOLUTIONS: Final = Resolutions()
"""PostgreSQL's."""


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
        """Raises UsageError (22023)."""
        found: list[_Entry] = []
        for part in _pieces(text):
            entry = _entry(part)
            if any((e.table, e.type) == (entry.table, entry.type) for e in found):
                raise UsageError(
                    f'"{CONFLICT_RESOLUTION}" has more than one entry for'
                    f' "{divided(part)[0]}"'
                )
            found.append(entry)
        return cls(tuple(found))

    def of(self, namespace: str, name: str) -> Resolutions:
        """Return the resolutions of one table."""
        chosen: dict[ConflictType, _Entry] = {}
        for table in ((), (namespace, name)):
            chosen |= {e.type: e for e in self.entries if e.table == table}
        return Resolutions(
            {
                kind: one.resolution
                for kind, one in chosen.items()
                if one.resolution is not _DEFAULTS[kind]
            },
            {
                kind: one.expression
                for kind, one in chosen.items()
                if one.expression is not None
            },
        )

    @property
    def with_expressions(self) -> tuple[tuple[str, str], ...]:
        """Schema and name of the tables that have any."""
        found = [e.table for e in self.entries if e.expression is not None]
        return tuple((one[0], one[1]) for one in dict.fromkeys(found))

    @property
    def asks_for_origins(self) -> str | None:
        """Return the choice that needs the writer and the time of a row; None: no choice does."""
        for entry in self.entries:
            if entry.resolution in _BY_TIME:
                return f'conflict resolution "{entry.resolution}"'
            said = entry.expression
            if said is not None and _NAMES_FACT.search(said.text) is not None:
                return f'conflict resolution "{said.text}"'
            by_origin = entry.type in _OF_ORIGINS
            if by_origin and entry.resolution is not Resolution.APPLY_REMOTE:
                return f'a resolution of "{entry.type}"'
        return None


def check_tracked(text: str, *, tracked: bool) -> None:
    """Refuse an option's text that asks for what is not ``tracked`` (55000)."""
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
    """None: it is a word. Raises UsageError (42601)."""
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
        at = next((m.end() for m in [_COLUMN.match(piece)] if m is not None), 0)
        names, value = names_in(piece[: at - 1].strip()), piece[at:].strip()
        if not at or names is None or len(names) != 1 or not value:
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
        f" {', '.join(repr(str(one)) for one in CONFLICT_CHOICES)}, or set (column = expression,"
        " ...), in Spark SQL over local.column and remote.column.",
    )


def _pieces(text: str) -> Iterator[str]:
    """Between commas outside of quotes and parentheses. Raises UsageError (42601)."""
    if not text.strip():
        return
    start = 0
    for at, char in _outside(text):
        if char == ",":
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _end_of(text: str, start: int) -> int:
    """Where the parenthesis that opens there closes; -1: nowhere."""
    for at, char in _outside(text[start + 1 :]):
        if char == ")":
            return start + 1 + at
    return -1


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """Characters, with their places, that are inside no quotes and no parentheses but those that
    close one that is open before."""
    return ((at, char) for at, char, depth in _unquoted(text) if depth == 0)


def _has_comment(text: str) -> bool:
    """Spark would read less than is written."""
    bare = {at: char for at, char, _ in _unquoted(text)}
    pairs = {char + bare.get(at + 1, "") for at, char in bare.items()}
    return not pairs.isdisjoint(("--", "/*"))


def _unquoted(text: str) -> Iterator[tuple[int, str, int]]:
    """Characters that are inside no quotes, with their places and the number of parentheses around
    them; of one that opens, those inside."""
    depth, quote, skips = 0, "", False
    for at, char in enumerate(text):
        if skips:
            skips = False
        elif quote:
            # Of Spark's strings; a name of ours has none, outside of parentheses.
            skips = char == "\\" and depth > 0 and quote != "`"
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char == "(":
            depth += 1
            yield at, char, depth
        elif char == ")" and depth > 0:
            depth -= 1
            yield at, char, depth + 1
        else:
            yield at, char, depth


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
