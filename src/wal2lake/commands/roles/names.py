"""Roles by the names that statements have for them.

Comes in: a ``RoleName``. Goes out: the role; 42704 if there is none. ``public`` is every role, and
none that could own something or be a member.

Source: get_rolespec_tuple() in acl.c.
"""

from __future__ import annotations

from wal2lake.catalog import Authority, Role
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.node import PERMISSION_DENIED, Caller
from wal2lake.model import PUBLIC, Oid
from wal2lake.sql.grammar.statements import RoleName


def need_role(authority: Authority, caller: Caller, name: RoleName) -> Role:
    """The role of that name, or the one that a keyword stands for."""
    if name.keyword:
        session = name.name == "session_user"
        return caller.session_role if session else caller.role
    return role_named(authority, name.name)


def role_named(authority: Authority, name: str) -> Role:
    """42704 if there is none."""
    found = authority.by_name.get(name)
    if found is None:
        raise UndefinedObjectError(f'role "{name}" does not exist')
    return found


def grantee_oid(authority: Authority, caller: Caller, name: RoleName) -> Oid:
    """Return the OID of a grantee: a role, or PUBLIC."""
    if not name.keyword and name.name == "public":
        return PUBLIC
    return need_role(authority, caller, name).oid


def denied(what: str, detail: str) -> UsageError:
    """42501 with PostgreSQL's reason."""
    return UsageError(
        f"permission denied to {what}", sqlstate=PERMISSION_DENIED, detail=detail
    )


def may_create_roles(caller: Caller) -> bool:
    """have_createrole_privilege()."""
    return caller.role.superuser or caller.role.createrole


def check_can_set_role(authority: Authority, caller: Caller, role: Role) -> None:
    """42501 unless the caller could SET ROLE to it."""
    if not authority.can_set_role(caller.role.oid, role.oid):
        raise UsageError(
            f'must be able to SET ROLE "{role.name}"', sqlstate=PERMISSION_DENIED
        )
