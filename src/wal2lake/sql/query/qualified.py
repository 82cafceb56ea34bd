"""Removes the schema and the database from column references.

Comes in: a tree, and the tables that its statement reads. Goes out: the same tree, in which a
column has at most the name of its table before it. Called for lake tables and for the catalogs.

Source: transformColumnRef in parse_expr.c, errorMissingRTE in parse_relation.c.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError
from wal2lake.model import DATABASE


def cut_schemas(
    tree: exp.Expression, entries: Mapping[str, Collection[str | None]]
) -> None:
    """Cut the schema off each column reference, in place.

    ``entries`` are the schemas of the tables for each name in FROM; None stands for an entry
    without a schema. Raises 0A000 for another database, and 42P01 if FROM has the table's name
    only with another schema.
    """
    for column in tree.find_all(exp.Column):
        schema, table = column.db, column.table
        if not schema:
            continue
        if column.catalog and column.catalog != DATABASE:
            reference = f"{column.catalog}.{schema}.{table}.{column.name}"
            raise FeatureNotSupportedError(
                f"cross-database references are not implemented: {reference}"
            )
        if table in entries and schema not in entries[table]:
            raise UndefinedObjectError(
                f'invalid reference to FROM-clause entry for table "{table}"',
                sqlstate="42P01",
                detail=f'There is an entry for table "{table}", but it cannot be'
                " referenced from this part of the query.",
            )
        column.set("db", None)
        column.set("catalog", None)
