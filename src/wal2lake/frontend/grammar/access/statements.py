"""Statements about roles, privileges and owners, as values.

Comes in: the parser's findings. Goes out: frozen dataclasses, equal when they mean the same.

Source: CreateRoleStmt, AlterRoleStmt, GrantStmt and GrantRoleStmt in parsenodes.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from wal2lake.frontend.grammar.statements import QualifiedName, RoleName

RoleValue = bool | int | str | tuple[RoleName, ...] | None


@dataclass(frozen=True, slots=True)
class RoleOption:
    """One option of CREATE or ALTER ROLE."""

    name: str
    """superuser, inherit, createrole, createdb, login, replication, bypassrls; password,
    connection limit, valid until; in role, role, admin; sysid."""
    value: RoleValue
    """A password of None is NULL."""
    position: int = field(default=0, compare=False)
    """1-based, in characters of the statement; 0 unknown."""


@dataclass(frozen=True, slots=True)
class CreateRole:
    """CREATE ROLE | USER | GROUP."""

    word: str
    """ROLE, USER (may log in unless it says otherwise) or GROUP."""
    name: str
    options: tuple[RoleOption, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterRole:
    """ALTER ROLE | USER ... options; ALTER GROUP ... ADD | DROP USER."""

    role: RoleName
    options: tuple[RoleOption, ...] = ()
    dropped: tuple[RoleName, ...] = ()
    """Members that ALTER GROUP ... DROP USER takes out."""


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
    """admin, inherit, set: what to grant them with; of a REVOKE what alone is taken."""
    revoke: bool = False
    granted_by: RoleName | None = None
    cascade: bool = False


class Target(Enum):
    """What privileges are granted on."""

    TABLE = "TABLE"
    TABLES_IN_SCHEMA = "ALL TABLES IN SCHEMA"
    SCHEMA = "SCHEMA"
    DATABASE = "DATABASE"


@dataclass(frozen=True, slots=True)
class PrivilegeClause:
    """One privilege of a list; ``columns`` where it is for some only."""

    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantPrivileges:
    """GRANT privileges ON objects TO roles, REVOKE ... FROM."""

    privileges: tuple[PrivilegeClause, ...]
    """Empty: ALL PRIVILEGES."""
    target: Target
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

    target: Target
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
