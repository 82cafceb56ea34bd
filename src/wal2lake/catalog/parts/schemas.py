"""``Catalog``'s methods about the columns of published tables; see ``store``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wal2lake.catalog.parts.copies import copy_anew
from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.remote import schemas
from wal2lake.catalog.remote.schemas import (
    FollowedSchema,
    NotedSchemaChange,
    Parsed,
    ParsedSchemas,
    SchemaChange,
)
from wal2lake.catalog.replication import subscriptions
from wal2lake.model import Lsn, Oid, Relation, RemoteSchema, SentSchema, Xid

RelationName = tuple[str, str]


class Schemas(CatalogPart):
    """For subscriptions that follow them."""

    def note_sent(
        self, subid: Oid, sent: Sequence[SentSchema], ended: Sequence[Xid] = ()
    ) -> None:
        """Relation messages have come, and this is what the publisher's catalog says.
        ``ended``: prepared transactions that have, so nothing is kept for them any more."""
        with self._database.transaction() as transaction:
            schemas.note_sent(transaction, subid, sent)
            schemas.forget_prepared(transaction, subid, ended)

    def sent_schemas(
        self, subid: Oid, parsed: Parsed | None = None
    ) -> list[SentSchema]:
        """Return the schemas that may not have been followed yet, and the newest of each relation.
        ``parsed``: the parsed schemas of the last call; they are brought up to date."""
        with self._database.reading() as connection:
            return schemas.sent_schemas(
                connection, subid, {} if parsed is None else parsed
            )

    def trim_sent(self, subid: Oid, floor: Lsn) -> None:
        """Delete schemas noted for transactions below ``floor``, except for the newest of each
        relation."""
        with self._database.transaction() as transaction:
            schemas.trim_sent(transaction, subid, floor)

    def keep_prepared(
        self, subid: Oid, xid: Xid, relations: Sequence[Relation]
    ) -> None:
        """Relation messages of a prepared transaction, until ``note_sent`` says that it has
        ended."""
        with self._database.transaction() as transaction:
            schemas.keep_prepared(transaction, subid, xid, relations)

    def forget_prepared(self, subid: Oid) -> None:
        """The columns of a publisher are not followed any more: nobody looks at the ends of
        transactions that are prepared."""
        with self._database.transaction() as transaction:
            schemas.forget_all_prepared(transaction, subid)

    def prepared_transactions(self, subid: Oid) -> list[Xid]:
        """Return the prepared transactions for which relations are kept."""
        with self._database.reading() as connection:
            return list(schemas.prepared_relations(connection, subid))

    def prepared_relations(self, subid: Oid, xid: Xid) -> list[Relation]:
        """Return the relations kept for one of them."""
        with self._database.reading() as connection:
            return schemas.prepared_relations(connection, subid).get(xid, [])

    def followed_schemas(
        self, subid: Oid, parsed: ParsedSchemas | None = None
    ) -> dict[Oid, FollowedSchema]:
        """Return, by OID, the schemas that our tables agree with. ``parsed``: the parsed schemas of
        the last call; they are brought up to date."""
        with self._database.reading() as connection:
            return schemas.followed_schemas(
                connection, subid, {} if parsed is None else parsed
            )

    @change
    def start_following(
        self, subid: Oid, found: Mapping[Oid, RemoteSchema], begins: Lsn
    ) -> None:
        """Our tables, by OID, have these columns; what commits at or above ``begins`` may have
        others. NOT NULL that waits goes on to wait."""
        with self._database.transaction() as transaction:
            before = schemas.followed_schemas(transaction, subid, {})
            for relid, schema in found.items():
                followed = FollowedSchema(schema, begins)
                known = before.get(relid)
                if known is not None and known.schema.relid == schema.relid:
                    still = {a.number for a in schema.attributes if a.not_null}
                    required = tuple(n for n in known.required if n in still)
                    if required:
                        followed = replace(
                            followed, required=required, settles=known.settles
                        )
                schemas.set_followed(transaction, subid, relid, followed)

    def forget_followed(self, subid: Oid) -> None:
        """The subscription begins to follow anew: what was known of its tables' columns is of
        another time."""
        with self._database.transaction() as transaction:
            schemas.forget_followed(transaction, subid)

    def begin_steps(self, subid: Oid, relid: Oid, making: str | None) -> None:
        """``making``: the table before they are made. It is asked for after a crash, for not all
        of them can be made twice. None: they could not be made."""
        with self._database.transaction() as transaction:
            schemas.set_making(transaction, subid, relid, making)

    def steps_made(
        self,
        subid: Oid,
        relid: Oid,
        followed: FollowedSchema,
        changes: Sequence[SchemaChange],
        *,
        at: Lsn,
        remote: RelationName | None = None,
        trusted: bool = False,
        recopy: bool = False,
    ) -> None:
        """The table agrees with the next description from the transaction at ``at`` on.
        ``remote``: its new name at the publisher; a table that had it has another one by now,
        and gets the name that is free until it is heard of. ``trusted``: inserts into it need
        not look for rows, as before: who has altered it has brought none. ``recopy``: it waits
        for a copy that takes the place of its rows, which are not the publisher's; readers have
        them until then, apart from the others. For these two the caller holds the commit
        lock."""
        with self._database.transaction() as transaction:
            schemas.set_followed(transaction, subid, relid, followed)
            schemas.gone_by(transaction, subid, followed.schema.relid, at)
            schemas.note_changes(transaction, subid, relid, at, changes)
            if remote is not None:
                subscriptions.take_remote_name(transaction, subid, relid, remote)
            if trusted:
                subscriptions.update_rel(transaction, subid, relid, {"trusted": 1})
            if recopy:
                copy_anew(transaction, subid, relid)

    def schema_history(self) -> list[NotedSchemaChange]:
        """Return the followed changes, in order."""
        with self._database.reading() as connection:
            return schemas.noted_changes(connection)
