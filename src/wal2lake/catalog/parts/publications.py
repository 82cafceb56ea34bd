"""``Catalog``'s methods about publications; see ``store``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from wal2lake.catalog.definitions import historic, publications
from wal2lake.catalog.definitions.historic import HistoricDefinitions
from wal2lake.catalog.definitions.publications import (
    Publication,
    PublishedSchema,
    PublishedTable,
)
from wal2lake.catalog.objects import comments
from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.schema import PUBLICATION_CATALOG
from wal2lake.model import Lsn, Oid


class Publications(CatalogPart):
    """The part of the catalog about publications."""

    def publications(self) -> list[Publication]:
        """All of them, by OID."""
        with self._database.reading() as connection:
            return publications.all_publications(connection)

    def publication_named(self, name: str) -> Publication | None:
        """One by its name."""
        found = (one for one in self.publications() if one.name == name)
        return next(found, None)

    @change
    def create_publication(self, publication: Publication) -> None:
        """With its tables and schemas; 42710 if the name is taken."""
        with self._database.transaction() as transaction:
            publications.create_publication(transaction, publication)

    @change
    def update_publication(self, oid: Oid, **changes: Any) -> None:
        """Fields of its own row: ``name``, ``owner``, ``publishes``, ``via_root``,
        ``generated_columns``; 42710 if a new name is taken."""
        with self._database.transaction() as transaction:
            publications.update_publication(transaction, oid, changes)

    @change
    def change_objects(
        self,
        pubid: Oid,
        removed: Collection[Oid] = (),
        tables: Sequence[PublishedTable] = (),
        schemas: Sequence[PublishedSchema] = (),
    ) -> None:
        """At one moment: rows of tables and schemas go, by their own OIDs, then others come."""
        with self._database.transaction() as transaction:
            publications.remove_objects(transaction, removed)
            publications.add_objects(transaction, pubid, tables, schemas)

    @change
    def drop_publications(self, oids: Collection[Oid]) -> None:
        """All of them, with their comments."""
        with self._database.transaction() as transaction:
            for oid in oids:
                publications.drop_publication(transaction, oid)
                comments.set_comment(transaction, PUBLICATION_CATALOG, oid, None)

    def note_definitions(self, lsn: Lsn) -> bool:
        """Note the definitions that hold for the publisher's log from ``lsn`` on; return whether
        they differ from those noted last. Nothing may have been noted above."""
        with self._database.reading() as connection:
            same = historic.present(connection) == historic.newest(connection)
        if not same:
            with self._database.transaction() as transaction:
                now = historic.present(transaction)
                historic.note(transaction, lsn, historic.newest(transaction), now)
        return not same

    def forget_definitions(self, above: Lsn) -> None:
        """Forget definitions noted above a position, beyond which the log does not reach."""
        with self._database.transaction() as transaction:
            historic.forget(transaction, above)

    def trim_definitions(self, below: Lsn) -> bool:
        """Delete definitions that readers of the log from a position on do not need; return whether
        more than the present ones remain."""
        with self._database.reading() as connection:
            found = historic.can_trim(connection, below)
        if found:
            with self._database.transaction() as transaction:
                historic.trim(transaction, below)
        with self._database.reading() as connection:
            return historic.has_past(connection)

    def definition_positions(self) -> list[Lsn]:
        """Where in the log something begins to be otherwise, in order."""
        with self._database.reading() as connection:
            return historic.positions(connection)

    def definitions_at(self, lsn: Lsn | None) -> HistoricDefinitions:
        """Return the definitions at a position, not below the first of ``definition_positions``;
        None: the present ones."""
        with self._database.reading() as connection:
            return historic.definitions_at(connection, lsn)
