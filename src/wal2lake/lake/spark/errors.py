"""Spark's and Delta's exceptions as the node's own errors.

Comes in: whatever a call into the JVM raised. Goes out: a Wal2LakeError with PostgreSQL's
SQLSTATE and, where PostgreSQL has a text for the same condition, PostgreSQL's text; never
a JVM stack trace. Used by every module here that calls Spark.

Why this way. A task's failure arrives wrapped several times (job aborted, task failed,
then the cause), so the chain of causes is walked to the innermost one that carries an
error condition. Spark's SQLSTATEs are the SQL standard's or DB2's; the few that differ
from PostgreSQL's are listed in ``_SQLSTATES``.

Sources: Spark 4.1 error conditions (error-conditions.json); Delta's
delta-error-classes.json; PostgreSQL manual, appendix A.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PythonException

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
from wal2lake.lake.port import CommitConflict

_CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Related in Java; in Python they are siblings."""

QUERY_CANCELED: Final = "57014"

_SHUTDOWN: Final = "57P01"

_GONE: Final[Mapping[str, str]] = {
    "SparkContext was shut down": "Spark is shutting down",
    "stopped SparkContext": "Spark is shutting down",
    "Python worker exited unexpectedly": "a Python worker of Spark is gone",
    "ExecutorLostFailure (": "an executor of Spark is gone",
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND": "an executor of Spark is gone",
    "FetchFailed(": "an executor of Spark is gone",
    "Master removed our application": "Spark's master has ended the application",
}
"""What says that nothing is wrong with the work: the one who did it has ended."""

_SQLSTATES: Final[Mapping[str, str]] = {
    "22018": "22P02",  # a cast of malformed text
    "22007": "22007",
    "22023": "22023",
    "22032": "22030",
    "42K01": "42601",
    "42K03": "42P01",
    "42K09": "42804",
    "42K0D": "42601",
    "42605": "42883",  # wrong number of arguments
    "42704": "42704",
    "42710": "42710",
    "42711": "42701",
    "42712": "42712",
    "42802": "42601",
    "42825": "42804",
    "42826": "42601",
    "42846": "42846",
    "2D521": "40001",
    "KD001": "58P01",
}
"""Spark's to PostgreSQL's, where they differ or matter; others pass if they look alike."""

