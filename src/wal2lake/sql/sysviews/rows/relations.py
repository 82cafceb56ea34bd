"""Rows of pg_catalog that depend on the schema: relations, columns, keys, types.

Comes in: ``Facts``. Goes out: rows as dicts by column name; a missing column is null, or the type's
zero if the column is NOT NULL. Each view has a generator, registered in ``RELATION_ROWS``. A lake
table has no pages, so its storage is shown like that of an empty heap.

Sources: the manual's chapter 52 (system catalogs), 53 (system views); heap.c, index.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from wal2lake.catalog import TableIndex
from wal2lake.model import (
    BOOTSTRAP_SUPERUSER,
    INVALID_OID,
    Deferral,
    Oid,
    ReplicaIdentity,
)
from wal2lake.pgtypes.registry.builtin import RANGES
from wal2lake.pgtypes.registry.pg_type import BUILT_IN, type_by_oid
from wal2lake.sql.grammar import quote_identifier, quote_literal
from wal2lake.sql.sysviews.rows.facts import (
    HEAP_AM,
    INDEX_METHODS,
    Attribute,
    Facts,
    RelationFacts,
    expression_text,
    index_oid,
    key_constraint_oid,
    key_name,
)

Row = Mapping[str, Any]
RowMaker = Callable[[Facts], Iterator[Row]]

UNSTORED: Final = frozenset("vpI")
"""pg_class.relkind of relations without a file: views, partitioned tables and indexes."""

_BTREE_OPCLASS: Final = {
    # pg_opclass.dat: the default btree operator classes with fixed numbers.
    1082: 3122,
    701: 3123,
    23: 1978,
    20: 3124,
    21: 1979,
    26: 1981,
    25: 3126,
    1043: 3126,
    1042: 426,
    1700: 3125,
    1114: 3128,
    1184: 3127,
}


def pg_class(facts: Facts) -> Iterator[Row]:
    """Yield tables, their primary key indexes, sequences, and the system relations."""
    for relation in facts.relations:
        is_index, is_sequence = relation.kind in "iI", relation.kind == "S"
        table = relation.table
        yield {
            "oid": relation.oid,
            "relname": relation.name,
            "relnamespace": relation.namespace_oid,
            "relowner": relation.owner,
            "relam": _access_method(relation),
            "relfilenode": 0 if relation.kind in UNSTORED else relation.oid,
            "relpages": int(relation.kind in "iS"),
            "reltuples": 0.0 if is_index else 1.0 if is_sequence else -1.0,
            "relhasindex": relation.kind in "rp" and relation.oid in facts.indexed,
            "relpersistence": "p",
            "relkind": relation.kind,
            "relnatts": len(relation.attributes),
            "relchecks": 0 if table is None else len(table.checks),
            "relhasrules": relation.kind == "v",
            "relhassubclass": relation.kind in "pI"
            and table is not None
            and facts.partition(table) is not None,
            "relispopulated": True,
            "relacl": facts.acl_text(relation.acl),
            "relreplident": "n"
            if is_index or is_sequence or table is None
            else table.replica_identity.value,
            "relispartition": table is not None
            and table.partition_of is not None
            and not is_sequence,
            "reloptions": _options(relation),
            "relpartbound": "DEFAULT"
            if relation.kind == "r" and table is not None and table.partition_of
            else None,
        }


def _access_method(relation: RelationFacts) -> Oid:
    if relation.kind in "iI":
        method = "btree" if relation.index is None else relation.index.method
        return INDEX_METHODS[method]
    return HEAP_AM if relation.kind == "r" else INVALID_OID


def _options(relation: RelationFacts) -> list[str] | None:
    table = relation.table
    if relation.index is not None:
        return list(relation.index.parameters) or None
    if relation.kind not in "rp" or table is None or not table.parameters:
        return None
    return [f"{name}={value}" for name, value in table.parameters]


def pg_inherits(facts: Facts) -> Iterator[Row]:
    """Yield partitions and the indexes of their keys."""
    for relation in facts.lake_tables():
        table = relation.table
        parent = None if table is None else facts.parent(table)
        if table is None or parent is None:
            continue
        pairs = [(table.oid, parent.oid)]
        if table.key:
            pairs.append((index_oid(table), index_oid(parent)))
        for child, inherited in pairs:
            yield {"inhrelid": child, "inhparent": inherited, "inhseqno": 1}


def pg_partitioned_table(facts: Facts) -> Iterator[Row]:
    """Yield partitioned tables."""
    for relation in facts.lake_tables():
        table = relation.table
        if table is None or table.partition_key is None:
            continue
        partition = facts.partition(table)
        names = [column.name for column in table.columns]
        numbers = [names.index(name) + 1 for name in table.partition_key.columns]
        types = [type_by_oid(relation.attributes[n - 1].type_oid) for n in numbers]
        yield {
            "partrelid": relation.oid,
            "partstrat": table.partition_key.strategy.value,
            "partnatts": len(numbers),
            "partdefid": 0 if partition is None else partition.oid,
            "partattrs": numbers,
            "partclass": [_BTREE_OPCLASS.get(t.oid if t else 0, 0) for t in types],
            "partcollation": [0 if t is None else t.collation for t in types],
        }


def pg_attribute(facts: Facts) -> Iterator[Row]:
    """Yield the columns of all relations, without system columns."""
    for relation in facts.relations:
        inherited = (
            relation.kind == "r"
            and relation.table is not None
            and relation.table.partition_of is not None
        )
        for attribute in relation.attributes:
            pg_type_row = type_by_oid(attribute.type_oid)
            yield {
                "attrelid": relation.oid,
                "attname": attribute.name,
                "atttypid": attribute.type_oid,
                "attlen": -1 if pg_type_row is None else pg_type_row.length,
                "attnum": attribute.number,
                "atttypmod": attribute.typmod,
                "attndims": 1
                if pg_type_row is not None and pg_type_row.is_array
                else 0,
                "attbyval": pg_type_row is not None and pg_type_row.by_value,
                "attalign": "d" if pg_type_row is None else pg_type_row.align,
                "attstorage": "x" if pg_type_row is None else pg_type_row.storage,
                "attnotnull": attribute.not_null,
                "atthasdef": attribute.default is not None,
                "attidentity": attribute.identity,
                "attgenerated": attribute.generated,
                "attislocal": not inherited,
                "attinhcount": int(inherited),
                "attcollation": 0 if pg_type_row is None else pg_type_row.collation,
            }


def pg_attrdef(facts: Facts) -> Iterator[Row]:
    """Yield column defaults; ``adbin`` is the text that pg_get_expr() returns."""
    for relation, attribute in _attributes(facts):
        if attribute.default is not None:
            yield {
                "oid": attribute.default_oid,
                "adrelid": relation.oid,
                "adnum": attribute.number,
                "adbin": attribute.default,
            }


def pg_index(facts: Facts) -> Iterator[Row]:
    """Yield a unique index for each primary key, as PostgreSQL has it, and the other indexes."""
    yield from _secondary_indexes(facts)
    for relation in facts.lake_tables():
        key = relation.key_numbers
        if not key or relation.table is None:
            continue
        types = [type_by_oid(relation.attributes[n - 1].type_oid) for n in key]
        yield {
            "indexrelid": index_oid(relation.table),
            "indrelid": relation.oid,
            "indnatts": len(key),
            "indnkeyatts": len(key),
            "indisunique": True,
            "indisprimary": True,
            "indimmediate": not relation.table.key_deferral.deferrable,
            "indisvalid": True,
            "indisready": True,
            "indislive": True,
            "indisreplident": relation.table.replica_identity is ReplicaIdentity.INDEX,
            "indkey": list(key),
            "indcollation": [0 if t is None else t.collation for t in types],
            "indclass": [_BTREE_OPCLASS.get(t.oid if t else 0, 0) for t in types],
            "indoption": [0] * len(key),
        }


def _secondary_indexes(facts: Facts) -> Iterator[Row]:
    for relation in facts.relations:
        index, table = relation.index, relation.table
        if index is None or table is None:
            continue
        numbers = {column.name: n for n, column in enumerate(table.columns, 1)}
        keys = relation.attributes[: len(index.keys)]
        types = [type_by_oid(attribute.type_oid) for attribute in keys]
        yield {
            "indexrelid": relation.oid,
            "indrelid": table.oid,
            "indnatts": len(index.columns),
            "indnkeyatts": len(keys),
            "indisunique": index.unique,
            "indimmediate": True,
            "indisvalid": True,
            "indisready": True,
            "indislive": True,
            "indkey": [numbers[name] for name in index.columns],
            "indcollation": [0 if t is None else t.collation for t in types],
            "indclass": [_BTREE_OPCLASS.get(t.oid if t else 0, 0) for t in types],
            "indoption": [key.options for key in index.keys],
        }


def pg_constraint(facts: Facts) -> Iterator[Row]:
    """Yield primary keys, CHECK and NOT NULL constraints."""
    for relation in facts.lake_tables():
        table = relation.table
        if table is None:
            continue
        shared = {
            "connamespace": relation.namespace_oid,
            "conrelid": relation.oid,
            "convalidated": True,
            "conenforced": True,
            "conislocal": True,
            "confupdtype": " ",
            "confdeltype": " ",
            "confmatchtype": " ",
        }
        parent = facts.parent(table)
        if parent is not None:
            shared |= {"conislocal": False, "coninhcount": 1}
        for attribute in relation.attributes:
            if attribute.not_null:
                yield {
                    **shared,
                    "oid": attribute.not_null_oid,
                    "conname": facts.not_null_name(table, attribute),
                    "contype": "n",
                    "conkey": [attribute.number],
                }
        names = [column.name for column in table.columns]
        for oid, check in facts.checks(table):
            yield {
                **shared,
                "oid": oid,
                "conname": check.name,
                "contype": "c",
                "conkey": [names.index(c) + 1 for c in check.columns] or None,
                "conbin": expression_text(check),
            }
        if table.key:
            yield {
                **shared,
                "oid": key_constraint_oid(table),
                "conname": key_name(table),
                "contype": "p",
                "conindid": index_oid(table),
                "conparentid": 0 if parent is None else key_constraint_oid(parent),
                "connoinherit": parent is None,
                "conkey": list(relation.key_numbers),
                "condeferrable": table.key_deferral.deferrable,
                "condeferred": table.key_deferral is Deferral.DEFERRED,
            }


def pg_type(facts: Facts) -> Iterator[Row]:
    """Yield the built-in types; a publisher's user-defined types are text here."""
    for row in BUILT_IN.values():
        yield {
            "oid": row.oid,
            "typname": row.name,
            "typnamespace": 11,
            "typowner": BOOTSTRAP_SUPERUSER,
            "typlen": row.length,
            "typbyval": row.by_value,
            "typtype": row.kind,
            "typcategory": row.category,
            "typispreferred": row.preferred,
            "typisdefined": True,
            "typdelim": row.delimiter,
            "typsubscript": _subscript(
                row.is_array, row.name.endswith("vector"), row.element_oid
            ),
            "typelem": row.element_oid,
            "typarray": row.array_oid,
            "typinput": row.input_function,
            "typoutput": row.output_function,
            "typreceive": row.receive_function or "-",
            "typsend": row.send_function or "-",
            "typmodin": _typmod_function(row.oid, "in"),
            "typmodout": _typmod_function(row.oid, "out"),
            "typanalyze": "array_typanalyze" if row.is_array else "-",
            "typalign": row.align,
            "typstorage": row.storage,
            "typtypmod": -1,
            "typcollation": row.collation,
        }


