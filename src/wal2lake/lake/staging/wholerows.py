"""Converts whole rows of a table for inserting: converted, filled in, computed and checked.

Comes in: columns as PostgreSQL sent them, the target's fields, its ``ConversionRules``. Goes out:
a typed Arrow table with exactly those fields, and the rows that cannot be stored. The order is
PostgreSQL's: sent values and defaults, generated columns, NOT NULL, CHECK. Called by the initial
copy; staging does the same for events of the log (``rowchanges``).

Source: CopyFrom() in copyfrom.c; ExecInsert() in nodeModifyTable.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from wal2lake.lake.port import FieldSpec
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
from wal2lake.lake.staging.rowchecks import first_violation
from wal2lake.pgtypes.choices.coerce import CoercedValues


def with_generated(
    rules: ConversionRules,
    relation: str,
    fields: Sequence[FieldSpec],
    rows: pa.Table,
    bad: Sequence[BadValue],
    where: Mask | None = None,
) -> tuple[pa.Table, list[BadValue]]:
    """Compute the generated columns of the rows (``where``), and return the first failure, too.
    Rows that are already bad are skipped."""
    if not rules.generated:
        return rows, []
    good = np.ones(rows.num_rows, np.bool_) if where is None else where.copy()
    good[[failure.row for failure in bad]] = False
    rows, failed = computed(rules.generated, fields, rows, good)
    good[[failure.row for failure in failed]] = False
    required = rules.required | rules.key
    missing = missing_value(rules.generated, required, relation, rows, good)
    failures = [*failed[:1], *(() if missing is None else (missing,))]
    # PostgreSQL names a column only while it converts the column's value.
    return rows, [
        BadValue(
            failure.row,
            failure.column if failure.hint is None else "",
            failure.sqlstate,
            failure.message,
            hint=failure.hint,
        )
        for failure in failures
    ]


def refused_by_checks(
    rules: ConversionRules,
    relation: str,
    fields: Sequence[FieldSpec],
    rows: pa.Table,
    bad: Sequence[BadValue],
    where: Mask | None = None,
) -> list[BadValue]:
    """Return the first row (among ``where``) that violates a CHECK. Rows that are already bad are
    skipped."""
    if not rules.checks:
        return []
    good = np.ones(rows.num_rows, np.bool_) if where is None else where.copy()
    good[[value.row for value in bad]] = False
    violation = first_violation(rules.checks, relation, fields, rows, good)
    if violation is None:
        return []
    row, why = violation
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
    """Convert whole rows to the target's columns, in the target's order.

    A field without a column gets its default, or null; a generated one is computed. ``required``:
    the key's columns, which must not be null whatever the table declares. ``relation`` is the
    target's bare name, for messages. Bad values, in row order, are null in the table; the third
    result has the values that policies changed, by column.
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
            # It is computed and checked below.
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
