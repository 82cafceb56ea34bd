"""Names, definitions and visibility of catalog objects.

Comes in: OIDs of the catalogs. Goes out: definitions (pg_get_indexdef and similar functions),
visibility, comments, encodings; null if there is no such object.

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
    """Return a type's name with its modifier."""
    return None if oid is None else pg_type.format_type(oid, typmod)


def pg_get_userbyid(call: Call, oid: int | None) -> str | None:
    """Return a role's name."""
    if oid is None:
        return None
    return call.facts.role_names.get(oid, f"unknown (OID={oid})")


def pg_table_is_visible(call: Call, oid: int | None) -> bool | None:
    """Whether an unqualified name finds the relation."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    return None if relation is None else call.visible(relation)


def is_visible(call: Call, oid: int | None) -> bool | None:
    """Return true: types, collations and similar objects are all in pg_catalog."""
    return None if oid is None else True


def pg_get_expr(
    call: Call, node: str | None, relid: int | None, pretty: bool | None = False
) -> str | None:
    """Return an expression, which the catalogs keep as text.

    Only the expression of a generated column has another text with ``pretty``."""
    relation = call.facts.by_oid.get(relid or 0) if pretty else None
    table = None if relation is None else relation.table
    for column in () if table is None else table.columns:
        if column.generated is not None and generation_text(column) == node:
            return generation_text(column, pretty=True)
    return node


def pg_get_indexdef(
    call: Call, oid: int | None, column: int | None = 0, pretty: bool | None = False
) -> str | None:
    """Return CREATE INDEX or the name of a column; ``pretty`` drops a visible schema."""
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
    """Return a primary key, a CHECK or NOT NULL as in CREATE TABLE."""
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
    """Return the name of the sequence of a serial or identity column."""
    if table is None or column is None:
        return None
    relation = call.facts.by_oid.get(regclass_in(call, table) or 0)
    attribute = None if relation is None else relation.attribute(column)
    if relation is None or attribute is None:
        shown = table if relation is None else relation.name
        raise UndefinedObjectError(
            f'column "{column}" of relation "{shown}" does not exist', sqlstate="42703"
        )
    for oid, owner in call.facts.owned_by.items():
        if owner == (relation, attribute):
            return call.facts.by_oid[oid].qualified
    return None


def pg_get_replica_identity_index(call: Call, oid: int | None) -> int | None:
    """Return the primary key's index if it is the replica identity."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    table = None if relation is None or relation.kind not in "rp" else relation.table
    return (
        int(index_oid(table)) if table is not None and index_identity(table) else None
    )


def pg_relation_is_publishable(call: Call, target: object) -> bool | None:
    """Whether the relation is a lake table: other relations cannot be published."""
    oid = regclass_in(call, target)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None:
        return None
    return relation.kind in "rp" and relation.table is not None


def pg_relation_filenode(call: Call, target: object) -> int | None:
    """Return pg_class.relfilenode. The file node of a lake table never changes."""
    oid = regclass_in(call, target)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None or relation.kind in UNSTORED:
        return None
    return int(relation.oid)


def obj_description(call: Call, oid: object, catalog: str | None) -> str | None:
    """Return a comment. A function (regproc), which comes as its name, has none."""
    relation = call.facts.by_name.get((PG_CATALOG, catalog or ""))
    if relation is None or not isinstance(oid, int):
        return None
    return call.facts.comments.get((int(relation.oid), oid))


def any_description(call: Call, oid: int | None) -> str | None:
    """Return the comment of an object in any catalog: PostgreSQL's deprecated form."""
    texts = (text for (_, objid), text in call.facts.comments.items() if objid == oid)
    return next(texts, None)


def pg_encoding_to_char(call: Call, encoding: int | None) -> str | None:
    """Return the name of an encoding that a node knows."""
    if encoding is None:
        return None
    return {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}.get(encoding, "")


def pg_char_to_encoding(call: Call, name: str | None) -> int | None:
    """Return the number of an encoding; -1 if a node does not know it."""
    if name is None:
        return None
    numbers = {"sqlascii": 0, "utf8": 6, "unicode": 6, "latin1": 8}
    return numbers.get("".join(c for c in name.lower() if c.isalnum()), -1)


def pg_get_function_result(call: Call, oid: int | None) -> str | None:
    """Return the result type as in CREATE FUNCTION."""
    row = FUNCTION_ROWS.get(Oid(oid or 0))
    return None if row is None else row.result


def pg_get_function_arguments(call: Call, oid: int | None) -> str | None:
    """Return the arguments as in CREATE FUNCTION, with their defaults."""
    row = FUNCTION_ROWS.get(Oid(oid or 0))
    return None if row is None else row.shown


def pg_get_function_identity_arguments(call: Call, oid: int | None) -> str | None:
    """Return the arguments by which ALTER FUNCTION names the function."""
    row = FUNCTION_ROWS.get(Oid(oid or 0))
    return None if row is None else row.identity
