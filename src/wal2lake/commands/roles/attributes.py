"""CREATE, ALTER, RENAME and DROP ROLE | USER | GROUP.

Takes a statement; returns the command tag. A password is stored as a SCRAM-SHA-256 verifier. A
password that is a verifier already is stored unchanged.

Source: CreateRole(), AlterRole(), RenameRole() and DropRole() in user.c, PostgreSQL 18.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wal2lake.catalog import ROLE_FLAGS, Authority, Role, RoleMember
from wal2lake.commands.roles.dependents import check_dropped
from wal2lake.commands.roles.membership import (
    Granted,
    add_members,
    check_may_grant,
    remove_members,
)
from wal2lake.commands.roles.names import (
    denied,
    may_create_roles,
    need_role,
    role_named,
)
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.node import Caller
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.model import BOOTSTRAP_SUPERUSER
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.access.rolestatements import (
    AlterRole,
    CreateRole,
    DropRole,
    RenameRole,
    RoleOption,
)
from wal2lake.sql.grammar.statements import RoleName
from wal2lake.sql.query.values.moments import parse_timestamp
from wal2lake.wire.scram import SALT_BYTES, create_verifier, parse_verifier

_RESERVED_NAME: Final = "42939"
_IN_USE: Final = "55006"

_OWN_ONLY: Final = ("createdb", "replication", "bypassrls")
"""Attributes that only a role that has them may give to others."""

_MD5: Final = re.compile(r"md5[0-9a-f]{32}\Z")


def create_role(node: Definitions, caller: Caller, statement: CreateRole) -> str:
    """CREATE ROLE | USER | GROUP."""
    options = _options_by_name(statement.options)
    _check_limit(options)
    if not caller.role.superuser:
        _check_may_create(caller, options)
    _check_reserved(
        statement.name, 'Role names starting with "pg_" are reserved.', statement.name
    )
    with node.ddl_lock:
        authority = node.catalog.authority()
        if statement.name in authority.by_name:
            raise DuplicateObjectError(f'role "{statement.name}" already exists')
        fields = _fields(caller, statement.name, options)
        role = Role(
            **{
                "oid": node.catalog.new_oid(),
                "name": statement.name,
                "superuser": False,
                "password": None,
                "login": statement.word == "USER",
                **fields,
            }
        )
        members = _first_members(node, caller, authority, role, options)
        node.catalog.create_role(role, members)
    return "CREATE ROLE"


def alter_role(node: Definitions, caller: Caller, statement: AlterRole) -> str:
    """ALTER ROLE | USER ... options; ALTER GROUP ... ADD | DROP USER."""
    if not statement.role.keyword:
        _check_reserved(
            statement.role.name, "Cannot alter reserved roles.", statement.role.name
        )
    options = _options_by_name(statement.options)
    _check_limit(options)
    with node.ddl_lock:
        authority = node.catalog.authority()
        role = need_role(authority, caller, statement.role)
        changes_members = bool(statement.dropped) or "role" in options
        _check_may_alter(authority, caller, role, options, changes_members)
        fields = _fields(caller, role.name, options)
        if role.oid == BOOTSTRAP_SUPERUSER and options.get("superuser") is False:
            raise FeatureNotSupportedError(
                "permission denied to alter role",
                detail="The bootstrap superuser must have the SUPERUSER attribute.",
            )
        added: Sequence[RoleMember] = ()
        removed: Sequence[RoleMember] = ()
        if "role" in options:
            members = _roles(authority, caller, options["role"])
            added = add_members(node, authority, caller, role, members, Granted())
        if statement.dropped:
            members = _roles(authority, caller, statement.dropped)
            removed = remove_members(authority, caller, role, members).removed
        if fields:
            node.catalog.update_role(role.oid, **fields)
        if added or removed:
            node.catalog.set_members(added, removed)
        if "superuser" in fields:
            _restart_subscriptions(node, role)
    return "ALTER ROLE"


def _restart_subscriptions(node: Definitions, owner: Role) -> None:
    """Restart the workers: a new owner attribute changes whether they must use a password."""
    for subscription in node.catalog.subscriptions():
        if subscription.owner == owner.oid:
            node.catalog.update_subscription(subscription.oid, bump=True)
    node.changed()


def rename_role(node: Definitions, caller: Caller, statement: RenameRole) -> str:
    """ALTER ROLE | USER | GROUP ... RENAME TO."""
    with node.ddl_lock:
        authority = node.catalog.authority()
        role = role_named(authority, statement.name)
        for mine, word in ((caller.session_role, "session"), (caller.role, "current")):
            if role.oid == mine.oid:
                raise FeatureNotSupportedError(f"{word} user cannot be renamed")
        for name in (statement.name, statement.new_name):
            _check_reserved(name, 'Role names starting with "pg_" are reserved.', name)
        if statement.new_name in authority.by_name:
            raise DuplicateObjectError(f'role "{statement.new_name}" already exists')
        if role.superuser:
            if not caller.role.superuser:
                raise denied(
                    "rename role",
                    "Only roles with the SUPERUSER attribute may rename roles with the"
                    " SUPERUSER attribute.",
                )
        elif not _manages(authority, caller, role):
            raise denied(
                "rename role",
                "Only roles with the CREATEROLE attribute and the ADMIN option on role"
                f' "{role.name}" may rename this role.',
            )
        node.catalog.update_role(role.oid, name=statement.new_name)
    return "ALTER ROLE"


def drop_role(node: Definitions, caller: Caller, statement: DropRole) -> str:
    """DROP ROLE | USER | GROUP."""
    if not may_create_roles(caller):
        raise denied(
            "drop role",
            "Only roles with the CREATEROLE attribute and the ADMIN option on the target"
            " roles may drop roles.",
        )
    with node.ddl_lock:
        authority = node.catalog.authority()
        dropped: list[Role] = []
        for name in statement.roles:
            if name.keyword or name.name == "public":
                raise UsageError("cannot use special role specifier in DROP ROLE")
            role = authority.by_name.get(name.name)
            if role is None:
                text = f'role "{name.name}" does not exist'
                if not statement.if_exists:
                    raise UndefinedObjectError(text)
                caller.notice(Notice(f"{text}, skipping"))
                continue
            _check_may_drop(authority, caller, role)
            if role not in dropped:
                dropped.append(role)
        for role in dropped:
            check_dropped(node, caller, authority, role, dropped)
        if dropped:
            node.catalog.drop_roles([role.oid for role in dropped])
    return "DROP ROLE"


# ---- permissions -------------------------------------------------------------------------


def _check_may_create(caller: Caller, options: Mapping[str, Any]) -> None:
    if not caller.role.createrole:
        raise denied(
            "create role",
            "Only roles with the CREATEROLE attribute may create roles.",
        )
    for flag in ("superuser", *_OWN_ONLY):
        if options.get(flag) and not getattr(caller.role, flag):
            word = flag.upper()
            raise denied(
                "create role",
                f"Only roles with the {word} attribute may create roles with the"
                f" {word} attribute.",
            )


def _manages(authority: Authority, caller: Caller, role: Role) -> bool:
    return may_create_roles(caller) and authority.is_admin_of(caller.role.oid, role.oid)


def _check_may_alter(
    authority: Authority,
    caller: Caller,
    role: Role,
    options: Mapping[str, Any],
    changes_members: bool,
) -> None:
    is_superuser = caller.role.superuser
    if role.superuser and not is_superuser:
        raise denied(
            "alter role",
            "Only roles with the SUPERUSER attribute may alter roles with the SUPERUSER"
            " attribute.",
        )
    if "superuser" in options and not is_superuser:
        raise denied(
            "alter role",
            "Only roles with the SUPERUSER attribute may change the SUPERUSER"
            " attribute.",
        )
    if not _manages(authority, caller, role):
        if set(options) - {"password", "role", "superuser"}:
            raise denied(
                "alter role",
                "Only roles with the CREATEROLE attribute and the ADMIN option on role"
                f' "{role.name}" may alter this role.',
            )
        if "password" in options and role.oid != caller.role.oid:
            raise denied(
                "alter role",
                "To change another role's password, the current user must have the"
                " CREATEROLE attribute and the ADMIN option on the role.",
            )
    elif not is_superuser:
        for flag in _OWN_ONLY:
            if flag in options and not getattr(caller.role, flag):
                word = flag.upper()
                raise denied(
                    "alter role",
                    f"Only roles with the {word} attribute may change the {word}"
                    " attribute.",
                )
    if changes_members and not authority.is_admin_of(caller.role.oid, role.oid):
        raise denied(
            "alter role",
            f'Only roles with the ADMIN option on role "{role.name}" may add or drop'
            " members.",
        )


def _check_may_drop(authority: Authority, caller: Caller, role: Role) -> None:
    if role.oid == caller.role.oid:
        raise UsageError("current user cannot be dropped", sqlstate=_IN_USE)
    if role.oid == caller.session_role.oid:
        raise UsageError("session user cannot be dropped", sqlstate=_IN_USE)
    if role.superuser and not caller.role.superuser:
        raise denied(
            "drop role",
            "Only roles with the SUPERUSER attribute may drop roles with the SUPERUSER"
            " attribute.",
        )
    if not authority.is_admin_of(caller.role.oid, role.oid):
        raise denied(
            "drop role",
            "Only roles with the CREATEROLE attribute and the ADMIN option on role"
            f' "{role.name}" may drop this role.',
        )


def _check_reserved(name: str, detail: str, shown: str) -> None:
    if name.startswith("pg_"):
        raise UsageError(
            f'role name "{shown}" is reserved', sqlstate=_RESERVED_NAME, detail=detail
        )


# ---- options ------------------------------------------------------------------------------


def _options_by_name(options: Sequence[RoleOption]) -> dict[str, Any]:
    return {option.name: option.value for option in options}


def _check_limit(options: Mapping[str, Any]) -> None:
    limit = options.get("connection limit", -1)
    if limit < -1:
        raise UsageError(f"invalid connection limit: {limit}")


def _fields(caller: Caller, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the role's row that the options set."""
    fields: dict[str, Any] = {f: options[f] for f in ROLE_FLAGS if f in options}
    if "connection limit" in options:
        fields["connlimit"] = options["connection limit"]
    if "valid until" in options:
        fields["valid_until"] = _valid_until(options["valid until"], caller.zone)
    if "password" in options:
        fields["password"] = _verifier(caller, options["password"])
    return fields


