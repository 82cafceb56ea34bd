"""Turns errors of the embedded engine into PostgreSQL's words.

Comes in: the engine's exception. Goes out: a Wal2LakeError. An error that PostgreSQL also has gets
PostgreSQL's text and SQLSTATE. Any other error is 0A000 if the engine lacks a feature, else XX000.
The engine's own text goes to the log and never to the client.

Source: PostgreSQL 18's answers to the same queries; its manual, appendix A.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import duckdb
import pyarrow as pa

from wal2lake.errors import (
    FeatureNotSupportedError,
    InternalError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.observe import get_logger

DIVISION_BY_ZERO: Final = "division by zero"

_TYPES: Final = {
    "BOOL": "boolean",
    "BOOLEAN": "boolean",
    "INT8": "smallint",
    "UINT8": "smallint",
    "INT16": "smallint",
    "INT32": "integer",
    "INT64": "bigint",
    "INT128": "bigint",
    "UINT32": "oid",
    "UINT64": "pg_lsn",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "DATE": "date",
    "TIME": "time",
    "INTERVAL": "interval",
    "UUID": "uuid",
}
"""PostgreSQL's names of types, by the engine's names in errors about values."""

_OPERANDS: Final = {
    "BIGINT": "bigint",
    "BLOB": "bytea",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DOUBLE": "double precision",
    "FLOAT": "real",
    "HUGEINT": "numeric",
    "INTEGER": "integer",
    "INTEGER_LITERAL": "integer",
    "INTERVAL": "interval",
    "JSON": "json",
    "SMALLINT": "smallint",
    "STRING_LITERAL": "unknown",
    "TIME": "time without time zone",
    "TIMESTAMP": "timestamp without time zone",
    "TIMESTAMP WITH TIME ZONE": "timestamp with time zone",
    "TIME WITH TIME ZONE": "time with time zone",
    "TINYINT": "smallint",
    "UBIGINT": "bigint",
    "UINTEGER": "oid",
    "USMALLINT": "integer",
    "UUID": "uuid",
    "VARCHAR": "text",
    '"NULL"': "unknown",
}
"""PostgreSQL's names of types, by the engine's names in errors about operands and arguments.
Counters and OIDs are stored as the engine's unsigned types."""

ErrorMaker = Callable[[re.Match[str]], Wal2LakeError]


def _no_column(match: re.Match[str]) -> Wal2LakeError:
    return UndefinedObjectError(f'column "{match[1]}" does not exist', sqlstate="42703")


def _operand(kind: str) -> str:
    """Return PostgreSQL's name of an operand's type."""
    if kind.endswith("[]"):
        return f"{_operand(kind[:-2])}[]"
    if kind.startswith(("STRUCT", "MAP")):
        return "record"
    return "numeric" if kind.startswith("DECIMAL") else _OPERANDS.get(kind, "unknown")


def _shown_call(match: re.Match[str]) -> tuple[str, str]:
    """Return "function" or "operator", and the call as PostgreSQL writes it.

    The engine writes an operator as a call."""
    name = _INTERNAL.sub(r"\1", match[1])
    type_names = _COMMAS.split(match[2]) if match[2] else []
    kinds = [_operand(kind.strip()) for kind in type_names]
    if re.fullmatch(r"\w+", name):
        return "function", f"{name}({', '.join(kinds)})"
    # A prefix operator has one operand.
    sides = kinds if len(kinds) == 2 else ["", *kinds]
    return "operator", f" {name} ".join(sides).strip()


def _no_match(match: re.Match[str]) -> Wal2LakeError:
    kind, shown = _shown_call(match)
    if kind == "function":
        return _absent_function(shown)
    return UndefinedObjectError(
        f"operator does not exist: {shown}",
        sqlstate="42883",
        hint="No operator matches the given name and argument types. You might need to"
        " add explicit type casts.",
    )


def _absent_function(shown: str) -> Wal2LakeError:
    return UndefinedObjectError(
        f"function {shown} does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. You might need to"
        " add explicit type casts.",
    )


def _not_unique(match: re.Match[str]) -> Wal2LakeError:
    kind, shown = _shown_call(match)
    return UsageError(
        f"function {shown} is not unique"
        if kind == "function"
        else f"operator is not unique: {shown}",
        sqlstate="42725",
        hint=f"Could not choose a best candidate {kind}. You might need to add explicit"
        " type casts.",
    )


