"""Rows of pg_catalog about the node as a whole: database, roles, schemas, fixed objects.

Comes in: ``Facts``. Goes out: rows as dicts by column name, as in ``relations``. Verifiers of
passwords are in pg_authid and pg_shadow, which only superusers may read (``facts.SECRET``).

Sources: the manual's chapter 52; pg_am.dat, pg_collation.dat, pg_tablespace.dat, pg_language.dat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog import DATABASE_OWNER, Role
from wal2lake.model import (
    BOOTSTRAP_SUPERUSER,
    DATABASE,
    DATABASE_OID,
    INVALID_OID,
)
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.sysviews.declarations.functions import FUNCTION_ROWS
from wal2lake.sql.sysviews.rows.facts import HEAP_AM, INDEX_METHODS, UTF8, Facts
from wal2lake.sql.sysviews.rows.relations import Row, RowMaker

"""The name of a node's one database."""

_MASK: Final = "********"


def pg_database(facts: Facts) -> Iterator[Row]:
    """Yield the one database. Text compares by its bytes: collation "C" of libc."""
    yield {
        "oid": DATABASE_OID,
        "datname": DATABASE,
        "datdba": DATABASE_OWNER,
        "encoding": UTF8,
        "datlocprovider": "c",
        "datallowconn": True,
        "datconnlimit": -1,
        "dattablespace": 1663,
        "datcollate": "C",
        "datctype": "C",
        "datacl": facts.acl_text(facts.database_acl),
    }


def pg_namespace(facts: Facts) -> Iterator[Row]:
    """Yield the system schemas and the schemas of lake tables."""
    for oid, name in facts.namespace_names.items():
        owner, acl = facts.namespace_access(oid)
        yield {
            "oid": oid,
            "nspname": name,
            "nspowner": owner,
            "nspacl": facts.acl_text(acl),
        }


def pg_authid(facts: Facts) -> Iterator[Row]:
    """Yield roles with their passwords' verifiers; only superusers may read them."""
    for role in facts.roles:
        yield {"oid": role.oid, **_role(role), "rolpassword": role.password}


def pg_roles(facts: Facts) -> Iterator[Row]:
    """Yield roles without passwords."""
    for role in facts.roles:
        yield {**_role(role), "rolpassword": _MASK, "oid": role.oid}


def _role(role: Role) -> Row:
    return {
        "rolname": role.name,
        "rolsuper": role.superuser,
        "rolinherit": role.inherit,
        "rolcreaterole": role.createrole,
        "rolcreatedb": role.createdb,
        "rolcanlogin": role.login,
        "rolreplication": role.replication,
        "rolbypassrls": role.bypassrls,
        "rolconnlimit": role.connlimit,
        "rolvaliduntil": _valid_until(role),
    }


def _valid_until(role: Role) -> datetime | None:
    """Return rolvaliduntil; null for infinity, which Python's type does not have."""
    if role.valid_until in (None, "infinity"):
        return None
    if role.valid_until == "-infinity":
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(str(role.valid_until))


def pg_auth_members(facts: Facts) -> Iterator[Row]:
    """Yield the memberships of roles in roles."""
    for membership in facts.authority.members:
        yield {
            "oid": membership.oid,
            "roleid": membership.roleid,
            "member": membership.member,
            "grantor": membership.grantor,
            "admin_option": membership.admin,
            "inherit_option": membership.inherit,
            "set_option": membership.set_role,
        }


def _user(role: Role) -> Row:
    return {
        "usename": role.name,
        "usesysid": role.oid,
        "usecreatedb": role.createdb,
        "usesuper": role.superuser,
        "userepl": role.replication,
        "usebypassrls": role.bypassrls,
        "passwd": _MASK,
        "valuntil": _valid_until(role),
    }


def pg_user(facts: Facts) -> Iterator[Row]:
    """Yield the roles that may log in."""
    for role in facts.roles:
        if role.login:
            yield _user(role)


def pg_shadow(facts: Facts) -> Iterator[Row]:
    """Yield these roles with their passwords' verifiers; only superusers may read them."""
    for role in facts.roles:
        if role.login:
            yield {**_user(role), "passwd": role.password}


