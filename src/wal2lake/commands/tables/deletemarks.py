"""Tables whose deleted rows a subscription marks: checked when they join, guarded when altered.

Called by CREATE, ALTER and REFRESH of subscriptions, and by ALTER TABLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.apply.schema.marks import unfit_column, unfit_table
from wal2lake.catalog import Catalog, Subscription, TableDef
from wal2lake.errors import UsageError
from wal2lake.model import Oid

_PREREQUISITE: Final = "55000"


def check_markable(
    catalog: Catalog, table: TableDef, subid: Oid | None, *, keeps_deleted: bool
) -> None:
    """Check that a subscription can fill a table in its ``delete_mode``.

    55000 if the table lacks the column, or another subscription that fills it has the other mode:
    one of them would take the other's marked rows for the publisher's."""
    for subscription in _others(catalog, table, subid):
        if subscription.keeps_deleted != keeps_deleted:
            mode = "soft" if subscription.keeps_deleted else "hard"
            raise UsageError(
                f'table "{table.qualified}" is filled by subscription "{subscription.name}",'
                f" whose delete_mode is {mode}",
                sqlstate=_PREREQUISITE,
                hint="All subscriptions that fill a table need the same delete_mode.",
            )
    error = unfit_table(table) if keeps_deleted else None
    if error is not None:
        raise error


def refuse_unmarked(catalog: Catalog, before: TableDef, after: TableDef) -> None:
    """Raise 55000 if an ALTER TABLE takes from a table what its subscription marks rows with."""
    why = unfit_column(after)
    if why is None or unfit_column(before) is not None:
        return
    marking = [s for s in _others(catalog, before, None) if s.keeps_deleted]
    if marking:
        raise UsageError(
            f'cannot alter table "{before.name}" because subscription'
            f' "{marking[0].name}" marks deleted rows in it',
            sqlstate=_PREREQUISITE,
            detail=f"After the command, {why}.",
            hint="DROP SUBSCRIPTION, or a publication without the table, ends that.",
        )


def _others(
    catalog: Catalog, table: TableDef, subid: Oid | None
) -> Sequence[Subscription]:
    """Return the subscriptions that fill a table, without the given one."""
    names = catalog.sharing(table)
    subids = {rel.subid for rel in catalog.rels() if rel.relid in names} - {subid}
    return [s for s in catalog.subscriptions() if s.oid in subids]
