"""Statements about roles, privileges and owners, as values.

The parsers of this room make them; ``commands.roles`` executes them. They are frozen dataclasses
and equal if they mean the same.

Source: CreateRoleStmt, AlterRoleStmt, GrantStmt and GrantRoleStmt in parsenodes.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from wal2lake.sql.grammar.statements import QualifiedName, RoleName

RoleValue = bool | int | str | tuple[RoleName, ...] | None


@dataclass(frozen=True, slots=True)
class RoleOption:
    """One option of CREATE or ALTER ROLE."""

    name: str
    """One of superuser, inherit, createrole, createdb, login, replication, bypassrls, password,
    connection limit, valid until, in role, role and admin."""
    value: RoleValue
    """The value; None for PASSWORD NULL."""
    position: int = field(default=0, compare=False)
    """1-based, in characters of the statement; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class CreateRole:
    """CREATE ROLE | USER | GROUP."""

    word: str
    """ROLE, USER (which has LOGIN by default) or GROUP."""
    name: str
    options: tuple[RoleOption, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterRole:
    """ALTER ROLE | USER ... options; ALTER GROUP ... ADD | DROP USER."""

    role: RoleName
    options: tuple[RoleOption, ...] = ()
    dropped: tuple[RoleName, ...] = ()
    """The members that ALTER GROUP ... DROP USER removes."""


@dataclass(frozen=True, slots=True)
class RenameRole:
    """ALTER ROLE | USER | GROUP ... RENAME TO."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropRole:
    """DROP ROLE | USER | GROUP."""

    roles: tuple[RoleName, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class GrantRole:
    """GRANT role TO role, REVOKE role FROM role."""

    granted: tuple[str, ...]
    grantees: tuple[RoleName, ...]
    options: tuple[tuple[str, bool], ...] = ()
    """The options admin, inherit and set that GRANT sets, or that alone REVOKE takes away."""
    revoke: bool = False
    granted_by: RoleName | None = None
    cascade: bool = False


class GrantTarget(Enum):
    """The kinds of objects that GRANT, REVOKE and ALTER ... OWNER TO name."""

    TABLE = "TABLE"
    TABLES_IN_SCHEMA = "ALL TABLES IN SCHEMA"
    SCHEMA = "SCHEMA"
    DATABASE = "DATABASE"


@dataclass(frozen=True, slots=True)
class PrivilegeClause:
    """One privilege of a list; ``columns`` is empty unless it is for single columns."""

    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantPrivileges:
    """GRANT privileges ON objects TO roles, REVOKE ... FROM."""

    privileges: tuple[PrivilegeClause, ...]
    """Empty: ALL PRIVILEGES."""
    target: GrantTarget
    objects: tuple[QualifiedName, ...]
    grantees: tuple[RoleName, ...]
    grant_option: bool = False
    """WITH GRANT OPTION, or GRANT OPTION FOR."""
    revoke: bool = False
    granted_by: RoleName | None = None
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AlterOwner:
    """ALTER TABLE | SCHEMA ... OWNER TO."""

    target: GrantTarget
    name: QualifiedName
    owner: RoleName
    if_exists: bool = False


AccessStatement = (
    CreateRole
    | AlterRole
    | RenameRole
    | DropRole
    | GrantRole
    | GrantPrivileges
    | AlterOwner
)
