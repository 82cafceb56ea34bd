"""Rows of ``role`` and ``role_member``: pg_authid and pg_auth_members; the acls of objects.

In: a connection, and in writes a transaction on it. Out: records. Called by ``store``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from wal2lake.catalog.records import Role, RoleMember
from wal2lake.errors import DuplicateObjectError
from wal2lake.model import Acl, Oid

DATABASE_ACL: Final = "database_acl"
"""Key of the meta row with the database's acl, if it is not the default."""

ROLE_FLAGS: Final = (
    "superuser",
    "inherit",
    "createrole",
    "createdb",
    "login",
    "replication",
    "bypassrls",
)
_ROLE_COLUMNS: Final = tuple(field.name for field in fields(Role))


def all_roles(connection: sqlite3.Connection) -> list[Role]:
    """Return all roles."""
    rows = connection.execute("select * from role order by oid")
    return [_role(row) for row in rows]


def role_named(connection: sqlite3.Connection, name: str) -> Role | None:
    """Return a role by name."""
    row = connection.execute("select * from role where name = ?", (name,)).fetchone()
    return None if row is None else _role(row)


def role_by_oid(connection: sqlite3.Connection, oid: Oid) -> Role | None:
    """Return a role by OID."""
    row = connection.execute("select * from role where oid = ?", (oid,)).fetchone()
    return None if row is None else _role(row)


def create_role(connection: sqlite3.Connection, role: Role) -> None:
    """Create a role. Raises 42710 if the name is taken."""
    marks = ", ".join("?" * len(_ROLE_COLUMNS))
    try:
        connection.execute(
            f"insert into role ({', '.join(_ROLE_COLUMNS)}) values ({marks})",
            tuple(getattr(role, name) for name in _ROLE_COLUMNS),
        )
    except sqlite3.IntegrityError:
        raise _taken(role.name) from None


def update_role(
    connection: sqlite3.Connection, oid: Oid, changes: Mapping[str, Any]
) -> None:
    """Set fields of a role. Raises 42710 if a new name is taken."""
    if not changes:
        return
    sets = ", ".join(f"{name} = ?" for name in changes)
    try:
        connection.execute(
            f"update role set {sets} where oid = ?", (*changes.values(), oid)
        )
    except sqlite3.IntegrityError:
        raise _taken(str(changes.get("name"))) from None


def drop_role(connection: sqlite3.Connection, oid: Oid) -> None:
    """Drop a role, with its memberships on both sides, and those that it has granted."""
    connection.execute(
        "delete from role_member where ? in (roleid, member, grantor)", (oid,)
    )
    connection.execute("delete from role where oid = ?", (oid,))


def all_members(connection: sqlite3.Connection) -> list[RoleMember]:
    """Return all memberships, by OID."""
    return [
        RoleMember(
            Oid(r["oid"]),
            Oid(r["roleid"]),
            Oid(r["member"]),
            Oid(r["grantor"]),
            bool(r["admin"]),
            bool(r["inherit"]),
            bool(r["set_role"]),
        )
        for r in connection.execute("select * from role_member order by oid")
    ]


def put_member(connection: sqlite3.Connection, member: RoleMember) -> None:
    """Add a membership, or replace the one with the same role, member and grantor."""
    connection.execute(
        "insert into role_member (oid, roleid, member, grantor, admin, inherit, set_role)"
        " values (?, ?, ?, ?, ?, ?, ?)"
        " on conflict (roleid, member, grantor) do update set admin = excluded.admin,"
        " inherit = excluded.inherit, set_role = excluded.set_role",
        (
            member.oid,
            member.roleid,
            member.member,
            member.grantor,
            int(member.admin),
            int(member.inherit),
            int(member.set_role),
        ),
    )


def remove_members(
    connection: sqlite3.Connection, removed: Sequence[RoleMember]
) -> None:
    """Delete memberships."""
    connection.executemany(
        "delete from role_member where roleid = ? and member = ? and grantor = ?",
        [(m.roleid, m.member, m.grantor) for m in removed],
    )


# ---- owners and acls of objects ----------------------------------------------------------


def set_relation_access(
    connection: sqlite3.Connection, oid: Oid, owner: Oid, acl: Acl | None
) -> None:
    """Set owner and acl of a table."""
    connection.execute(
        "update relation set owner = ?, acl = ? where oid = ?",
        (owner, None if acl is None else acl.encode(), oid),
    )


def set_namespace_access(
    connection: sqlite3.Connection, oid: Oid, owner: Oid, acl: Acl | None
) -> None:
    """Set owner and acl of a schema."""
    connection.execute(
        "update namespace set owner = ?, acl = ? where oid = ?",
        (owner, None if acl is None else acl.encode(), oid),
    )


def database_acl(connection: sqlite3.Connection) -> Acl | None:
    """Return the database's acl; None for the defaults."""
    row = connection.execute(
        "select value from meta where key = ?", (DATABASE_ACL,)
    ).fetchone()
    return None if row is None else Acl.decode(row["value"])


def set_database_acl(connection: sqlite3.Connection, acl: Acl) -> None:
    """Set the acl of the one database."""
    connection.execute(
        "insert or replace into meta (key, value) values (?, ?)",
        (DATABASE_ACL, acl.encode()),
    )


def _role(row: sqlite3.Row) -> Role:
    values: dict[str, Any] = {
        name: bool(row[name]) if name in ROLE_FLAGS else row[name]
        for name in _ROLE_COLUMNS
    }
    return Role(**{**values, "oid": Oid(row["oid"])})


def _taken(name: str) -> DuplicateObjectError:
    return DuplicateObjectError(f'role "{name}" already exists')
