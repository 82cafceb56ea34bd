"""Functions that return rows of several columns: publications' tables, trees of partitions, and the
functions under the views of slots and subscriptions.

Comes in: names, OIDs. Goes out: lists of rows, each a dict by column. ``query.rowfunctions``
rewrites queries that call these functions.

Sources: pg_get_publication_tables() in pg_publication.c; partitionfuncs.c;
pg_get_replication_slots() in slotfuncs.c; pg_stat_get_subscription() in launcher.c; pgstatfuncs.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from wal2lake.errors import UndefinedObjectError
from wal2lake.model import ConflictType, Lsn, Oid
from wal2lake.pgtypes.keywords import (
    COLUMN_NAME,
    NEEDS_AS,
    RESERVED,
    TYPE_OR_FUNCTION,
    UNRESERVED,
)
from wal2lake.publish.published import all_published
from wal2lake.sql.sysviews.functions.call import Call
from wal2lake.sql.sysviews.functions.regproc import regclass_in
from wal2lake.sql.sysviews.rows.facts import RelationFacts
from wal2lake.sql.sysviews.rows.publications import filter_text, numbers
from wal2lake.sql.sysviews.rows.publishing import (
    pg_replication_slots,
    pg_stat_replication_slots,
)
from wal2lake.sql.sysviews.rows.relations import Row
from wal2lake.sql.sysviews.rows.replication import (
    Moment,
    pg_stat_subscription,
    pg_stat_subscription_stats,
    read_replication,
)

_BOOL, _NAME, _INT8, _INT4, _TEXT, _OID, _XID = 16, 19, 20, 23, 25, 26, 28
_TIMESTAMPTZ, _LSN = 1184, 3220

_ENGINE: Final = {
    _BOOL: "BOOLEAN",
    _INT8: "BIGINT",
    _INT4: "INTEGER",
    _OID: "UINTEGER",
    _XID: "UINTEGER",
    _TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
    _LSN: "UBIGINT",
}
"""The engine's types; the others are text."""

STATE: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "pg_get_replication_slots": (
        *(("slot_name", _NAME), ("plugin", _NAME), ("slot_type", _TEXT)),
        *(("datoid", _OID), ("temporary", _BOOL), ("active", _BOOL)),
        *(("active_pid", _INT4), ("xmin", _XID), ("catalog_xmin", _XID)),
        *(("restart_lsn", _LSN), ("confirmed_flush_lsn", _LSN)),
        *(("wal_status", _TEXT), ("safe_wal_size", _INT8), ("two_phase", _BOOL)),
        *(("two_phase_at", _LSN), ("inactive_since", _TIMESTAMPTZ)),
        *(("conflicting", _BOOL), ("invalidation_reason", _TEXT)),
        *(("failover", _BOOL), ("synced", _BOOL)),
    ),
    "pg_stat_get_replication_slot": (
        ("slot_name", _TEXT),
        *((f"spill_{what}", _INT8) for what in ("txns", "count", "bytes")),
        *((f"stream_{what}", _INT8) for what in ("txns", "count", "bytes")),
        *(("total_txns", _INT8), ("total_bytes", _INT8)),
        ("stats_reset", _TIMESTAMPTZ),
    ),
    "pg_stat_get_subscription": (
        *(("subid", _OID), ("relid", _OID), ("pid", _INT4), ("leader_pid", _INT4)),
        *(("received_lsn", _LSN), ("last_msg_send_time", _TIMESTAMPTZ)),
        *(("last_msg_receipt_time", _TIMESTAMPTZ), ("latest_end_lsn", _LSN)),
        *(("latest_end_time", _TIMESTAMPTZ), ("worker_type", _TEXT)),
    ),
    "pg_stat_get_subscription_stats": (
        ("subid", _OID),
        *(("apply_error_count", _INT8), ("sync_error_count", _INT8)),
        *((f"confl_{kind.value}", _INT8) for kind in ConflictType),
        ("stats_reset", _TIMESTAMPTZ),
    ),
}
"""Columns of the functions of slots and subscriptions, with PostgreSQL's types."""


def struct_of(name: str) -> str:
    """Return the engine's type for the result of one of these functions."""
    columns = (f"{column} {_ENGINE.get(oid, 'VARCHAR')}" for column, oid in STATE[name])
    return f"STRUCT({','.join(columns)})[]"


def _rows(name: str, rows: Iterator[Row]) -> list[Row]:
    """Return rows with exactly the function's columns."""
    return [
        {column: _plain(row.get(column)) for column, _ in STATE[name]} for row in rows
    ]


def _plain(value: Any) -> Any:
    """Convert Lsn and Oid to int."""
    return int(value) if type(value) in (Lsn, Oid) else value


def pg_get_replication_slots(call: Call) -> list[Row]:
    """Return all slots."""
    return _rows("pg_get_replication_slots", pg_replication_slots(_moment(call)))


