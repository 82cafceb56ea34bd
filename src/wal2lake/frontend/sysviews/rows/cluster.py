"""Rows of pg_catalog about the node as a whole: database, roles, schemas, fixed objects.

Comes in: ``Facts``. Goes out: rows as dicts by column name, as in ``relations``. Passwords are
never shown: pg_authid has the mask that PostgreSQL's pg_user view has.

Sources: the manual's chapter 52; pg_am.dat, pg_collation.dat, pg_tablespace.dat, pg_language.dat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from wal2lake.catalog import Role
from wal2lake.frontend.sysviews.declarations.relations import SYSTEM_SCHEMAS
from wal2lake.frontend.sysviews.rows.facts import (
    BOOTSTRAP_SUPERUSER,
    BTREE_AM,
    DATABASE_OID,
    HEAP_AM,
    UTF8,
    Facts,
)
from wal2lake.frontend.sysviews.rows.relations import Row, RowMaker

DATABASE: Final = "lake"
"""The name of a node's one database."""

_MASK: Final = "********"


def pg_database(facts: Facts) -> Iterator[Row]:
    """The one database. Text compares by its bytes: collation "C" of libc."""
    yield {
        "oid": DATABASE_OID,
        "datname": DATABASE,
        "datdba": BOOTSTRAP_SUPERUSER,
        "encoding": UTF8,
        "datlocprovider": "c",
        "datallowconn": True,
        "datconnlimit": -1,
        "dattablespace": 1663,
        "datcollate": "C",
        "datctype": "C",
    }


def pg_namespace(facts: Facts) -> Iterator[Row]:
    """System schemas and those of lake tables."""
    for name, oid in SYSTEM_SCHEMAS.items():
        yield {"oid": oid, "nspname": name, "nspowner": BOOTSTRAP_SUPERUSER}
    for namespace in facts.namespaces:
        yield {
            "oid": namespace.oid,
            "nspname": namespace.name,
            "nspowner": namespace.owner,
        }


def pg_authid(facts: Facts) -> Iterator[Row]:
    """Roles; the password column is masked."""
    for role in facts.roles:
        yield {"oid": role.oid, **_role(role)}


def pg_roles(facts: Facts) -> Iterator[Row]:
    """Roles."""
    for role in facts.roles:
        yield {**_role(role), "rolpassword": _MASK, "oid": role.oid}


def _role(role: Role) -> Row:
    return {
        "rolname": role.name,
        "rolsuper": role.superuser,
        "rolinherit": True,
        "rolcreaterole": role.superuser,
        "rolcreatedb": role.superuser,
        "rolcanlogin": True,
        "rolreplication": role.superuser,
        "rolbypassrls": role.superuser,
        "rolconnlimit": -1,
        "rolpassword": None if role.password is None else _MASK,
    }


def pg_user(facts: Facts) -> Iterator[Row]:
    """Roles that may log in: all of them."""
    for role in facts.roles:
        yield {
            "usename": role.name,
            "usesysid": role.oid,
            "usecreatedb": role.superuser,
            "usesuper": role.superuser,
            "userepl": role.superuser,
            "usebypassrls": role.superuser,
            "passwd": _MASK,
        }


def pg_am(facts: Facts) -> Iterator[Row]:
    """The two access methods that relations claim to have."""
    yield {
        "oid": HEAP_AM,
        "amname": "heap",
        "amhandler": "heap_tableam_handler",
        "amtype": "t",
    }
    yield {"oid": BTREE_AM, "amname": "btree", "amhandler": "bthandler", "amtype": "i"}


def pg_collation(facts: Facts) -> Iterator[Row]:
    """The collations with fixed numbers."""
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
    """The two that every cluster has."""
    for oid, name in ((1663, "pg_default"), (1664, "pg_global")):
        yield {"oid": oid, "spcname": name, "spcowner": BOOTSTRAP_SUPERUSER}


def pg_language(facts: Facts) -> Iterator[Row]:
    """The built-in languages, for whatever joins pg_proc with them."""
    for oid, name in ((12, "internal"), (13, "c"), (14, "sql")):
        yield {"oid": oid, "lanname": name, "lanowner": BOOTSTRAP_SUPERUSER}


def pg_description(facts: Facts) -> Iterator[Row]:
    """Comments: PostgreSQL's own on schema public, and those of COMMENT ON."""
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
        pg_user,
        pg_am,
        pg_collation,
        pg_tablespace,
        pg_language,
        pg_description,
    )
}
