"""``access_to_sql``: prints statements about roles and privileges.

Comes in: a statement value. Goes out: SQL that parses to the same value. A password is printed
whole, so a caller that logs the text must mask the password first.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.grammar.access.rolestatements import (
    AccessStatement,
    AlterOwner,
    AlterRole,
    CreateRole,
    DropRole,
    GrantPrivileges,
    GrantRole,
    RenameRole,
    RoleOption,
)
from wal2lake.sql.grammar.quoting import quote_literal
from wal2lake.sql.grammar.statements import QualifiedName, RoleName


def access_to_sql(statement: AccessStatement) -> str:
    """The statement's text, without a semicolon."""
    match statement:
        case CreateRole():
            name = quote_identifier(statement.name)
            return f"CREATE {statement.word} {name}{_options(statement.options)}"
        case AlterRole():
            name = _role(statement.role)
            if statement.dropped:
                return f"ALTER GROUP {name} DROP USER {_roles(statement.dropped)}"
            if [option.name for option in statement.options] == ["role"]:
                value = statement.options[0].value
                assert isinstance(value, tuple)
                return f"ALTER GROUP {name} ADD USER {_roles(value)}"
            return f"ALTER ROLE {name}{_options(statement.options)}"
        case RenameRole():
            return (
                f"ALTER ROLE {quote_identifier(statement.name)} RENAME TO"
                f" {quote_identifier(statement.new_name)}"
            )
        case DropRole():
            exists = "IF EXISTS " if statement.if_exists else ""
            return f"DROP ROLE {exists}{_roles(statement.roles)}"
        case GrantRole():
            return _grant_role(statement)
        case GrantPrivileges():
            return _grant_privileges(statement)
        case AlterOwner():
            exists = "IF EXISTS " if statement.if_exists else ""
            return (
                f"ALTER {statement.target.value} {exists}{_name(statement.name)}"
                f" OWNER TO {_role(statement.owner)}"
            )


def _grant_role(statement: GrantRole) -> str:
    granted = ", ".join(quote_identifier(name) for name in statement.granted)
    if statement.revoke:
        only = "".join(f"{name.upper()} OPTION FOR " for name, _ in statement.options)
        return (
            f"REVOKE {only}{granted} FROM {_roles(statement.grantees)}"
            + _granted_by(statement.granted_by)
            + _cascade(statement.cascade)
        )
    options = ", ".join(
        f"{name.upper()} {'TRUE' if value else 'FALSE'}"
        for name, value in statement.options
    )
    return (
        f"GRANT {granted} TO {_roles(statement.grantees)}"
        + (f" WITH {options}" if options else "")
        + _granted_by(statement.granted_by)
    )


def _grant_privileges(statement: GrantPrivileges) -> str:
    privileges = ", ".join(
        # The reserved words are privileges; other words may be role names, and are quoted.
        (
            p.name
            if p.name in ("select", "references", "create")
            else quote_identifier(p.name)
        )
        + (
            f" ({', '.join(quote_identifier(c) for c in p.columns)})"
            if p.columns
            else ""
        )
        for p in statement.privileges
    )
    objects = ", ".join(_name(name) for name in statement.objects)
    target = f"{privileges or 'ALL'} ON {statement.target.value} {objects}"
    if statement.revoke:
        option = "GRANT OPTION FOR " if statement.grant_option else ""
        return (
            f"REVOKE {option}{target} FROM {_roles(statement.grantees)}"
            + _granted_by(statement.granted_by)
            + _cascade(statement.cascade)
        )
    return (
        f"GRANT {target} TO {_roles(statement.grantees)}"
        + (" WITH GRANT OPTION" if statement.grant_option else "")
        + _granted_by(statement.granted_by)
    )


def _options(options: Sequence[RoleOption]) -> str:
    return "".join(f" {_option(option)}" for option in options)


def _option(option: RoleOption) -> str:
    value = option.value
    name = option.name.upper()
    if isinstance(value, bool):
        return name if value else f"NO{name}"
    if isinstance(value, tuple):
        return f"{name} {_roles(value)}"
    if isinstance(value, int):
        return f"{name} {value}"
    return f"{name} {'NULL' if value is None else quote_literal(value).lstrip()}"


def _roles(roles: Sequence[RoleName]) -> str:
    return ", ".join(_role(role) for role in roles)


def _role(role: RoleName) -> str:
    return role.name.upper() if role.keyword else quote_identifier(role.name)


def _name(name: QualifiedName) -> str:
    schema = "" if name.schema is None else quote_identifier(name.schema) + "."
    return schema + quote_identifier(name.name)


def _granted_by(role: RoleName | None) -> str:
    return "" if role is None else f" GRANTED BY {_role(role)}"


def _cascade(cascade: bool) -> str:
    return " CASCADE" if cascade else ""