def _no_cast(match: re.Match[str]) -> Wal2LakeError:
    return UsageError(
        f"cannot cast type {_operand(match[1])} to {_operand(match[2])}",
        sqlstate="42846",
    )


def _bad_input(match: re.Match[str]) -> Wal2LakeError:
    kind = _TYPES.get(match[2], "the type that is asked for")
    state = "22007" if kind in ("date", "time", "interval") else "22P02"
    return UsageError(
        f'invalid input syntax for type {kind}: "{match[1]}"', sqlstate=state
    )


def _bad_moment(match: re.Match[str]) -> Wal2LakeError:
    return UsageError(
        f'invalid input syntax for type {match[1]}: "{match[2]}"', sqlstate="22007"
    )


def _out_of_range(match: re.Match[str]) -> Wal2LakeError:
    kind = _TYPES.get(match[1])
    return UsageError(
        "value out of range" if kind is None else f"{kind} out of range",
        sqlstate="22003",
    )


def _says(text: str, sqlstate: str) -> ErrorMaker:
    return lambda match: UsageError(match.expand(text), sqlstate=sqlstate)


_INTERNAL: Final = re.compile(r"^w_(\w+)_\d+$")
"""The engine's name of a function that the node has given it (``pg_proc.internal_name``)."""

_COMMAS: Final = re.compile(r",(?![^(]*\))")
"""Between types, not inside DECIMAL(2,1)."""

_TEXTS: Final[tuple[tuple[re.Pattern[str], ErrorMaker], ...]] = tuple(
    (re.compile(pattern, re.DOTALL), make_error)
    for pattern, make_error in (
        (rf"{DIVISION_BY_ZERO}$", _says(DIVISION_BY_ZERO, "22012")),
        (r'Referenced column "(.*?)" (?:not found|was not found)', _no_column),
        (r'does not have a column named "(.*?)"', _no_column),
        (
            r'Referenced table "(.*?)" not found',
            _says(r'missing FROM-clause entry for table "\1"', "42P01"),
        ),
        (
            r'Ambiguous reference to column name "(.*?)"',
            _says(r'column reference "\1" is ambiguous', "42702"),
        ),
        (
            r'column "?([^" ]+)"? must appear in the GROUP BY clause',
            _says(
                r'column "\1" must appear in the GROUP BY clause or be used in an'
                " aggregate function",
                "42803",
            ),
        ),
        (
            r"WHERE clause cannot contain aggregates",
            _says("aggregate functions are not allowed in WHERE", "42803"),
        ),
        (
            r"WHERE clause cannot contain window functions",
            _says("window functions are not allowed in WHERE", "42P20"),
        ),
        (
            r"[Mm]ore than one row returned by a subquery",
            _says(
                "more than one row returned by a subquery used as an expression",
                "21000",
            ),
        ),
        (
            r"Set operations can only apply to expressions with the same number",
            _says("each UNION query must have the same number of columns", "42601"),
        ),
        (
            r'Duplicate alias "(.*?)" in query',
            _says(r'table name "\1" specified more than once', "42712"),
        ),
        (
            r'table "(.*?)" has (\d+) columns available but (\d+) columns specified',
            _says(
                r'table "\1" has \2 columns available but \3 columns specified',
                "42P10",
            ),
        ),
        (
            r"No function matches the given name and argument types '(.+?)\((.*)\)'\.",
            _no_match,
        ),
        (
            r"Could not choose a best candidate function for the function call"
            r' "(.+?)\((.*)\)"\.',
            _not_unique,
        ),
        (
            r"UNNEST\(\) can only be applied to lists, structs and NULL, not (.+)$",
            lambda match: _absent_function(f"unnest({_operand(match[1])})"),
        ),
        (
            r"\* expression without FROM",
            _says("SELECT * with no tables specified is not valid", "42601"),
        ),
        (
            r"STAR expression is",
            lambda match: SqlSyntaxError('syntax error at or near "*"'),
        ),
        (
            r"GROUP BY clause cannot contain aggregates",
            _says("aggregate functions are not allowed in GROUP BY", "42803"),
        ),
        (
            r"aggregate function calls cannot be nested",
            _says("aggregate function calls cannot be nested", "42803"),
        ),
        (
            r"ORDER BY non-integer literal",
            _says("non-integer constant in ORDER BY", "42601"),
        ),
        (
            r"LIMIT/OFFSET cannot be negative",
            _says("LIMIT must not be negative", "2201W"),
        ),
        (r"Unimplemented type for cast \((.+) -> (.+)\)", _no_cast),
        (
            r'Column "(.*?)" does not exist on (left|right) side of join',
            _says(
                r'column "\1" specified in USING clause does not exist in \2 table',
                "42703",
            ),
        ),
        (
            r"(ORDER|GROUP BY) term out of range",
            lambda match: UsageError(
                f"{match[1].removesuffix(' BY')} BY position is not in select list",
                sqlstate="42P10",
            ),
        ),
        (r"[Cc]ould not convert string '(.*?)' to (\w+)", _bad_input),
        (r'invalid (date|timestamp|time) field format: "(.*?)"', _bad_moment),
        (r"out of range for the destination type (\w+)", _out_of_range),
        (r"Overflow in \w+ of (\w+)", _out_of_range),
    )
)
"""The engine's texts of errors that PostgreSQL also has."""

