"""Rows of ``sent_schema``, ``followed_schema`` and ``schema_change``.

In: a connection, and in writes a transaction on it. Out: values of
``model.relations.remoteschema``, ``NotedSchemaChange``. Called by ``store``.

A *sent* schema is one that the receiver has recorded for a relation, with the commit LSN from which
on it holds. A *followed* schema is the one that the local table was last made to agree with. Apply
goes from one sent schema to the next, in order.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from wal2lake.model import (
    INVALID_LSN,
    Lsn,
    Oid,
    Relation,
    RemoteSchema,
    SentSchema,
    Xid,
)
from wal2lake.model.relations.remoteschema import relation_as_json, relation_from_json

Parsed = dict[tuple[str, str], tuple[Relation, RemoteSchema]]
"""Parsed texts of sent schemas."""

ParsedSchemas = dict[str, RemoteSchema]
"""Parsed texts of followed schemas."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One step of a table's definition at the publisher."""

    change: str
    """The step as an action of ALTER TABLE: ``ADD COLUMN "b" integer``."""
    outcome: str
    """Outcome of the change here."""


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Changes that a look of ``auto_refresh`` makes beside the list of tables."""

    lsn: Lsn
    """A position of the publisher above everything that the look has seen."""
    seen_as: Mapping[Oid, str] = field(default_factory=dict)
    """How present tables are published."""
    copied_again: Collection[Oid] = ()
    """Tables whose copy differs from what is published now. None of them is paused."""
    noted: Mapping[Oid, Sequence[SchemaChange]] = field(default_factory=dict)
    """Rows of wal2lake.schema_history."""


@dataclass(frozen=True, slots=True)
class FollowedSchema:
    """The publisher's schema that a local table agrees with."""

    schema: RemoteSchema
    begins: Lsn
    """Commit LSN from which on sent schemas are still to be followed."""
    previous: RemoteSchema | None = None
    """Previous schema. The transaction that altered the table may have rows with it."""
    making: str | None = None
    """Definition of the local table when the next steps were begun."""
    required: tuple[int, ...] = ()
    """Numbers of columns that are NOT NULL at the publisher, and become NOT NULL here at
    ``settles``, because earlier rows may have null."""
    settles: Lsn = INVALID_LSN


@dataclass(frozen=True, slots=True)
class NotedSchemaChange:
    """A row of wal2lake.schema_history."""

    subid: Oid
    relid: Oid
    lsn: Lsn
    change: str
    outcome: str
    noted_at: datetime


def note_sent(
    connection: sqlite3.Connection, subid: Oid, sent: Iterable[SentSchema]
) -> None:
    """Record the schemas of relations that have changed."""
    for sent_schema in sent:
        relation, schema = (
            relation_as_json(sent_schema.relation),
            sent_schema.schema.as_json(),
        )
        newest = connection.execute(
            "select relation, schema from sent_schema where subid = ? and remote_relid = ?"
            " order by at desc limit 1",
            (subid, sent_schema.relation.relid),
        ).fetchone()
        if newest is not None and tuple(newest) == (relation, schema):
            continue
        connection.execute(
            "insert or replace into sent_schema (subid, remote_relid, at, relation,"
            " schema, settled) values (?, ?, ?, ?, ?, ?)",
            (
                subid,
                sent_schema.relation.relid,
                int(sent_schema.commit_lsn),
                relation,
                schema,
                int(sent_schema.settled),
            ),
        )


def sent_schemas(
    connection: sqlite3.Connection, subid: Oid, parsed: Parsed
) -> list[SentSchema]:
    """Return the schemas that are recorded and not followed yet, in order. ``parsed``: cache of the
    caller, which is updated."""
    rows = connection.execute(
        "select at, relation, schema, settled from sent_schema where subid = ?"
        " order by at",
        (subid,),
    ).fetchall()
    texts_in_use = {(row["relation"], row["schema"]) for row in rows}
    for texts in [key for key in parsed if key not in texts_in_use]:
        del parsed[texts]
    for relation, schema in texts_in_use:
        if (relation, schema) not in parsed:
            parsed[relation, schema] = (
                relation_from_json(relation),
                RemoteSchema.parse(schema),
            )
    return [
        SentSchema(
            Lsn(row["at"]),
            *parsed[row["relation"], row["schema"]],
            Lsn(row["settled"]),
        )
        for row in rows
    ]


def keep_prepared(
    connection: sqlite3.Connection, subid: Oid, xid: Xid, relations: Iterable[Relation]
) -> None:
    """Store the relations of a prepared transaction."""
    forget_prepared(connection, subid, [xid])
    for relation in relations:
        connection.execute(
            "insert into prepared_relation (subid, xid, remote_relid, relation)"
            " values (?, ?, ?, ?)",
            (subid, int(xid), relation.relid, relation_as_json(relation)),
        )


def prepared_relations(
    connection: sqlite3.Connection, subid: Oid
) -> dict[Xid, list[Relation]]:
    """Return the stored relations, by transaction."""
    by_xid: dict[Xid, list[Relation]] = {}
    for row in connection.execute(
        "select xid, relation from prepared_relation where subid = ?", (subid,)
    ):
        by_xid.setdefault(Xid(row["xid"]), []).append(
            relation_from_json(row["relation"])
        )
    return by_xid


