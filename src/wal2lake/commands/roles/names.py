"""Lookup of roles by the names in statements.

Takes a ``RoleName``; returns the role, or raises 42704. ``public`` denotes every role; it is no
role that could own something or be a member.

Source: get_rolespec_tuple() in acl.c.
"""

from __future__ import annotations

from wal2lake.catalog import Authority, Role
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.node import PERMISSION_DENIED, Caller
from wal2lake.model import PUBLIC, Oid
from wal2lake.sql.grammar.statements import RoleName


def need_role(authority: Authority, caller: Caller, name: RoleName) -> Role:
    """Return the role with the name, or the role that the keyword denotes."""
    if name.keyword:
        session = name.name == "session_user"
        return caller.session_role if session else caller.role
    return role_named(authority, name.name)


def role_named(authority: Authority, name: str) -> Role:
    """Return the role with the name; 42704 if it does not exist."""
    role = authority.by_name.get(name)
    if role is None:
        raise UndefinedObjectError(f'role "{name}" does not exist')
    return role


def grantee_oid(authority: Authority, caller: Caller, name: RoleName) -> Oid:
    """Return the OID of a grantee: a role, or PUBLIC."""
    if not name.keyword and name.name == "public":
        return PUBLIC
    return need_role(authority, caller, name).oid


def denied(action: str, detail: str) -> UsageError:
    """Return the error 42501 with PostgreSQL's reason."""
    return UsageError(
        f"permission denied to {action}", sqlstate=PERMISSION_DENIED, detail=detail
    )


def may_create_roles(caller: Caller) -> bool:
    """Check as have_createrole_privilege() does."""
    return caller.role.superuser or caller.role.createrole


def check_can_set_role(authority: Authority, caller: Caller, role: Role) -> None:
    """Raise 42501 unless the caller could SET ROLE to the role."""
    if not authority.can_set_role(caller.role.oid, role.oid):
        raise UsageError(
            f'must be able to SET ROLE "{role.name}"', sqlstate=PERMISSION_DENIED
        )
