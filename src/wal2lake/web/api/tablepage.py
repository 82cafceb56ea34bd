"""One table: its columns, versions, methods, conflicts, coercions and changes of its columns.

In: the catalog and the last facts. Out: a value of JSON's types. No value of a row is in it: keys
of conflicts and examples of coercions need SELECT on the table, so they stay in the views
``wal2lake.conflicts`` and ``wal2lake.coercions``. Each list ends at ``ENTRIES``, the newest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from wal2lake.catalog import Catalog, SubscriptionRel
from wal2lake.health import NodeFacts, TableFacts
from wal2lake.model import Oid

ENTRIES: Final = 100
"""Entries of each list that a page gets."""


def table_document(
    catalog: Catalog, facts: NodeFacts | None, relid: Oid
) -> dict[str, Any] | None:
    """Return what is known of a table; None if there is no table with this OID."""
    table = catalog.table_by_oid(relid)
    if table is None:
        return None
    names = {s.oid: s.name for s in catalog.subscriptions()}
    rels = [r for r in catalog.rels() if r.relid == relid]
    return {
        "oid": int(table.oid),
        "schema": table.namespace,
        "name": table.name,
        "key": list(table.key),
        "columns": [column.name for column in table.columns],
        "subscriptions": [
            _subscription(catalog, rel, names.get(rel.subid, ""), _facts(facts, rel))
            for rel in rels
        ],
    }


def _facts(facts: NodeFacts | None, rel: SubscriptionRel) -> TableFacts | None:
    return next(
        (
            table
            for s in (() if facts is None else facts.subscriptions)
            if s.oid == rel.subid
            for table in s.tables
            if table.oid == rel.relid
        ),
        None,
    )


def _subscription(
    catalog: Catalog, rel: SubscriptionRel, name: str, facts: TableFacts | None
) -> dict[str, Any]:
    mine = (rel.subid, rel.relid)
    versions = catalog.table_versions(rel.subid, rel.relid, ENTRIES)
    return {
        "oid": int(rel.subid),
        "name": name,
        "source": {"schema": rel.remote_namespace, "name": rel.remote_name},
        "state": rel.state.value,
        "state_lsn": None if rel.lsn is None else str(rel.lsn),
        "paused_since": rel.paused_at,
        "error": rel.error,
        "sqlstate": rel.sqlstate,
        "rows": {} if facts is None else dict(facts.rows),
        "batches": {} if facts is None else dict(facts.batches),
        "versions": [
            {
                "version": v.version,
                "lsn": str(v.lsn),
                "published_at": v.committed_at,
                "apart": v.apart,
            }
            for v in versions
        ],
        "verification": next(
            (
                {
                    "verified_through": None
                    if v.verified_lsn is None
                    else str(v.verified_lsn),
                    "verified_at": v.verified_at,
                    "compared_lsn": str(v.compared_lsn),
                    "compared_at": v.compared_at,
                    "rows": v.rows,
                    "differing_rows": v.differing_rows,
                    "repaired_rows": v.repaired_rows,
                }
                for v in catalog.verifications()
                if (v.subid, v.relid) == mine
            ),
            None,
        ),
        "conflicts": _newest(
            {
                "type": n.conflict.type.value,
                "resolution": n.conflict.resolution.value,
                "lsn": str(n.conflict.commit_lsn),
                "origin": n.conflict.origin,
                "events": n.conflict.count,
                "noted_at": n.noted_at,
            }
            for n in catalog.conflicts()
            if (n.subid, n.conflict.relid) == mine
        ),
        "coercions": _newest(
            {
                "column": c.coercion.column,
                "phase": c.phase,
                "policy": c.coercion.policy,
                "reason": c.coercion.reason,
                "events": c.coercion.count,
                "first_lsn": str(c.coercion.first_lsn),
                "last_lsn": str(c.coercion.last_lsn),
                "last_at": c.last_at,
            }
            for c in catalog.coercions()
            if (c.subid, c.relid) == mine
        ),
        "schema_history": _newest(
            {
                "lsn": str(n.lsn),
                "change": n.change,
                "outcome": n.outcome,
                "noted_at": n.noted_at.isoformat(),
            }
            for n in catalog.schema_history()
            if (n.subid, n.relid) == mine
        ),
    }


def _newest(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last entries of a list that is sorted oldest first, newest first."""
    return list(entries)[: -ENTRIES - 1 : -1]
