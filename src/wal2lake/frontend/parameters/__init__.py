"""Session parameters (PostgreSQL's GUCs) and the clients' character sets.

Takes: SET, SHOW, RESET, startup options. Gives: values, ParameterStatus changes, converted
text. Owns: one session's values. Never: reads the node's configuration by itself; a node's
own settings are handed in as definitions.
"""

from wal2lake.frontend.parameters.definition import (
    Context,
    Kind,
    ParameterDefinition,
    Unit,
)
from wal2lake.frontend.parameters.encodings import (
    canonical_encoding,
    codec_name,
    convert_column,
    decode_text,
    is_utf8,
)
from wal2lake.frontend.parameters.state import ParameterMark, Parameters
from wal2lake.frontend.parameters.table import (
    AS_OF_LSN,
    AS_OF_TIME,
    PARAMETERS,
    SERVER_VERSION,
    SERVER_VERSION_NUM,
)
from wal2lake.frontend.parameters.values import moment, parse_boolean, time_zone

__all__ = [
    "AS_OF_LSN",
    "AS_OF_TIME",
    "PARAMETERS",
    "SERVER_VERSION",
    "SERVER_VERSION_NUM",
    "Context",
    "Kind",
    "ParameterDefinition",
    "ParameterMark",
    "Parameters",
    "Unit",
    "canonical_encoding",
    "codec_name",
    "convert_column",
    "decode_text",
    "is_utf8",
    "moment",
    "parse_boolean",
    "time_zone",
]
