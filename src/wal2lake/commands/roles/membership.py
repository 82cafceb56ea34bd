"""GRANT role TO role, REVOKE role FROM role.

Takes a statement, or roles from the room's other commands; returns rows of role_member to write and
to remove. A membership is identified by three roles: the granted role, the member and the grantor.

Source: GrantRole(), AddRoleMems(), DelRoleMems(), check_role_grantor() and plan_member_revoke() in
user.c, PostgreSQL 18.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wal2lake.catalog import Authority, Role, RoleMember
from wal2lake.commands.roles.names import denied, need_role, role_named
from wal2lake.errors import FeatureNotSupportedError, InternalError, UsageError
from wal2lake.local.node import Caller
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.model import BOOTSTRAP_SUPERUSER, Oid
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.access.rolestatements import GrantRole

_DATABASE_OWNER: Final = "pg_database_owner"
_INVALID_GRANT: Final = "0LP01"


@dataclass(frozen=True, slots=True)
class Granted:
    """The options of a GRANT; None for an option that is not given."""

    admin: bool | None = None
    inherit: bool | None = None
    set_role: bool | None = None


@dataclass(slots=True)
class MembershipChange:
    """Effect of a REVOKE on the memberships."""

    put: list[RoleMember] = field(default_factory=list)
    removed: list[RoleMember] = field(default_factory=list)


def grant_role(node: Definitions, caller: Caller, statement: GrantRole) -> str:
    """GRANT and REVOKE of roles."""
    with node.ddl_lock:
        authority = node.catalog.authority()
        granted_by = statement.granted_by
        grantor = (
            None if granted_by is None else need_role(authority, caller, granted_by)
        )
        members = [need_role(authority, caller, name) for name in statement.grantees]
        put: list[RoleMember] = []
        removed: list[RoleMember] = []
        for name in statement.granted:
            role = role_named(authority, name)
            if statement.revoke:
                check_may_grant(authority, caller, role, revoke=True)
                only = {option for option, _ in statement.options}
                change = remove_members(
                    authority,
                    caller,
                    role,
                    members,
                    only=only,
                    grantor=grantor,
                    cascade=statement.cascade,
                )
                put += change.put
                removed += change.removed
                authority = _after(authority, change.put, change.removed)
            else:
                check_may_grant(authority, caller, role)
                options = dict(statement.options)
                added = add_members(
                    node,
                    authority,
                    caller,
                    role,
                    members,
                    Granted(
                        options.get("admin"), options.get("inherit"), options.get("set")
                    ),
                    grantor=grantor,
                )
                put += added
                authority = _after(authority, added, ())
        node.catalog.set_members(put, removed)
    return "REVOKE ROLE" if statement.revoke else "GRANT ROLE"


def check_may_grant(
    authority: Authority, caller: Caller, role: Role, *, revoke: bool = False
) -> None:
    """Check as check_role_membership_authorization() does."""
    if not revoke and role.name == _DATABASE_OWNER:
        raise FeatureNotSupportedError(
            f'role "{role.name}" cannot have explicit members'
        )
    verb = "revoke" if revoke else "grant"
    if role.superuser:
        if not caller.role.superuser:
            raise denied(
                f'{verb} role "{role.name}"',
                f"Only roles with the SUPERUSER attribute may {verb} roles with the"
                " SUPERUSER attribute.",
            )
    elif not authority.is_admin_of(caller.role.oid, role.oid):
        raise denied(
            f'{verb} role "{role.name}"',
            f'Only roles with the ADMIN option on role "{role.name}" may {verb} this'
            " role.",
        )


def add_members(
    node: HasCatalog,
    authority: Authority,
    caller: Caller,
    role: Role,
    members: Sequence[Role],
    granted: Granted,
    *,
    grantor: Role | None = None,
) -> list[RoleMember]:
    """Return the rows to write, as AddRoleMems(). The caller's permission has been checked."""
    if not members:
        return []
    grantor_oid = _grantor(authority, caller, role, grantor, grants=True)
    for member in members:
        if member.name == _DATABASE_OWNER:
            raise FeatureNotSupportedError(
                f'role "{member.name}" cannot be a member of any role'
            )
        if authority.is_member_nosuper(role.oid, member.oid):
            raise UsageError(
                f'role "{role.name}" is a member of role "{member.name}"',
                sqlstate=_INVALID_GRANT,
            )
    if granted.admin and grantor_oid != BOOTSTRAP_SUPERUSER:
        _check_circular(authority, role, members, grantor_oid)
    rows: list[RoleMember] = []
    for member in members:
        present = _row(authority, role, member, grantor_oid)
        if present is None:
            inherit = granted.inherit
            row = RoleMember(
                oid=node.catalog.new_oid(),
                roleid=role.oid,
                member=member.oid,
                grantor=grantor_oid,
                admin=bool(granted.admin),
                inherit=member.inherit if inherit is None else inherit,
                set_role=granted.set_role is not False,
            )
        else:
            row = _changed(present, granted)
            if row == present:
                caller.notice(
                    Notice(
                        f'role "{member.name}" has already been granted membership in'
                        f' role "{role.name}" by role "{authority.name(grantor_oid)}"'
                    )
                )
                continue
        rows.append(row)
    return rows


