"""PostgreSQL's types, and their values in PostgreSQL's, Arrow's and Spark's form.

Takes: values as PostgreSQL sends them (Arrow binary), typed Arrow columns, type names and
OIDs. Gives: typed Arrow and located failures; text and binary as PostgreSQL would write
them; the facts of pg_type; the Spark type of a column. Owns: the registry of
built-in types and the table of mappings. Never: does I/O, imports Spark (its types are
names), changes a value silently.

    registry/   facts about the built-in types, format_type, the spellings of types
    moments     dates and timestamps of all years as the stored numbers
    mapping     the Spark type of each PostgreSQL type; spark_ddl has Spark's names
    decode/     the publisher's text to Arrow: the hot path
    receive/    the binary form of the same values, to the same Arrow
    encode/     Arrow to the text and binary form that PostgreSQL would send
    choices/    options of users: type_mappings, value_policies, conflict_resolution
    params      values of a client's statement parameters
    keywords    keywords, and which names need quotes
    binary      the binary form of single values; timezone: the values of TimeZone
"""

from wal2lake.pgtypes.choices.coerce import MAX_VALUE_BYTES, Coerced, coerce
from wal2lake.pgtypes.choices.entries import SourceColumn
from wal2lake.pgtypes.choices.policies import (
    NO_POLICIES,
    VALUE_POLICIES,
    ValuePolicies,
    ValuePolicy,
)
from wal2lake.pgtypes.choices.remedies import (
    CHECKED_HERE,
    COMPUTED_HERE,
    COPIED_ANEW,
    computed_here,
    remedy,
)
from wal2lake.pgtypes.choices.resolutions import (
    COMMIT_FACTS,
    CONFLICT_CHOICES,
    CONFLICT_RESOLUTION,
    DEFAULT_RESOLUTIONS,
    ConflictExpression,
    ConflictResolutions,
    Resolutions,
    check_tracked,
)
from wal2lake.pgtypes.choices.types import TYPE_MAPPINGS, TypeMappings
from wal2lake.pgtypes.decode.conversion import Conversion, ConversionFailure
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.encode.binary import arrow_to_binary
from wal2lake.pgtypes.encode.sent import text_to_binary
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.mapping import (
    ConversionKind,
    TypeMapping,
    mapping_for,
    result_type,
)
from wal2lake.pgtypes.params import binary_param_to_text, text_param_to_python
from wal2lake.pgtypes.receive.columns import convert_sent, decodes_whole
from wal2lake.pgtypes.receive.remote import (
    FIRST_NORMAL_OID,
    NoDecoder,
    RemoteType,
    RemoteTypes,
    check_decoder,
    money_type,
    remote_types_from_json,
    remote_types_to_json,
    sent_as_text,
)
from wal2lake.pgtypes.receive.value.money import MONEY_SAMPLES
from wal2lake.pgtypes.registry.lengths import declared_length
from wal2lake.pgtypes.registry.pg_type import (
    BUILT_IN,
    PgType,
    format_type,
    multirange_range,
    numeric_precision_scale,
    numeric_typmod,
    range_subtype,
    type_by_name,
    type_by_oid,
)
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.pgtypes.spark_ddl import arrow_from_ddl, ddl_from_arrow
from wal2lake.pgtypes.timezone import zone_for

__all__ = [
    "BUILT_IN",
    "CHECKED_HERE",
    "COMMIT_FACTS",
    "COMPUTED_HERE",
    "CONFLICT_CHOICES",
    "CONFLICT_RESOLUTION",
    "COPIED_ANEW",
    "DEFAULT_RESOLUTIONS",
    "FIRST_NORMAL_OID",
    "MAX_VALUE_BYTES",
    "MONEY_SAMPLES",
    "NO_POLICIES",
    "TYPE_MAPPINGS",
    "VALUE_POLICIES",
    "Coerced",
    "ConflictExpression",
    "ConflictResolutions",
    "Conversion",
    "ConversionFailure",
    "ConversionKind",
    "NoDecoder",
    "PgType",
    "RemoteType",
    "RemoteTypes",
    "Resolutions",
    "SourceColumn",
    "TypeMapping",
    "TypeMappings",
    "ValuePolicies",
    "ValuePolicy",
    "arrow_from_ddl",
    "arrow_to_binary",
    "arrow_to_text",
    "binary_param_to_text",
    "check_decoder",
    "check_tracked",
    "coerce",
    "computed_here",
    "convert_sent",
    "ddl_from_arrow",
    "declared_length",
    "decodes_whole",
    "format_type",
    "mapping_for",
    "money_type",
    "multirange_range",
    "numeric_precision_scale",
    "numeric_typmod",
    "parse_type_name",
    "range_subtype",
    "remedy",
    "remote_types_from_json",
    "remote_types_to_json",
    "result_type",
    "sent_as_text",
    "text_param_to_python",
    "text_to_arrow",
    "text_to_binary",
    "type_by_name",
    "type_by_oid",
    "zone_for",
]
