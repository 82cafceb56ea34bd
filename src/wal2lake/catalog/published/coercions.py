"""Rows of ``coercion`` and ``coercion_pending``: counts of values changed by policies.

In: a connection, and in writes a transaction on it. Out: ``CoercionTotal``. Called by ``store``.

Each coercion is counted exactly once. The coercions of a batch are recorded as *pending*, with the
position that the batch reaches, before any of its tables commits. They are added to the totals in
the transaction that publishes that position. A batch that is evaluated again first deletes pending
entries above the table's position, because nothing above it has been committed: after a crash
before the table's commit, the batch is repeated and replaces the entry; after a crash after the
commit, the entry is published with the table's version.

A copy's coercions are recorded with its ranges. When the copy is done, they replace the totals of
phase ``copy``, which are those of an earlier copy. A column that becomes text for a value of a copy
is recorded before the change, and the entry stays: the copy begins anew, and then the value fits.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog.records import CoercionTotal
from wal2lake.model import Coercion, Lsn, Oid, merged

_WIDEN: Final = "widen"
"""``ValuePolicy.WIDEN`` in a coercion."""


def to_json(coercions: Iterable[Coercion]) -> str:
    """Encode coercions for a row."""
    return json.dumps(
        [
            [
                c.column,
                c.policy,
                c.reason,
                c.count,
                int(c.first_lsn),
                int(c.last_lsn),
                c.example,
            ]
            for c in coercions
        ]
    )


def from_json(text: str) -> tuple[Coercion, ...]:
    """Decode the result of ``to_json``."""
    return tuple(
        Coercion(column, policy, reason, count, Lsn(first), Lsn(last), example)
        for column, policy, reason, count, first, last, example in json.loads(text)
    )


def any_pending(connection: sqlite3.Connection, subid: Oid) -> bool:
    """Whether there are coercions that are not in the totals."""
    rows = connection.execute(
        "select 1 from coercion_pending where subid = ? limit 1", (subid,)
    )
    return rows.fetchone() is not None


def expect(
    connection: sqlite3.Connection,
    subid: Oid,
    reached: Lsn,
    positions: Mapping[Oid, Lsn],
    coercions: Mapping[Oid, Sequence[Coercion]],
) -> None:
    """Record pending coercions of a batch, as ``Catalog.expect`` explains."""
    for relid, position in positions.items():
        connection.execute(
            "delete from coercion_pending where subid = ? and relid = ? and reached > ?",
            (subid, relid, position),
        )
    connection.executemany(
        "insert into coercion_pending (subid, relid, reached, coercions)"
        " values (?, ?, ?, ?)",
        [
            (subid, relid, reached, to_json(table_coercions))
            for relid, table_coercions in coercions.items()
            if table_coercions
        ],
    )


def publish(connection: sqlite3.Connection, subid: Oid, reached: Lsn) -> None:
    """Add pending coercions up to a published position to the totals."""
    rows = connection.execute(
        "select relid, coercions from coercion_pending"
        " where subid = ? and reached <= ? order by reached",
        (subid, reached),
    ).fetchall()
    for row in rows:
        _add(connection, subid, row["relid"], "stream", from_json(row["coercions"]))
    if rows:
        connection.execute(
            "delete from coercion_pending where subid = ? and reached <= ?",
            (subid, reached),
        )


def forget_pending(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Delete a table's pending entries, because its unpublished commits will be replaced."""
    connection.execute(
        "delete from coercion_pending where subid = ? and relid = ?", (subid, relid)
    )


def finish_copy(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Set the totals of a finished copy from its ranges."""
    connection.execute(
        "delete from coercion where subid = ? and relid = ? and phase = 'copy'"
        " and policy <> ?",
        (subid, relid, _WIDEN),
    )
    rows = connection.execute(
        "select coercions from copy_range where subid = ? and relid = ?"
        " and epoch = (select epoch from subscription_rel where subid = ? and relid = ?)",
        (subid, relid, subid, relid),
    )
    copied = merged(c for row in rows for c in from_json(row["coercions"]))
    _add(connection, subid, int(relid), "copy", copied)


def note_widened(
    connection: sqlite3.Connection,
    subid: Oid,
    relid: Oid,
    widened: Sequence[Coercion],
) -> None:
    """Record columns that become text, each once, even if the change is repeated."""
    forget_widened(connection, subid, relid, [coercion.column for coercion in widened])
    _add(connection, subid, int(relid), "copy", widened)


def forget_widened(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, columns: Sequence[str]
) -> None:
    """Delete the entries of columns that did not become text."""
    connection.executemany(
        "delete from coercion where subid = ? and relid = ? and phase = 'copy'"
        " and policy = ? and column_name = ?",
        [(subid, relid, _WIDEN, column) for column in columns],
    )


def _add(
    connection: sqlite3.Connection,
    subid: Oid,
    relid: int,
    phase: str,
    coercions: Iterable[Coercion],
) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    connection.executemany(
        "insert into coercion (subid, relid, phase, column_name, policy, reason, count,"
        " first_lsn, last_lsn, first_at, last_at, example)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " on conflict do update set count = count + excluded.count,"
        " last_lsn = excluded.last_lsn, last_at = excluded.last_at",
        [
            (
                subid,
                relid,
                phase,
                c.column,
                c.policy,
                c.reason,
                c.count,
                c.first_lsn,
                c.last_lsn,
                now,
                now,
                c.example,
            )
            for c in coercions
        ],
    )


def totals(connection: sqlite3.Connection) -> list[CoercionTotal]:
    """Return all totals."""
    return [
        CoercionTotal(
            Oid(row["subid"]),
            Oid(row["relid"]),
            row["phase"],
            Coercion(
                row["column_name"],
                row["policy"],
                row["reason"],
                row["count"],
                Lsn(row["first_lsn"]),
                Lsn(row["last_lsn"]),
                row["example"],
            ),
            row["first_at"],
            row["last_at"],
        )
        for row in connection.execute("select * from coercion")
    ]