def pg_group(facts: Facts) -> Iterator[Row]:
    """Yield the roles that may not log in, with their members."""
    for role in facts.roles:
        if not role.login:
            members = (m for m in facts.authority.members if m.roleid == role.oid)
            yield {
                "groname": role.name,
                "grosysid": role.oid,
                "grolist": [m.member for m in members],
            }


def pg_am(facts: Facts) -> Iterator[Row]:
    """Yield the access methods in pg_class."""
    yield {
        "oid": HEAP_AM,
        "amname": "heap",
        "amhandler": "heap_tableam_handler",
        "amtype": "t",
    }
    handlers = {"btree": "bthandler", "spgist": "spghandler"}
    for name, oid in INDEX_METHODS.items():
        handler = handlers.get(name, f"{name}handler")
        yield {"oid": oid, "amname": name, "amhandler": handler, "amtype": "i"}


def pg_collation(facts: Facts) -> Iterator[Row]:
    """Yield the collations with fixed OIDs."""
    for oid, name, provider, encoding, locale in (
        (100, "default", "d", -1, None),
        (950, "C", "c", -1, "C"),
        (951, "POSIX", "c", -1, "POSIX"),
    ):
        yield {
            "oid": oid,
            "collname": name,
            "collnamespace": 11,
            "collowner": BOOTSTRAP_SUPERUSER,
            "collprovider": provider,
            "collisdeterministic": True,
            "collencoding": encoding,
            "collcollate": locale,
            "collctype": locale,
        }


def pg_tablespace(facts: Facts) -> Iterator[Row]:
    """Yield the two tablespaces that every cluster has."""
    for oid, name in ((1663, "pg_default"), (1664, "pg_global")):
        yield {"oid": oid, "spcname": name, "spcowner": BOOTSTRAP_SUPERUSER}


def pg_language(facts: Facts) -> Iterator[Row]:
    """Yield the built-in languages, for joins with pg_proc."""
    for oid, name in ((12, "internal"), (13, "c"), (14, "sql")):
        yield {"oid": oid, "lanname": name, "lanowner": BOOTSTRAP_SUPERUSER}


def pg_proc(facts: Facts) -> Iterator[Row]:
    """Yield the functions about replication, sessions and objects."""
    for function in FUNCTION_ROWS.values():
        inputs = [a for a in function.arguments if a.mode != "o"]
        has_names = any(argument.name for argument in function.arguments)
        has_modes = any(argument.mode != "i" for argument in function.arguments)
        variadic = next((a.type_oid for a in inputs if a.mode == "v"), INVALID_OID)
        array = type_by_oid(variadic)
        yield {
            "oid": function.oid,
            "proname": function.name,
            "pronamespace": 11,
            "proowner": BOOTSTRAP_SUPERUSER,
            "prolang": 12,
            "procost": 1.0,
            "prorows": 1000.0 if function.returns_set else 0.0,
            "provariadic": variadic if array is None else array.element_oid,
            "prosupport": "-",
            "prokind": "f",
            "proisstrict": function.strict,
            "proretset": function.returns_set,
            "provolatile": function.volatility,
            "proparallel": function.parallel,
            "pronargs": len(inputs),
            "pronargdefaults": sum(argument.has_default for argument in inputs),
            "prorettype": function.result_oid,
            "proargtypes": [argument.type_oid for argument in inputs],
            "proallargtypes": [a.type_oid for a in function.arguments]
            if has_modes
            else None,
            "proargmodes": [a.mode for a in function.arguments] if has_modes else None,
            "proargnames": [a.name for a in function.arguments] if has_names else None,
            "prosrc": function.name,
        }


def pg_description(facts: Facts) -> Iterator[Row]:
    """Yield the comment that initdb makes on schema public, and those of COMMENT ON."""
    for (classid, objid), description in facts.comments.items():
        yield {
            "objoid": objid,
            "classoid": classid,
            "objsubid": 0,
            "description": description,
        }


CLUSTER_ROWS: Final[Mapping[str, RowMaker]] = {
    maker.__name__: maker
    for maker in (
        pg_database,
        pg_namespace,
        pg_authid,
        pg_roles,
        pg_auth_members,
        pg_user,
        pg_shadow,
        pg_group,
        pg_am,
        pg_collation,
        pg_tablespace,
        pg_language,
        pg_proc,
        pg_description,
    )
}
