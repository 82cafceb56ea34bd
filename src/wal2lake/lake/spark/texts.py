"""PostgreSQL's SQLSTATEs and texts for the error conditions of Spark and Delta.

Comes in: a condition's name, its SQLSTATE, its message parameters. Goes out: a Wal2LakeError. A
condition that PostgreSQL has, too, gets PostgreSQL's text. Every other one gets the text of its
SQLSTATE's class: neither the engine's message nor the condition's name is part of an error. Called
by ``errors``, which keeps the engine's own message for the log.

Why this way. Spark and Delta have some 1,600 conditions and add more with each version, so the
rule must be total: a condition that is not listed here is covered by its class. Their SQLSTATEs
are the SQL standard's, DB2's or their own. One that PostgreSQL does not have becomes the one that
PostgreSQL uses for the same error, or that of its class.

Sources: error-conditions.json of Spark 4.1; delta-error-classes.json of Delta 4.4; PostgreSQL
manual, appendix A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    InternalError,
    SqlSyntaxError,
    StorageError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
    from_raised,
)

LOG_HINT: Final = "The server log has the details."
"""HINT of every error whose cause is only in the engine's own message."""

_SHARED: Final = frozenset((
    "08003", "0A000", "0B000", "21000", "22000", "22001", "22002", "22003", "22004", "22005",
    "22007", "22008", "22012", "2201B", "22023", "22032", "22P02", "22P03", "23502", "23505",
    "23514", "25000", "2BP01", "38000", "39000", "3F000", "40000", "40001", "42000", "42601",
    "42602", "42611", "42701", "42702", "42703", "42704", "42710", "42712", "42723", "42803",
    "42804", "42809", "42846", "42883", "42939", "42P01", "42P02", "42P06", "42P07", "42P10",
    "42P16", "42P18", "42P20", "42P21", "42P22", "44000", "53200", "54000", "54001", "54011",
    "54023", "55000", "57014", "58000", "58030", "58P01", "F0000",
))  # fmt: skip
"""SQLSTATEs that mean the same in PostgreSQL."""

_SQLSTATES: Final[Mapping[str, str]] = {
    "07001": "42601",
    "07501": "0A000",
    "21506": "21000",  # MERGE: several source rows for one row
    "21S01": "42601",  # another number of columns than values
    "22006": "22007",  # an interval's text
    "22009": "22023",  # a time zone's name
    "22010": "22007",
    "22015": "22008",  # interval overflow
    "22018": "22P02",  # a cast of malformed text
    "2201E": "22000",
    "22022": "22023",
    "22024": "22004",
    "22029": "22021",
    "2200E": "22004",
    "2203G": "22023",
    "23001": "23514",
    "23512": "23514",
    "23K01": "21000",
    "2D521": "40001",
    "42001": "42804",
    "42605": "42883",  # wrong number of arguments
    "42607": "42803",
    "42711": "42701",
    "42713": "42710",
    "42734": "42710",
    "42802": "42601",
    "42805": "42P10",
    "42806": "42804",
    "42818": "42883",
    "42822": "42883",  # no ordering operator
    "42823": "42601",
    "42825": "42804",
    "42826": "42601",
    "42836": "42P19",
    "42887": "42809",
    "42903": "42803",
    "42604": "42601",
    "42613": "42601",
    "42614": "42601",
    "42617": "42601",
    "42K01": "42601",
    "42K03": "42P01",
    "42K04": "42P07",
    "42K05": "42602",
    "42K09": "42804",
    "42K0D": "42601",
    "42P08": "3F000",
    "42S22": "42703",
    "51024": "55000",
    "54006": "54000",
    "54K00": "54001",
    "82001": "53200",
    "82002": "53200",
    "82003": "53200",
    "HV091": "42703",
    "HY008": "57014",
    "KD001": "58P01",
}
"""PostgreSQL's SQLSTATE by Spark's or Delta's, where PostgreSQL has another one, or the same one
with another meaning."""

