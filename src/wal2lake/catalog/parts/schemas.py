"""``Catalog``'s methods about the columns of published tables; see ``store``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal2lake.catalog.parts.part import Part
from wal2lake.catalog.remote import schemas
from wal2lake.catalog.remote.schemas import NotedSchemaChange
from wal2lake.model import Oid, RemoteSchema, SentSchema


class Schemas(Part):
    """For subscriptions that follow them."""

    def note_sent(self, subid: Oid, sent: Sequence[SentSchema]) -> None:
        """Relation messages have come, and this is what the publisher's catalog says."""
        with self._database.transaction() as transaction:
            schemas.note_sent(transaction, subid, sent)

    def sent_schemas(self, subid: Oid) -> list[SentSchema]:
        """Those that may not have been followed yet, and the newest of each relation."""
        with self._database.reading() as connection:
            return schemas.sent_schemas(connection, subid)

    def followed_schemas(self, subid: Oid) -> dict[Oid, RemoteSchema]:
        """What our tables, by OID, agree with."""
        with self._database.reading() as connection:
            return schemas.followed_schemas(connection, subid)

    def start_following(self, subid: Oid, found: Mapping[Oid, RemoteSchema]) -> None:
        """From these on, for our tables by OID."""
        with self._database.transaction() as transaction:
            schemas.set_followed(transaction, subid, found)

    def schema_history(self) -> list[NotedSchemaChange]:
        """What was followed, in order."""
        with self._database.reading() as connection:
            return schemas.noted_changes(connection)
