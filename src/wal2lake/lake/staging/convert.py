"""Converts columns of PostgreSQL's values to the typed columns of a target table.

Comes in: columns by name, as PostgreSQL sent them (``SentColumn``: text, or for some rows the
type's binary form), and the target's fields. Goes out: a typed Arrow table with exactly those
fields, and the values that could not be stored, by row. Called inside Spark's Python workers by
staging and by the initial copy: values that are the same at the publisher must be stored as the
same, in whatever form they were sent.

The target's field decides, not the publisher's column: PostgreSQL's subscriber, too, passes the
text to the input function of its own column. A binary value is read as the publisher's type, since
it has no meaning otherwise, and then stands for its text. The target's type is in the field: its
PostgreSQL type, stored as its Spark type (which a user may have chosen). The table's
``ConversionRules`` decide about values that the field cannot hold.

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
"""Failures kept per column of one call: the first one counts, the others help the operator."""


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SentColumn:
    """One column as the publisher sent it."""

    values: pa.Array
    """Binary, null for NULL."""
    binary: Mask | None = None
    """Rows whose value is in its type's binary form; None if there are none."""
    type_oid: Oid = INVALID_OID
    """The publisher's type; 0: unknown, and all values are text."""
    typmod: int = -1
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in."""

    def text_of(self, row: int) -> bytes:
        """Return one value as text; its own bytes if they have no text form."""
        value = self.values[row : row + 1]
        if self.binary is not None and self.binary[row]:
            texts, _ = sent_to_text(value, int(self.type_oid), self.types)
            if texts[0].is_valid:
                return bytes(texts[0].as_py())
        return bytes(value[0].as_py())

    def texts(self) -> pa.Array:
        """Return all values as text, as ``text_of`` does."""
        if self.binary is None or not self.binary.any():
            return self.values
        sent = pc.if_else(
            pa.array(self.binary), self.values, pa.scalar(None, pa.binary())
        )
        texts, _ = sent_to_text(sent, int(self.type_oid), self.types)
        return pc.coalesce(texts, self.values)

    def filled(self, where: Mask, source: SentColumn) -> SentColumn:
        """Return this column with the values ``where`` of another one of the same type."""
        if not where.any():
            return self
        values = pc.if_else(pa.array(where), source.values, self.values)
        if self.binary is None and source.binary is None:
            return replace(self, values=values)
        nowhere = np.zeros(len(where), np.bool_)
        own_binary = nowhere if self.binary is None else self.binary
        source_binary = nowhere if source.binary is None else source.binary
        binary = np.where(where, source_binary, own_binary)
        return replace(self, values=values, binary=binary)


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that the target column cannot hold."""

    row: int
    """Position in the input."""
    column: str
    sqlstate: str
    message: str
    """PostgreSQL's message, without the value."""
    detail: str | None = None
    """Detail with the row's values."""
    hint: str | None = None
    """Set if the failing value is not one that was sent."""


@dataclass(frozen=True, slots=True)
class ConversionRules:
    """Policies for values that a table's columns cannot hold. Picklable."""

    policies: ValuePolicies = NO_POLICIES
    required: frozenset[str] = frozenset()
    """Columns that must not be null: no policy makes their values NULL."""
    key: frozenset[str] = frozenset()
    """Columns of the primary key: another value would identify another row, so no policy applies
    to them."""
    max_value_bytes: int = MAX_VALUE_BYTES
    follows: bool = False
    """True if the publisher's NOT NULL is followed. Then NULLs that it sends are not checked:
    within a transaction that alters its table the column may be null for a while."""

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
        """Whether a value that the column cannot hold may change its type to text. A key column
        may change, too, because all of its values are then text."""
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
"""Kinds whose conversion by default expects the output of the type's own output function."""

_NUMERIC: Final = 1700

NO_RULES: Final = ConversionRules()


@dataclass(frozen=True, slots=True)
class Converted:
    """One column, typed."""

    array: pa.Array
    bad: tuple[BadValue, ...] = ()
    """The first few bad values, in row order; null in the array."""
    changes: tuple[CoercedValues, ...] = ()
    """Values that a policy replaced."""


