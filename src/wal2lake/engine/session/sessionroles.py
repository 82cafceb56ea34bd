"""Resolves role names for one session: a role that the session uses keeps its meaning.

Source: check_role() and check_session_authorization() in variable.c.
"""

from __future__ import annotations

from wal2lake.catalog import Catalog, Role
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.model import Oid
from wal2lake.sql.backend import SessionContext


class SessionRoles:
    """The role names of one session. Used by the session's thread only."""

    def __init__(self, catalog: Catalog, context: SessionContext) -> None:
        """Begin the session as ``context.user``."""
        self._catalog = catalog
        self._context = context
        role = catalog.role(context.user)
        self._taken: dict[str, Oid] = {} if role is None else {role.name: role.oid}

    def named(self, name: str) -> Role:
        """Return a role; 28000 if it is gone, even if another role has its name now."""
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

    def search_path(self) -> tuple[str, ...]:
        """Return the names in search_path, with the present user's for "$user"."""
        path = self._context.parameters["search_path"]
        parts = [p.strip().strip('"') for p in path.split(",")]
        user = self._context.current_user
        return tuple(user if part == "$user" else part for part in parts if part)

    def become(self, role: str | None, *, authorization: bool) -> bool:
        """Change the role, by the rules of ``Backend.become``."""
        authority = self._catalog.authority()
        user = self._context.user if authorization else self._context.session_user
        role_of_user = authority.by_name.get(user)
        if role_of_user is None or role_of_user.oid != self._taken.get(
            user, role_of_user.oid
        ):
            raise UndefinedObjectError(f'role "{user}" does not exist')
        if role is None:
            return role_of_user.superuser
        target = authority.by_name.get(role)
        if target is None:
            raise UsageError(f'role "{role}" does not exist')
        if authorization:
            allowed = role_of_user.superuser or role_of_user.oid == target.oid
        else:
            allowed = authority.can_set_role(role_of_user.oid, target.oid)
        if not allowed:
            kind = "session authorization" if authorization else "role"
            raise UsageError(
                f'permission denied to set {kind} "{role}"', sqlstate="42501"
            )
        self._taken[role] = target.oid
        return target.superuser
