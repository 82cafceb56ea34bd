"""Takes the steps from what is registered in a catalog to what is wanted.

Comes in: the entries that are wanted, what was registered last, a client of the catalog. Goes out:
what is registered now. Called by ``worker``.

    the definition is the one that was noted     nothing is asked, but in a sweep
    otherwise                                    note, find, decide, do, note

Entries of tables that are gone come first, so that a new table can have the name; then those that
are due, then those that a sweep compares. A catalog that does not answer ends the round: all that
is left is pending. An entry that the catalog refuses, or whose name belongs to others, holds up no
other one; it is tried again in each sweep, or when its table changes. The same holds for an entry
that cannot be removed, and after some attempts for one that changes while it is being changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from wal2lake.catalog import EntryState, RegisteredTable
from wal2lake.errors import Retry, Wal2LakeError
from wal2lake.lake.catalogs import (
    CatalogEntry,
    CatalogUnavailable,
    EntryName,
    EntryRefused,
    EntryStep,
    ExternalCatalog,
    FoundEntry,
    GroupedChanges,
)

_DONE: Final = (EntryState.REGISTERED, EntryState.CONFLICT, EntryState.REFUSED)
"""States in which nothing is due before the table changes or a sweep comes."""

_MOST_TRIES: Final = 3
"""Attempts at an entry that others change meanwhile, before it waits for the sweep. A guess."""

DUPLICATE: Final = "42710"
"""SQLSTATE of a conflict."""


class EntryRules(Protocol):
    """Decides whose an entry is, and what is to be done about it."""

    def step_for(
        self,
        catalog: ExternalCatalog,
        entry: CatalogEntry,
        table: RegisteredTable,
        existing: FoundEntry | None,
        others: Container[str],
    ) -> EntryStep:
        """Return the step for a table that exists. ``others``: all tables of the node."""

    def step_after(
        self, table: RegisteredTable, existing: FoundEntry | None
    ) -> EntryStep:
        """Return the step for the entry of a table that is gone."""

    def conflict(
        self,
        entry: CatalogEntry,
        existing: FoundEntry | None,
        tables: Iterable[RegisteredTable],
    ) -> EntryRefused:
        """Return the error for a conflict. ``tables``: all that are registered."""


@dataclass(slots=True)
class EntryAttempts:
    """Facts that rounds tell each other, and that a restart may forget."""

    failed: dict[str, int] = field(default_factory=dict)
    """Failed attempts since the last sweep, by table."""
    looked: set[str] = field(default_factory=set)
    """Tables that a sweep has compared; it goes on from there if the catalog fails meanwhile."""

    def clear(self) -> None:
        """Forget all."""
        self.failed.clear()
        self.looked.clear()


class Registry:
    """State of each table's entry."""

    def __init__(
        self,
        rules: EntryRules,
        tables: Mapping[str, RegisteredTable],
        check: Callable[[], None] = lambda: None,
        attempts: EntryAttempts | None = None,
    ) -> None:
        """``check``: raises when the work must end. ``attempts`` is carried on by this object."""
        self._rules = rules
        self.tables = dict(tables)
        self._check = check
        self._attempts = EntryAttempts() if attempts is None else attempts
        self._tries = self._attempts.failed

    @property
    def is_behind(self) -> bool:
        """Whether the catalog has to be told something."""
        return any(self._is_due(table) for table in self.tables.values())

    def _is_due(self, table: RegisteredTable) -> bool:
        """Whether an entry is to be made right before the next sweep."""
        tries = self._tries.get(table.qualified, 0)
        return table.state not in _DONE and tries < _MOST_TRIES

    def note(self, wanted: Mapping[str, CatalogEntry | None]) -> None:
        """Note which tables the catalog does not show as they are. To be saved before ``follow``:
        an entry that a crash leaves is known then."""
        for name, table in list(self.tables.items()):
            if name not in wanted and table.state is not EntryState.LEAVING:
                self._tries.pop(name, None)
                self._now(table, EntryState.LEAVING)
        for name, entry in wanted.items():
            if entry is None:
                continue
            digest, registered = entry.digest, self.tables.get(name)
            if registered is None or registered.state is EntryState.LEAVING:
                self._tries.pop(name, None)
                identities = () if registered is None else registered.identities
                self.tables[name] = _new(entry, digest, identities)
            elif registered.digest != digest:
                self._tries.pop(name, None)
                # Until the catalog has changed, the entry may still be known by the earlier ones.
                either = _united(registered.identities, entry.identities)
                self._now(
                    replace(registered, digest=digest, identities=either),
                    EntryState.PENDING,
                )

    def follow(
        self,
        catalog: ExternalCatalog,
        wanted: Mapping[str, CatalogEntry | None],
        *,
        sweep: bool,
    ) -> None:
        """Make the catalog show what is wanted and was noted. ``sweep``: look at each entry.

        Raises CatalogUnavailable after it has noted what is left."""
        looked = self._attempts.looked
        if sweep and not looked:
            self._tries.clear()
        try:
            for table in list(self.tables.values()):
                if table.state is EntryState.LEAVING and self._is_due(table):
                    self._check()
                    self._end(catalog, table)
            shown = {name: entry for name, entry in wanted.items() if entry is not None}
            due = [name for name in shown if self._is_due(self.tables[name])]
            rest = shown.keys() - looked - set(due) if sweep else ()
            names = (*due, *sorted(rest))
            together = self._look(catalog, names, shown, wanted, sweep=sweep)
            if together:
                self._change_together(catalog, together, shown, wanted)
                if sweep:
                    looked.update(together)
        except CatalogUnavailable as error:
            self.fail(error)
            raise
        if sweep:
            looked.clear()

    def _look(
        self,
        catalog: ExternalCatalog,
        names: Iterable[str],
        shown: Mapping[str, CatalogEntry],
        others: Container[str],
        *,
        sweep: bool,
    ) -> dict[str, FoundEntry]:
        """Make each entry right; return those that the catalog replaces all at once."""
        together: dict[str, FoundEntry] = {}
        grouped = together if isinstance(catalog, GroupedChanges) else None
        for name in names:
            self._check()
            table = self.tables[name]
            show = partial(self._show, catalog, table, shown[name], others, grouped)
            self._try(table, show)
            if sweep and name not in together:
                self._attempts.looked.add(name)
        return together

    def _change_together(
        self,
        catalog: ExternalCatalog,
        together: Mapping[str, FoundEntry],
        shown: Mapping[str, CatalogEntry],
        others: Container[str],
    ) -> None:
        """Replace entries at once. If the catalog refuses that, because of one of them perhaps,
        each is looked at again and replaced alone."""
        assert isinstance(catalog, GroupedChanges)
        self._check()
        try:
            catalog.change_all(
                [(shown[name], existing) for name, existing in together.items()]
            )
        except EntryRefused:
            for name in together:
                self._check()
                table = self.tables[name]
                self._try(
                    table, partial(self._show, catalog, table, shown[name], others)
                )
            return
        for name in together:
            self._registered(self.tables[name], shown[name])

    def fail(self, error: Wal2LakeError) -> None:
        """Note why the catalog is behind."""
        for table in list(self.tables.values()):
            if self._is_due(table):
                self._now(table, table.state, error)

    def _show(
        self,
        catalog: ExternalCatalog,
        table: RegisteredTable,
        entry: CatalogEntry,
        others: Container[str],
        together: dict[str, FoundEntry] | None = None,
    ) -> None:
        """Make an entry right, or note in ``together`` what is to be replaced with others."""
        existing_entry = catalog.find(entry.name)
        step = self._rules.step_for(catalog, entry, table, existing_entry, others)
        if step is EntryStep.CONFLICT:
            raise self._rules.conflict(entry, existing_entry, self.tables.values())
        if existing_entry is None:
            catalog.create(entry)
        elif step is EntryStep.CHANGE:
            if together is not None:
                together[table.qualified] = existing_entry
                return
            catalog.change(entry, existing_entry)
        self._registered(table, entry)

    def _registered(self, table: RegisteredTable, entry: CatalogEntry) -> None:
        now = replace(table, identities=entry.identities)
        self._now(now, EntryState.REGISTERED)

    def _end(self, catalog: ExternalCatalog, table: RegisteredTable) -> None:
        name = EntryName(table.database, table.entry)

        def end() -> None:
            existing_entry = catalog.find(name)
            step = self._rules.step_after(table, existing_entry)
            if step is EntryStep.REMOVE and existing_entry is not None:
                catalog.remove(name, existing_entry)
            del self.tables[table.qualified]

        self._try(table, end)

    def _try(self, table: RegisteredTable, work: Callable[[], None]) -> None:
        """Do something about one entry, whose refusal holds up no other one."""
        try:
            work()
        except EntryRefused as error:
            leaving = table.state is EntryState.LEAVING
            again = error.retry is Retry.LATER
            tries = self._tries.get(table.qualified, 0) + 1
            self._tries[table.qualified] = tries if again else _MOST_TRIES
            state = EntryState.LEAVING if leaving else _state_after(error)
            self._now(table, state, error)

    def _now(
        self,
        table: RegisteredTable,
        state: EntryState,
        error: Wal2LakeError | None = None,
    ) -> None:
        """Note a state. A state that lasts keeps its beginning, and its error until it ends or has
        another."""
        lasts = table.state is state
        if error is None:
            texts = (table.error, table.sqlstate, table.hint) if lasts else (None,) * 3
            if state is EntryState.REGISTERED:
                texts = (None,) * 3
        else:
            texts = error.message, error.sqlstate, error.hint
        self.tables[table.qualified] = replace(
            table,
            state=state,
            since=table.since if lasts else time.time(),
            error=texts[0],
            sqlstate=texts[1],
            hint=texts[2],
        )


def _new(
    entry: CatalogEntry, digest: str, identities: tuple[str, ...]
) -> RegisteredTable:
    return RegisteredTable(
        entry.schema,
        entry.table,
        entry.name.database,
        entry.name.table,
        EntryState.PENDING,
        time.time(),
        digest,
        identities=_united(identities, entry.identities),
    )


def _united(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *after)))


def _state_after(error: EntryRefused) -> EntryState:
    if error.retry is Retry.LATER:
        return EntryState.PENDING
    taken = error.sqlstate == DUPLICATE
    return EntryState.CONFLICT if taken else EntryState.REFUSED