@lru_cache(maxsize=10_000)
def mapping_of(field: FieldSpec) -> TypeMapping:
    """Return the mapping from text to values of this field. UsageError if there is none."""
    arrow_type = arrow_from_ddl(field.spark_ddl)
    if field.pg_type_oid == INVALID_OID:
        oid, typmod = result_type(field.spark_ddl)
        return mapping_for(oid, typmod)
    oid, typmod = field.pg_type_oid, field.pg_typmod
    default = mapping_for(oid, typmod, type_name=field.pg_type_name)
    if default.arrow_type == arrow_type:
        return default
    builtin = type_by_oid(oid)
    if builtin is None:
        chosen = {field.pg_type_name or "unknown": field.spark_ddl}
    elif builtin.is_array and pa.types.is_list(arrow_type):
        element = format_type(builtin.element_oid, typmod)
        chosen = {element: ddl_from_arrow(arrow_type.value_type)}
    else:
        chosen = {format_type(oid, typmod): field.spark_ddl}
    return mapping_for(oid, typmod, type_name=field.pg_type_name, overrides=chosen)


def source_type(sent: SentColumn, field: FieldSpec) -> tuple[int, int]:
    """Return (type OID, typmod) at the publisher, below domains.

    The stream has the domain's own OID. Its base type is in the publisher's catalog, which is
    queried in binary format only; for text, the field records it since the table was created.
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
    """Convert one column; a value that cannot be stored is null and reported, unless the policy
    replaces it."""
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
    bad_values = [
        BadValue(int(row), field.name, failure.sqlstate, failure.message)
        for failure in converted.failures
        for row in failure.rows[:FAILURES_KEPT]
    ]
    bad_values.sort(key=lambda bad: bad.row)
    return Converted(
        converted.array, tuple(bad_values[:FAILURES_KEPT]), converted.changes
    )


def decodes_whole_in_binary(
    field: FieldSpec, type_oid: Oid, typmod: int, types: RemoteTypes
) -> bool:
    """Whether values of this publisher's type, sent in binary format, are converted to the field
    without a text of each."""
    sent = SentColumn(pa.nulls(0, pa.binary()), None, type_oid, typmod, types)
    mapping = _for_source(mapping_of(field), field, sent)
    return decodes_whole(int(type_oid), types, mapping)


def _for_source(
    mapping: TypeMapping, field: FieldSpec, sent: SentColumn
) -> TypeMapping:
    """Return the mapping by which values of this publisher's type become values of the field."""
    return _with_input(_with_length(mapping, field, sent), field, sent)


def _with_input(
    mapping: TypeMapping, field: FieldSpec, sent: SentColumn
) -> TypeMapping:
    """Add the type's input function, if values are sent as another type, or as numeric of another
    scale: then the type does not accept every text unchanged."""
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
        source_info = type_by_oid(source)
        if source_info is not None and source_info.element_oid == own.element_oid:
            return mapping
        reads = (int(own.element_oid), field.pg_typmod)
        return replace(mapping, element=replace(element, reads=reads))
    if mapping.kind not in _READ or reads_any(own.oid):
        return mapping
    is_text = mapping.kind is ConversionKind.TEXT
    if is_text and type_by_oid(source) is None and not has_input(own.oid):
        # The publisher's type is unknown here; it may be a domain.
        return mapping
    return replace(mapping, reads=(int(own.oid), field.pg_typmod))


def _with_length(
    mapping: TypeMapping, field: FieldSpec, sent: SentColumn
) -> TypeMapping:
    """Add the length that the field declares, unless the publisher has enforced it."""
    if sent.type_oid == field.pg_type_oid and sent.typmod == field.pg_typmod:
        return mapping
    length = declared_length(field.pg_type_oid, field.pg_typmod)
    if length is None:
        return mapping
    if mapping.element is not None:
        return replace(mapping, element=replace(mapping.element, length=length))
    builtin = type_by_oid(field.pg_type_oid)
    if mapping.kind is not ConversionKind.TEXT or (
        builtin is not None and builtin.is_array
    ):
        # A whole array is kept as text.
        return mapping
    return replace(mapping, length=length)


def not_filled(fill: Fill | None, column: str, row: int | None) -> list[BadValue]:
    """Return the fault of ``row``, the first one that needs a default; nothing if the default
    could be evaluated."""
    if fill is None or fill.error is None or row is None:
        return []
    return [BadValue(row, column, *fill.error)]


def nulls_refused(
    array: pa.Array,
    field: FieldSpec,
    relation: str | None = None,
    rows: Mask | None = None,
) -> tuple[BadValue, ...]:
    """Return the first null (among ``rows``) of a column that must not be null."""
    if array.null_count == 0:
        return ()
    null = array.is_null().to_numpy(zero_copy_only=False)
    if rows is not None:
        null = null & rows
    positions = np.flatnonzero(null)
    if not positions.size:
        return ()
    of_relation = "" if relation is None else f' of relation "{relation}"'
    return (
        BadValue(
            int(positions[0]),
            field.name,
            "23502",
            f'null value in column "{field.name}"{of_relation} '
            "violates not-null constraint",
        ),
    )
