"""Rows of information_schema.

Comes in: ``Facts``. Goes out: rows as dicts by column name. As in PostgreSQL, schemata lists all
schemas, and ``tables`` and ``columns`` list the system's relations too. Views about things that
a node does not have (routines, triggers, domains, privileges of others ...) are empty.

Source: src/backend/catalog/information_schema.sql.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from wal2lake.model import (
    DATABASE,
    NAMES,
    PUBLIC,
    Acl,
    Deferral,
    ObjectKind,
    Oid,
)
from wal2lake.pgtypes.registry.pg_type import (
    INTERVAL_FULL_PRECISION,
    PgType,
    format_type,
    numeric_precision_scale,
    type_by_oid,
)
from wal2lake.sql.sysviews.rows.facts import (
    Attribute,
    Facts,
    expression_text,
    key_name,
)
from wal2lake.sql.sysviews.rows.relations import Row, RowMaker

_YES: Final = "YES"
_NO: Final = "NO"

_BINARY_PRECISION: Final = {
    "int2": 16,
    "int4": 32,
    "int8": 64,
    "float4": 24,
    "float8": 53,
}
_OCTETS_MAXIMUM: Final = 1 << 30
_DATETIME: Final = ("time", "timetz", "timestamp", "timestamptz")
_PRIVILEGES: Final = (
    "DELETE",
    "INSERT",
    "REFERENCES",
    "SELECT",
    "TRIGGER",
    "TRUNCATE",
    "UPDATE",
)


def information_schema_catalog_name(facts: Facts) -> Iterator[Row]:
    """The database's name."""
    yield {"catalog_name": DATABASE}


def schemata(facts: Facts) -> Iterator[Row]:
    """All schemas."""
    owners = {n.name: facts.role_names.get(n.owner) for n in facts.namespaces}
    superuser = facts.role_names.get(10)
    for name in facts.namespace_names.values():
        yield {
            "catalog_name": DATABASE,
            "schema_name": name,
            "schema_owner": owners.get(name, superuser),
        }


def tables(facts: Facts) -> Iterator[Row]:
    """Lake tables and system relations."""
    for relation in facts.relations:
        if relation.kind in "iIS":
            continue
        is_lake = relation.table is not None
        yield {
            "table_catalog": DATABASE,
            "table_schema": relation.namespace,
            "table_name": relation.name,
            "table_type": "VIEW" if relation.kind == "v" else "BASE TABLE",
            "is_insertable_into": _YES if is_lake else _NO,
            "is_typed": _NO,
        }


def views(facts: Facts) -> Iterator[Row]:
    """The system views."""
    for relation in facts.relations:
        if relation.kind == "v":
            yield {
                "table_catalog": DATABASE,
                "table_schema": relation.namespace,
                "table_name": relation.name,
                "check_option": "NONE",
                "is_updatable": _NO,
                "is_insertable_into": _NO,
                "is_trigger_updatable": _NO,
                "is_trigger_deletable": _NO,
                "is_trigger_insertable_into": _NO,
            }


def columns(facts: Facts) -> Iterator[Row]:
    """Columns of all tables and views."""
    identities = _identities(facts)
    for relation in facts.relations:
        if relation.kind in "iIS":
            continue
        for attribute in relation.attributes:
            known = type_by_oid(attribute.type_oid)
            yield {
                "table_catalog": DATABASE,
                "table_schema": relation.namespace,
                "table_name": relation.name,
                "column_name": attribute.name,
                "ordinal_position": attribute.number,
                "column_default": None if attribute.generated else attribute.default,
                "is_nullable": _NO if attribute.not_null else _YES,
                "data_type": _data_type(attribute, known),
                "udt_catalog": DATABASE,
                "udt_schema": "pg_catalog",
                "udt_name": "anyarray" if known is None else known.name,
                "dtd_identifier": str(attribute.number),
                "is_self_referencing": _NO,
                "is_identity": _NO,
                "identity_cycle": _NO,
                **identities.get((relation.oid, attribute.number), {}),
                "is_generated": "ALWAYS" if attribute.generated else "NEVER",
                "generation_expression": attribute.default
                if attribute.generated
                else None,
                "is_updatable": _YES if relation.table is not None else _NO,
                **({} if known is None else _limits(attribute.typmod, known)),
            }


