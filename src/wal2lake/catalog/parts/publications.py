"""``Catalog``'s methods about publications."""

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
        """Return all publications, by OID."""
        with self._database.reading() as connection:
            return publications.all_publications(connection)

    def publication_named(self, name: str) -> Publication | None:
        """Return a publication by name."""
        matches = (
            publication
            for publication in self.publications()
            if publication.name == name
        )
        return next(matches, None)

    @change
    def create_publication(self, publication: Publication) -> None:
        """Create a publication with its tables and schemas. Raises 42710 if the name is taken."""
        with self._database.transaction() as transaction:
            publications.create_publication(transaction, publication)

    @change
    def update_publication(self, oid: Oid, **changes: Any) -> None:
        """Set fields of the publication's row: ``name``, ``owner``, ``publishes``, ``via_root``,
        ``generated_columns``. Raises 42710 if a new name is taken."""
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
        """Remove rows of tables and schemas, by the rows' OIDs, then add others, in one
        transaction."""
        with self._database.transaction() as transaction:
            publications.remove_objects(transaction, removed)
            publications.add_objects(transaction, pubid, tables, schemas)

    @change
    def drop_publications(self, oids: Collection[Oid]) -> None:
        """Drop publications with their comments."""
        with self._database.transaction() as transaction:
            for oid in oids:
                publications.drop_publication(transaction, oid)
                comments.set_comment(transaction, PUBLICATION_CATALOG, oid, None)

    def note_definitions(self, lsn: Lsn) -> bool:
        """Record the definitions that hold for the publisher's log from ``lsn`` on. Return whether
        they differ from those recorded last. No higher position may have been recorded."""
        with self._database.reading() as connection:
            unchanged = historic.present(connection) == historic.newest(connection)
        if not unchanged:
            with self._database.transaction() as transaction:
                now = historic.present(transaction)
                historic.note(transaction, lsn, historic.newest(transaction), now)
        return not unchanged

    def forget_definitions(self, above: Lsn) -> None:
        """Delete definitions recorded above the end of the log."""
        with self._database.transaction() as transaction:
            historic.forget(transaction, above)

    def trim_definitions(self, below: Lsn) -> bool:
        """Delete definitions that are not needed to read the log from a position on. Return whether
        more than the present definitions remain."""
        with self._database.reading() as connection:
            can_trim = historic.can_trim(connection, below)
        if can_trim:
            with self._database.transaction() as transaction:
                historic.trim(transaction, below)
        with self._database.reading() as connection:
            return historic.has_past(connection)

    def definition_positions(self) -> list[Lsn]:
        """Return the positions of the log at which definitions change, in order."""
        with self._database.reading() as connection:
            return historic.positions(connection)

    def definitions_at(self, lsn: Lsn | None) -> HistoricDefinitions:
        """Return the definitions at a position, which must not be below the first of
        ``definition_positions``. None for the present ones."""
        with self._database.reading() as connection:
            return historic.definitions_at(connection, lsn)