def _valid_until(text: str, zone: str) -> str:
    word = text.strip().lower()
    if word in ("infinity", "-infinity"):
        return word
    return parse_timestamp(text, zone)


def _verifier(caller: Caller, password: str | None) -> str | None:
    """Return what the catalog stores for a password; source: encrypt_password()."""
    if password is None:
        return None
    if _MD5.match(password):
        raise FeatureNotSupportedError(
            "MD5 password hashes are not supported",
            hint="Give the password itself, or a SCRAM-SHA-256 verifier.",
        )
    verifier = parse_verifier(password)
    empty = password == "" if verifier is None else verifier.matches("")
    if empty:
        caller.notice(Notice("empty string is not a valid password, clearing password"))
        return None
    stored = verifier or create_verifier(password, secrets.token_bytes(SALT_BYTES))
    return str(stored)


def _roles(
    authority: Authority, caller: Caller, names: Sequence[RoleName]
) -> list[Role]:
    return [need_role(authority, caller, name) for name in names]


def _first_members(
    node: HasCatalog,
    caller: Caller,
    authority: Authority,
    role: Role,
    options: Mapping[str, Any],
) -> list[RoleMember]:
    """Return the memberships of a new role.

    They come from IN ROLE, ROLE and ADMIN. A creator who is not a superuser gets the ADMIN
    option."""
    grown = Authority((*authority.roles, role), authority.members)
    rows: list[RoleMember] = []

    def add(target_role: Role, members: Sequence[Role], granted: Granted) -> None:
        nonlocal grown
        added = add_members(node, grown, caller, target_role, members, granted)
        rows.extend(added)
        grown = Authority(grown.roles, (*grown.members, *added))

    for granted_role in _roles(authority, caller, options.get("in role", ())):
        check_may_grant(grown, caller, granted_role)
        add(granted_role, [role], Granted())
    if not caller.role.superuser:
        own = RoleMember(
            oid=node.catalog.new_oid(),
            roleid=role.oid,
            member=caller.role.oid,
            grantor=BOOTSTRAP_SUPERUSER,
            admin=True,
            inherit=False,
            set_role=False,
        )
        rows.append(own)
        grown = Authority(grown.roles, (*grown.members, own))
    add(role, _roles(grown, caller, options.get("admin", ())), Granted(admin=True))
    add(role, _roles(grown, caller, options.get("role", ())), Granted())
    return rows
