"""Derives privileges from roles, memberships and acls.

Comes in: all roles and memberships, once. Goes out: answers from memory. Whether a role is a
superuser is asked first, wherever that is enough: who asks for one reads no memberships.

    inherit    the member has the role's privileges without SET ROLE
    set_role   the member may SET ROLE to it
    admin      the member may grant it to others

Each is followed through any number of memberships. pg_database_owner has one member without a
row, the database's owner. pg_read_all_data, pg_write_all_data and pg_maintain have privileges on
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
"""pg_database.datdba of a node's one database."""

_BY_ROLE: Final = {
    ObjectKind.TABLE: (
        (PG_READ_ALL_DATA, "r"),
        (PG_WRITE_ALL_DATA, "awd"),
        (PG_MAINTAIN, "m"),
    ),
    ObjectKind.SCHEMA: ((PG_READ_ALL_DATA, "U"), (PG_WRITE_ALL_DATA, "U")),
    ObjectKind.DATABASE: (),
}
"""Letters that members of a predefined role have on every object of a kind."""


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
        """Names by OID, for texts."""
        return {int(role.oid): role.name for role in self.roles}

    def name(self, role: Oid) -> str:
        """Return the role's name as messages print it; a dropped role's number."""
        return self.names.get(int(role), str(int(role)))

    def is_superuser(self, role: Oid) -> bool:
        """A role that is gone is none."""
        found = self.by_oid.get(role)
        return found is not None and found.superuser

    # ---- memberships ------------------------------------------------------------------

    def inherited(self, role: Oid) -> set[Oid]:
        """All roles whose privileges it has, itself among them."""
        return self._closure(role, lambda m: m.inherit)

    def has_privileges_of(self, member: Oid, role: Oid) -> bool:
        """has_privs_of_role()."""
        return self.is_superuser(member) or role in self.inherited(member)

    def can_set_role(self, member: Oid, role: Oid) -> bool:
        """member_can_set_role()."""
        return (
            member == role
            or self.is_superuser(member)
            or role in self._closure(member, lambda m: m.set_role)
        )

    def is_member(self, member: Oid, role: Oid) -> bool:
        """is_member_of_role(): whatever the membership's options."""
        return self.is_superuser(member) or self.is_member_nosuper(member, role)

    def is_member_nosuper(self, member: Oid, role: Oid) -> bool:
        """The same of memberships alone."""
        return role in self._closure(member, lambda m: True)

    def is_admin_of(self, member: Oid, role: Oid) -> bool:
        """is_admin_of_role(): may it grant the role? No role is its own admin."""
        if self.is_superuser(member):
            return True
        reached = self._closure(member, lambda m: True)
        return any(
            m.roleid == role and m.admin and m.member in reached for m in self.members
        )

    def best_admin(self, member: Oid, role: Oid) -> Oid | None:
        """select_best_admin(): who of those whose privileges ``member`` has can grant
        the role."""
        reached = self.inherited(member)
        admins = {m.member for m in self.members if m.roleid == role and m.admin}
        if member in admins:
            return member
        return next((m for m in sorted(admins) if m in reached), None)

    def _closure(self, start: Oid, follows: Callable[[RoleMember], bool]) -> set[Oid]:
        found, rest = {start}, [start]
        while rest:
            member = rest.pop()
            for one in self._of(member):
                if one.roleid not in found and follows(one):
                    found.add(one.roleid)
                    rest.append(one.roleid)
        return found

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
        found: dict[Oid, list[RoleMember]] = {}
        for one in self.members:
            found.setdefault(one.member, []).append(one)
        return found

    # ---- objects ----------------------------------------------------------------------

    def owns(self, role: Oid, owner: Oid) -> bool:
        """object_ownercheck()."""
        return self.has_privileges_of(role, owner)

    def letters(self, role: Oid, kind: ObjectKind, owner: Oid, acl: Acl | None) -> str:
        """All that a role may do with an object."""
        if self.is_superuser(role):
            return kind.all
        reached = self.inherited(role)
        found = (acl or Acl.default(kind, owner)).granted({*reached, PUBLIC})
        for predefined, more in _BY_ROLE[kind]:
            if predefined in reached:
                found += more
        return found

    def grantable(
        self, role: Oid, kind: ObjectKind, owner: Oid, acl: Acl | None
    ) -> str:
        """Return the privileges that a role may grant: an owner every one, also those that the
        owner lacks."""
        if self.owns(role, owner):
            return kind.all
        return (acl or Acl.default(kind, owner)).grantable(
            {*self.inherited(role), PUBLIC}
        )

    def best_grantor(
        self, role: Oid, letters: str, kind: ObjectKind, owner: Oid, acl: Acl | None
    ) -> tuple[Oid, str]:
        """select_best_grantor(): in whose name a role grants, and what of it can be."""
        if role == owner or self.owns(role, owner):
            return owner, letters
        found = acl or Acl.default(kind, owner)
        wanted = set(letters)
        best, most = role, ""
        for candidate in (role, *sorted(self.inherited(role) - {role})):
            able = "".join(c for c in found.grantable([candidate]) if c in wanted)
            if set(able) == wanted:
                return candidate, able
            if len(able) > len(most):
                best, most = candidate, able
        return best, most