_CLASSES: Final[Mapping[str, str]] = {
    "0A": "0A000",
    "22": "22000",
    "25": "25000",
    "2D": "58000",
    "42": "42000",
    "54": "54000",
    "55": "55000",
    "56": "0A000",
    "KD": "58000",
}
"""SQLSTATEs for all others of a class. SQLSTATEs of other classes become XX000."""

_GENERAL: Final[Mapping[str, str]] = {
    "0A000": "the query uses what is not supported on lake tables",
    "21000": "cardinality violation",
    "22000": "a value of the query is not valid",
    "22003": "value out of range",
    "22004": "null value not allowed",
    "22007": "invalid input syntax for a date, a time or an interval",
    "22008": "date/time field value out of range",
    "22012": "division by zero",
    "2201B": "invalid regular expression",
    "22021": 'invalid byte sequence for encoding "UTF8"',
    "22023": "invalid parameter value",
    "22P02": "invalid input syntax for the requested type",
    "23514": "a row violates check constraint",
    "40001": "could not serialize access due to concurrent update",
    "42601": "syntax error",
    "42701": "column specified more than once",
    "42702": "column reference is ambiguous",
    "42703": "column does not exist",
    "42710": "object already exists",
    "42803": "grouping error",
    "42804": "types of the query's expressions do not match",
    "42846": "cannot cast a value to the requested type",
    "42883": "function or operator does not exist for these argument types",
    "42P01": "relation does not exist",
    "42P07": "relation already exists",
    "42P19": "invalid recursive query",
    "42P20": "windowing error",
    "53200": "out of memory",
    "54001": "statement too complex",
    "57014": "canceling statement due to user request",
}
_GENERAL_OF_CLASS: Final[Mapping[str, str]] = {
    "22": "a value of the query is not valid",
    "23": "a row violates a constraint",
    "38": "a function of the query failed",
    "39": "a function of the query failed",
    "42": "the query is not valid on lake tables",
    "54": "program limit exceeded",
    "58": "could not read or write lake tables",
}
FAILED: Final = "could not execute query"
"""The text if the cause is unknown."""

_BY_CONDITION: Final[Mapping[str, str]] = {
    "AMBIGUOUS_REFERENCE": "42702",
    "DUPLICATED_MAP_KEY": "22000",
    "DELTA_MISSING_DELTA_TABLE": "42P01",
    "DELTA_ONLY_OPERATION": "42P01",
    "DELTA_PATH_DOES_NOT_EXIST": "42P01",
    "DELTA_TABLE_ALREADY_EXISTS": "42P07",
    "DELTA_TABLE_NOT_FOUND": "42P01",
    "GROUP_BY_AGGREGATE": "42803",
    "GROUP_BY_POS_OUT_OF_RANGE": "42P10",
    "INVALID_SUBQUERY_EXPRESSION": "42601",
    "INVALID_WHERE_CONDITION": "42803",
    "NESTED_AGGREGATE_FUNCTION": "42803",
    "ORDER_BY_POS_OUT_OF_RANGE": "42P10",
    "TABLE_OR_VIEW_ALREADY_EXISTS": "42P07",
    "UNRESOLVED_ROUTINE": "42883",
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": "42809",
}
"""SQLSTATEs of conditions for which Spark's SQLSTATE is right for another database only."""

_QUALIFIED: Final[Mapping[str, str]] = {
    "DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES": "42883",
    "DATATYPE_MISMATCH.BINARY_OP_WRONG_TYPE": "42883",
    "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE": "42883",
    "DATATYPE_MISMATCH.WRONG_NUM_ARGS": "42883",
    "INVALID_FORMAT.MISMATCH_INPUT": "22P02",
    "INVALID_LIMIT_LIKE_EXPRESSION.DATA_TYPE": "42804",
    "INVALID_LIMIT_LIKE_EXPRESSION.IS_UNFOLDABLE": "42P10",
}
"""SQLSTATEs by the full name of a condition."""

