"""Columns of PostgreSQL's values as the typed columns of a target table.

Comes in: columns by name, as PostgreSQL sent them (``SentColumn``: text, or for some rows the
type's binary form), and the target's fields. Goes out: a typed Arrow table with exactly
those fields, and the values that could not be stored, by row. Called inside Spark's Python
workers by staging and by the initial copy: what was the same value at the publisher must be
stored as the same, however it came.

The target's field decides, not the publisher's column: PostgreSQL's subscriber too gives the
text to the input function of its own column. A binary value is read as the publisher's
type, for it says nothing otherwise, and then means its text. What type the target has stands
in the field: its PostgreSQL type, stored as its Spark type (which a user may have chosen).
What becomes of a value that the field cannot hold say the table's ``ConversionRules``.

Source: PostgreSQL worker.c, slot_store_data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.defaults import Fill
from wal2lake.model import INVALID_OID, CheckConstraint, Generated, Oid
from wal2lake.pgtypes import (
    MAX_VALUE_BYTES,
    NO_POLICIES,
    ConversionKind,
    RemoteTypes,
    SourceColumn,
    TypeMapping,
    ValuePolicies,
    ValuePolicy,
    arrow_from_ddl,
    coerce,
    ddl_from_arrow,
    declared_length,
    decodes_whole,
    format_type,
    mapping_for,
    result_type,
    type_by_oid,
)
from wal2lake.pgtypes.choices.coerce import CoercedValues
from wal2lake.pgtypes.decode.inputs import has_input, reads_any
from wal2lake.pgtypes.receive.columns import sent_to_text
from wal2lake.pgtypes.receive.remote import FIRST_NORMAL_OID, base_type

FAILURES_KEPT: Final = 5
"""Per column of one call: the first is what counts, the others help the operator."""


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SentColumn:
    """One column as the publisher sent it."""

    values: pa.Array
    """Binary, null for NULL."""
    binary: Mask | None = None
    """Where the value is in its type's binary form; None: nowhere."""
    type_oid: Oid = INVALID_OID
    """The publisher's type; 0: it is not known, and all is text."""
    typmod: int = -1
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in."""

    def text_of(self, row: int) -> bytes:
        """One value as text; its own bytes where they have none."""
        value = self.values[row : row + 1]
        if self.binary is not None and self.binary[row]:
            texts, _ = sent_to_text(value, int(self.type_oid), self.types)
            if texts[0].is_valid:
                return bytes(texts[0].as_py())
        return bytes(value[0].as_py())

    def filled(self, where: Mask, other: SentColumn) -> SentColumn:
        """This column with the values ``where`` of another one of the same type."""
        if not where.any():
            return self
        values = pc.if_else(pa.array(where), other.values, self.values)
        if self.binary is None and other.binary is None:
            return replace(self, values=values)
        nowhere = np.zeros(len(where), np.bool_)
        mine = nowhere if self.binary is None else self.binary
        theirs = nowhere if other.binary is None else other.binary
        binary = np.where(where, theirs, mine)
        return replace(self, values=values, binary=binary)


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that the target column cannot hold."""

    row: int
    """Position in the input."""
    column: str
    sqlstate: str
    message: str
    """PostgreSQL's, without the value."""
    detail: str | None = None
    """With the row's values."""
    hint: str | None = None
    """Where it is not the value that was sent."""


