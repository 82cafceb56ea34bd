"""Expressions of ``conflict_resolution``, looked at before a subscription has them.

In: the option's text. Out: PostgreSQL's error, or nothing. Of those about a table that is not here
yet only what they are made of is looked at, and the rest when it is made, by CREATE SUBSCRIPTION;
one that cannot be evaluated when rows meet stops the subscription at their transaction. Called
by CREATE and ALTER SUBSCRIPTION.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import TableDef
from wal2lake.local.node import EngineParts
from wal2lake.pgtypes import ConflictResolutions


def check_expressions(
    node: EngineParts, text: str, made: Sequence[TableDef] | None = None
) -> None:
    """Raises UsageError. ``made``: tables that the catalog may not know yet; without it those
    that it knows."""
    resolutions = ConflictResolutions.parse(text)
    for namespace, name in resolutions.with_expressions:
        if made is None:
            table = node.catalog.table(namespace, name)
        else:
            here = [t for t in made if (t.namespace, t.name) == (namespace, name)]
            table = here[0] if here else None
        if node.expressions is None:
            continue
        expressions = resolutions.of(namespace, name).expressions.values()
        if table is None:
            for expression in expressions:
                node.expressions.check_text(expression)
            continue
        fields = node.tables.state(table.location).fields
        for expression in expressions:
            node.expressions.check(fields, table.key, expression)