def _subscript(is_array: bool, vector: bool, element: int) -> str:
    if is_array or vector:
        return "array_subscript_handler"
    return "raw_array_subscript_handler" if element else "-"


def _typmod_function(oid: int, suffix: str) -> str:
    row = BUILT_IN[oid]
    if not row.has_typmod:
        return "-"
    name = BUILT_IN[row.element_oid].name if row.is_array else row.name
    return f"{name}typmod{suffix}"


def pg_range(facts: Facts) -> Iterator[Row]:
    """Yield the built-in range types."""
    for oid, (subtype, multirange) in RANGES.items():
        yield {
            "rngtypid": oid,
            "rngsubtype": subtype,
            "rngmultitypid": multirange,
            "rngcanonical": "-",
            "rngsubdiff": "-",
        }


# ---- views ------------------------------------------------------------------------------


def pg_tables(facts: Facts) -> Iterator[Row]:
    """Yield lake tables and pg_catalog's tables."""
    for relation in facts.relations:
        if relation.kind in "rp":
            yield {
                "schemaname": relation.namespace,
                "tablename": relation.name,
                "tableowner": facts.role_names.get(relation.owner),
                "hasindexes": relation.oid in facts.indexed,
                "hasrules": False,
                "hastriggers": False,
                "rowsecurity": False,
            }