@dataclass(frozen=True, slots=True)
class ConversionRules:
    """Policies for values that a table's columns cannot hold. Picklable."""

    policies: ValuePolicies = NO_POLICIES
    required: frozenset[str] = frozenset()
    """Columns that must not be null: no policy makes anything so there."""
    key: frozenset[str] = frozenset()
    """Columns of the primary key: another value would be another row, so no policy
    applies to them."""
    max_value_bytes: int = MAX_VALUE_BYTES
    follows: bool = False
    """The publisher's NOT NULL is followed, so what it sends may not be looked at: within a
    transaction that alters its table it may be null for a while."""

    checks: tuple[CheckConstraint, ...] = ()
    """CHECK constraints of the table."""
    generated: Generated = ()
    """The table's generated columns."""

    def policy(
        self, namespace: str, table: str, field: FieldSpec, sent: SentColumn
    ) -> ValuePolicy:
        """Return the policy of one column of a publisher's table."""
        if field.name in self.key:
            return ValuePolicy.ERROR
        return self._policy(namespace, table, field, sent)

    def widens(
        self, namespace: str, table: str, field: FieldSpec, sent: SentColumn
    ) -> bool:
        """Whether a value that the column cannot hold may make it text; a key's column, too, for
        all of its values are text then."""
        return self._policy(namespace, table, field, sent) is ValuePolicy.WIDEN

    def _policy(
        self, namespace: str, table: str, field: FieldSpec, sent: SentColumn
    ) -> ValuePolicy:
        if not self.policies.entries:
            return ValuePolicy.ERROR
        oid, typmod = source_type(sent, field)
        column = SourceColumn(
            namespace,
            table,
            field.name,
            oid,
            typmod,
            field.pg_type_name,
            domain=None if field.pg_domain is None else field.pg_domain.name,
        )
        return self.policies.of(column)

    def nullable(self, field: FieldSpec) -> bool:
        """Whether a policy may make values of the column NULL."""
        return field.nullable and field.name not in self.required

    def takes_null(self, field: FieldSpec, *, sent: bool) -> bool:
        """Whether a row may have NULL in the column; ``sent``: from the publisher."""
        if not field.nullable or field.name in self.key:
            return False
        return field.name not in self.required or (sent and self.follows)


_READ: Final = frozenset(
    (
        ConversionKind.TEXT,
        ConversionKind.DATE,
        ConversionKind.TIMESTAMP,
        ConversionKind.TIMESTAMPTZ,
    )
)
"""Kinds whose conversion expects the output of the type's own function, unless it is told
otherwise."""

_NUMERIC: Final = 1700

NO_RULES: Final = ConversionRules()


@dataclass(frozen=True, slots=True)
class Converted:
    """One column, typed."""

    array: pa.Array
    bad: tuple[BadValue, ...] = ()
    """In row order; the first few. Null in the array."""
    changes: tuple[CoercedValues, ...] = ()
    """Values that a policy replaced."""


@lru_cache(maxsize=10_000)
def mapping_of(field: FieldSpec) -> TypeMapping:
    """How text becomes a value of this field; UsageError if nothing can."""
    wanted = arrow_from_ddl(field.spark_ddl)
    if field.pg_type_oid == INVALID_OID:
        oid, typmod = result_type(field.spark_ddl)
        return mapping_for(oid, typmod)
    oid, typmod = field.pg_type_oid, field.pg_typmod
    default = mapping_for(oid, typmod, type_name=field.pg_type_name)
    if default.arrow_type == wanted:
        return default
    known = type_by_oid(oid)
    if known is None:
        chosen = {field.pg_type_name or "unknown": field.spark_ddl}
    elif known.is_array and pa.types.is_list(wanted):
        element = format_type(known.element_oid, typmod)
        chosen = {element: ddl_from_arrow(wanted.value_type)}
    else:
        chosen = {format_type(oid, typmod): field.spark_ddl}
    return mapping_for(oid, typmod, type_name=field.pg_type_name, overrides=chosen)


def source_type(sent: SentColumn, field: FieldSpec) -> tuple[int, int]:
    """(type OID, typmod) at the publisher, below domains.

    The stream has the domain's own OID. What that is says the publisher's catalog, which is
    asked for it in binary format only; for text, what was noted when the table was made.
    """
    oid, domain = base_type(int(sent.type_oid), sent.types), field.pg_domain
    if domain is None or sent.type_oid < FIRST_NORMAL_OID:
        return oid, sent.typmod
    unknown = oid == sent.type_oid and oid not in sent.types
    if unknown or oid == domain.type_oid:
        return int(domain.type_oid), domain.typmod
    return oid, sent.typmod