def remove_members(
    authority: Authority,
    caller: Caller,
    role: Role,
    members: Sequence[Role],
    *,
    only: set[str] | None = None,
    grantor: Role | None = None,
    cascade: bool = False,
) -> MembershipChange:
    """Return the change that revokes memberships, or only the options ``only``; DelRoleMems()."""
    grantor_oid = _grantor(authority, caller, role, grantor, grants=False)
    change = MembershipChange()
    rows = {(m.member, m.grantor): m for m in authority.members if m.roleid == role.oid}
    for member in members:
        present = rows.get((member.oid, grantor_oid))
        if present is None:
            caller.notice(
                Notice(
                    f'role "{member.name}" has not been granted membership in role'
                    f' "{role.name}" by role "{authority.name(grantor_oid)}"',
                    severity="WARNING",
                    sqlstate="01000",
                )
            )
            continue
        if only:
            left: RoleMember | None = replace(
                present,
                admin=present.admin and "admin" not in only,
                inherit=present.inherit and "inherit" not in only,
                set_role=present.set_role and "set" not in only,
            )
        else:
            left = None
        _set(rows, change, present, left)
        if present.admin and (left is None or not left.admin):
            _revoke_dependent(rows, change, present.member, cascade=cascade)
    return change


# ---- one role's rows ----------------------------------------------------------------------


def _revoke_dependent(
    rows: dict[tuple[Oid, Oid], RoleMember],
    change: MembershipChange,
    admin: Oid,
    *,
    cascade: bool,
) -> None:
    """Revoke the grants of ``admin`` that depend on the revoked membership.

    Grants stay if another membership still allows them."""
    if any(m.admin for m in rows.values() if m.member == admin):
        return
    for row in [m for m in rows.values() if m.grantor == admin]:
        if not cascade:
            raise UsageError(
                "dependent privileges exist",
                sqlstate="2BP01",
                hint="Use CASCADE to revoke them too.",
            )
        _set(rows, change, row, None)
        if row.admin:
            _revoke_dependent(rows, change, row.member, cascade=True)


def _set(
    rows: dict[tuple[Oid, Oid], RoleMember],
    change: MembershipChange,
    present: RoleMember,
    left: RoleMember | None,
) -> None:
    key = (present.member, present.grantor)
    if left is None:
        del rows[key]
        change.put = [m for m in change.put if (m.member, m.grantor) != key]
        change.removed.append(present)
    else:
        rows[key] = left
        change.put.append(left)


def _grantor(
    authority: Authority,
    caller: Caller,
    role: Role,
    requested: Role | None,
    *,
    grants: bool,
) -> Oid:
    """Return the grantor to record; source: check_role_grantor()."""
    if requested is None:
        if caller.role.superuser:
            return BOOTSTRAP_SUPERUSER
        admin = authority.best_admin(caller.role.oid, role.oid)
        if admin is None:
            raise InternalError("no possible grantors")
        return admin
    allowed = authority.has_privileges_of(caller.role.oid, requested.oid)
    if grants:
        action = f'grant privileges as role "{requested.name}"'
        if not allowed:
            raise denied(
                action,
                f'Only roles with privileges of role "{requested.name}" may grant privileges'
                " as this role.",
            )
        if (
            requested.oid != BOOTSTRAP_SUPERUSER
            and authority.best_admin(requested.oid, role.oid) != requested.oid
        ):
            raise denied(
                action, f'The grantor must have the ADMIN option on role "{role.name}".'
            )
    elif not allowed:
        raise denied(
            f'revoke privileges granted by role "{requested.name}"',
            f'Only roles with privileges of role "{requested.name}" may revoke privileges'
            " granted by this role.",
        )
    return requested.oid


def _check_circular(
    authority: Authority, role: Role, members: Sequence[Role], grantor_oid: Oid
) -> None:
    """Refuse a grant that would make an ADMIN option depend on itself."""
    reached = {member.oid for member in members}
    grown = True
    while grown:
        next_members = {
            m.member
            for m in authority.members
            if m.roleid == role.oid and m.admin and m.grantor in reached
        }
        grown = not next_members <= reached
        reached |= next_members
    if grantor_oid in reached:
        raise UsageError(
            "ADMIN option cannot be granted back to your own grantor",
            sqlstate=_INVALID_GRANT,
        )


def _row(
    authority: Authority, role: Role, member: Role, grantor: Oid
) -> RoleMember | None:
    key = (role.oid, member.oid, grantor)
    return next(
        (m for m in authority.members if (m.roleid, m.member, m.grantor) == key), None
    )


def _changed(present: RoleMember, granted: Granted) -> RoleMember:
    def changed(option: bool | None, present_value: bool) -> bool:
        return present_value if option is None else option

    return replace(
        present,
        admin=changed(granted.admin, present.admin),
        inherit=changed(granted.inherit, present.inherit),
        set_role=changed(granted.set_role, present.set_role),
    )


def _after(
    authority: Authority, put: Sequence[RoleMember], removed: Sequence[RoleMember]
) -> Authority:
    rows = {(m.roleid, m.member, m.grantor): m for m in authority.members}
    for row in removed:
        rows.pop((row.roleid, row.member, row.grantor), None)
    for row in put:
        rows[row.roleid, row.member, row.grantor] = row
    return Authority(authority.roles, tuple(rows.values()))