def pg_stat_get_subscription(call: Call, subid: int | None) -> list[Row]:
    """Return the running workers of a subscription; null: of all subscriptions."""
    running = (
        row
        for row in pg_stat_subscription(_moment(call))
        if row.get("pid") is not None and subid in (None, row["subid"])
    )
    return _rows("pg_stat_get_subscription", running)


def pg_stat_get_replication_slot(call: Call, slot: str | None) -> list[Row]:
    """Return the decoding statistics of a slot; zeros if there is none."""
    return _counted(
        call, "pg_stat_get_replication_slot", pg_stat_replication_slots, slot
    )


def pg_stat_get_subscription_stats(call: Call, subid: int | None) -> list[Row]:
    """Return the error counts of a subscription; zeros if there is none."""
    return _counted(
        call,
        "pg_stat_get_subscription_stats",
        lambda moment: pg_stat_subscription_stats(moment.state),
        subid,
    )


def _counted(
    call: Call, name: str, view: Callable[[Moment], Iterator[Row]], key_value: object
) -> list[Row]:
    """Return one row: the view's row, or zeros if there is none; nulls for a null argument."""
    key, columns = STATE[name][0][0], STATE[name]
    if key_value is None:
        return _rows(name, iter([{}]))
    row = {column: 0 for column, oid in columns if oid == _INT8} | {key: key_value}
    for view_row in view(_moment(call)):
        if view_row[key] == key_value:
            row |= view_row
    return _rows(name, iter([row]))


def _moment(call: Call) -> Moment:
    state = read_replication(call.source, call.facts.tables)
    return Moment(call.facts, state, call.source, call.context)


def pg_get_publication_tables(
    call: Call, names: list[str | None] | None
) -> list[Row] | None:
    """Return the tables that subscribers of these publications receive.

    Raises 42704 if a publication does not exist."""
    if names is None:
        return None
    publications = {entry.name: entry for entry in call.facts.publications}
    selected = []
    for name in names:
        if name is None or name not in publications:
            raise UndefinedObjectError(f'publication "{name or ""}" does not exist')
        selected.append(publications[name])
    published = all_published(selected, call.facts.tables, call.facts.namespaces)
    return [
        {
            "pubid": entry.publication.oid,
            "relid": entry.table.oid,
            "attrs": numbers(entry.table, entry.columns),
            "qual": filter_text(entry.named),
        }
        for entry in published
    ]


_KEYWORDS: Final = (
    ("U", "unreserved", UNRESERVED),
    ("C", "unreserved (cannot be function or type name)", COLUMN_NAME),
    ("T", "reserved (can be function or type name)", TYPE_OR_FUNCTION),
    ("R", "reserved", RESERVED),
)


def pg_get_keywords(call: Call) -> list[Row]:
    """Return the keywords in alphabetical order."""
    rows = [
        {
            "word": word,
            "catcode": code,
            "barelabel": word not in NEEDS_AS,
            "catdesc": described,
            "baredesc": "requires AS" if word in NEEDS_AS else "can be bare label",
        }
        for code, described, words in _KEYWORDS
        for word in words
    ]
    return sorted(rows, key=lambda row: str(row["word"]))


def pg_expandarray(call: Call, vector: list[int] | None) -> list[Row] | None:
    """information_schema._pg_expandarray(): return each element with its number, from 1."""
    if vector is None:
        return None
    return [{"x": x, "n": number} for number, x in enumerate(vector, 1)]


def pg_partition_ancestors(call: Call, relid: object) -> list[Row] | None:
    """Return a partition or partitioned table, and its ancestors."""
    relation = _in_tree(call, relid)
    rows: list[Row] = []
    while relation is not None and relation.table is not None:
        rows.append({"relid": relation.oid})
        parent = relation.table.partition_of
        relation = None if parent is None else call.facts.by_oid.get(parent)
    return rows


def pg_partition_tree(call: Call, relid: object) -> list[Row] | None:
    """Return a partitioned table and its partition, or a partition alone."""
    relation = _in_tree(call, relid)
    return [] if relation is None else list(_tree(call, relation))


def _tree(call: Call, relation: RelationFacts) -> Iterator[Row]:
    assert relation.table is not None
    yield {
        "relid": relation.oid,
        "parentrelid": relation.table.partition_of,
        "isleaf": relation.kind != "p",
        "level": 0,
    }
    partition = call.facts.partition(relation.table) if relation.kind == "p" else None
    if partition is not None:
        yield {
            "relid": partition.oid,
            "parentrelid": relation.oid,
            "isleaf": True,
            "level": 1,
        }


def _in_tree(call: Call, relid: object) -> RelationFacts | None:
    """Return the table if it is partitioned or a partition, else None."""
    oid = regclass_in(call, relid)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None or relation.table is None or relation.kind not in "rp":
        return None
    partitioned = relation.kind == "p" or relation.table.partition_of is not None
    return relation if partitioned else None
