"""Conversion of a column of the publisher's values under the column's policy.

Comes in: values as they were sent, the mapping, the policy, the longest allowed value.
Goes out: ``Coerced``: the typed array, the remaining failures, and the values that were stored
differently. Called inside Spark's Python workers by staging and the initial copy.

Why this way. Values are converted as without a policy, and only rows that failed are treated
again, so a policy costs nothing for clean columns. Policies do not apply to errors in the form of
a value (malformed binary, no decoder).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.choices.clamp import clamped, replaced
from wal2lake.pgtypes.choices.policies import ValuePolicy
from wal2lake.pgtypes.decode.conversion import (
    ConversionFailure,
    Failures,
    Mask,
    Rows,
    raw,
    without,
)
from wal2lake.pgtypes.mapping import ConversionKind, TypeMapping
from wal2lake.pgtypes.receive.columns import convert_sent, sent_to_text
from wal2lake.pgtypes.receive.remote import RemoteTypes, base_type, element_type

MAX_VALUE_BYTES: Final = 256 << 20
"""The default of ``apply.max_value_bytes``; see there."""

EXAMPLE_CHARACTERS: Final = 100
"""Characters of an example value: enough to recognise the value, too few to fill a page."""

NO_POLICY: Final = frozenset(("0A000", "22P03", "42804", "XX000"))
"""No decoder, or bytes that are not a value: failures to which policies do not apply."""

_PROGRAM_LIMIT_EXCEEDED: Final = "54000"
_FLOAT4, _FLOAT8 = 700, 701


@dataclass(frozen=True, slots=True)
class CoercedValues:
    """Values that were stored differently, for one reason."""

    policy: ValuePolicy
    reason: str
    rows: Rows
    """Positions in the input, ascending."""
    example: str
    """The first of the values, as text."""


@dataclass(frozen=True, slots=True)
class Coerced:
    """A converted column. Rows that failed are null."""

    array: pa.Array
    failures: tuple[ConversionFailure, ...] = ()
    """Failures in the order of their first rows."""
    changes: tuple[CoercedValues, ...] = ()


def coerce(
    values: pa.BinaryArray,
    is_binary: Mask | None,
    type_oid: int,
    types: RemoteTypes,
    mapping: TypeMapping,
    policy: ValuePolicy = ValuePolicy.ERROR,
    max_bytes: int = MAX_VALUE_BYTES,
    *,
    nullable: bool = True,
) -> Coerced:
    """Convert one column like ``convert_sent``. Never raises because of a value.

    ``type_oid`` is the publisher's, 0 if it is not known. Unless ``nullable``, no policy makes
    a value NULL.
    """
    failures = Failures()
    fitting = _without_long(values, max_bytes, failures)
    mapping = _exact_for(mapping, type_oid, types)
    converted = convert_sent(fitting, is_binary, type_oid, types, mapping)
    if not converted.failures and not failures:
        return Coerced(converted.array)
    whole = converted.failures
    if failures:
        failures.extend(converted.failures, np.arange(len(values)))
        whole = failures.conclude(converted.array).failures
    if policy is not ValuePolicy.CLAMP and not (
        policy is ValuePolicy.NULL and nullable
    ):
        return Coerced(converted.array, whole)
    eligible = [f for f in whole if f.sqlstate not in NO_POLICY]
    standing = [f for f in whole if f.sqlstate in NO_POLICY]
    if not eligible:
        return Coerced(converted.array, whole)
    rows = np.sort(np.concatenate([f.rows for f in eligible]))
    array = converted.array
    texts = fitting.take(pa.array(rows))
    if is_binary is not None:
        texts = _as_text(texts, is_binary[rows], type_oid, types)
    if policy is ValuePolicy.CLAMP:
        array, failed = _clamp_rows(array, rows, texts, mapping, nullable=nullable)
        standing += [
            replace(f, rows=f.rows[np.isin(f.rows, list(failed))]) for f in eligible
        ]
        eligible = [
            replace(f, rows=f.rows[~np.isin(f.rows, list(failed))]) for f in eligible
        ]
    changes = [_change(f, policy, values, rows, texts) for f in eligible if len(f.rows)]
    left = sorted((f for f in standing if len(f.rows)), key=lambda f: int(f.rows[0]))
    return Coerced(array, tuple(left), tuple(changes))


def _clamp_rows(
    array: pa.Array,
    rows: Rows,
    texts: pa.BinaryArray,
    mapping: TypeMapping,
    *,
    nullable: bool,
) -> tuple[pa.Array, set[int]]:
    """Replace failed rows by their nearest values; also return the rows that have none.

    ``texts`` has the values of ``rows``.
    """
    nearest = clamped(texts, mapping)
    failed = {int(rows[index]) for f in nearest.failures for index in f.rows}
    # A value that was too long, or has no text, has no nearest value.
    failed |= set(rows[texts.is_null().to_numpy(zero_copy_only=False)].tolist())
    if not nullable:
        nulls = nearest.array.is_null().to_numpy(zero_copy_only=False)
        failed |= set(rows[nulls].tolist())
    keep = [index for index, row in enumerate(rows.tolist()) if row not in failed]
    kept = nearest.array.take(pa.array(keep, pa.int64()))
    return replaced(array, rows[keep].tolist(), kept), failed


def _without_long(
    values: pa.BinaryArray, max_bytes: int, failures: Failures
) -> pa.BinaryArray:
    _, offsets = raw(values)
    if int(offsets[-1]) - int(offsets[0]) <= max_bytes:
        return values
    long = pc.fill_null(pc.greater(pc.binary_length(values), max_bytes), False)
    mask: Mask = long.to_numpy(zero_copy_only=False)
    if not mask.any():
        return values
    failures.add_rows(
        np.flatnonzero(mask),
        _PROGRAM_LIMIT_EXCEEDED,
        f"value is longer than apply.max_value_bytes ({max_bytes} bytes)",
    )
    return without(values, mask)


def _exact_for(mapping: TypeMapping, type_oid: int, types: RemoteTypes) -> TypeMapping:
    """Return an exact mapping unless the publisher's type is a float of at most this width: only
    then is a value with more digits than the type holds not an error."""
    of = mapping.element if mapping.kind is ConversionKind.ARRAY else mapping
    if of is None or of.kind is not ConversionKind.FLOAT or not type_oid:
        return mapping
    sent = base_type(type_oid, types)
    if mapping.kind is ConversionKind.ARRAY:
        sent = element_type(sent, types) or 0
    single = of.arrow_type == pa.float32()
    if sent == _FLOAT4 or (sent == _FLOAT8 and not single):
        return mapping
    exact = replace(of, exact=True)
    return (
        replace(mapping, element=exact)
        if mapping.kind is ConversionKind.ARRAY
        else exact
    )


def _as_text(
    values: pa.BinaryArray, is_binary: Mask, type_oid: int, types: RemoteTypes
) -> pa.BinaryArray:
    if not is_binary.any():
        return values
    texts, _ = sent_to_text(without(values, ~is_binary), type_oid, types)
    return pc.if_else(pa.array(is_binary), texts, values)


def _change(
    failure: ConversionFailure,
    policy: ValuePolicy,
    values: pa.BinaryArray,
    rows: Rows,
    texts: pa.BinaryArray,
) -> CoercedValues:
    first = int(failure.rows[0])
    text = texts[int(np.searchsorted(rows, first))].as_py()
    if text is None:
        # Too long, or binary without a text: show the bytes.
        text = values[first].as_py()
    return CoercedValues(policy, failure.message, failure.rows, example_of(text))


def example_of(text: bytes) -> str:
    """Return the beginning of a value with any bytes as valid text."""
    shown = text[: 4 * EXAMPLE_CHARACTERS].decode("utf-8", "backslashreplace")
    shown = shown.replace("\0", "\\x00")
    if len(shown) <= EXAMPLE_CHARACTERS and len(text) <= 4 * EXAMPLE_CHARACTERS:
        return shown
    return shown[:EXAMPLE_CHARACTERS] + "..."
