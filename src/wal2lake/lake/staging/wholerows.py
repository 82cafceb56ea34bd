"""Whole rows of a table, as they are inserted: converted, filled in, computed and checked.

Comes in: columns as PostgreSQL sent them, the target's fields, its ``ConversionRules``. Goes out: a
typed Arrow table with exactly those fields, and the rows that cannot be stored. In PostgreSQL's
order: what is sent and defaults, generated columns, NOT NULL, CHECK. Called by the initial copy;
staging does the same for events of the log (``rowchanges``).

Source: CopyFrom() in copyfrom.c; ExecInsert() in nodeModifyTable.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.checks import first_violation
from wal2lake.lake.staging.convert import (
    NO_RULES,
    BadValue,
    ConversionRules,
    Mask,
    SentColumn,
    convert_column,
    mapping_of,
    not_filled,
    nulls_refused,
)
from wal2lake.lake.staging.defaults import Fills, filled
from wal2lake.lake.staging.generated import computed, missing_value
from wal2lake.pgtypes.choices.coerce import CoercedValues


def with_generated(
    rules: ConversionRules,
    relation: str,
    fields: Sequence[FieldSpec],
    rows: pa.Table,
    known: Sequence[BadValue],
    where: Mask | None = None,
) -> tuple[pa.Table, list[BadValue]]:
    """The rows with their generated columns (``where``), and the first that cannot have them; those
    that are bad anyway are not computed."""
    if not rules.generated:
        return rows, []
    good = np.ones(rows.num_rows, np.bool_) if where is None else where.copy()
    good[[one.row for one in known]] = False
    rows, failed = computed(rules.generated, fields, rows, good)
    good[[one.row for one in failed]] = False
    required = rules.required | rules.key
    missing = missing_value(rules.generated, required, relation, rows, good)
    found = [*failed[:1], *(() if missing is None else (missing,))]
    # PostgreSQL names a column while it converts its value, and not later.
    return rows, [
        BadValue(
            one.row,
            one.column if one.hint is None else "",
            one.sqlstate,
            one.message,
            hint=one.hint,
        )
        for one in found
    ]


def refused_by_checks(
    rules: ConversionRules,
    relation: str,
    fields: Sequence[FieldSpec],
    rows: pa.Table,
    known: Sequence[BadValue],
    where: Mask | None = None,
) -> list[BadValue]:
    """The first row (among ``where``) that violates a CHECK; those that are bad anyway are not
    looked at."""
    if not rules.checks:
        return []
    good = np.ones(rows.num_rows, np.bool_) if where is None else where.copy()
    good[[one.row for one in known]] = False
    found = first_violation(rules.checks, relation, fields, rows, good)
    if found is None:
        return []
    row, why = found
    return [BadValue(row, "", why.sqlstate, why.message, why.detail)]


def convert_columns(
    columns: Mapping[str, SentColumn],
    fields: Sequence[FieldSpec],
    *,
    namespace: str = "",
    relation: str | None = None,
    required: Sequence[str] = (),
    rules: ConversionRules = NO_RULES,
    fills: Fills = MappingProxyType({}),
) -> tuple[pa.Table, tuple[BadValue, ...], dict[str, tuple[CoercedValues, ...]]]:
    """Whole rows as the target's columns, in the target's order.

    A field without a column has its default, or null; one that is generated is computed.
    ``required``: the key's columns, which must not be null whatever the table declares.
    ``relation`` is the target's bare name, for messages. Bad values, in row order, are null in
    the table; the third part is what policies changed, by column.
    """
    length = len(next(iter(columns.values())).values) if columns else 0
    arrays = []
    bad: list[BadValue] = []
    changes: dict[str, tuple[CoercedValues, ...]] = {}
    generated = {name for name, _ in rules.generated}
    for spec in fields:
        mapping = mapping_of(spec)
        sent = columns.get(spec.name)
        if sent is None:
            fill = fills.get(spec.name)
            array = filled(fill, np.ones(length, np.bool_), mapping.arrow_type)
            bad += not_filled(fill, spec.name, 0 if length else None)
        else:
            policy = rules.policy(namespace, relation or "", spec, sent)
            converted = convert_column(sent, spec, mapping, policy, rules)
            array = converted.array
            bad += converted.bad
            if converted.changes:
                changes[spec.name] = converted.changes
        if spec.name in generated:
            # Nothing is known of it yet.
            arrays.append(array)
            continue
        if spec.name in required or not rules.takes_null(spec, sent=sent is not None):
            nulls = nulls_refused(array, spec, relation)
            bad += [r for r in nulls if all(r.row != b.row for b in bad)]
        arrays.append(array)
    table = pa.Table.from_arrays(arrays, names=[spec.name for spec in fields])
    table, refused = with_generated(rules, relation or "", fields, table, bad)
    bad += refused
    bad += refused_by_checks(rules, relation or "", fields, table, bad)
    return table, tuple(sorted(bad, key=lambda b: b.row)), changes
