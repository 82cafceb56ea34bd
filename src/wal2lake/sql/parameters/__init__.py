"""Keeps session parameters (PostgreSQL's GUCs) and converts clients' character sets.

Takes: SET, SHOW, RESET, startup options. Gives: values, ParameterStatus changes, converted
text. Owns: the values of one session. Never: reads the node's configuration; the node's settings
are passed in as definitions.

    state        the parameters of one session; start here
    definition   the description of a parameter
    table        PostgreSQL's parameters; planner and unused have those without effect
    node         the node's settings as parameters
    values       checks values and prints them
    encodings    character sets
"""

from wal2lake.sql.parameters.definition import (
    ParameterContext,
    ParameterDefinition,
    ParameterKind,
    Unit,
)
from wal2lake.sql.parameters.encodings import (
    canonical_encoding,
    codec_name,
    convert_column,
    decode_text,
    is_utf8,
)
from wal2lake.sql.parameters.state import ParameterMark, Parameters
from wal2lake.sql.parameters.table import (
    AS_OF_LSN,
    AS_OF_TIME,
    PARAMETERS,
    SERVER_VERSION,
    SERVER_VERSION_NUM,
)
from wal2lake.sql.parameters.values import milliseconds, moment, parse_boolean

__all__ = [
    "AS_OF_LSN",
    "AS_OF_TIME",
    "PARAMETERS",
    "SERVER_VERSION",
    "SERVER_VERSION_NUM",
    "ParameterContext",
    "ParameterDefinition",
    "ParameterKind",
    "ParameterMark",
    "Parameters",
    "Unit",
    "canonical_encoding",
    "codec_name",
    "convert_column",
    "decode_text",
    "is_utf8",
    "milliseconds",
    "moment",
    "parse_boolean",
]