def convert_column(
    sent: SentColumn,
    field: FieldSpec,
    mapping: TypeMapping,
    policy: ValuePolicy = ValuePolicy.ERROR,
    rules: ConversionRules = NO_RULES,
) -> Converted:
    """Convert one column; a value that cannot be stored is null, and listed, unless the
    policy has another way."""
    converted = coerce(
        sent.values,
        sent.binary,
        source_type(sent, field)[0],
        sent.types,
        _for_source(mapping, field, sent),
        policy,
        rules.max_value_bytes,
        nullable=rules.nullable(field),
    )
    found = [
        BadValue(int(row), field.name, failure.sqlstate, failure.message)
        for failure in converted.failures
        for row in failure.rows[:FAILURES_KEPT]
    ]
    found.sort(key=lambda bad: bad.row)
    return Converted(converted.array, tuple(found[:FAILURES_KEPT]), converted.changes)


def decodes_whole_in_binary(
    field: FieldSpec, type_oid: Oid, typmod: int, types: RemoteTypes
) -> bool:
    """Whether values of this type of the publisher's go into the field without a text of
    each, if they come in binary format."""
    sent = SentColumn(pa.nulls(0, pa.binary()), None, type_oid, typmod, types)
    mapping = _for_source(mapping_of(field), field, sent)
    return decodes_whole(int(type_oid), types, mapping)


def _for_source(
    mapping: TypeMapping, field: FieldSpec, sent: SentColumn
) -> TypeMapping:
    """Return the mapping that values of this type of the publisher's must pass to be values of the
    field."""
    return _with_input(_with_length(mapping, field, sent), field, sent)


def _with_input(
    mapping: TypeMapping, field: FieldSpec, sent: SentColumn
) -> TypeMapping:
    """A type does not take any text as it is, if it comes as another type's, nor numeric one of
    another scale."""
    source, typmod = source_type(sent, field)
    own = type_by_oid(field.pg_type_oid)
    if own is None or source == INVALID_OID:
        return mapping
    scaled = own.oid == _NUMERIC and field.pg_typmod not in (-1, typmod)
    if source == own.oid and not scaled:
        return mapping
    element = mapping.element
    if element is not None:
        if element.kind not in _READ or reads_any(own.element_oid):
            return mapping
        known = type_by_oid(source)
        if known is not None and known.element_oid == own.element_oid:
            return mapping
        reads = (int(own.element_oid), field.pg_typmod)
        return replace(mapping, element=replace(element, reads=reads))
    if mapping.kind not in _READ or reads_any(own.oid):
        return mapping
    is_text = mapping.kind is ConversionKind.TEXT
    if is_text and type_by_oid(source) is None and not has_input(own.oid):
        # A type of the publisher's that is not known here, a domain perhaps.
        return mapping
    return replace(mapping, reads=(int(own.oid), field.pg_typmod))


def _with_length(
    mapping: TypeMapping, field: FieldSpec, sent: SentColumn
) -> TypeMapping:
    """With the length that the field declares, unless the publisher has seen to it."""
    if sent.type_oid == field.pg_type_oid and sent.typmod == field.pg_typmod:
        return mapping
    length = declared_length(field.pg_type_oid, field.pg_typmod)
    if length is None:
        return mapping
    if mapping.element is not None:
        return replace(mapping, element=replace(mapping.element, length=length))
    known = type_by_oid(field.pg_type_oid)
    if mapping.kind is not ConversionKind.TEXT or (
        known is not None and known.is_array
    ):
        # A whole array that is kept as text.
        return mapping
    return replace(mapping, length=length)


def not_filled(fill: Fill | None, column: str, row: int | None) -> list[BadValue]:
    """Return the fault of ``row``, the first one that needs a default; nothing if the default is
    there."""
    if fill is None or fill.error is None or row is None:
        return []
    return [BadValue(row, column, *fill.error)]


def nulls_refused(
    array: pa.Array,
    field: FieldSpec,
    relation: str | None = None,
    rows: Mask | None = None,
) -> tuple[BadValue, ...]:
    """The first null (among ``rows``) of a column that must not have one."""
    if array.null_count == 0:
        return ()
    null = array.is_null().to_numpy(zero_copy_only=False)
    if rows is not None:
        null = null & rows
    at = np.flatnonzero(null)
    if not at.size:
        return ()
    of_relation = "" if relation is None else f' of relation "{relation}"'
    return (
        BadValue(
            int(at[0]),
            field.name,
            "23502",
            f'null value in column "{field.name}"{of_relation} '
            "violates not-null constraint",
        ),
    )
