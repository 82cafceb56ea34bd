"""Checks of the expressions in ``conflict_resolution``, before a subscription gets them.

Takes the option's text; raises PostgreSQL's error. For a table that does not exist here yet, only
the expression's syntax is checked. CREATE SUBSCRIPTION checks the rest when it creates the table.
An expression that cannot be evaluated for conflicting rows stops the subscription at their
transaction. Called by CREATE and ALTER SUBSCRIPTION.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import TableDef
from wal2lake.local.ports import SubscriptionCommands
from wal2lake.pgtypes import ConflictResolutions


def check_expressions(
    node: SubscriptionCommands, text: str, made: Sequence[TableDef] | None = None
) -> None:
    """Raise UsageError for an invalid expression.

    ``made``: tables that may be missing in the catalog; without it the catalog's tables count."""
    resolutions = ConflictResolutions.parse(text)
    for namespace, name in resolutions.with_expressions:
        if made is None:
            table = node.catalog.table(namespace, name)
        else:
            matching = [t for t in made if (t.namespace, t.name) == (namespace, name)]
            table = matching[0] if matching else None
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