_BY_CONDITION: Final[Mapping[str, str]] = {
    "AMBIGUOUS_REFERENCE": "42702",
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
"""Where Spark's SQLSTATE is right for another database only."""

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
        f'function "{_bare(p["routineName"])}" does not exist'
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
    "GROUP_BY_AGGREGATE": lambda p: "aggregate functions are not allowed in GROUP BY",
    "GROUP_BY_POS_OUT_OF_RANGE": lambda p: (
        f"GROUP BY position {p['index']} is not in select list"
    ),
    "INCOMPATIBLE_COLUMN_TYPE": lambda p: (
        f"{p['operator']} types {_type_name(p['dataType2'])} and"
        f" {_type_name(p['dataType1'])} cannot be matched"
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
"""PostgreSQL's text from Spark's message parameters, by error condition, or by its main one."""

_NEGATIVE: Final = {"LIMIT": "2201W", "OFFSET": "2201X"}

_TYPE_NAMES: Final[Mapping[str, str]] = {
    "int": "integer",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "timestamp_ntz": "timestamp without time zone",
    "timestamp": "timestamp with time zone",
}
"""PostgreSQL's, where Spark's name of the type is another."""

_OVERFLOWS: Final = frozenset(("long overflow", "integer overflow"))
"""Of Java's exact arithmetic, which Spark leaves as they are where it counts days and microseconds;
of numbers it says ARITHMETIC_OVERFLOW."""

_NOISE = re.compile(r"\s*SQLSTATE: \w{5}.*\Z")


@contextmanager
def translated(context: str | None = None) -> Iterator[None]:
    """Turn what the block raises into a Wal2LakeError; ``context`` is its CONTEXT."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        raise translate(error, context=context) from error


def translate(error: BaseException, *, context: str | None = None) -> Wal2LakeError:
    """Return the error to raise instead of ``error``."""
    if isinstance(error, _CONFLICTS):
        return CommitConflict(
            "could not serialize access due to concurrent update",
            detail=_first_line(str(error)),
            context=context,
        )
    chain = list(_causes(_java_exception(error)))
    if not chain:
        return _without_jvm(error, context)
    cancelled = any("cancelled" in (_message(t) or "").lower() for t in chain)
    if cancelled and any(_condition(t) in _CANCELLED for t in chain):
        return UsageError(
            "canceling statement due to user request",
            sqlstate=QUERY_CANCELED,
            context=context,
        )
    for text, gone in _GONE.items():
        if any(text in (_message(throwable) or "") for throwable in chain):
            return StorageError(gone, sqlstate=_SHUTDOWN, context=context)
    for throwable in chain:
        if "No space left on device" in (_message(throwable) or ""):
            return StorageError("No space left on device", context=context)
    # The innermost cause that has a condition of its own is what went wrong.
    for throwable in reversed(chain):
        condition, state = _condition(throwable), _sqlstate(throwable)
        if condition and state and not state.startswith("XX"):
            return _from_condition(throwable, condition, state, context)
    innermost = chain[-1]
    if _message(innermost) in _OVERFLOWS:
        return UsageError(
            "date/time field value out of range", sqlstate="22008", context=context
        )
    return InternalError(
        f"Spark failed: {_first_line(_message(innermost)) or innermost.toString()}",
        detail=str(innermost.getClass().getName()),
        context=context,
    )


_CANCELLED: Final = frozenset({"SPARK_JOB_CANCELLED", "OPERATION_CANCELED"})


def _from_condition(
    throwable: Any, condition: str, state: str, context: str | None
) -> Wal2LakeError:
    main = condition.partition(".")[0]
    if main == "USER_RAISED_EXCEPTION":
        raised = from_raised(_parameters(throwable).get("errorMessage", ""))
        if raised is not None:
            raised.context = context
            return raised
    if condition == "INVALID_LIMIT_LIKE_EXPRESSION.IS_NEGATIVE":
        word = _parameters(throwable).get("name", "limit").upper()
        return UsageError(
            f"{word} must not be negative",
            sqlstate=_NEGATIVE.get(word, "2201W"),
            context=context,
        )
    message = (_message(throwable) or condition).strip()
    # "[CONDITION] Text. SQLSTATE: xxxxx\n== SQL ==\n..." is for people at a Spark prompt.
    text = _first_line(message.removeprefix(f"[{condition}]"))
    text = _NOISE.sub("", text).rstrip(".")
    write = _PARAMETERS.get(condition) or _PARAMETERS.get(main)
    if write is not None:
        try:
            text = write(_parameters(throwable))
        except KeyError:
            write = None
    sqlstate = _postgres_sqlstate(main, state)
    return _class_of(sqlstate)(
        text or condition,
        sqlstate=sqlstate,
        detail=None if write else f"Spark reports {condition}.",
        context=context,
    )


def _postgres_sqlstate(condition: str, state: str) -> str:
    known = _BY_CONDITION.get(condition)
    if known is not None:
        return known
    known = _SQLSTATES.get(state)
    if known is not None:
        return known
    # DB2's classes that PostgreSQL does not have.
    if state.startswith("42K"):
        return "42000"
    return "58000" if state.startswith("K") else state


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
    return UsageError


def _without_jvm(error: BaseException, context: str | None) -> Wal2LakeError:
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError):
        return StorageError(
            "the Java virtual machine of Spark is gone",
            sqlstate=_SHUTDOWN,
            context=context,
        )
    text = str(error).strip()
    # A Python worker's exception is its whole traceback; the last line is the error.
    line = text.rpartition("\n")[2] if isinstance(error, PythonException) else text
    return InternalError(f"Spark failed: {_first_line(line)}", context=context)


def _java_exception(error: BaseException) -> Any:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None)


def _causes(throwable: Any) -> Iterator[Any]:
    """The throwable and its causes, outermost first; at most 20, as chains can loop."""
    for _ in range(20):
        if throwable is None:
            return
        yield throwable
        try:
            throwable = throwable.getCause()
        except (Py4JError, ConnectionError):
            return


def _gateway() -> Any:
    return SparkContext._gateway


def _is_spark(throwable: Any) -> bool:
    return bool(
        is_instance_of(_gateway(), throwable, "org.apache.spark.SparkThrowable")
    )


def _condition(throwable: Any) -> str | None:
    return throwable.getCondition() if _is_spark(throwable) else None


def _sqlstate(throwable: Any) -> str | None:
    return throwable.getSqlState() if _is_spark(throwable) else None


def _parameters(throwable: Any) -> dict[str, str]:
    return dict(throwable.getMessageParameters())


def _message(throwable: Any) -> str | None:
    text: str | None = throwable.getMessage()
    return text


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].strip()


def _overflow(message: str) -> str:
    for word, name in (("long", "bigint"), ("integer", "integer")):
        if message.lower().startswith(word):
            return f"{name} out of range"
    return "value out of range"


def _ungrouped(what: str) -> str:
    return (
        f"{what} must appear in the GROUP BY clause or be used in an aggregate function"
    )


def _type_name(name: str) -> str:
    bare = _bare(name).lower()
    if bare.startswith("array<"):
        return f"{_type_name(bare[len('array<') : -1])}[]"
    if bare.startswith("decimal"):
        return "numeric"
    return _TYPE_NAMES.get(bare, bare)


def _bare(name: str) -> str:
    """Spark quotes identifiers and types; PostgreSQL's texts bring their own quotes."""
    return name.replace("`", "").strip('"')
