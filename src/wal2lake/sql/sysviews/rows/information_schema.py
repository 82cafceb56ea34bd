"""Rows of information_schema.

Comes in: ``Facts``. Goes out: rows as dicts by column name. As in PostgreSQL, ``schemata`` has all
schemas, and ``tables`` and ``columns`` have the system relations, too. Views about objects that a
node does not have (routines, triggers, domains ...) are empty.

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
    """Yield the database's name."""
    yield {"catalog_name": DATABASE}


def schemata(facts: Facts) -> Iterator[Row]:
    """Yield all schemas."""
    owners = {n.name: facts.role_names.get(n.owner) for n in facts.namespaces}
    superuser = facts.role_names.get(10)
    for name in facts.namespace_names.values():
        yield {
            "catalog_name": DATABASE,
            "schema_name": name,
            "schema_owner": owners.get(name, superuser),
        }


def tables(facts: Facts) -> Iterator[Row]:
    """Yield lake tables and system relations."""
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
    """Yield the system views."""
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
    """Yield the columns of all tables and views."""
    identities = _identities(facts)
    for relation in facts.relations:
        if relation.kind in "iIS":
            continue
        for attribute in relation.attributes:
            pg_type = type_by_oid(attribute.type_oid)
            yield {
                "table_catalog": DATABASE,
                "table_schema": relation.namespace,
                "table_name": relation.name,
                "column_name": attribute.name,
                "ordinal_position": attribute.number,
                "column_default": None if attribute.generated else attribute.default,
                "is_nullable": _NO if attribute.not_null else _YES,
                "data_type": _data_type(attribute, pg_type),
                "udt_catalog": DATABASE,
                "udt_schema": "pg_catalog",
                "udt_name": "anyarray" if pg_type is None else pg_type.name,
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
                **({} if pg_type is None else _limits(attribute.typmod, pg_type)),
            }


def _identities(facts: Facts) -> dict[tuple[int, int], Row]:
    """Return the facts about identity columns, by table and number."""
    identities: dict[tuple[int, int], Row] = {}
    for sequence in facts.sequences:
        relation, attribute = facts.owned_by.get(sequence.oid, (None, None))
        if relation is None or attribute is None or not attribute.identity:
            continue
        least, most = sequence.limits
        always = attribute.identity == "a"
        identities[relation.oid, attribute.number] = {
            "is_identity": _YES,
            "identity_generation": "ALWAYS" if always else "BY DEFAULT",
            "identity_start": str(sequence.start),
            "identity_increment": str(sequence.increment),
            "identity_maximum": str(most),
            "identity_minimum": str(least),
        }
    return identities


def _data_type(attribute: Attribute, pg_type: PgType | None) -> str:
    if pg_type is None or pg_type.is_array:
        return "ARRAY"
    return format_type(attribute.type_oid)


def _limits(typmod: int, pg_type: PgType) -> Row:
    """Return the columns about length and precision of a type."""
    name = pg_type.name
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
        has_precision = typmod >= 0 and precision != INTERVAL_FULL_PRECISION
        fields = format_type(pg_type.oid, typmod).partition("(")[0]
        return {
            "datetime_precision": precision if has_precision else 6,
            "interval_type": fields.removeprefix("interval").strip().upper() or None,
        }
    return {}


def table_constraints(facts: Facts) -> Iterator[Row]:
    """Yield primary keys, CHECK, and NOT NULL, which is a CHECK constraint in the standard."""
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
    """Yield CHECK constraints, and NOT NULL in the standard's form."""
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
    """Yield the columns of primary keys."""
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
    """Yield the columns of primary keys, without positions."""
    for row in key_column_usage(facts):
        yield {name: value for name, value in row.items() if name != "ordinal_position"}


def constraint_table_usage(facts: Facts) -> Iterator[Row]:
    """Yield the tables of primary keys."""
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
    """Yield all roles, whatever the current role is."""
    for role in facts.roles:
        yield {"role_name": role.name}


def character_sets(facts: Facts) -> Iterator[Row]:
    """Yield the database's encoding."""
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