def _identities(facts: Facts) -> dict[tuple[int, int], Row]:
    """Return the facts about identity columns, by table and number."""
    found: dict[tuple[int, int], Row] = {}
    for one in facts.sequences:
        relation, attribute = facts.owned_by.get(one.oid, (None, None))
        if relation is None or attribute is None or not attribute.identity:
            continue
        least, most = one.limits
        always = attribute.identity == "a"
        found[relation.oid, attribute.number] = {
            "is_identity": _YES,
            "identity_generation": "ALWAYS" if always else "BY DEFAULT",
            "identity_start": str(one.start),
            "identity_increment": str(one.increment),
            "identity_maximum": str(most),
            "identity_minimum": str(least),
        }
    return found


def _data_type(attribute: Attribute, known: PgType | None) -> str:
    if known is None or known.is_array:
        return "ARRAY"
    return format_type(attribute.type_oid)


def _limits(typmod: int, known: PgType) -> Row:
    """The columns about length and precision, by type."""
    name = known.name
    if name in ("bpchar", "varchar", "text"):
        length = typmod - 4 if typmod >= 4 else None
        octets = _OCTETS_MAXIMUM if length is None else min(length * 4, _OCTETS_MAXIMUM)
        return {"character_maximum_length": length, "character_octet_length": octets}
    if name in ("bit", "varbit"):
        return {"character_maximum_length": typmod if typmod >= 0 else None}
    if name in _BINARY_PRECISION:
        scale = 0 if name.startswith("int") else None
        return {
            "numeric_precision": _BINARY_PRECISION[name],
            "numeric_precision_radix": 2,
            "numeric_scale": scale,
        }
    if name == "numeric":
        limits = numeric_precision_scale(typmod)
        return {
            "numeric_precision": None if limits is None else limits[0],
            "numeric_precision_radix": 10,
            "numeric_scale": None if limits is None else limits[1],
        }
    if name == "date":
        return {"datetime_precision": 0}
    if name in _DATETIME:
        return {"datetime_precision": typmod if typmod >= 0 else 6}
    if name == "interval":
        precision = typmod & INTERVAL_FULL_PRECISION
        given = typmod >= 0 and precision != INTERVAL_FULL_PRECISION
        fields = format_type(known.oid, typmod).partition("(")[0]
        return {
            "datetime_precision": precision if given else 6,
            "interval_type": fields.removeprefix("interval").strip().upper() or None,
        }
    return {}


def table_constraints(facts: Facts) -> Iterator[Row]:
    """Primary keys, and NOT NULL as the CHECK constraints that the standard makes it."""
    for relation in facts.lake_tables():
        table = relation.table
        if table is None:
            continue
        shared = {
            "constraint_catalog": DATABASE,
            "constraint_schema": relation.namespace,
            "table_catalog": DATABASE,
            "table_schema": relation.namespace,
            "table_name": relation.name,
            "is_deferrable": _NO,
            "initially_deferred": _NO,
            "enforced": _YES,
        }
        if table.key:
            yield {
                **shared,
                "constraint_name": key_name(table),
                "constraint_type": "PRIMARY KEY",
                "is_deferrable": _YES if table.key_deferral.deferrable else _NO,
                "initially_deferred": _YES
                if table.key_deferral is Deferral.DEFERRED
                else _NO,
            }
        names = [check.name for check in table.checks]
        for attribute in relation.attributes:
            if attribute.not_null:
                names.append(facts.not_null_name(table, attribute))
        for name in names:
            yield {**shared, "constraint_name": name, "constraint_type": "CHECK"}


