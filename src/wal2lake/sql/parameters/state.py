"""Keeps the parameters of one session: SET, SHOW, RESET and ParameterStatus.

Comes in: assignments with their scope. Goes out: values as SHOW prints them, and the reported
parameters that have changed since the last call. Called by the session. The Backend reads the same
object as a mapping (``parameters["TimeZone"]``).

As in PostgreSQL, a parameter has several values at the same time:

    reset      the value of the startup packet, or the default; RESET returns to it
    current    the value that SHOW prints
    kept       the value after a commit, which differs from ``current`` after SET LOCAL
    before     the value after a rollback

``commit`` and ``rollback`` end the scope that the first SET has opened. The session calls one of
them at the end of every transaction, implicit ones included.

Source: src/backend/utils/misc/guc.c; PostgreSQL manual, SET, SHOW and section 19.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.sql.parameters.definition import (
    ParameterContext,
    ParameterDefinition,
    ParameterKind,
)
from wal2lake.sql.parameters.table import PARAMETERS
from wal2lake.sql.parameters.values import check_value, show_value

_CUSTOM_NAME = re.compile(
    r"[A-Za-z_\x80-\U0010ffff][\w$]*(?:\.[A-Za-z_\x80-\U0010ffff][\w$]*)+"
)

_OLD_NAMES: Final = {
    "time zone": "timezone",
    "transaction isolation level": ("transaction_isolation"),
    "session authorization": "session_authorization",
}
"""Names of several words, which only SHOW, SET and RESET accept."""

MAX_CUSTOM_PARAMETERS: Final = 1000
"""The limit of custom parameters, which bounds a session's memory. Chosen far above real use."""


@dataclass(frozen=True, slots=True)
class ParameterMark:
    """The values at a savepoint; opaque to callers."""

    current: dict[str, str]
    before: dict[str, str | None]
    kept: dict[str, str | None]


