"""Rows of ``relation_history``: the columns that a table had before ALTER TABLE.

In: a connection, and in writes a transaction on it. Out: ``TableDef``. A row says: versions of the
table below ``version`` have these columns and this key. Above the last row they have those of
``relation``. Whoever reads a version asks for its definition here, so that nobody sees the
columns of one with the rows of another. Called by ``store``.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog.definitions.publications import follow_columns
from wal2lake.catalog.objects import sequences
from wal2lake.catalog.objects.tables import (
    checks_from_json,
    checks_to_json,
    columns_from_json,
)
from wal2lake.catalog.records import Altered, TableDef
from wal2lake.model import Deferral, Oid

_CLUSTER_BY: Final = "cluster_by"
"""The storage parameter."""

_NAME: Final = re.compile(r'"((?:[^"]|"")*)"|([^",]+)')


def alter(
    connection: sqlite3.Connection, altered: Sequence[Altered], version: int
) -> None:
    """From ``version`` on the tables have other columns. Of one that is gone: nothing."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    for one in altered:
        connection.execute(
            "insert or ignore into relation_history"
            " (relid, version, columns, key, key_name, altered_at)"
            " select oid, ?, columns, key, key_name, ? from relation where oid = ?",
            (version, now, one.relid),
        )
    redefine(connection, altered)


def redefine(connection: sqlite3.Connection, altered: Sequence[Altered]) -> None:
    """Change the definitions of tables, and of their columns in publications. A table that is gone
    is left out."""
    for one in altered:
        _drop_sequences(connection, one)
        _retype_sequences(connection, one)
        connection.execute(
            "update relation set columns = ?, key = ?, key_name = ?, key_deferral = ?,"
            " checks = ? where oid = ?",
            (
                json.dumps([asdict(c) for c in one.columns]),
                json.dumps(one.key),
                one.key_name,
                one.key_deferral.value,
                checks_to_json(one.checks),
                one.relid,
            ),
        )
        if one.renamed:
            _follow_clustering(connection, one.relid, dict(one.renamed))
        left = [column.name for column in one.columns]
        follow_columns(connection, one.relid, dict(one.renamed), left)


def _drop_sequences(connection: sqlite3.Connection, altered: Altered) -> None:
    """Drop the sequences of dropped columns."""
    row = connection.execute(
        "select columns from relation where oid = ?", (altered.relid,)
    ).fetchone()
    renamed, left = dict(altered.renamed), {c.name for c in altered.columns}
    for column in () if row is None else columns_from_json(row["columns"]):
        gone = renamed.get(column.name, column.name) not in left
        if column.sequence is not None and gone:
            sequences.drop(connection, column.sequence)


def _retype_sequences(connection: sqlite3.Connection, altered: Altered) -> None:
    """That of an identity column has its type; a serial column's keeps its own."""
    for column in altered.columns:
        if column.sequence is not None and column.identity:
            connection.execute(
                "update sequence set type_oid = ? where oid = ?",
                (column.type_oid, column.sequence),
            )


def _follow_clustering(
    connection: sqlite3.Connection, relid: Oid, renamed: Mapping[str, str]
) -> None:
    """A table stays clustered by a column that has another name."""
    for row in connection.execute(
        "select parameters from relation where oid = ?", (relid,)
    ).fetchall():
        parameters = [
            (name, _with_names(value, renamed) if name == _CLUSTER_BY else value)
            for name, value in json.loads(row["parameters"])
        ]
        connection.execute(
            "update relation set parameters = ? where oid = ?",
            (json.dumps(parameters), relid),
        )


def _with_names(listed: str, renamed: Mapping[str, str]) -> str:
    """Identifiers between commas, as SQL has them."""
    # The supervisor has a catalog, too, and none of NumPy.
    from wal2lake.pgtypes.keywords import quote_identifier

    names = [
        bare or quoted.replace('""', '"') for quoted, bare in _NAME.findall(listed)
    ]
    return ",".join(quote_identifier(renamed.get(name, name)) for name in names)


def as_of(connection: sqlite3.Connection, table: TableDef, version: int) -> TableDef:
    """A table's present definition with the columns that a version of it has."""
    row = connection.execute(
        "select * from relation_history where relid = ? and version > ?"
        " order by version limit 1",
        (table.oid, version),
    ).fetchone()
    if row is None:
        return table
    return replace(
        table,
        columns=columns_from_json(row["columns"]),
        key=tuple(json.loads(row["key"])),
        key_name=row["key_name"],
    )


def to_json(altered: Sequence[Altered]) -> str | None:
    """For an intent."""
    if not altered:
        return None
    recorded = [
        {**asdict(one), "key_deferral": one.key_deferral.value} for one in altered
    ]
    return json.dumps(recorded, separators=(",", ":"))


def from_json(text: str | None) -> tuple[Altered, ...]:
    """Decode the text of ``to_json``."""
    return tuple(
        Altered(
            Oid(one["relid"]),
            columns_from_json(json.dumps(one["columns"])),
            tuple(one["key"]),
            one["key_name"],
            tuple((before, now) for before, now in one.get("renamed", ())),
            Deferral(one.get("key_deferral", Deferral.NO.value)),
            checks_from_json(json.dumps(one.get("checks", []))),
        )
        for one in json.loads(text or "[]")
    )