_PARAMETERS: Final[Mapping[str, Callable[[Mapping[str, str]], str]]] = {
    "DIVIDE_BY_ZERO": lambda p: "division by zero",
    "REMAINDER_BY_ZERO": lambda p: "division by zero",
    "TABLE_OR_VIEW_NOT_FOUND": lambda p: (
        f'relation "{_bare(p["relationName"])}" does not exist'
    ),
    "UNRESOLVED_COLUMN": lambda p: f'column "{_bare(p["objectName"])}" does not exist',
    "AMBIGUOUS_REFERENCE": lambda p: (
        f'column reference "{_bare(p["name"])}" is ambiguous'
    ),
    "UNRESOLVED_ROUTINE": lambda p: (
        f'function "{_bare(p["routineName"]).lower()}" does not exist'
    ),
    "CAST_INVALID_INPUT": lambda p: (
        f"invalid input syntax for type {_type_name(p['targetType'])}:"
        f' "{p["expression"].strip(chr(39))}"'
    ),
    "CAST_OVERFLOW": lambda p: f"{_type_name(p['targetType'])} out of range",
    "NUMERIC_VALUE_OUT_OF_RANGE": lambda p: "numeric field overflow",
    "ARITHMETIC_OVERFLOW": lambda p: _overflow(p["message"]),
    "BINARY_ARITHMETIC_OVERFLOW": lambda p: "smallint out of range",
    "SCALAR_SUBQUERY_TOO_MANY_ROWS": lambda p: (
        "more than one row returned by a subquery used as an expression"
    ),
    "DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN": lambda p: (
        f"argument of WHERE must be type boolean, not type {_type_name(p['type'])}"
    ),
    "PARSE_EMPTY_STATEMENT": lambda p: "syntax error at end of input",
    "PARSE_SYNTAX_ERROR": lambda p: _near(p["error"]),
    "GROUP_BY_AGGREGATE": lambda p: "aggregate functions are not allowed in GROUP BY",
    "GROUP_BY_POS_OUT_OF_RANGE": lambda p: (
        f"GROUP BY position {p['index']} is not in select list"
    ),
    "INCOMPATIBLE_COLUMN_TYPE": lambda p: (
        f"{p['operator']} types {_type_name(p['dataType2'])} and"
        f" {_type_name(p['dataType1'])} cannot be matched"
    ),
    "INVALID_LIMIT_LIKE_EXPRESSION.DATA_TYPE": lambda p: (
        f"argument of {p['name'].upper()} must be type bigint, not type"
        f" {_type_name(p['dataType'])}"
    ),
    "INVALID_LIMIT_LIKE_EXPRESSION.IS_UNFOLDABLE": lambda p: (
        f"argument of {p['name'].upper()} must not contain variables"
    ),
    "INVALID_SUBQUERY_EXPRESSION.SCALAR_SUBQUERY_RETURN_MORE_THAN_ONE_OUTPUT_COLUMN": (
        lambda p: "subquery must return only one column"
    ),
    "INVALID_WHERE_CONDITION": lambda p: "aggregate functions are not allowed in WHERE",
    "MISSING_AGGREGATION": lambda p: _ungrouped(f'column "{_bare(p["expression"])}"'),
    "MISSING_GROUP_BY": lambda p: _ungrouped("a column that is selected"),
    "NESTED_AGGREGATE_FUNCTION": lambda p: "aggregate function calls cannot be nested",
    "NUM_COLUMNS_MISMATCH": lambda p: (
        f"each {p['operator']} query must have the same number of columns"
    ),
    "ORDER_BY_POS_OUT_OF_RANGE": lambda p: (
        f"ORDER BY position {p['index']} is not in select list"
    ),
    "UNRESOLVED_USING_COLUMN_FOR_JOIN": lambda p: (
        f'column "{_bare(p["colName"])}" specified in USING clause does not exist in'
        f" {p['side']} table"
    ),
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": lambda p: (
        f"window function {_bare(p['funcName']).partition('(')[0]} requires an OVER clause"
    ),
    "WRONG_NUM_ARGS": lambda p: (
        f"function {_bare(p['functionName'])} does not exist with {p['actualNum']}"
        " arguments"
    ),
}
"""Function from Spark's message parameters to PostgreSQL's text, by the name of an error
condition, or by its main part."""

_NEGATIVE: Final = {"LIMIT": "2201W", "OFFSET": "2201X"}

