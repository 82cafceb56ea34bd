"""``Catalog``'s methods about the columns of published tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wal2lake.catalog.parts.copies import copy_anew
from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.records import ENUM_LABELS
from wal2lake.catalog.remote import schemas
from wal2lake.catalog.remote.schemas import (
    FollowedSchema,
    NotedSchemaChange,
    Parsed,
    ParsedSchemas,
    SchemaChange,
)
from wal2lake.catalog.replication import subscriptions
from wal2lake.model import (
    EnumColumns,
    KnownLabels,
    Lsn,
    Oid,
    Relation,
    RemoteSchema,
    SentSchema,
    Xid,
)

RelationName = tuple[str, str]


class Schemas(CatalogPart):
    """Columns of published tables, for subscriptions that follow them."""

    def note_sent(
        self, subid: Oid, sent: Sequence[SentSchema], ended: Sequence[Xid] = ()
    ) -> None:
        """Record the schemas of Relation messages, as read from the publisher's catalog. ``ended``:
        prepared transactions that have ended, whose stored relations are deleted."""
        with self._database.transaction() as transaction:
            schemas.note_sent(transaction, subid, sent)
            schemas.forget_prepared(transaction, subid, ended)

    def sent_schemas(
        self, subid: Oid, parsed: Parsed | None = None
    ) -> list[SentSchema]:
        """Return the schemas that may not have been followed yet, and the newest of each relation.
        ``parsed``: cache of parsed schemas, which is updated."""
        with self._database.reading() as connection:
            return schemas.sent_schemas(
                connection, subid, {} if parsed is None else parsed
            )

    def trim_sent(self, subid: Oid, floor: Lsn) -> None:
        """Delete schemas recorded for transactions below ``floor``, except for the newest of each
        relation."""
        with self._database.transaction() as transaction:
            schemas.trim_sent(transaction, subid, floor)

    def keep_prepared(
        self, subid: Oid, xid: Xid, relations: Sequence[Relation]
    ) -> None:
        """Store the relations of a prepared transaction, until ``note_sent`` reports its end."""
        with self._database.transaction() as transaction:
            schemas.keep_prepared(transaction, subid, xid, relations)

    def forget_prepared(self, subid: Oid) -> None:
        """Delete all stored relations, because schemas are not followed any more and the ends of
        prepared transactions are not noticed."""
        with self._database.transaction() as transaction:
            schemas.forget_all_prepared(transaction, subid)

    def prepared_transactions(self, subid: Oid) -> list[Xid]:
        """Return the prepared transactions with stored relations."""
        with self._database.reading() as connection:
            return list(schemas.prepared_relations(connection, subid))

    def prepared_relations(self, subid: Oid, xid: Xid) -> list[Relation]:
        """Return the stored relations of a prepared transaction."""
        with self._database.reading() as connection:
            return schemas.prepared_relations(connection, subid).get(xid, [])

    def followed_schemas(
        self, subid: Oid, parsed: ParsedSchemas | None = None
    ) -> dict[Oid, FollowedSchema]:
        """Return, by OID, the schemas that the local tables agree with. ``parsed``: cache of parsed
        schemas, which is updated."""
        with self._database.reading() as connection:
            return schemas.followed_schemas(
                connection, subid, {} if parsed is None else parsed
            )

    @change
    def start_following(
        self, subid: Oid, agreed: Mapping[Oid, RemoteSchema], begins: Lsn
    ) -> None:
        """Record the schemas that local tables agree with, by OID. Transactions at or above
        ``begins`` may have other columns. A NOT NULL that waits goes on waiting."""
        with self._database.transaction() as transaction:
            before = schemas.followed_schemas(transaction, subid, {})
            for relid, schema in agreed.items():
                followed = FollowedSchema(schema, begins)
                previous = before.get(relid)
                if previous is not None and previous.schema.relid == schema.relid:
                    still = {a.number for a in schema.attributes if a.not_null}
                    required = tuple(n for n in previous.required if n in still)
                    if required:
                        followed = replace(
                            followed, required=required, settles=previous.settles
                        )
                schemas.set_followed(transaction, subid, relid, followed)

    def forget_followed(self, subid: Oid) -> None:
        """Delete all followed schemas, which are out of date because the subscription begins to
        follow anew."""
        with self._database.transaction() as transaction:
            schemas.forget_followed(transaction, subid)

    def note_labels(
        self,
        subid: Oid,
        seen: EnumColumns,
        position: Lsn,
        copied: EnumColumns | None = None,
    ) -> None:
        """Record the publisher's labels of enums, and which of them it has renamed, as
        ``KnownLabels.then`` finds out. Nothing happens if the subscription is gone."""
        with self._database.transaction() as transaction:
            subscription = subscriptions.subscription_by_oid(transaction, subid)
            if subscription is None:
                return
            followed = schemas.followed_schemas(transaction, subid, {}).values()
            text = subscription.options.get(ENUM_LABELS)
            known_labels = KnownLabels.parse(text).then(seen, position, copied)
            oldest = min((table.begins for table in followed), default=Lsn(0))
            labels = known_labels.since(oldest).as_json()
            if labels != text:
                subscriptions.update_subscription(
                    transaction, subid, {}, options={ENUM_LABELS: labels}, bump=False
                )

    def begin_steps(self, subid: Oid, relid: Oid, making: str | None) -> None:
        """Note that steps begin. ``making``: the table's definition before them, which shows after
        a crash whether they were made, because some steps cannot be repeated. None if the steps
        failed."""
        with self._database.transaction() as transaction:
            schemas.set_making(transaction, subid, relid, making)

    def steps_made(
        self,
        subid: Oid,
        relid: Oid,
        followed: FollowedSchema,
        changes: Sequence[SchemaChange],
        *,
        lsn: Lsn,
        earlier: Sequence[tuple[Lsn, Sequence[SchemaChange]]] = (),
        remote: RelationName | None = None,
        trusted: bool = False,
        recopy: bool = False,
    ) -> None:
        """Record that the table agrees with the next schema from the transaction at ``lsn`` on.

        ``earlier``: transactions below whose changes were made at once with this one's.
        ``remote``: the table's new name at the publisher. Another table that had this name has a
        new name that is not known yet, and gets the free name until then. ``trusted``: inserts
        still need not look for existing rows, because the alteration added none. ``recopy``: the
        table waits for a copy that replaces its rows; until then readers see the old rows, apart
        from the other tables. For ``trusted`` and ``recopy`` the caller holds the commit lock."""
        with self._database.transaction() as transaction:
            schemas.set_followed(transaction, subid, relid, followed)
            schemas.gone_by(transaction, subid, followed.schema.relid, lsn)
            for altering, made in (*earlier, (lsn, changes)):
                schemas.note_changes(transaction, subid, relid, altering, made)
            if remote is not None:
                subscriptions.take_remote_name(transaction, subid, relid, remote)
            if trusted:
                subscriptions.update_rel(transaction, subid, relid, {"trusted": 1})
            if recopy:
                copy_anew(transaction, subid, relid)

    def agreed(self, subid: Oid, agreed: Mapping[Oid, FollowedSchema]) -> None:
        """Record schemas, by local OID, that change nothing in their tables. Later ones are to be
        followed from their ``begins`` on."""
        with self._database.transaction() as transaction:
            for relid, followed in agreed.items():
                schemas.set_followed(transaction, subid, relid, followed)
                last = Lsn(followed.begins - 1)
                schemas.gone_by(transaction, subid, followed.schema.relid, last)

    def schema_history(self) -> list[NotedSchemaChange]:
        """Return the followed changes, in order."""
        with self._database.reading() as connection:
            return schemas.noted_changes(connection)
