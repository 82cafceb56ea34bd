"""Decides whose privileges count when a subscription writes a table, and whether they are enough.

Comes in: a subscription, a table of it, what is to be done. Goes out: the error that stops the
subscription, or None. No trigger, default or index expression runs here, so this is all that
run_as_owner decides:

    run_as_owner = false   as the table's owner: the subscription's owner must be able to
                           SET ROLE to him, and he must not have taken his own privileges away
    run_as_owner = true    as the subscription's owner, who needs the privileges himself

Source: SwitchToUntrustedUser() in usercontext.c; TargetPrivilegesCheck() in worker.c, which wants
SELECT too where rows are looked up; copy_table() in tablesync.c; BuildIndexValueDescription() in
genam.c and ExecBuildSlotValueDescription() in execMain.c, which quote what the user may read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wal2lake.catalog.access.authority import Authority
from wal2lake.catalog.records import Subscription, TableDef
from wal2lake.errors import ApplyError
from wal2lake.model import ObjectKind, Oid

SELECT: Final = "r"
INSERT: Final = "a"
UPDATE: Final = "wr"
DELETE: Final = "dr"
TRUNCATE: Final = "D"


class TargetRights:
    """The same for many tables of one subscription, at one moment. Roles are read if it
    matters: it does not for a superuser's subscription and tables that nobody has granted."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        superuser: bool,
        authority: Callable[[], Authority],
    ) -> None:
        """``superuser``: the subscription's owner is one."""
        self._subscription = subscription
        self._superuser = superuser
        self._read = authority
        self._authority: Authority | None = None
        self._known: dict[tuple[Oid, str], ApplyError | None] = {}

    def denied(self, table: TableDef, letters: str) -> ApplyError | None:
        """Return the error that stops the subscription, or None; ``denied_target`` has the
        rules."""
        if self._superuser and (self._subscription.run_as_owner or table.acl is None):
            return None
        if self._authority is None:
            self._authority = self._read()
        asked = (table.oid, letters)
        if asked not in self._known:
            self._known[asked] = denied_target(
                self._authority, self._subscription, table, letters
            )
        return self._known[asked]

    def may_quote(self, table: TableDef) -> bool:
        """Whether reports may quote the table's rows: whoever acts may read it. Privileges are
        those of the whole table, so either all columns may be quoted or none."""
        return self.denied(table, SELECT) is None


def denied_target(
    authority: Authority, subscription: Subscription, table: TableDef, letters: str
) -> ApplyError | None:
    """42501 in PostgreSQL's words, or None."""
    acting = subscription.owner
    if not subscription.run_as_owner:
        acting = table.owner
        if not authority.can_set_role(subscription.owner, acting):
            return ApplyError(
                f'role "{authority.name(subscription.owner)}" cannot SET ROLE to'
                f' "{authority.name(acting)}"',
                sqlstate="42501",
                hint="Grant the table's owner to the subscription's owner; or set"
                " run_as_owner = true and grant the subscription's owner SELECT, INSERT,"
                " UPDATE, DELETE and TRUNCATE on the table.",
            )
    allowed = authority.letters(acting, ObjectKind.TABLE, table.owner, table.acl)
    if set(letters) <= set(allowed):
        return None
    return ApplyError(f"permission denied for table {table.name}", sqlstate="42501")
