"""Resolves role names for one session: a role that the session has taken keeps its meaning.

Source: check_role() and check_session_authorization() in variable.c.
"""

from __future__ import annotations

from wal2lake.catalog import Catalog, Role
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.model import Oid
from wal2lake.sql.backend import SessionContext


class SessionRoles:
    """Role names of one session. For its thread alone."""

    def __init__(self, catalog: Catalog, context: SessionContext) -> None:
        """The session begins as ``context.user``."""
        self._catalog = catalog
        self._context = context
        begun = catalog.role(context.user)
        self._taken: dict[str, Oid] = {} if begun is None else {begun.name: begun.oid}

    def named(self, name: str) -> Role:
        """28000 if it is gone. Another one that has its name since is another one."""
        role = self._catalog.role(name)
        oid = self._taken.get(name)
        if oid is not None and (role is None or role.oid != oid):
            raise UsageError(
                f'role "{name}" of this session does not exist any more',
                sqlstate="28000",
                hint="Connect again; after SET ROLE, RESET ROLE is enough.",
            )
        if role is None:
            raise UsageError(f'role "{name}" does not exist', sqlstate="28000")
        return role

    def become(self, role: str | None, *, authorization: bool) -> bool:
        """Change the role; ``Backend.become`` has the rules."""
        authority = self._catalog.authority()
        begun = self._context.user if authorization else self._context.session_user
        mine = authority.by_name.get(begun)
        if mine is None or mine.oid != self._taken.get(begun, mine.oid):
            raise UndefinedObjectError(f'role "{begun}" does not exist')
        if role is None:
            return mine.superuser
        wanted = authority.by_name.get(role)
        if wanted is None:
            raise UsageError(f'role "{role}" does not exist')
        if authorization:
            allowed = mine.superuser or mine.oid == wanted.oid
        else:
            allowed = authority.can_set_role(mine.oid, wanted.oid)
        if not allowed:
            what = "session authorization" if authorization else "role"
            raise UsageError(
                f'permission denied to set {what} "{role}"', sqlstate="42501"
            )
        self._taken[role] = wanted.oid
        return wanted.superuser
