"""Rows of ``relation_history``: the columns of a table before ALTER TABLE.

In: a connection, and in writes a transaction on it. Out: ``TableDef``. A row says: versions of the
table below ``version`` have these columns and this key. Versions above the last row have the
columns of ``relation``. A reader of a version gets the definition from here, so that columns and
rows belong to the same version. Called by ``store``.
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
from wal2lake.catalog.objects import indexes, sequences
from wal2lake.catalog.objects.tables import (
    checks_from_json,
    checks_to_json,
    columns_from_json,
)
from wal2lake.catalog.records import Altered, TableDef
from wal2lake.model import Deferral, Oid

_CLUSTER_BY: Final = "cluster_by"
"""Storage parameter with the clustering columns."""

_NAME: Final = re.compile(r'"((?:[^"]|"")*)"|([^",]+)')


def alter(
    connection: sqlite3.Connection, altered: Sequence[Altered], version: int
) -> None:
    """Change the definitions of tables from ``version`` on. A dropped table is left out."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    for definition in altered:
        connection.execute(
            "insert or ignore into relation_history"
            " (relid, version, columns, key, key_name, altered_at)"
            " select oid, ?, columns, key, key_name, ? from relation where oid = ?",
            (version, now, definition.relid),
        )
    redefine(connection, altered)


def redefine(connection: sqlite3.Connection, altered: Sequence[Altered]) -> None:
    """Change the definitions of tables for all versions, and their columns in publications. A
    dropped table is left out."""
    for definition in altered:
        _drop_sequences(connection, definition)
        _retype_sequences(connection, definition)
        connection.execute(
            "update relation set columns = ?, key = ?, key_name = ?, key_deferral = ?,"
            " checks = ? where oid = ?",
            (
                json.dumps([asdict(c) for c in definition.columns]),
                json.dumps(definition.key),
                definition.key_name,
                definition.key_deferral.value,
                checks_to_json(definition.checks),
                definition.relid,
            ),
        )
        if definition.renamed:
            _follow_clustering(connection, definition.relid, dict(definition.renamed))
        column_names = [column.name for column in definition.columns]
        followed = (definition.relid, dict(definition.renamed), column_names)
        follow_columns(connection, *followed)
        indexes.follow_columns(connection, *followed)


def _drop_sequences(connection: sqlite3.Connection, altered: Altered) -> None:
    """Drop the sequences of dropped columns."""
    row = connection.execute(
        "select columns from relation where oid = ?", (altered.relid,)
    ).fetchone()
    renamed, left = dict(altered.renamed), {c.name for c in altered.columns}
    for column in () if row is None else columns_from_json(row["columns"]):
        is_dropped = renamed.get(column.name, column.name) not in left
        if column.sequence is not None and is_dropped:
            sequences.drop(connection, column.sequence)


def _retype_sequences(connection: sqlite3.Connection, altered: Altered) -> None:
    """Set the type of sequences of identity columns to the column's. Sequences of serial columns
    keep their type."""
    for column in altered.columns:
        if column.sequence is not None and column.identity:
            connection.execute(
                "update sequence set type_oid = ? where oid = ?",
                (column.type_oid, column.sequence),
            )


def _follow_clustering(
    connection: sqlite3.Connection, relid: Oid, renamed: Mapping[str, str]
) -> None:
    """Rename columns in the table's clustering."""
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
    """Rename columns in a comma-separated list of SQL identifiers."""
    # Imported here because the supervisor uses the catalog and must not load NumPy.
    from wal2lake.pgtypes.keywords import quote_identifier

    names = [
        bare or quoted.replace('""', '"') for quoted, bare in _NAME.findall(listed)
    ]
    return ",".join(quote_identifier(renamed.get(name, name)) for name in names)


def as_of(connection: sqlite3.Connection, table: TableDef, version: int) -> TableDef:
    """Return a table's present definition with the columns of a version."""
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
    """Encode definitions for the row of a commit."""
    if not altered:
        return None
    recorded = [
        {**asdict(definition), "key_deferral": definition.key_deferral.value}
        for definition in altered
    ]
    return json.dumps(recorded, separators=(",", ":"))


def from_json(text: str | None) -> tuple[Altered, ...]:
    """Decode the text of ``to_json``."""
    return tuple(
        Altered(
            Oid(definition["relid"]),
            columns_from_json(json.dumps(definition["columns"])),
            tuple(definition["key"]),
            definition["key_name"],
            tuple((before, now) for before, now in definition.get("renamed", ())),
            Deferral(definition.get("key_deferral", Deferral.NO.value)),
            checks_from_json(json.dumps(definition.get("checks", []))),
        )
        for definition in json.loads(text or "[]")
    )
