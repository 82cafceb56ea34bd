"""Rows about publications.

Comes in: ``Facts``. Goes out: rows as dicts by column name, as in ``relations``. A row filter is
shown as its text, which pg_get_expr() returns.

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
    """Yield all publications."""
    for publication in facts.publications:
        yield {
            "oid": publication.oid,
            "pubname": publication.name,
            "pubowner": publication.owner,
            "puballtables": publication.all_tables,
            "pubinsert": PublishedOperation.INSERT in publication.publishes,
            "pubupdate": PublishedOperation.UPDATE in publication.publishes,
            "pubdelete": PublishedOperation.DELETE in publication.publishes,
            "pubtruncate": PublishedOperation.TRUNCATE in publication.publishes,
            "pubviaroot": publication.via_root,
            "pubgencols": publication.generated_columns,
        }


def pg_publication_rel(facts: Facts) -> Iterator[Row]:
    """Yield the tables that publications name."""
    for publication in facts.publications:
        for published in publication.tables:
            relation = facts.by_oid.get(published.relid)
            if relation is None or relation.table is None:
                continue
            yield {
                "oid": published.oid,
                "prpubid": publication.oid,
                "prrelid": published.relid,
                "prqual": filter_text(published),
                "prattrs": None
                if published.columns is None
                else numbers(relation.table, published.columns),
            }


def pg_publication_namespace(facts: Facts) -> Iterator[Row]:
    """Yield the schemas that publications name."""
    for publication in facts.publications:
        for schema in publication.schemas:
            yield {
                "oid": schema.oid,
                "pnpubid": publication.oid,
                "pnnspid": schema.nspid,
            }


def pg_publication_tables(facts: Facts) -> Iterator[Row]:
    """Yield the tables of publications, with the columns and the filter of each."""
    for publication in facts.publications:
        for published in published_tables(publication, facts.tables, facts.namespaces):
            yield {
                "pubname": publication.name,
                "schemaname": published.table.namespace,
                "tablename": published.table.name,
                "attnames": list(published.columns),
                "rowfilter": filter_text(published.named),
            }


def numbers(table: TableDef, columns: Sequence[str]) -> list[int]:
    """Return the attribute numbers of columns."""
    names = [column.name for column in table.columns]
    return [names.index(name) + 1 for name in columns]


def filter_text(named: PublishedTable | None) -> str | None:
    """Return a row filter as pg_get_expr() shows it."""
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
