"""Rows about sequences: definitions, owning columns and last values.

Comes in: ``Facts``; for last values, the source. Goes out: rows as dicts by column name. A serial
or identity column owns each sequence, and the owner of its table owns the sequence.

Sources: pg_sequence.h, pg_depend.h; pg_sequences in system_views.sql; information_schema.sql.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from wal2lake.model import DATABASE
from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.sql.sysviews.rows.facts import Facts
from wal2lake.sql.sysviews.rows.relations import Row, RowMaker
from wal2lake.sql.sysviews.rows.replication import Moment

_PG_CLASS: Final = 1259
_PG_ATTRDEF: Final = 2604

_BITS: Final = {21: 16, 23: 32, 20: 64}


def pg_sequence(facts: Facts) -> Iterator[Row]:
    """Yield all sequences."""
    for sequence in facts.sequences:
        least, most = sequence.limits
        yield {
            "seqrelid": sequence.oid,
            "seqtypid": sequence.type_oid,
            "seqstart": sequence.start,
            "seqincrement": sequence.increment,
            "seqmax": most,
            "seqmin": least,
            "seqcache": 1,
            "seqcycle": False,
        }


def pg_depend(facts: Facts) -> Iterator[Row]:
    """Yield the columns that own sequences, and the defaults that use sequences."""
    for sequence in facts.sequences:
        relation, attribute = facts.owned_by.get(sequence.oid, (None, None))
        if relation is None or attribute is None:
            continue
        yield {
            "classid": _PG_CLASS,
            "objid": sequence.oid,
            "refclassid": _PG_CLASS,
            "refobjid": relation.oid,
            "refobjsubid": attribute.number,
            "deptype": "i" if attribute.identity else "a",
        }
        if attribute.default is not None:
            yield {
                "classid": _PG_ATTRDEF,
                "objid": attribute.default_oid,
                "refclassid": _PG_CLASS,
                "refobjid": sequence.oid,
                "deptype": "n",
            }


def sequences(facts: Facts) -> Iterator[Row]:
    """Yield the sequences of information_schema, which omits those of identity columns."""
    for sequence in facts.sequences:
        _, attribute = facts.owned_by.get(sequence.oid, (None, None))
        if attribute is not None and attribute.identity:
            continue
        least, most = sequence.limits
        yield {
            "sequence_catalog": DATABASE,
            "sequence_schema": sequence.namespace,
            "sequence_name": sequence.name,
            "data_type": format_type(sequence.type_oid),
            "numeric_precision": _BITS.get(sequence.type_oid, 64),
            "numeric_precision_radix": 2,
            "numeric_scale": 0,
            "start_value": str(sequence.start),
            "minimum_value": str(least),
            "maximum_value": str(most),
            "increment": str(sequence.increment),
            "cycle_option": "NO",
        }


def pg_sequences(moment: Moment) -> Iterator[Row]:
    """Yield all sequences; only their owners see the last values."""
    values = moment.source.last_values()
    facts = moment.facts
    for sequence in facts.sequences:
        least, most = sequence.limits
        owner = facts.by_oid[sequence.oid].owner
        yield {
            "schemaname": sequence.namespace,
            "sequencename": sequence.name,
            "sequenceowner": facts.role_names.get(owner),
            "data_type": sequence.type_oid,
            "start_value": sequence.start,
            "min_value": least,
            "max_value": most,
            "increment_by": sequence.increment,
            "cycle": False,
            "cache_size": 1,
            "last_value": values.get(sequence.oid)
            if facts.authority.owns(moment.role, owner)
            else None,
        }


SEQUENCE_ROWS: Final[Mapping[str, RowMaker]] = {
    maker.__name__: maker for maker in (pg_sequence, pg_depend, sequences)
}

MOVING_SEQUENCES: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    "pg_sequences": pg_sequences
}
