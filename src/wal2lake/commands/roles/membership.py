"""GRANT role TO role, REVOKE role FROM role.

In: a statement; for the other commands of this room, roles. Out: rows of role_member to write and
to remove. A membership is known by three roles: what was granted, to whom, by whom.

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
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import BOOTSTRAP_SUPERUSER, Oid
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.access.statements import GrantRole

_DATABASE_OWNER: Final = "pg_database_owner"
_INVALID_GRANT: Final = "0LP01"


@dataclass(frozen=True, slots=True)
class Granted:
    """The options of a GRANT; None: not said."""

    admin: bool | None = None
    inherit: bool | None = None
    set_role: bool | None = None


@dataclass(slots=True)
class MembershipChange:
    """Effect of a REVOKE on the memberships."""

    put: list[RoleMember] = field(default_factory=list)
    removed: list[RoleMember] = field(default_factory=list)


def grant_role(node: EngineParts, caller: Caller, statement: GrantRole) -> str:
    """Both of them."""
    with node.ddl_lock:
        authority = node.catalog.authority()
        by = statement.granted_by
        grantor = None if by is None else need_role(authority, caller, by)
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
                more = add_members(
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
                put += more
                authority = _after(authority, more, ())
        node.catalog.set_members(put, removed)
    return "REVOKE ROLE" if statement.revoke else "GRANT ROLE"


def check_may_grant(
    authority: Authority, caller: Caller, role: Role, *, revoke: bool = False
) -> None:
    """check_role_membership_authorization()."""
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
    node: EngineParts,
    authority: Authority,
    caller: Caller,
    role: Role,
    members: Sequence[Role],
    granted: Granted,
    *,
    grantor: Role | None = None,
) -> list[RoleMember]:
    """AddRoleMems(): the rows to write. The caller has been found to be allowed."""
    if not members:
        return []
    by = _grantor(authority, caller, role, grantor, grants=True)
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
    if granted.admin and by != BOOTSTRAP_SUPERUSER:
        _check_circular(authority, role, members, by)
    found: list[RoleMember] = []
    for member in members:
        known = _row(authority, role, member, by)
        if known is None:
            inherit = granted.inherit
            row = RoleMember(
                oid=node.catalog.new_oid(),
                roleid=role.oid,
                member=member.oid,
                grantor=by,
                admin=bool(granted.admin),
                inherit=member.inherit if inherit is None else inherit,
                set_role=granted.set_role is not False,
            )
        else:
            row = _changed(known, granted)
            if row == known:
                caller.notice(
                    Notice(
                        f'role "{member.name}" has already been granted membership in'
                        f' role "{role.name}" by role "{authority.name(by)}"'
                    )
                )
                continue
        found.append(row)
    return found


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
    """DelRoleMems(): whole memberships, or the options ``only``."""
    by = _grantor(authority, caller, role, grantor, grants=False)
    change = MembershipChange()
    rows = {(m.member, m.grantor): m for m in authority.members if m.roleid == role.oid}
    for member in members:
        known = rows.get((member.oid, by))
        if known is None:
            caller.notice(
                Notice(
                    f'role "{member.name}" has not been granted membership in role'
                    f' "{role.name}" by role "{authority.name(by)}"',
                    severity="WARNING",
                    sqlstate="01000",
                )
            )
            continue
        if only:
            left: RoleMember | None = replace(
                known,
                admin=known.admin and "admin" not in only,
                inherit=known.inherit and "inherit" not in only,
                set_role=known.set_role and "set" not in only,
            )
        else:
            left = None
        _set(rows, change, known, left)
        if known.admin and (left is None or not left.admin):
            _revoke_dependent(rows, change, known.member, cascade=cascade)
    return change


# ---- one role's rows ----------------------------------------------------------------------


def _revoke_dependent(
    rows: dict[tuple[Oid, Oid], RoleMember],
    change: MembershipChange,
    admin: Oid,
    *,
    cascade: bool,
) -> None:
    """Revoke the grants of ``admin`` that depend on the revoked membership, unless another
    membership allows them."""
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
    known: RoleMember,
    left: RoleMember | None,
) -> None:
    key = (known.member, known.grantor)
    if left is None:
        del rows[key]
        change.put = [m for m in change.put if (m.member, m.grantor) != key]
        change.removed.append(known)
    else:
        rows[key] = left
        change.put.append(left)


def _grantor(
    authority: Authority,
    caller: Caller,
    role: Role,
    given: Role | None,
    *,
    grants: bool,
) -> Oid:
    """check_role_grantor(): in whose name it is done."""
    if given is None:
        if caller.role.superuser:
            return BOOTSTRAP_SUPERUSER
        found = authority.best_admin(caller.role.oid, role.oid)
        if found is None:
            raise InternalError("no possible grantors")
        return found
    allowed = authority.has_privileges_of(caller.role.oid, given.oid)
    if grants:
        what = f'grant privileges as role "{given.name}"'
        if not allowed:
            raise denied(
                what,
                f'Only roles with privileges of role "{given.name}" may grant privileges'
                " as this role.",
            )
        if (
            given.oid != BOOTSTRAP_SUPERUSER
            and authority.best_admin(given.oid, role.oid) != given.oid
        ):
            raise denied(
                what, f'The grantor must have the ADMIN option on role "{role.name}".'
            )
    elif not allowed:
        raise denied(
            f'revoke privileges granted by role "{given.name}"',
            f'Only roles with privileges of role "{given.name}" may revoke privileges'
            " granted by this role.",
        )
    return given.oid


def _check_circular(
    authority: Authority, role: Role, members: Sequence[Role], by: Oid
) -> None:
    """An ADMIN option must not come to depend on itself."""
    reached = {member.oid for member in members}
    grown = True
    while grown:
        more = {
            m.member
            for m in authority.members
            if m.roleid == role.oid and m.admin and m.grantor in reached
        }
        grown = not more <= reached
        reached |= more
    if by in reached:
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


def _changed(known: RoleMember, granted: Granted) -> RoleMember:
    def said(value: bool | None, before: bool) -> bool:
        return before if value is None else value

    return replace(
        known,
        admin=said(granted.admin, known.admin),
        inherit=said(granted.inherit, known.inherit),
        set_role=said(granted.set_role, known.set_role),
    )


def _after(
    authority: Authority, put: Sequence[RoleMember], removed: Sequence[RoleMember]
) -> Authority:
    rows = {(m.roleid, m.member, m.grantor): m for m in authority.members}
    for one in removed:
        rows.pop((one.roleid, one.member, one.grantor), None)
    for one in put:
        rows[one.roleid, one.member, one.grantor] = one
    return Authority(authority.roles, tuple(rows.values()))