class Parameters(Mapping[str, str]):
    """The parameters of one session. Only the session's thread uses them."""

    def __init__(
        self,
        *,
        facts: Mapping[str, str] | None = None,
        node: Callable[[], Sequence[ParameterDefinition]] = tuple,
    ) -> None:
        """``facts`` are values of internal parameters; ``node`` gives the node's current settings,
        which a reload changes."""
        self._node = node
        self._definitions = {d.name.lower(): d for d in (*PARAMETERS, *node())}
        self._reset: dict[str, str] = {
            d.name.lower(): d.default for d in PARAMETERS if not d.follows
        }
        for name, value in (facts or {}).items():
            self._reset[name.lower()] = value
        self._current = dict(self._reset)
        self._before: dict[str, str | None] = {}
        self._kept: dict[str, str | None] = {}
        self._reported: dict[str, str] = {}

    # -- reading

    def __getitem__(self, name: str) -> str:
        """The value as SHOW prints it; raises UndefinedObjectError (not KeyError)."""
        return show_value(self.definition(name), self.raw(name))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted((d.name for d in self._definitions.values()), key=str.lower))

    def __len__(self) -> int:
        return len(self._definitions)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _key(name) in self._definitions

    def definition(self, name: str) -> ParameterDefinition:
        """The definition of a parameter; raises UndefinedObjectError."""
        definition = self._definitions.get(_key(name))
        if definition is None:
            raise UndefinedObjectError(f'unrecognized configuration parameter "{name}"')
        return definition

    def raw(self, name: str) -> str:
        """The value in its stored form: an integer is a number without a unit."""
        definition = self.definition(name)
        value = self._current.get(_key(name))
        if value is not None:
            return value
        if definition.follows is not None:
            return self.raw(definition.follows)
        return self._node_value(_key(name))

    def reset_value(self, name: str) -> str:
        """The value to which RESET returns, as SHOW prints it."""
        definition = self.definition(name)
        value = self._reset.get(_key(name))
        if value is None and definition.follows is not None:
            return self.reset_value(definition.follows)
        if value is None:
            value = self._node_value(_key(name))
        return show_value(definition, value)

    def _node_value(self, key: str) -> str:
        return next(d.default for d in self._node() if d.name.lower() == key)

    def number(self, name: str) -> int:
        """The value of an integer parameter in its base unit."""
        return int(self.raw(name))

    def enabled(self, name: str) -> bool:
        """The value of a boolean parameter."""
        return self.raw(name) == "on"

    # -- writing

    def set(self, name: str, value: str, *, local: bool = False) -> None:
        """SET, or SET LOCAL with ``local``; raises PostgreSQL's errors."""
        definition = self._settable(name)
        self._assign(_key(name), check_value(definition, value), local=local)

    def reset(self, name: str, *, local: bool = False) -> None:
        """RESET, and SET ... TO DEFAULT."""
        self._settable(name)
        self._assign(_key(name), self._reset.get(_key(name)), local=local)

    def reset_all(self) -> None:
        """RESET ALL."""
        for key, definition in self._definitions.items():
            # The transaction_* parameters belong to the transaction and not to the session.
            settable = definition.context in (
                ParameterContext.SUPERUSER,
                ParameterContext.USER,
            )
            if settable and not definition.follows:
                self._assign(key, self._reset.get(key), local=False)

    def assume(self, name: str, value: str | None, *, local: bool = False) -> None:
        """Set role or session_authorization, which only their own statements may set.

        The caller has checked that the session may do so. None resets the parameter.
        """
        key = _key(name)
        new_value = self._reset[key] if value is None else value
        self._assign(key, new_value, local=local)

    def set_at_startup(self, name: str, value: str) -> None:
        """Set a value of the startup packet, to which RESET returns."""
        self.set(name, value)
        self._reset[_key(name)] = self.raw(name)
        self.commit()

    def commit(self) -> None:
        """End the scope after a commit: undo every SET LOCAL."""
        self._restore(self._kept)

    def rollback(self) -> None:
        """End the scope after a rollback: undo every SET of the transaction."""
        self._restore(self._before)

    def mark(self) -> ParameterMark:
        """The values at this point, for ``return_to``."""
        return ParameterMark(dict(self._current), dict(self._before), dict(self._kept))

    def return_to(self, mark: ParameterMark) -> None:
        """Undo every SET since the mark, which can be used again."""
        self._current.update(mark.current)
        for key in self._current.keys() - mark.current.keys():
            # The parameter was defined, or set for the first time, after the mark.
            _put(self._current, key, self._reset.get(key))
        self._before = dict(mark.before)
        self._kept = dict(mark.kept)

    def _assign(self, key: str, value: str | None, *, local: bool) -> None:
        before = self._current.get(key)
        self._before.setdefault(key, before)
        if local:
            self._kept.setdefault(key, before)
        else:
            self._kept[key] = value
        _put(self._current, key, value)

    def _restore(self, values: dict[str, str | None]) -> None:
        for key, value in values.items():
            _put(self._current, key, value)
        self._before = {}
        self._kept = {}

    def _settable(self, name: str) -> ParameterDefinition:
        key = _key(name)
        if key not in self._definitions and "." in key:
            self._define_custom(name)
        definition = self.definition(name)
        if definition.context is ParameterContext.INTERNAL:
            raise UsageError(
                f'parameter "{definition.name}" cannot be changed', sqlstate="55P02"
            )
        if definition.context is ParameterContext.POSTMASTER:
            raise UsageError(
                f'parameter "{definition.name}" cannot be changed without restarting '
                "the server",
                sqlstate="55P02",
            )
        if definition.context is ParameterContext.SUPERUSER and not self.enabled(
            "is_superuser"
        ):
            raise UsageError(
                f'permission denied to set parameter "{definition.name}"',
                sqlstate="42501",
            )
        return definition

    def _define_custom(self, name: str) -> None:
        """Define a parameter whose name has a prefix, with the empty default."""
        if not _CUSTOM_NAME.fullmatch(name):
            raise UsageError(
                f'invalid configuration parameter name "{name}"',
                sqlstate="42602",
                detail="Custom parameter names must be two or more simple identifiers "
                "separated by dots.",
            )
        custom = len(self._definitions) - len(PARAMETERS)
        if custom >= MAX_CUSTOM_PARAMETERS:
            raise FeatureNotSupportedError(
                f"a session cannot have more than {MAX_CUSTOM_PARAMETERS} custom "
                "parameters"
            )
        self._definitions[_key(name)] = ParameterDefinition(
            name, ParameterKind.STRING, "", ""
        )
        self._reset[_key(name)] = ""
        self._current[_key(name)] = ""

    # -- reporting to the client

    def changes(self) -> list[tuple[str, str]]:
        """The reported parameters that have changed since the last call; at first, all of them."""
        changed: list[tuple[str, str]] = []
        for key, definition in sorted(self._definitions.items()):
            if not definition.report:
                continue
            value = self[definition.name]
            if self._reported.get(key) != value:
                self._reported[key] = value
                changed.append((definition.name, value))
        return changed


def _key(name: str) -> str:
    lowered = name.lower()
    return _OLD_NAMES.get(lowered, lowered)


def _put(values: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
