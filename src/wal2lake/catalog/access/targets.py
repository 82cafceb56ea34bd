"""Decides whether a subscription may write a table, and with whose privileges.

In: a subscription, one of its tables, the operations. Out: the error that stops the subscription,
or None. No trigger, default or index expression runs here, so run_as_owner decides nothing else:

    run_as_owner = false   as the table's owner: the subscription's owner must be able to SET ROLE
                           to the table's owner, whose own privileges must not be revoked
    run_as_owner = true    as the subscription's owner, who needs the privileges

Source: SwitchToUntrustedUser() in usercontext.c; TargetPrivilegesCheck() in worker.c, which also
requires SELECT where rows are looked up; copy_table() in tablesync.c; BuildIndexValueDescription()
in genam.c and ExecBuildSlotValueDescription() in execMain.c, which quote columns that the user may
read.
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
    """Privileges on the tables of one subscription, at one moment. Roles are read only if needed:
    not for a superuser's subscription and tables without grants."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        superuser: bool,
        authority: Callable[[], Authority],
    ) -> None:
        """``superuser``: whether the subscription's owner is a superuser."""
        self._subscription = subscription
        self._superuser = superuser
        self._read = authority
        self._authority: Authority | None = None
        self._known: dict[tuple[Oid, str], ApplyError | None] = {}

    def denied(self, table: TableDef, letters: str) -> ApplyError | None:
        """Return the error that stops the subscription, or None, by the rules of
        ``denied_target``."""
        if self._superuser and (self._subscription.run_as_owner or table.acl is None):
            return None
        if self._authority is None:
            self._authority = self._read()
        use = (table.oid, letters)
        if use not in self._known:
            self._known[use] = denied_target(
                self._authority, self._subscription, table, letters
            )
        return self._known[use]

    def may_quote(self, table: TableDef) -> bool:
        """Whether reports may quote the table's rows: the acting role may read it. Only privileges
        on the whole table count, so either all columns may be quoted or none."""
        return self.denied(table, SELECT) is None


def denied_target(
    authority: Authority, subscription: Subscription, table: TableDef, letters: str
) -> ApplyError | None:
    """Return error 42501 in PostgreSQL's words, or None."""
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
