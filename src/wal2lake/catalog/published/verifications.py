"""Rows of ``verification`` and ``difference``: what VERIFY has found in each table, the last time.

In: a connection, and in writes a transaction on it; the result of a comparison. Out:
``Verification``, ``NotedDifference``. Called by ``store``.

A comparison at an earlier LSN than the recorded one is ignored: two sessions may verify a table at
once. A new copy of the table is another epoch, about which nothing is known yet.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.model import Lsn, Oid

_OF_PRESENT_COPY: Final = (
    " join subscription_rel as rel on rel.subid = v.subid and rel.relid = v.relid"
    " and rel.epoch = v.epoch"
)


@dataclass(frozen=True, slots=True)
class Verification:
    """Facts known about the equality of a table and its source. Times are ISO 8601, UTC."""

    subid: Oid
    relid: Oid
    compared_lsn: Lsn
    """LSN of the last comparison."""
    compared_at: str
    blocks: int
    rows: int
    """Number of rows of the source."""
    differing_rows: int
    """Number of differing rows that the last comparison has found, less the repaired ones."""
    verified_lsn: Lsn | None
    """LSN of the last comparison that found the table equal."""
    verified_at: str | None
    different_lsn: Lsn | None
    """LSN of the last comparison that found differences."""
    different_at: str | None
    repaired_rows: int
    """Number of rows that REPAIR has written or removed since the copy."""


@dataclass(frozen=True, slots=True)
class FoundDifference:
    """A differing row."""

    kind: str
    """changed, missing or extra."""
    key: tuple[tuple[str, str | None], ...]
    """Names and values, as text, of the key's columns; without a key, of all columns."""
    columns: tuple[tuple[str, str | None, str | None], ...]
    """Name, value at the source, and value here, of the differing columns of a changed row."""


@dataclass(frozen=True, slots=True)
class NotedDifference:
    """A differing row that wal2lake.differences lists."""

    subid: Oid
    relid: Oid
    difference: FoundDifference
    lsn: Lsn
    """LSN of the last comparison that has found it."""
    since: str
    """Time of the first comparison that has found it: ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """The result of a comparison."""

    lsn: Lsn
    compared_at: str
    """Time of the snapshot at the source: ISO 8601, UTC."""
    blocks: int
    rows: int
    differing_rows: int
    """0: the table is equal."""
    differences: tuple[FoundDifference, ...] = ()
    """The first differing rows."""


def note(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, compared: ComparedTable
) -> None:
    """Record a comparison, unless a later one is recorded or the table has left."""
    rel = connection.execute(
        "select epoch from subscription_rel where subid = ? and relid = ?",
        (subid, relid),
    ).fetchone()
    recorded = connection.execute(
        "select epoch, compared_lsn from verification where subid = ? and relid = ?",
        (subid, relid),
    ).fetchone()
    if rel is None:
        return
    if recorded is not None and recorded["epoch"] != rel["epoch"]:
        forget(connection, subid, relid)
    elif recorded is not None and recorded["compared_lsn"] > compared.lsn:
        return
    moment = compared.lsn, compared.compared_at
    verified = (None, None) if compared.differing_rows else moment
    different = moment if compared.differing_rows else (None, None)
    connection.execute(
        "insert into verification (subid, relid, epoch, compared_lsn, compared_at, blocks,"
        " row_count, differing_rows, verified_lsn, verified_at, different_lsn, different_at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " on conflict do update set compared_lsn = excluded.compared_lsn,"
        " compared_at = excluded.compared_at, blocks = excluded.blocks,"
        " row_count = excluded.row_count, differing_rows = excluded.differing_rows,"
        " verified_lsn = coalesce(excluded.verified_lsn, verified_lsn),"
        " verified_at = coalesce(excluded.verified_at, verified_at),"
        " different_lsn = coalesce(excluded.different_lsn, different_lsn),"
        " different_at = coalesce(excluded.different_at, different_at)",
        (
            subid,
            relid,
            rel["epoch"],
            *moment,
            compared.blocks,
            compared.rows,
            compared.differing_rows,
            *verified,
            *different,
        ),
    )
    _replace(connection, subid, relid, compared)


def _replace(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, compared: ComparedTable
) -> None:
    """List the differences of a comparison. Those that were listed keep the time since when."""
    since = {
        (row["kind"], row["key"]): row["since"]
        for row in connection.execute(
            "select kind, key, since from difference where subid = ? and relid = ?",
            (subid, relid),
        )
    }
    connection.execute(
        "delete from difference where subid = ? and relid = ?", (subid, relid)
    )
    rows = [
        (difference.kind, json.dumps(difference.key), json.dumps(difference.columns))
        for difference in compared.differences
    ]
    connection.executemany(
        "insert into difference (subid, relid, kind, key, columns, lsn, since)"
        " values (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                subid,
                relid,
                kind,
                key,
                columns,
                compared.lsn,
                since.get((kind, key), compared.compared_at),
            )
            for kind, key, columns in rows
        ],
    )


def forget(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Delete what is known about an earlier copy of the table."""
    for table in ("difference", "verification"):
        connection.execute(
            f"delete from {table} where subid = ? and relid = ?", (subid, relid)
        )


def note_repaired(
    connection: sqlite3.Connection,
    subid: Oid,
    relid: Oid,
    repaired: Sequence[NotedDifference],
) -> None:
    """Count repaired rows, and take them from the list."""
    gone = 0
    for noted in repaired:
        gone += connection.execute(
            "delete from difference where subid = ? and relid = ? and kind = ? and key = ?",
            (subid, relid, noted.difference.kind, json.dumps(noted.difference.key)),
        ).rowcount
    connection.execute(
        "update verification set repaired_rows = repaired_rows + ?,"
        " differing_rows = max(0, differing_rows - ?) where subid = ? and relid = ?",
        (len(repaired), gone, subid, relid),
    )


def verifications(connection: sqlite3.Connection) -> list[Verification]:
    """Return what is known about each table's present copy."""
    return [
        Verification(
            Oid(row["subid"]),
            Oid(row["relid"]),
            Lsn(row["compared_lsn"]),
            row["compared_at"],
            row["blocks"],
            row["row_count"],
            row["differing_rows"],
            _lsn(row["verified_lsn"]),
            row["verified_at"],
            _lsn(row["different_lsn"]),
            row["different_at"],
            row["repaired_rows"],
        )
        for row in connection.execute(
            "select v.* from verification as v" + _OF_PRESENT_COPY
        )
    ]


def differences(connection: sqlite3.Connection) -> list[NotedDifference]:
    """Return the listed differences of the present copies, table by table, in order."""
    rows = connection.execute(
        "select d.* from difference as d"
        " join verification as v on v.subid = d.subid and v.relid = d.relid"
        + _OF_PRESENT_COPY
        + " order by d.subid, d.relid, d.number"
    )
    return [
        NotedDifference(
            Oid(row["subid"]),
            Oid(row["relid"]),
            FoundDifference(
                row["kind"],
                tuple((name, value) for name, value in json.loads(row["key"])),
                tuple(
                    (name, there, here)
                    for name, there, here in json.loads(row["columns"])
                ),
            ),
            Lsn(row["lsn"]),
            row["since"],
        )
        for row in rows
    ]


def _lsn(value: int | None) -> Lsn | None:
    return None if value is None else Lsn(value)
