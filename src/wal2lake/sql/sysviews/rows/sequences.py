"""Rows about sequences: what they are, whose they are, and how far.

Comes in: ``Facts``; for what moves, the source. Goes out: rows as dicts by column name. Each
sequence is owned by a serial or identity column, and is of its table's owner.

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
    """All of them."""
    for one in facts.sequences:
        least, most = one.limits
        yield {
            "seqrelid": one.oid,
            "seqtypid": one.type_oid,
            "seqstart": one.start,
            "seqincrement": one.increment,
            "seqmax": most,
            "seqmin": least,
            "seqcache": 1,
            "seqcycle": False,
        }


def pg_depend(facts: Facts) -> Iterator[Row]:
    """The columns that own sequences, and the defaults that take their values."""
    for one in facts.sequences:
        relation, attribute = facts.owned_by.get(one.oid, (None, None))
        if relation is None or attribute is None:
            continue
        yield {
            "classid": _PG_CLASS,
            "objid": one.oid,
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
                "refobjid": one.oid,
                "deptype": "n",
            }


def sequences(facts: Facts) -> Iterator[Row]:
    """information_schema's: not those of identity columns."""
    for one in facts.sequences:
        _, attribute = facts.owned_by.get(one.oid, (None, None))
        if attribute is not None and attribute.identity:
            continue
        least, most = one.limits
        yield {
            "sequence_catalog": DATABASE,
            "sequence_schema": one.namespace,
            "sequence_name": one.name,
            "data_type": format_type(one.type_oid),
            "numeric_precision": _BITS.get(one.type_oid, 64),
            "numeric_precision_radix": 2,
            "numeric_scale": 0,
            "start_value": str(one.start),
            "minimum_value": str(least),
            "maximum_value": str(most),
            "increment": str(one.increment),
            "cycle_option": "NO",
        }


def pg_sequences(moment: Moment) -> Iterator[Row]:
    """All of them, with the last value that was taken, for those who may know it."""
    values = moment.source.last_values()
    facts = moment.facts
    for one in facts.sequences:
        least, most = one.limits
        owner = facts.by_oid[one.oid].owner
        yield {
            "schemaname": one.namespace,
            "sequencename": one.name,
            "sequenceowner": facts.role_names.get(owner),
            "data_type": one.type_oid,
            "start_value": one.start,
            "min_value": least,
            "max_value": most,
            "increment_by": one.increment,
            "cycle": False,
            "cache_size": 1,
            "last_value": values.get(one.oid)
            if facts.authority.owns(moment.role, owner)
            else None,
        }


SEQUENCE_ROWS: Final[Mapping[str, RowMaker]] = {
    maker.__name__: maker for maker in (pg_sequence, pg_depend, sequences)
}

MOVING_SEQUENCES: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    "pg_sequences": pg_sequences
}
