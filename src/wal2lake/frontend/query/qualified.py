"""Columns with the schema of their table, or the database, in front.

Comes in: a tree, and the tables that its statement reads. Goes out: the same tree, whose columns
have their table's name alone. Called for lake tables and for the catalogs.

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
    """``entries``: the schemas of what each name in FROM stands for; None: it has none.

    Raises 0A000 for another database, 42P01 for a table that is there in another schema only.
    """
    for column in tree.find_all(exp.Column):
        schema, table = column.db, column.table
        if not schema:
            continue
        if column.catalog and column.catalog != DATABASE:
            shown = f"{column.catalog}.{schema}.{table}.{column.name}"
            raise FeatureNotSupportedError(
                f"cross-database references are not implemented: {shown}"
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
