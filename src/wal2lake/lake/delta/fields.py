"""Stores a column's PostgreSQL type in the metadata of its field in a Delta schema, and reads it.

Comes in: a FieldSpec or a field of the schema's JSON. Goes out: the other one. Called by
``log.version``, ``schemachange`` and ``spark.delta.creation`` for tables, by ``spark.query`` for
results: metadata survives projection, so a query's result still has the PostgreSQL type of each
plain column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from wal2lake.lake.delta.schema import ddl_of
from wal2lake.lake.port import FieldSpec
from wal2lake.model import INVALID_OID, Domain, Oid

TYPE_OID: Final = "wal2lake.pg_type_oid"
TYPMOD: Final = "wal2lake.pg_typmod"
TYPE_NAME: Final = "wal2lake.pg_type_name"
DOMAIN: Final = "wal2lake.pg_domain"

_GENERATED: Final = "delta.generationExpression"
_INVARIANT: Final = "delta.invariants"


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


def read_field(field: Mapping[str, Any]) -> FieldSpec:
    """Return the column that an object of the schema's ``fields`` describes.

    A table of another writer has no such metadata, so its columns have no PostgreSQL type.
    """
    metadata = field.get("metadata") or {}
    domain = metadata.get(DOMAIN)
    # Other writers (delta-rs) write numbers back as texts.
    return FieldSpec(
        name=field["name"],
        spark_ddl=ddl_of(field),
        nullable=field["nullable"],
        pg_type_oid=Oid(int(metadata.get(TYPE_OID, 0))),
        pg_typmod=int(metadata.get(TYPMOD, -1)),
        pg_type_name=metadata.get(TYPE_NAME),
        pg_domain=domain and Domain(domain[0], Oid(int(domain[1])), int(domain[2])),
        generation=metadata.get(_GENERATED),
        invariant=_invariant_in(metadata),
    )


def _invariant_in(metadata: Mapping[str, Any]) -> str | None:
    """Return the condition of an invariant: ``{"expression": {"expression": "id > 0"}}``. Delta
    refuses writes if it cannot read the text; here the text is no expression then."""
    text = metadata.get(_INVARIANT)
    if text is None:
        return None
    try:
        return str(json.loads(text)["expression"]["expression"])
    except (ValueError, KeyError, TypeError):
        return str(text)