_SYNTAX: Final = re.compile(
    r'syntax error at (?:or near ".*?"|end of input)', re.DOTALL
)

_MACRO: Final = re.compile(r"Macro (\w+)\(\) does not support the supplied arguments")

_log = get_logger()


def _as_called(name: str, calls: Mapping[str, Sequence[str]]) -> str:
    written = calls.get(name.lower())
    return written[0] if written else f"{name.lower()}()"


def _as_written(
    match: re.Match[str], calls: Mapping[str, Sequence[str]]
) -> Wal2LakeError | None:
    """The error about a call that the client wrote in another way than the engine has it."""
    written = calls.get(match[1].lower())
    if not written:
        return None
    _, shown = _shown_call(match)
    types = shown.partition("(")[2]
    same = [signature for signature in written if signature.partition("(")[2] == types]
    return _absent_function((same or written)[0])


def _not_converted() -> Wal2LakeError:
    return UsageError(
        "a value cannot be converted to the type that the query asks for",
        sqlstate="22P02",
    )


@contextmanager
def converted() -> Iterator[None]:
    """Translate errors of the conversion of the engine's rows to PostgreSQL's types.

    The first branch of a UNION determines the types, and the engine may have chosen wider ones."""
    try:
        yield
    except pa.ArrowException as error:
        _log.info(
            "a catalog query's rows could not be converted", kind=str(type(error))
        )
        raise _not_converted() from None


def translated_error(
    error: Exception, calls: Mapping[str, Sequence[str]]
) -> Wal2LakeError:
    """Return the error as PostgreSQL would put it. ``calls`` are the signatures of the query's
    calls by the engine's names of functions."""
    text = str(error)
    if isinstance(error, duckdb.InterruptException):
        return UsageError("canceling statement due to user request", sqlstate="57014")
    macro = _MACRO.search(text)
    if macro is not None:
        return _absent_function(_as_called(macro[1], calls))
    if isinstance(error, duckdb.CatalogException) and "unction" in text:
        name = text.split("with name")[-1].split()[0].strip('"')
        return _absent_function(_as_called(name, calls))
    first = text.split("\n")[0]
    for pattern, report in _TEXTS:
        match = pattern.search(first)
        if match is not None:
            as_written = _as_written(match, calls) if report is _no_match else None
            return as_written or report(match)
    if isinstance(error, duckdb.ParserException):
        syntax_error = _SYNTAX.search(first)
        if syntax_error is not None:
            return SqlSyntaxError(syntax_error[0])
    _log.info("a catalog query failed in the embedded engine", engine=first)
    if isinstance(error, duckdb.ConversionException):
        return _not_converted()
    if isinstance(error, duckdb.OutOfRangeException):
        return UsageError("value out of range", sqlstate="22003")
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageError(
            "out of memory",
            sqlstate="53200",
            detail="The query on system catalogs needs more than it may have.",
        )
    if isinstance(error, _LACKING):
        return FeatureNotSupportedError(
            "the query uses what is not supported on system catalogs, or without a table",
            hint="Add explicit type casts, or write it in another way.",
        )
    return InternalError("the query on system catalogs failed")


_LACKING: Final = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.InvalidInputException,
    duckdb.InvalidTypeException,
    duckdb.NotImplementedException,
    duckdb.NotSupportedError,
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.TypeMismatchException,
)
