"""Roles, memberships, privileges and owners.

Takes: parsed statements, the caller, the node. Gives: command tags and notices. Owns: PostgreSQL's
rules about who may change which role. Never: logs a password.

    attributes   CREATE, ALTER, RENAME and DROP ROLE
    membership   GRANT and REVOKE of roles
    privileges   GRANT and REVOKE on tables, schemas, the database
    owners       ALTER TABLE | SCHEMA ... OWNER TO
    dependents   objects and grants that keep a role from being dropped
    names        lookup of roles by name

Source: user.c, aclchk.c, acl.c (order of checks, texts, SQLSTATEs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wal2lake.commands.roles.attributes import (
    alter_role,
    create_role,
    drop_role,
    rename_role,
)
from wal2lake.commands.roles.membership import grant_role
from wal2lake.commands.roles.owners import alter_owner
from wal2lake.commands.roles.privileges import grant_privileges
from wal2lake.local.node import Caller, EngineParts
from wal2lake.sql.grammar.access.rolestatements import (
    AlterOwner,
    AlterRole,
    CreateRole,
    DropRole,
    GrantPrivileges,
    GrantRole,
    RenameRole,
)

COMMANDS: Final[Mapping[type, Callable[[EngineParts, Caller, Any], str]]] = {
    CreateRole: create_role,
    AlterRole: alter_role,
    RenameRole: rename_role,
    DropRole: drop_role,
    GrantRole: grant_role,
    GrantPrivileges: grant_privileges,
    AlterOwner: alter_owner,
}

__all__ = ["COMMANDS"]
