"""Rows about publications: pg_publication and its kin.

Comes in: ``Facts``. Goes out: rows as dicts by column name, as in ``relations``. A row filter is
shown as its text, which pg_get_expr() gives back.

Sources: pg_publication.h, pg_publication_rel.h, pg_publication_namespace.h; system_views.sql.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from wal2lake.catalog import PublishedOperation, PublishedTable, TableDef
from wal2lake.pgtypes.expressions import decode, deparse
from wal2lake.publish.published import published_tables
from wal2lake.sql.grammar import quote_identifier
from wal2lake.sql.sysviews.rows.facts import Facts
from wal2lake.sql.sysviews.rows.relations import Row, RowMaker


def pg_publication(facts: Facts) -> Iterator[Row]:
    """All publications."""
    for one in facts.publications:
        yield {
            "oid": one.oid,
            "pubname": one.name,
            "pubowner": one.owner,
            "puballtables": one.all_tables,
            "pubinsert": PublishedOperation.INSERT in one.publishes,
            "pubupdate": PublishedOperation.UPDATE in one.publishes,
            "pubdelete": PublishedOperation.DELETE in one.publishes,
            "pubtruncate": PublishedOperation.TRUNCATE in one.publishes,
            "pubviaroot": one.via_root,
            "pubgencols": one.generated_columns,
        }


def pg_publication_rel(facts: Facts) -> Iterator[Row]:
    """The tables that they name."""
    for publication in facts.publications:
        for one in publication.tables:
            relation = facts.by_oid.get(one.relid)
            if relation is None or relation.table is None:
                continue
            yield {
                "oid": one.oid,
                "prpubid": publication.oid,
                "prrelid": one.relid,
                "prqual": filter_text(one),
                "prattrs": None
                if one.columns is None
                else numbers(relation.table, one.columns),
            }


def pg_publication_namespace(facts: Facts) -> Iterator[Row]:
    """The schemas that they name."""
    for publication in facts.publications:
        for one in publication.schemas:
            yield {"oid": one.oid, "pnpubid": publication.oid, "pnnspid": one.nspid}


def pg_publication_tables(facts: Facts) -> Iterator[Row]:
    """The tables that they have, each with what is sent of it."""
    for publication in facts.publications:
        for one in published_tables(publication, facts.tables, facts.namespaces):
            yield {
                "pubname": publication.name,
                "schemaname": one.table.namespace,
                "tablename": one.table.name,
                "attnames": list(one.columns),
                "rowfilter": filter_text(one.named),
            }


def numbers(table: TableDef, columns: Sequence[str]) -> list[int]:
    """Attribute numbers."""
    names = [column.name for column in table.columns]
    return [names.index(name) + 1 for name in columns]


def filter_text(named: PublishedTable | None) -> str | None:
    """A row filter as pg_get_expr() shows it."""
    if named is None or named.filter is None:
        return None
    return deparse(decode(named.filter), named.filter_columns, quote_identifier)


PUBLICATION_ROWS: Final[Mapping[str, RowMaker]] = {
    maker.__name__: maker
    for maker in (
        pg_publication,
        pg_publication_rel,
        pg_publication_namespace,
        pg_publication_tables,
    )
}
