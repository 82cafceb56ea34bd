"""Stores a column's PostgreSQL type in Spark's field metadata, and reads it back.

Comes in: FieldSpec or Spark's StructField. Goes out: the other. Used by ``tables`` when it
creates and reads tables, and by ``query``: metadata survives projection, so a query's result
still has the PostgreSQL type of each plain column.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pyspark.sql.types import DataType, StructField

from wal2lake.lake.port import FieldSpec
from wal2lake.model import INVALID_OID, Domain, Oid

TYPE_OID: Final = "wal2lake.pg_type_oid"
TYPMOD: Final = "wal2lake.pg_typmod"
TYPE_NAME: Final = "wal2lake.pg_type_name"
DOMAIN: Final = "wal2lake.pg_domain"

_GENERATED: Final = "delta.generationExpression"


@lru_cache(maxsize=1024)
def spark_type(ddl: str) -> DataType:
    """Parse a type's name. The result is cached because Spark's parser is in the JVM."""
    return DataType.fromDDL(ddl)


def metadata_of(field: FieldSpec) -> dict[str, Any]:
    """Return the metadata that the table's schema stores; empty if there is no PostgreSQL
    type."""
    if field.pg_type_oid == INVALID_OID:
        return {}
    metadata: dict[str, Any] = {
        TYPE_OID: int(field.pg_type_oid),
        TYPMOD: field.pg_typmod,
    }
    if field.pg_type_name is not None:
        metadata[TYPE_NAME] = field.pg_type_name
    if field.pg_domain is not None:
        domain = field.pg_domain
        metadata[DOMAIN] = [domain.name, str(int(domain.type_oid)), str(domain.typmod)]
    return metadata


def from_struct_field(field: StructField) -> FieldSpec:
    """Read a field back; the fields of foreign tables have no PostgreSQL metadata."""
    metadata = field.metadata or {}
    domain = metadata.get(DOMAIN)
    # Other writers (delta-rs) write numbers back as texts.
    return FieldSpec(
        name=field.name,
        spark_ddl=field.dataType.simpleString(),
        nullable=field.nullable,
        pg_type_oid=Oid(int(metadata.get(TYPE_OID, 0))),
        pg_typmod=int(metadata.get(TYPMOD, -1)),
        pg_type_name=metadata.get(TYPE_NAME),
        pg_domain=domain and Domain(domain[0], Oid(int(domain[1])), int(domain[2])),
        is_generated=_GENERATED in metadata,
    )
