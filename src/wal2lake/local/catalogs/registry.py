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

import hashlib
import json
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Final

from wal2lake.catalog import EntryState, RegisteredTable
from wal2lake.errors import Retry, Wal2LakeError
from wal2lake.lake.catalogs import (
    NODE,
    TABLE,
    CatalogEntry,
    CatalogUnavailable,
    EntryName,
    EntryRefused,
    EntryStep,
    ExternalCatalog,
    FoundEntry,
    step_after,
    step_for,
)

_DONE: Final = (EntryState.REGISTERED, EntryState.CONFLICT, EntryState.REFUSED)
"""States in which nothing is due before the table changes or a sweep comes."""

_MOST_TRIES: Final = 3
"""Attempts at an entry that others change meanwhile, before it waits for the sweep. A guess."""

_DUPLICATE: Final = "42710"

_TAKEN: Final = (
    "The entry is not touched. Rename the table, drop the entry in the catalog, or set"
    " catalog.prefix: then the next look registers the table."
)


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
        node: int,
        tables: Mapping[str, RegisteredTable],
        check: Callable[[], None] = lambda: None,
        attempts: EntryAttempts | None = None,
    ) -> None:
        """``node``: its system identifier. ``check``: raises when the work must end. ``attempts``
        is carried on by this object."""
        self._node = node
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
            digest, registered = _digest(entry), self.tables.get(name)
            if registered is None or registered.state is EntryState.LEAVING:
                self._tries.pop(name, None)
                self.tables[name] = _new(entry, digest)
            elif registered.digest != digest:
                self._tries.pop(name, None)
                self._now(replace(registered, digest=digest), EntryState.PENDING)

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
            for name in (*due, *sorted(rest)):
                self._check()
                table = self.tables[name]
                show = partial(self._show, catalog, table, shown[name], wanted)
                self._try(table, show)
                if sweep:
                    looked.add(name)
        except CatalogUnavailable as error:
            self.fail(error)
            raise
        if sweep:
            looked.clear()

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
    ) -> None:
        existing_entry = catalog.find(entry.name)
        step = step_for(catalog, entry, existing_entry, others)
        if step is EntryStep.CONFLICT:
            raise _taken(entry, existing_entry)
        if existing_entry is None:
            catalog.create(entry)
        elif step is EntryStep.CHANGE:
            catalog.change(entry, existing_entry)
        self._now(table, EntryState.REGISTERED)

    def _end(self, catalog: ExternalCatalog, table: RegisteredTable) -> None:
        name = EntryName(table.database, table.entry)

        def end() -> None:
            existing_entry = catalog.find(name)
            step = step_after(self._node, table.qualified, existing_entry)
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


def _new(entry: CatalogEntry, digest: str) -> RegisteredTable:
    return RegisteredTable(
        entry.schema,
        entry.table,
        entry.name.database,
        entry.name.table,
        EntryState.PENDING,
        time.time(),
        digest,
    )


def _digest(entry: CatalogEntry) -> str:
    """Return a digest of all that a catalog shows."""
    text = json.dumps(asdict(entry), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _taken(entry: CatalogEntry, existing_entry: FoundEntry | None) -> EntryRefused:
    marks = {} if existing_entry is None else existing_entry.properties
    ours = marks.get(NODE) == entry.properties[NODE]
    owner = f'table "{marks[TABLE]}" of this node' if ours else "another program"
    return EntryRefused(
        f'the name "{entry.name}" of the catalog is in use by {owner}',
        sqlstate=_DUPLICATE,
        hint=_TAKEN,
    )


def _state_after(error: EntryRefused) -> EntryState:
    if error.retry is Retry.LATER:
        return EntryState.PENDING
    taken = error.sqlstate == _DUPLICATE
    return EntryState.CONFLICT if taken else EntryState.REFUSED