def check_constraints(facts: Facts) -> Iterator[Row]:
    """CHECK, and NOT NULL in the standard's form."""
    for relation in facts.lake_tables():
        for check in () if relation.table is None else relation.table.checks:
            yield {
                "constraint_catalog": DATABASE,
                "constraint_schema": relation.namespace,
                "constraint_name": check.name,
                "check_clause": expression_text(check),
            }
        for attribute in relation.attributes:
            if attribute.not_null and relation.table is not None:
                yield {
                    "constraint_catalog": DATABASE,
                    "constraint_schema": relation.namespace,
                    "constraint_name": facts.not_null_name(relation.table, attribute),
                    "check_clause": f"{attribute.name} IS NOT NULL",
                }


def key_column_usage(facts: Facts) -> Iterator[Row]:
    """Columns of primary keys."""
    for relation in facts.lake_tables():
        if relation.table is None:
            continue
        for position, column in enumerate(relation.table.key, 1):
            yield {
                "constraint_catalog": DATABASE,
                "constraint_schema": relation.namespace,
                "constraint_name": key_name(relation.table),
                "table_catalog": DATABASE,
                "table_schema": relation.namespace,
                "table_name": relation.name,
                "column_name": column,
                "ordinal_position": position,
            }


def constraint_column_usage(facts: Facts) -> Iterator[Row]:
    """The same columns, by constraint."""
    for row in key_column_usage(facts):
        yield {name: value for name, value in row.items() if name != "ordinal_position"}


def constraint_table_usage(facts: Facts) -> Iterator[Row]:
    """Tables of primary keys."""
    for row in table_constraints(facts):
        if row["constraint_type"] == "PRIMARY KEY":
            yield {
                name: row[name]
                for name in (
                    "table_catalog",
                    "table_schema",
                    "table_name",
                    "constraint_catalog",
                    "constraint_schema",
                    "constraint_name",
                )
            }


def table_privileges(facts: Facts) -> Iterator[Row]:
    """Yield the privileges that roles were granted on tables."""
    names = {**facts.role_names, int(PUBLIC): "PUBLIC"}
    for relation in facts.lake_tables():
        owner = Oid(relation.owner)
        for item in relation.acl or Acl.default(ObjectKind.TABLE, owner):
            for letter in item.letters:
                privilege = NAMES[letter]
                if privilege not in _PRIVILEGES:
                    continue
                option = letter in item.grantable or item.grantee == owner
                yield {
                    "grantor": names.get(int(item.grantor)),
                    "grantee": names.get(int(item.grantee)),
                    "table_catalog": DATABASE,
                    "table_schema": relation.namespace,
                    "table_name": relation.name,
                    "privilege_type": privilege,
                    "is_grantable": _YES if option else _NO,
                    "with_hierarchy": _YES if privilege == "SELECT" else _NO,
                }


def enabled_roles(facts: Facts) -> Iterator[Row]:
    """All roles, whoever asks."""
    for role in facts.roles:
        yield {"role_name": role.name}


def character_sets(facts: Facts) -> Iterator[Row]:
    """The database's encoding."""
    yield {
        "character_set_name": "UTF8",
        "character_repertoire": "UCS",
        "form_of_use": "UTF8",
        "default_collate_catalog": DATABASE,
        "default_collate_schema": "pg_catalog",
        "default_collate_name": "C",
    }


INFORMATION_ROWS: Final[Mapping[str, RowMaker]] = {
    **{
        maker.__name__: maker
        for maker in (
            information_schema_catalog_name,
            schemata,
            tables,
            views,
            columns,
            table_constraints,
            check_constraints,
            key_column_usage,
            constraint_column_usage,
            constraint_table_usage,
            table_privileges,
            enabled_roles,
            character_sets,
        )
    },
    "role_table_grants": table_privileges,
}
