"""Derives privileges from roles, memberships and acls.

In: all roles and memberships, once. Out: decisions from memory. Where it suffices that a role is a
superuser, that is checked first, without reading memberships.

    inherit    the member has the role's privileges without SET ROLE
    set_role   the member may SET ROLE to the role
    admin      the member may grant the role to others

Each option is followed through any number of memberships. pg_database_owner has one implicit
member, the database's owner. pg_read_all_data, pg_write_all_data and pg_maintain have privileges on
every table and schema.

Source: roles_is_member_of(), has_privs_of_role(), member_can_set_role(), is_admin_of_role() and
select_best_grantor() in acl.c; pg_class_aclmask_ext() and object_aclmask_ext() in aclchk.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from wal2lake.catalog.access.predefined import (
    PG_DATABASE_OWNER,
    PG_MAINTAIN,
    PG_READ_ALL_DATA,
    PG_WRITE_ALL_DATA,
)
from wal2lake.catalog.records import Role, RoleMember
from wal2lake.model import BOOTSTRAP_SUPERUSER, PUBLIC, Acl, ObjectKind, Oid

DATABASE_OWNER: Final = BOOTSTRAP_SUPERUSER
"""pg_database.datdba of a node's database."""

_BY_ROLE: Final = {
    ObjectKind.TABLE: (
        (PG_READ_ALL_DATA, "r"),
        (PG_WRITE_ALL_DATA, "awd"),
        (PG_MAINTAIN, "m"),
    ),
    ObjectKind.SCHEMA: ((PG_READ_ALL_DATA, "U"), (PG_WRITE_ALL_DATA, "U")),
    ObjectKind.DATABASE: (),
}
"""Privileges that members of a predefined role have on every object of a kind."""


@dataclass(frozen=True)
class Authority:
    """The roles of a node at one moment."""

    roles: tuple[Role, ...]
    members: tuple[RoleMember, ...]

    @cached_property
    def by_oid(self) -> Mapping[Oid, Role]:
        """Roles by OID."""
        return {role.oid: role for role in self.roles}

    @cached_property
    def by_name(self) -> Mapping[str, Role]:
        """Roles by name."""
        return {role.name: role for role in self.roles}

    @cached_property
    def names(self) -> dict[int, str]:
        """Names by OID, for messages."""
        return {int(role.oid): role.name for role in self.roles}

    def name(self, role: Oid) -> str:
        """Return the role's name for messages; the OID of a dropped role."""
        return self.names.get(int(role), str(int(role)))

    def is_superuser(self, role: Oid) -> bool:
        """Whether a role is a superuser. A dropped role is not."""
        existing = self.by_oid.get(role)
        return existing is not None and existing.superuser

    # ---- memberships ------------------------------------------------------------------

    def inherited(self, role: Oid) -> set[Oid]:
        """Return all roles whose privileges a role has, itself included."""
        return self._closure(role, lambda m: m.inherit)

    def has_privileges_of(self, member: Oid, role: Oid) -> bool:
        """Whether a member has a role's privileges: has_privs_of_role()."""
        return self.is_superuser(member) or role in self.inherited(member)

    def can_set_role(self, member: Oid, role: Oid) -> bool:
        """Whether a member can SET ROLE to a role: member_can_set_role()."""
        return (
            member == role
            or self.is_superuser(member)
            or role in self._closure(member, lambda m: m.set_role)
        )

    def is_member(self, member: Oid, role: Oid) -> bool:
        """Whether a role is a member, with any options: is_member_of_role()."""
        return self.is_superuser(member) or self.is_member_nosuper(member, role)

    def is_member_nosuper(self, member: Oid, role: Oid) -> bool:
        """Whether a role is a member, without regard to superusers."""
        return role in self._closure(member, lambda m: True)

    def is_admin_of(self, member: Oid, role: Oid) -> bool:
        """Whether a member may grant a role: is_admin_of_role(). No role is its own admin."""
        if self.is_superuser(member):
            return True
        reached = self._closure(member, lambda m: True)
        return any(
            m.roleid == role and m.admin and m.member in reached for m in self.members
        )

    def best_admin(self, member: Oid, role: Oid) -> Oid | None:
        """Return a role that can grant ``role`` and whose privileges ``member`` has:
        select_best_admin()."""
        reached = self.inherited(member)
        admins = {m.member for m in self.members if m.roleid == role and m.admin}
        if member in admins:
            return member
        return next((m for m in sorted(admins) if m in reached), None)

    def _closure(self, start: Oid, follows: Callable[[RoleMember], bool]) -> set[Oid]:
        reached, rest = {start}, [start]
        while rest:
            member = rest.pop()
            for membership in self._of(member):
                if membership.roleid not in reached and follows(membership):
                    reached.add(membership.roleid)
                    rest.append(membership.roleid)
        return reached

    def _of(self, member: Oid) -> Iterable[RoleMember]:
        yield from self._by_member.get(member, ())
        if member == DATABASE_OWNER:
            yield RoleMember(
                oid=Oid(0),
                roleid=PG_DATABASE_OWNER,
                member=member,
                grantor=member,
            )

    @cached_property
    def _by_member(self) -> dict[Oid, list[RoleMember]]:
        by_member: dict[Oid, list[RoleMember]] = {}
        for membership in self.members:
            by_member.setdefault(membership.member, []).append(membership)
        return by_member

    # ---- objects ----------------------------------------------------------------------

    def owns(self, role: Oid, owner: Oid) -> bool:
        """Whether a role has the owner's privileges: object_ownercheck()."""
        return self.has_privileges_of(role, owner)

    def letters(self, role: Oid, kind: ObjectKind, owner: Oid, acl: Acl | None) -> str:
        """Return all privileges of a role on an object."""
        if self.is_superuser(role):
            return kind.all
        reached = self.inherited(role)
        privileges = (acl or Acl.default(kind, owner)).granted({*reached, PUBLIC})
        for predefined, added in _BY_ROLE[kind]:
            if predefined in reached:
                privileges += added
        return privileges

    def grantable(
        self, role: Oid, kind: ObjectKind, owner: Oid, acl: Acl | None
    ) -> str:
        """Return the privileges that a role may grant. An owner may grant every privilege, even
        those that the owner lacks."""
        if self.owns(role, owner):
            return kind.all
        return (acl or Acl.default(kind, owner)).grantable(
            {*self.inherited(role), PUBLIC}
        )

    def best_grantor(
        self, role: Oid, letters: str, kind: ObjectKind, owner: Oid, acl: Acl | None
    ) -> tuple[Oid, str]:
        """Return the grantor for a role's GRANT, and the privileges that it can grant:
        select_best_grantor()."""
        if role == owner or self.owns(role, owner):
            return owner, letters
        effective_acl = acl or Acl.default(kind, owner)
        wanted = set(letters)
        best, most = role, ""
        for candidate in (role, *sorted(self.inherited(role) - {role})):
            able = "".join(
                c for c in effective_acl.grantable([candidate]) if c in wanted
            )
            if set(able) == wanted:
                return candidate, able
            if len(able) > len(most):
                best, most = candidate, able
        return best, most
