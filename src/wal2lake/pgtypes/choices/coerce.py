"""A column of the publisher's values as its column here holds them, under its policy.

Comes in: values as they were sent, the mapping, the policy, the longest value that may be.
Goes out: ``Coerced``: the typed array, the failures that stand, and what was stored instead of
values that could not be. Called inside Spark's Python workers by staging and the initial copy.

Why this way. Values are converted as ever; only rows that failed are looked at again, so a
policy costs nothing where nothing is wrong. What is wrong with the form of a value (malformed
binary, no decoder) is no policy's business.
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
"""The default of ``apply.max_value_bytes``, which says why."""

EXAMPLE_CHARACTERS: Final = 100
"""Characters of a value shown as an example: enough to recognise the value, too few to fill a
page."""

NO_POLICY: Final = frozenset(("0A000", "22P03", "42804", "XX000"))
"""No decoder, or bytes that are no value at all: not something that a column cannot hold."""

_PROGRAM_LIMIT_EXCEEDED: Final = "54000"
_FLOAT4, _FLOAT8 = 700, 701


@dataclass(frozen=True, slots=True)
class CoercedValues:
    """Values that were stored as something else, for one reason."""

    policy: ValuePolicy
    reason: str
    rows: Rows
    """Positions in the input, ascending."""
    example: str
    """The first of them, as text."""


@dataclass(frozen=True, slots=True)
class Coerced:
    """A converted column. Rows that failed are null."""

    array: pa.Array
    failures: tuple[ConversionFailure, ...] = ()
    """By first row."""
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
    """Convert one column; see ``convert_sent``. Never raises because of a value.

    ``type_oid``: the publisher's, 0 if it is not known. Unless ``nullable`` no policy makes
    a value NULL.
    """
    failures = Failures()
    fitting = _without_long(values, max_bytes, failures)
    mapping = _exact_for(mapping, type_oid, types)
    found = convert_sent(fitting, is_binary, type_oid, types, mapping)
    if not found.failures and not failures:
        return Coerced(found.array)
    whole = found.failures
    if failures:
        failures.extend(found.failures, np.arange(len(values)))
        whole = failures.conclude(found.array).failures
    if policy is not ValuePolicy.CLAMP and not (
        policy is ValuePolicy.NULL and nullable
    ):
        return Coerced(found.array, whole)
    eligible = [f for f in whole if f.sqlstate not in NO_POLICY]
    standing = [f for f in whole if f.sqlstate in NO_POLICY]
    if not eligible:
        return Coerced(found.array, whole)
    rows = np.sort(np.concatenate([f.rows for f in eligible]))
    array = found.array
    chosen = fitting.take(pa.array(rows))
    texts = chosen
    if is_binary is not None:
        texts = _as_text(chosen, is_binary[rows], type_oid, types)
    if policy is ValuePolicy.CLAMP:
        again = clamped(texts, mapping)
        failed = {int(rows[at]) for f in again.failures for at in f.rows}
        # What was too long, or has no text, has nothing near to it.
        failed |= set(rows[texts.is_null().to_numpy(zero_copy_only=False)].tolist())
        if not nullable:
            nulls = again.array.is_null().to_numpy(zero_copy_only=False)
            failed |= set(rows[nulls].tolist())
        keep = [at for at, row in enumerate(rows.tolist()) if row not in failed]
        array = replaced(
            array, rows[keep].tolist(), again.array.take(pa.array(keep, pa.int64()))
        )
        standing += [
            replace(f, rows=f.rows[np.isin(f.rows, list(failed))]) for f in eligible
        ]
        eligible = [
            replace(f, rows=f.rows[~np.isin(f.rows, list(failed))]) for f in eligible
        ]
    changes = [_change(f, policy, values, rows, texts) for f in eligible if len(f.rows)]
    left = sorted((f for f in standing if len(f.rows)), key=lambda f: int(f.rows[0]))
    return Coerced(array, tuple(left), tuple(changes))


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
    """Digits may be lost only where the publisher's type has more of them."""
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
        # Too long, or binary that has no text: its own bytes.
        text = values[first].as_py()
    return CoercedValues(policy, failure.message, failure.rows, example_of(text))


def example_of(text: bytes) -> str:
    """The beginning of a value, whatever its bytes, as valid text."""
    shown = text[: 4 * EXAMPLE_CHARACTERS].decode("utf-8", "backslashreplace")
    shown = shown.replace("\0", "\\x00")
    if len(shown) <= EXAMPLE_CHARACTERS and len(text) <= 4 * EXAMPLE_CHARACTERS:
        return shown
    return shown[:EXAMPLE_CHARACTERS] + "..."
