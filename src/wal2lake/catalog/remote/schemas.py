"""Rows of ``sent_schema``, ``followed_schema`` and ``schema_change``.

In: a connection, and in writes a transaction on it. Out: values of
``model.relations.remoteschema``, ``NotedSchemaChange``. Called by ``store``.

*Sent* is what the receiver has noted of a relation, by the commit LSN from which on it holds;
*followed* is what our table was last made to agree with. Apply goes from one to the next, in
order.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
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
"""Parsed texts of noted relations."""

ParsedSchemas = dict[str, RemoteSchema]
"""Parsed texts of followed schemas."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One step of a table's definition, at the publisher's."""

    change: str
    """In words of ALTER TABLE: ``ADD COLUMN "b" integer``."""
    outcome: str
    """Outcome of the change here."""


@dataclass(frozen=True, slots=True)
class FollowedSchema:
    """Schema that a table of ours agrees with."""

    schema: RemoteSchema
    begins: Lsn
    """Position from which changes are still to be followed: those sent for transactions that commit
    at or above it."""
    previous: RemoteSchema | None = None
    """Schema before this one: the transaction that altered the table may have rows of it."""
    making: str | None = None
    """The table as it was when the next steps were begun."""
    required: tuple[int, ...] = ()
    """Columns, by number, that are NOT NULL there, and become so here at ``settles``: rows that
    come before may be of a time without it."""
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
    """Note relations, except for those that are already known."""
    for one in sent:
        relation, schema = relation_as_json(one.relation), one.schema.as_json()
        newest = connection.execute(
            "select relation, schema from sent_schema where subid = ? and remote_relid = ?"
            " order by at desc limit 1",
            (subid, one.relation.relid),
        ).fetchone()
        if newest is not None and tuple(newest) == (relation, schema):
            continue
        connection.execute(
            "insert or replace into sent_schema (subid, remote_relid, at, relation,"
            " schema, settled) values (?, ?, ?, ?, ?, ?)",
            (
                subid,
                one.relation.relid,
                int(one.at),
                relation,
                schema,
                int(one.settled),
            ),
        )


def sent_schemas(
    connection: sqlite3.Connection, subid: Oid, parsed: Parsed
) -> list[SentSchema]:
    """All that were noted and not gone by, in order. ``parsed`` is kept by who asks again."""
    rows = connection.execute(
        "select at, relation, schema, settled from sent_schema where subid = ?"
        " order by at",
        (subid,),
    ).fetchall()
    wanted = {(row["relation"], row["schema"]) for row in rows}
    for texts in [one for one in parsed if one not in wanted]:
        del parsed[texts]
    for relation, schema in wanted:
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
    """Relation messages of a transaction that is prepared."""
    forget_prepared(connection, subid, [xid])
    for one in relations:
        connection.execute(
            "insert into prepared_relation (subid, xid, remote_relid, relation)"
            " values (?, ?, ?, ?)",
            (subid, int(xid), one.relid, relation_as_json(one)),
        )


def prepared_relations(
    connection: sqlite3.Connection, subid: Oid
) -> dict[Xid, list[Relation]]:
    """By transaction, those that were kept."""
    found: dict[Xid, list[Relation]] = {}
    for row in connection.execute(
        "select xid, relation from prepared_relation where subid = ?", (subid,)
    ):
        found.setdefault(Xid(row["xid"]), []).append(
            relation_from_json(row["relation"])
        )
    return found


def forget_prepared(
    connection: sqlite3.Connection, subid: Oid, xids: Iterable[Xid]
) -> None:
    """They have ended."""
    for xid in xids:
        connection.execute(
            "delete from prepared_relation where subid = ? and xid = ?",
            (subid, int(xid)),
        )


def rebase(connection: sqlite3.Connection, subid: Oid, start: Lsn) -> None:
    """The stream is another slot's from ``start`` on: what the one before has said, and its
    positions, count no more."""
    connection.execute("delete from sent_schema where subid = ?", (subid,))
    forget_all_prepared(connection, subid)
    connection.execute(
        "update followed_schema set begins = ?2,"
        " settles = case when settles > 0 then ?2 else 0 end where subid = ?1",
        (subid, int(start)),
    )


def forget_followed(connection: sqlite3.Connection, subid: Oid) -> None:
    """Nothing is known of the columns that its tables agree with."""
    connection.execute("delete from sent_schema where subid = ?", (subid,))
    connection.execute("delete from followed_schema where subid = ?", (subid,))
    forget_all_prepared(connection, subid)


def forget_all_prepared(connection: sqlite3.Connection, subid: Oid) -> None:
    """Nobody will look at their ends."""
    connection.execute("delete from prepared_relation where subid = ?", (subid,))


def followed_schemas(
    connection: sqlite3.Connection, subid: Oid, parsed: ParsedSchemas
) -> dict[Oid, FollowedSchema]:
    """By our tables' OIDs. ``parsed`` is kept by who asks again."""
    rows = connection.execute(
        "select * from followed_schema where subid = ?", (subid,)
    ).fetchall()
    wanted = {row[name] for row in rows for name in ("schema", "previous")} - {None}
    for text in parsed.keys() - wanted:
        del parsed[text]
    for text in wanted - parsed.keys():
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
    """The table agrees with it; nothing if it has left the subscription."""
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
    """Steps from it are being made; None: they are not."""
    connection.execute(
        "update followed_schema set making = ? where subid = ? and relid = ?",
        (making, subid, relid),
    )


def gone_by(
    connection: sqlite3.Connection, subid: Oid, remote_relid: Oid, at: Lsn
) -> None:
    """Delete the schemas that were sent up to ``at`` and followed; the newest stays, to be compared
    with."""
    connection.execute(
        "delete from sent_schema where subid = ?1 and remote_relid = ?2 and at <= ?3"
        " and at < (select max(at) from sent_schema where subid = ?1"
        " and remote_relid = ?2)",
        (subid, remote_relid, int(at)),
    )


def trim_sent(connection: sqlite3.Connection, subid: Oid, floor: Lsn) -> None:
    """Delete schemas below ``floor`` but for the newest: later messages are at or above it."""
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
    at: Lsn,
    changes: Iterable[SchemaChange],
) -> None:
    """For wal2lake.schema_history."""
    now = datetime.now(UTC).isoformat()
    for one in changes:
        connection.execute(
            "insert into schema_change (subid, relid, lsn, change, outcome, noted_at)"
            " values (?, ?, ?, ?, ?, ?)",
            (subid, relid, int(at), one.change, one.outcome, now),
        )


def noted_changes(connection: sqlite3.Connection) -> list[NotedSchemaChange]:
    """All of them, in the order in which they were followed."""
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