def pg_stat_all_tables(facts: Facts) -> Iterator[Row]:
    """Yield lake tables and pg_catalog's tables; a node counts no use of them."""
    for relation in facts.relations:
        if relation.kind in "rp":
            yield {
                "relid": relation.oid,
                "schemaname": relation.namespace,
                "relname": relation.name,
            }


def pg_stat_user_tables(facts: Facts) -> Iterator[Row]:
    """Yield lake tables; a node counts no use of them."""
    for relation in facts.lake_tables():
        yield {
            "relid": relation.oid,
            "schemaname": relation.namespace,
            "relname": relation.name,
        }


def pg_views(facts: Facts) -> Iterator[Row]:
    """Yield the system views; they have no SQL definition."""
    for relation in facts.relations:
        if relation.kind == "v":
            yield {
                "schemaname": relation.namespace,
                "viewname": relation.name,
                "viewowner": facts.role_names.get(relation.owner),
            }


def pg_indexes(facts: Facts) -> Iterator[Row]:
    """Yield all indexes."""
    for relation in facts.relations:
        if relation.kind in "iI" and relation.table is not None:
            yield {
                "schemaname": relation.namespace,
                "tablename": relation.table.name,
                "indexname": relation.name,
                "indexdef": index_definition(relation),
            }


def index_definition(index: RelationFacts, *, schema: bool = True) -> str:
    """Return CREATE INDEX; ``schema``: the table is qualified."""
    assert index.table is not None
    table, secondary = index.table, index.index
    columns = ", ".join(quote_identifier(a.name) for a in index.attributes)
    unique, method, rest = "UNIQUE ", "btree", ""
    if secondary is not None:
        unique, method = "UNIQUE " if secondary.unique else "", secondary.method
        columns = ", ".join(quote_identifier(k.name) + k.suffix for k in secondary.keys)
        rest = _behind_keys(secondary)
    prefix = f"{quote_identifier(table.namespace)}." if schema else ""
    if index.kind == "I":
        prefix = f"ONLY {prefix}"
    return (
        f"CREATE {unique}INDEX {quote_identifier(index.name)} ON"
        f" {prefix}{quote_identifier(table.name)} USING {method} ({columns}){rest}"
    )


def _behind_keys(index: TableIndex) -> str:
    text = ""
    if index.included:
        text += f" INCLUDE ({', '.join(map(quote_identifier, index.included))})"
    if index.parameters:
        pairs = (parameter.partition("=") for parameter in index.parameters)
        values = (f"{quote_identifier(name)}={_value(v)}" for name, _, v in pairs)
        text += f" WITH ({', '.join(values)})"
    return text


def _value(text: str) -> str:
    """Print a storage parameter's value as flatten_reloptions() does."""
    return text if quote_identifier(text) == text else quote_literal(text)


def _attributes(facts: Facts) -> Iterator[tuple[RelationFacts, Attribute]]:
    for relation in facts.lake_tables():
        for attribute in relation.attributes:
            yield relation, attribute


RELATION_ROWS: Final[Mapping[str, RowMaker]] = {
    maker.__name__: maker
    for maker in (
        pg_class,
        pg_attribute,
        pg_attrdef,
        pg_index,
        pg_inherits,
        pg_partitioned_table,
        pg_constraint,
        pg_type,
        pg_range,
        pg_tables,
        pg_stat_all_tables,
        pg_stat_user_tables,
        pg_views,
        pg_indexes,
    )
}
