"""Names, definitions and visibility of catalog objects.

Comes in: OIDs, as the catalogs have them. Goes out: definitions (pg_get_indexdef and its kin),
visibility, comments, encodings; null for an object that is not there.

Sources: src/backend/utils/adt/ruleutils.c; manual, section 9.27.
"""

from __future__ import annotations

from wal2lake.errors import UndefinedObjectError
from wal2lake.model import Oid
from wal2lake.pgtypes.registry import pg_type
from wal2lake.publish.published import index_identity
from wal2lake.sql.grammar import quote_identifier
from wal2lake.sql.sysviews.declarations.functions import FUNCTION_ROWS
from wal2lake.sql.sysviews.declarations.relations import PG_CATALOG
from wal2lake.sql.sysviews.functions.call import Call
from wal2lake.sql.sysviews.functions.regproc import regclass_in
from wal2lake.sql.sysviews.rows.facts import (
    expression_text,
    generation_text,
    index_oid,
    key_constraint_oid,
)
from wal2lake.sql.sysviews.rows.relations import UNSTORED, index_definition


def format_type(call: Call, oid: int | None, typmod: int | None) -> str | None:
    """A type's name with its modifier."""
    return None if oid is None else pg_type.format_type(oid, typmod)


def pg_get_userbyid(call: Call, oid: int | None) -> str | None:
    """A role's name."""
    if oid is None:
        return None
    return call.facts.role_names.get(oid, f"unknown (OID={oid})")


def pg_table_is_visible(call: Call, oid: int | None) -> bool | None:
    """Whether the relation is found without its schema."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    return None if relation is None else call.visible(relation)


def is_visible(call: Call, oid: int | None) -> bool | None:
    """Types, collations and the like are all in pg_catalog."""
    return None if oid is None else True


def pg_get_expr(
    call: Call, node: str | None, relid: int | None, pretty: bool | None = False
) -> str | None:
    """Expressions are kept as text; what a generated column is computed from is known better."""
    relation = call.facts.by_oid.get(relid or 0) if pretty else None
    table = None if relation is None else relation.table
    for column in () if table is None else table.columns:
        if column.generated is not None and generation_text(column) == node:
            return generation_text(column, pretty=True)
    return node


def pg_get_indexdef(
    call: Call, oid: int | None, column: int | None = 0, pretty: bool | None = False
) -> str | None:
    """An index as CREATE INDEX, or one of its columns; pretty drops a visible schema."""
    index = None if oid is None else call.facts.by_oid.get(oid)
    if index is None or index.kind not in "iI":
        return None
    if not column:
        table = call.facts.by_oid[index.table.oid] if index.table else index
        return index_definition(index, schema=not (pretty and call.visible(table)))
    if column > len(index.attributes):
        return None
    return quote_identifier(index.attributes[column - 1].name)


def pg_get_partkeydef(call: Call, oid: int | None) -> str | None:
    """Return the text of PARTITION BY."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    table = None if relation is None or relation.kind != "p" else relation.table
    if table is None or table.partition_key is None:
        return None
    columns = ", ".join(quote_identifier(name) for name in table.partition_key.columns)
    return f"{table.partition_key.strategy.name} ({columns})"


def pg_get_constraintdef(
    call: Call, oid: int | None, pretty: bool | None = False
) -> str | None:
    """A primary key, a CHECK, or NOT NULL."""
    for relation in call.facts.lake_tables():
        table = relation.table
        for number, check in () if table is None else call.facts.checks(table):
            if number == oid:
                return f"CHECK ({expression_text(check, pretty=bool(pretty))})"
        if table is not None and table.key and key_constraint_oid(table) == oid:
            columns = ", ".join(quote_identifier(name) for name in table.key)
            return f"PRIMARY KEY ({columns}){table.key_deferral.clause}"
        for attribute in relation.attributes:
            if attribute.not_null and attribute.not_null_oid == oid:
                return f"NOT NULL {quote_identifier(attribute.name)}"
    return None


def pg_get_serial_sequence(
    call: Call, table: str | None, column: str | None
) -> str | None:
    """The sequence that a serial or identity column has its values from."""
    if table is None or column is None:
        return None
    relation = call.facts.by_oid.get(regclass_in(call, table) or 0)
    found = None if relation is None else relation.attribute(column)
    if relation is None or found is None:
        shown = table if relation is None else relation.name
        raise UndefinedObjectError(
            f'column "{column}" of relation "{shown}" does not exist', sqlstate="42703"
        )
    for oid, owner in call.facts.owned_by.items():
        if owner == (relation, found):
            return call.facts.by_oid[oid].qualified
    return None


def pg_get_replica_identity_index(call: Call, oid: int | None) -> int | None:
    """The primary key's index, if that is the replica identity."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    table = None if relation is None or relation.kind not in "rp" else relation.table
    return (
        int(index_oid(table)) if table is not None and index_identity(table) else None
    )


def pg_relation_is_publishable(call: Call, target: object) -> bool | None:
    """Lake tables may be published."""
    oid = regclass_in(call, target)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None:
        return None
    return relation.kind in "rp" and relation.table is not None


def pg_relation_filenode(call: Call, target: object) -> int | None:
    """Return pg_class.relfilenode: a lake table's rows do not move to another file node."""
    oid = regclass_in(call, target)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None or relation.kind in UNSTORED:
        return None
    return int(relation.oid)


def obj_description(call: Call, oid: object, catalog: str | None) -> str | None:
    """A comment. A function (regproc) comes by its name, and has none."""
    relation = call.facts.by_name.get((PG_CATALOG, catalog or ""))
    if relation is None or not isinstance(oid, int):
        return None
    return call.facts.comments.get((int(relation.oid), oid))


def any_description(call: Call, oid: int | None) -> str | None:
    """The comment of an object in whichever catalog, as PostgreSQL still lets ask."""
    found = (text for (_, objid), text in call.facts.comments.items() if objid == oid)
    return next(found, None)


def pg_encoding_to_char(call: Call, encoding: int | None) -> str | None:
    """The encodings that a node has to do with."""
    if encoding is None:
        return None
    return {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}.get(encoding, "")


def pg_char_to_encoding(call: Call, name: str | None) -> int | None:
    """The number of an encoding."""
    if name is None:
        return None
    known = {"sqlascii": 0, "utf8": 6, "unicode": 6, "latin1": 8}
    return known.get("".join(c for c in name.lower() if c.isalnum()), -1)


def pg_get_function_result(call: Call, oid: int | None) -> str | None:
    """Return the result type as in CREATE FUNCTION."""
    found = FUNCTION_ROWS.get(Oid(oid or 0))
    return None if found is None else found.result


def pg_get_function_arguments(call: Call, oid: int | None) -> str | None:
    """Return the arguments as in CREATE FUNCTION, with their defaults."""
    found = FUNCTION_ROWS.get(Oid(oid or 0))
    return None if found is None else found.shown


def pg_get_function_identity_arguments(call: Call, oid: int | None) -> str | None:
    """Return the arguments by which ALTER FUNCTION names the function."""
    found = FUNCTION_ROWS.get(Oid(oid or 0))
    return None if found is None else found.identity
