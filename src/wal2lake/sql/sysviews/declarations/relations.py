"""All system relations with their schemas, OIDs, kinds and columns.

Comes in: the column texts of the other modules and wal2lake's own views. Goes out: ``SYSTEM``, a
mapping from (schema, name) to ``SystemRelation``. The views' rows, the type inference, pg_class and
pg_attribute use it.

The 1,600 columns are text, so that a person can compare them with the manual. PostgreSQL assigns
the OIDs of views at initdb; those here are stable, and not PostgreSQL's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from wal2lake.model import Oid
from wal2lake.pgtypes.registry.pg_type import type_by_name
from wal2lake.sql.sysviews.declarations import catalogs, information_schema, views

PG_CATALOG: Final = "pg_catalog"
INFORMATION_SCHEMA: Final = "information_schema"
WAL2LAKE: Final = "wal2lake"

SYSTEM_SCHEMAS: Final[Mapping[str, Oid]] = MappingProxyType(
    {PG_CATALOG: Oid(11), INFORMATION_SCHEMA: Oid(13000), WAL2LAKE: Oid(14000)}
)

ANYARRAY: Final = Oid(2277)
"""The type of pg_attribute.attmissingval and of columns of pg_stats; no user column has it."""

_FIRST_VIEW_OID: Final = {PG_CATALOG: 12000, INFORMATION_SCHEMA: 13001, WAL2LAKE: 14001}

_WAL2LAKE_VIEWS: Final = """
snapshots
    subid oid, subname name, lsn pg_lsn, committed_at timestamptz, schemaname name,
    tablename name, version int8
sync_progress
    subname name, schemaname name, tablename name, state char, rows_copied int8,
    rows_expected int8, bytes_copied int8, error text, paused_since timestamptz,
    stands_at pg_lsn
subscription_errors
    subid oid, subname name, schemaname name, tablename name, error text, worker text,
    sqlstate text
messages
    subid oid, subname name, lsn pg_lsn, commit_lsn pg_lsn, transactional bool, prefix text,
    content bytea
log
    subid oid, subname name, segments int8, segment_bytes int8, open_bytes int8,
    journal_files int8, journal_bytes int8, total_bytes int8, needed_segments int8,
    needed_bytes int8, first_commit_lsn pg_lsn, sealed_lsn pg_lsn, applied_lsn pg_lsn,
    history_limit_bytes int8, size_limit_bytes int8, size_percent float8, state text
log_segments
    subid oid, subname name, number int8, first_commit_lsn pg_lsn, last_commit_lsn pg_lsn,
    sealed_lsn pg_lsn, transactions int8, rows int8, messages int8, files int8, bytes int8,
    last_commit_time timestamptz, sealed_at timestamptz, applied bool
log_readers
    subid oid, subname name, reader text, schemaname name, tablename name, needed_lsn pg_lsn,
    segments int8, bytes int8
change_logs
    subid oid, subname name, directory text, remote_types text
coercions
    subid oid, subname name, schemaname name, tablename name, columnname name, phase text,
    policy text, reason text, events int8, first_lsn pg_lsn, last_lsn pg_lsn,
    first_at timestamptz, last_at timestamptz, example text
subscription_options
    subid oid, subname name, create_tables bool, type_mappings text, value_policies text,
    schema_changes text, conflict_resolution text, auto_refresh bool, history name,
    delete_mode text, table_format text
conflicts
    subid oid, subname name, noted_at timestamptz, schemaname name, tablename name,
    conflict_type text, resolution text, key text, commit_lsn pg_lsn, xid xid, origin text,
    committed_at timestamptz, events int8
verification
    subid oid, subname name, schemaname name, tablename name, verified_through pg_lsn,
    verified_at timestamptz, compared_lsn pg_lsn, compared_at timestamptz, blocks int8,
    rows int8, differing_rows int8, last_difference_lsn pg_lsn,
    last_difference_at timestamptz, repaired_rows int8
differences
    subid oid, subname name, schemaname name, tablename name, kind text, key text,
    columnname name, source_value text, local_value text, lsn pg_lsn, since timestamptz
schema_history
    subid oid, subname name, lsn pg_lsn, noted_at timestamptz, schemaname name,
    tablename name, change text, outcome text
apply_methods
    subid oid, subname name, schemaname name, tablename name, method text, batches int8,
    rows int8, seconds float8
problems
    kind text, severity text, subid oid, subname name, schemaname name, tablename name,
    subject text, stage text, since timestamptz, message text, detail text, sqlstate text,
    concern text, remedy text, hint text
catalog_tables
    schemaname name, tablename name, registered_name text, state text, since timestamptz,
    error text, sqlstate text, hint text, format text
"""


@dataclass(frozen=True, slots=True)
class SystemColumn:
    """One column. ``not_null`` is pg_attribute.attnotnull, which is false for views."""

    name: str
    type_oid: Oid
    not_null: bool
    typmod: int


@dataclass(frozen=True, slots=True)
class SystemRelation:
    """One table or view of a system schema."""

    schema: str
    name: str
    oid: Oid
    kind: str
    """pg_class.relkind: r or v."""
    columns: tuple[SystemColumn, ...]


_TYPE: Final = re.compile(r"(\w+)(!)?(?:\((\d+)\))?\Z")


def _column(text: str) -> SystemColumn:
    name, _, declared = text.strip().partition(" ")
    match = _TYPE.match(declared.strip())
    assert match is not None, text
    pg_type = type_by_name(match[1])
    assert pg_type is not None or match[1] == "anyarray", text
    oid = ANYARRAY if pg_type is None else pg_type.oid
    return SystemColumn(name, oid, match[2] is not None, int(match[3] or -1))


def _relations(schema: str, kind: str, text: str) -> Iterator[SystemRelation]:
    oid = _FIRST_VIEW_OID[schema]
    for block in re.split(r"\n(?=\w)", text.strip()):
        head, _, body = block.partition("\n")
        name, _, fixed = head.partition(" ")
        columns = tuple(_column(" ".join(c.split())) for c in body.split(","))
        yield SystemRelation(schema, name, Oid(int(fixed or oid)), kind, columns)
        oid += 1


SYSTEM: Final[Mapping[tuple[str, str], SystemRelation]] = MappingProxyType(
    {
        (relation.schema, relation.name): relation
        for relation in (
            *_relations(PG_CATALOG, "r", catalogs.TABLES),
            *_relations(PG_CATALOG, "v", views.VIEWS),
            *_relations(INFORMATION_SCHEMA, "v", information_schema.VIEWS),
            *_relations(WAL2LAKE, "v", _WAL2LAKE_VIEWS),
        )
    }
)


def system_relation(schema: str | None, name: str) -> SystemRelation | None:
    """Return the relation of that name; the default schema is pg_catalog."""
    return SYSTEM.get((schema or PG_CATALOG, name))