def forget_prepared(
    connection: sqlite3.Connection, subid: Oid, xids: Iterable[Xid]
) -> None:
    """Delete the relations of transactions that have ended."""
    for xid in xids:
        connection.execute(
            "delete from prepared_relation where subid = ? and xid = ?",
            (subid, int(xid)),
        )


def rebase(connection: sqlite3.Connection, subid: Oid, start: Lsn) -> None:
    """Begin with another slot's stream at ``start``: schemas and positions of the old stream do not
    count any more."""
    connection.execute("delete from sent_schema where subid = ?", (subid,))
    forget_all_prepared(connection, subid)
    connection.execute(
        "update followed_schema set begins = ?2,"
        " settles = case when settles > 0 then ?2 else 0 end where subid = ?1",
        (subid, int(start)),
    )


def forget_followed(connection: sqlite3.Connection, subid: Oid) -> None:
    """Delete all sent and followed schemas of a subscription."""
    connection.execute("delete from sent_schema where subid = ?", (subid,))
    connection.execute("delete from followed_schema where subid = ?", (subid,))
    forget_all_prepared(connection, subid)


def forget_all_prepared(connection: sqlite3.Connection, subid: Oid) -> None:
    """Delete the relations of all prepared transactions, whose ends will not be noticed."""
    connection.execute("delete from prepared_relation where subid = ?", (subid,))


def followed_schemas(
    connection: sqlite3.Connection, subid: Oid, parsed: ParsedSchemas
) -> dict[Oid, FollowedSchema]:
    """Return the followed schemas, by local OID. ``parsed``: cache of the caller, which is
    updated."""
    rows = connection.execute(
        "select * from followed_schema where subid = ?", (subid,)
    ).fetchall()
    texts_in_use = {row[name] for row in rows for name in ("schema", "previous")} - {
        None
    }
    for text in parsed.keys() - texts_in_use:
        del parsed[text]
    for text in texts_in_use - parsed.keys():
        parsed[text] = RemoteSchema.parse(text)
    return {
        Oid(row["relid"]): FollowedSchema(
            parsed[row["schema"]],
            Lsn(row["begins"]),
            None if row["previous"] is None else parsed[row["previous"]],
            row["making"],
            tuple(json.loads(row["required"])),
            Lsn(row["settles"]),
        )
        for row in rows
    }


def set_followed(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, followed: FollowedSchema
) -> None:
    """Record the schema that a table agrees with. Has no effect if the table has left the
    subscription."""
    previous = followed.previous
    connection.execute(
        "insert or replace into followed_schema"
        " (subid, relid, schema, begins, previous, making, required, settles)"
        " select subid, relid, ?, ?, ?, ?, ?, ? from subscription_rel"
        " where subid = ? and relid = ?",
        (
            followed.schema.as_json(),
            int(followed.begins),
            None if previous is None else previous.as_json(),
            followed.making,
            json.dumps(followed.required),
            int(followed.settles),
            subid,
            relid,
        ),
    )


def set_making(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, making: str | None
) -> None:
    """Record the definition from which steps are being made; None if there are none."""
    connection.execute(
        "update followed_schema set making = ? where subid = ? and relid = ?",
        (making, subid, relid),
    )


def gone_by(
    connection: sqlite3.Connection, subid: Oid, remote_relid: Oid, followed_at: Lsn
) -> None:
    """Delete the followed schemas sent up to ``followed_at``. The newest stays, for comparison."""
    connection.execute(
        "delete from sent_schema where subid = ?1 and remote_relid = ?2 and at <= ?3"
        " and at < (select max(at) from sent_schema where subid = ?1"
        " and remote_relid = ?2)",
        (subid, remote_relid, int(followed_at)),
    )


def trim_sent(connection: sqlite3.Connection, subid: Oid, floor: Lsn) -> None:
    """Delete schemas below ``floor`` except for the newest, because later messages are at or above
    it."""
    connection.execute(
        "delete from sent_schema where subid = ?1 and at < ?2"
        " and at < (select max(newer.at) from sent_schema newer where newer.subid = ?1"
        " and newer.remote_relid = sent_schema.remote_relid)",
        (subid, int(floor)),
    )


def note_changes(
    connection: sqlite3.Connection,
    subid: Oid,
    relid: Oid,
    lsn: Lsn,
    changes: Iterable[SchemaChange],
) -> None:
    """Record changes for wal2lake.schema_history."""
    now = datetime.now(UTC).isoformat()
    for schema_change in changes:
        connection.execute(
            "insert into schema_change (subid, relid, lsn, change, outcome, noted_at)"
            " values (?, ?, ?, ?, ?, ?)",
            (subid, relid, int(lsn), schema_change.change, schema_change.outcome, now),
        )


def noted_changes(connection: sqlite3.Connection) -> list[NotedSchemaChange]:
    """Return all changes, in the order in which they were followed."""
    return [
        NotedSchemaChange(
            Oid(row["subid"]),
            Oid(row["relid"]),
            Lsn(row["lsn"]),
            row["change"],
            row["outcome"],
            datetime.fromisoformat(row["noted_at"]),
        )
        for row in connection.execute("select * from schema_change order by number")
    ]