_TYPE_NAMES: Final[Mapping[str, str]] = {
    "int": "integer",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "timestamp_ntz": "timestamp without time zone",
    "timestamp": "timestamp with time zone",
    "tinyint": "smallint",
    "void": "unknown",
}
"""PostgreSQL's names of types, where Spark's differ."""

_TYPE_STARTS: Final[Mapping[str, str]] = {
    "decimal": "numeric",
    "interval": "interval",
    "map<": "record",
    "struct<": "record",
    "time(": "time without time zone",
    "varchar": "character varying",
    "char": "character",
    "variant": "jsonb",
}
"""PostgreSQL's names of types by the beginning of Spark's name."""


def from_condition(
    condition: str, state: str | None, parameters: Mapping[str, str]
) -> tuple[Wal2LakeError, bool]:
    """Return the error for a condition of an engine, and whether PostgreSQL has that error. If
    not, the log must have the engine's own message. ``state``: the engine's SQLSTATE, if it has
    one."""
    main = condition.partition(".")[0]
    if main == "USER_RAISED_EXCEPTION":
        raised = from_raised(parameters.get("errorMessage", ""))
        if raised is not None:
            return raised, True
    if condition == "INVALID_LIMIT_LIKE_EXPRESSION.IS_NEGATIVE":
        word = parameters.get("name", "limit").upper()
        error = UsageError(
            f"{word} must not be negative", sqlstate=_NEGATIVE.get(word, "2201W")
        )
        return error, True
    sqlstate = _postgres_sqlstate(condition, main, state)
    kind = _class_of(sqlstate)
    write = _PARAMETERS.get(condition) or _PARAMETERS.get(main)
    if write is not None:
        try:
            return kind(write(parameters), sqlstate=sqlstate), True
        except KeyError:
            pass
    return kind(_general(sqlstate), sqlstate=sqlstate, hint=LOG_HINT), False


def _postgres_sqlstate(condition: str, main: str, state: str | None) -> str:
    listed = _QUALIFIED.get(condition) or _BY_CONDITION.get(main)
    if listed is not None:
        return listed
    if state is None:
        return "XX000"
    if state in _SHARED:
        return state
    return _SQLSTATES.get(state) or _CLASSES.get(state[:2], "XX000")


def _general(sqlstate: str) -> str:
    text = _GENERAL.get(sqlstate) or _GENERAL_OF_CLASS.get(sqlstate[:2])
    return FAILED if text is None else text


def _class_of(sqlstate: str) -> type[Wal2LakeError]:
    if sqlstate == "42601":
        return SqlSyntaxError
    if sqlstate in ("42P01", "42703", "42704", "42883", "3F000", "3D000"):
        return UndefinedObjectError
    if sqlstate in ("42P07", "42710", "42P06"):
        return DuplicateObjectError
    if sqlstate.startswith("0A"):
        return FeatureNotSupportedError
    if sqlstate.startswith(("53", "58")):
        return StorageError
    return InternalError if sqlstate == "XX000" else UsageError


def _overflow(message: str) -> str:
    for word, name in (("long", "bigint"), ("integer", "integer")):
        if message.lower().startswith(word):
            return f"{name} out of range"
    return "value out of range"


def _ungrouped(item: str) -> str:
    return (
        f"{item} must appear in the GROUP BY clause or be used in an aggregate function"
    )


def _near(token: str) -> str:
    """Format a syntax error. Spark quotes the token, and also the words "end of input"."""
    text = token[1:-1] if token.startswith("'") and token.endswith("'") else token
    if text == "end of input":
        return "syntax error at end of input"
    return f'syntax error at or near "{text}"'


def _type_name(name: str) -> str:
    bare = _bare(name).lower()
    if bare.startswith("array<"):
        return f"{_type_name(bare[len('array<') : -1])}[]"
    for start, name in _TYPE_STARTS.items():
        if bare.startswith(start):
            return name
    return _TYPE_NAMES.get(bare, bare)


def _bare(name: str) -> str:
    """Remove Spark's quotes of identifiers and types; PostgreSQL's texts have quotes of their
    own."""
    return name.replace("`", "").strip('"')
