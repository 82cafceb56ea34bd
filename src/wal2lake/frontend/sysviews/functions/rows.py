"""Functions that give rows of several columns: publications' tables, trees of partitions.

Comes in: names, OIDs. Goes out: lists of rows, each a dict by column; what a query makes of them is
``query.rowfunctions``'s business.

Sources: pg_get_publication_tables() in pg_publication.c; partitionfuncs.c.
"""

from __future__ import annotations

from collections.abc import Iterator

from wal2lake.errors import UndefinedObjectError
from wal2lake.frontend.sysviews.functions.call import Call
from wal2lake.frontend.sysviews.functions.regproc import regclass_in
from wal2lake.frontend.sysviews.rows.facts import Relation
from wal2lake.frontend.sysviews.rows.publications import filter_text, numbers
from wal2lake.frontend.sysviews.rows.relations import Row
from wal2lake.publish.publications import all_published


def pg_get_publication_tables(
    call: Call, names: list[str | None] | None
) -> list[Row] | None:
    """What subscribers of these publications get; 42704 if there is none of a name."""
    if names is None:
        return None
    known = {one.name: one for one in call.facts.publications}
    wanted = []
    for name in names:
        if name is None or name not in known:
            raise UndefinedObjectError(f'publication "{name or ""}" does not exist')
        wanted.append(known[name])
    found = all_published(wanted, call.facts.tables, call.facts.namespaces)
    return [
        {
            "pubid": one.publication.oid,
            "relid": one.table.oid,
            "attrs": numbers(one.table, one.columns),
            "qual": filter_text(one.named),
        }
        for one in found
    ]


def pg_partition_ancestors(call: Call, relid: object) -> list[Row] | None:
    """A partition, or partitioned table, and what it is a partition of."""
    relation = _in_tree(call, relid)
    found: list[Row] = []
    while relation is not None and relation.table is not None:
        found.append({"relid": relation.oid})
        parent = relation.table.partition_of
        relation = None if parent is None else call.facts.by_oid.get(parent)
    return found


def pg_partition_tree(call: Call, relid: object) -> list[Row] | None:
    """A partitioned table and its partition, or a partition alone."""
    relation = _in_tree(call, relid)
    return [] if relation is None else list(_tree(call, relation))


def _tree(call: Call, relation: Relation) -> Iterator[Row]:
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


def _in_tree(call: Call, relid: object) -> Relation | None:
    """A table that has to do with partitions, or none."""
    oid = regclass_in(call, relid)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None or relation.table is None or relation.kind not in "rp":
        return None
    partitioned = relation.kind == "p" or relation.table.partition_of is not None
    return relation if partitioned else None
