"""``conflict_resolution``: what becomes of a change that meets another row than the publisher's.

    update_missing = error, public.orders.insert_exists = apply_remote

Comes in: the option's text. Goes out: for a table, the resolution of each type of conflict;
what nobody chooses is PostgreSQL's. A table is named as it is here, and its entries win over
those without one. Picklable and pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wal2lake.errors import ConfigurationError, UsageError
from wal2lake.model import ConflictType, Resolution
from wal2lake.pgtypes.choices.entries import divided, names_in, parts_of

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

_OF_ORIGINS: Final = (
    ConflictType.UPDATE_ORIGIN_DIFFERS,
    ConflictType.DELETE_ORIGIN_DIFFERS,
)


@dataclass(frozen=True, slots=True)
class Resolutions:
    """Of one table."""

    chosen: Mapping[ConflictType, Resolution] = field(default_factory=dict)
    """Only what is not PostgreSQL's."""

    def of(self, kind: ConflictType) -> Resolution:
        """What becomes of a change that meets this."""
        return self.chosen.get(kind, _DEFAULTS[kind])


DEFAULT_RESOLUTIONS: Final = Resolutions()
"""PostgreSQL's."""


@dataclass(frozen=True, slots=True)
class _Entry:
    table: tuple[str, ...]
    """Schema and name; empty: every table."""
    type: ConflictType
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class ConflictResolutions:
    """All entries of a subscription."""

    entries: tuple[_Entry, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ConflictResolutions:
        """Raises UsageError (22023)."""
        found: list[_Entry] = []
        for part in parts_of(text):
            entry = _entry(part)
            if any((e.table, e.type) == (entry.table, entry.type) for e in found):
                raise UsageError(
                    f'"{CONFLICT_RESOLUTION}" has more than one entry for'
                    f' "{divided(part)[0]}"'
                )
            found.append(entry)
        return cls(tuple(found))

    def of(self, namespace: str, name: str) -> Resolutions:
        """Those of one table."""
        chosen: dict[ConflictType, Resolution] = {}
        for table in ((), (namespace, name)):
            chosen |= {e.type: e.resolution for e in self.entries if e.table == table}
        return Resolutions(
            {kind: one for kind, one in chosen.items() if one is not _DEFAULTS[kind]}
        )

    @property
    def asks_for_origins(self) -> str | None:
        """What can be obeyed only if it is known who has written a row, and when; None: all
        can be."""
        for entry in self.entries:
            if entry.resolution in _BY_TIME:
                return f'conflict resolution "{entry.resolution}"'
            if entry.type in _OF_ORIGINS:
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
    return _Entry(names[:-1], *_choice(names[-1], right))


def _choice(type_name: str, text: str) -> tuple[ConflictType, Resolution]:
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
    return kind, resolution
