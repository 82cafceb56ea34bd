"""Translates Spark's and Delta's exceptions to the node's own errors.

Comes in: an exception raised by a call into the JVM. Goes out: a Wal2LakeError with PostgreSQL's
SQLSTATE and PostgreSQL's text, or that of the SQLSTATE's class; never words of Spark, Delta, Java
or Python. Used by every module here that calls Spark.

Why this way. A task's failure arrives wrapped several times (job aborted, task failed, then the
cause). So the chain of causes is walked to the innermost one that has an error condition, and
``texts`` gives PostgreSQL's text. An engine's message for which PostgreSQL has no text becomes the
error's ``original``, which is logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from pyspark.errors import PySparkException

from wal2lake.errors import (
    InternalError,
    StorageError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.lake.port import CommitConflict
from wal2lake.lake.spark.texts import FAILED, LOG_HINT, from_condition

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
"""Related classes in Java; in Python they are siblings."""

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
"""Messages that mean that Spark has ended, and that the work itself is in order."""

_OVERFLOWS: Final = frozenset(("long overflow", "integer overflow"))
"""Messages of Java's exact arithmetic, which Spark passes on when it counts days and microseconds;
for numbers Spark reports ARITHMETIC_OVERFLOW."""


@contextmanager
def translated(context: str | None = None) -> Iterator[None]:
    """Turn exceptions of the block into a Wal2LakeError; ``context`` is its CONTEXT."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        raise translate(error, context=context) from error


def translate(error: BaseException, *, context: str | None = None) -> Wal2LakeError:
    """Return the error to raise instead of ``error``."""
    if isinstance(error, _CONFLICTS):
        return CommitConflict(
            "could not serialize access due to concurrent update", context=context
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
    # The innermost cause with a condition of its own is the actual error.
    for throwable in reversed(chain):
        condition, state = _condition(throwable), _sqlstate(throwable)
        if condition and state and not state.startswith("XX"):
            result, is_known = from_condition(condition, state, _parameters(throwable))
            result.context = context
            if not is_known:
                result.original = _engine_message(condition, result, throwable)
            return result
    innermost = chain[-1]
    if _message(innermost) in _OVERFLOWS:
        return UsageError(
            "date/time field value out of range", sqlstate="22008", context=context
        )
    return _internal_error(innermost.toString(), context)


_CANCELLED: Final = frozenset({"SPARK_JOB_CANCELLED", "OPERATION_CANCELED"})


def _without_jvm(error: BaseException, context: str | None) -> Wal2LakeError:
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError):
        return StorageError(
            "the Java virtual machine of Spark is gone",
            sqlstate=_SHUTDOWN,
            context=context,
        )
    return _internal_error(str(error), context)


def _internal_error(words: str, context: str | None) -> InternalError:
    # The message of a Python worker's exception is a traceback; its last line is the error.
    is_trace = "Traceback (most recent call last)" in words
    line = words.strip().rpartition("\n")[2] if is_trace else _first_line(words)
    return InternalError(FAILED, hint=LOG_HINT, context=context, original=line)


def _engine_message(condition: str, error: Wal2LakeError, throwable: Any) -> str:
    """Return the engine's message; if it is about a value, only the condition's name, because no
    row's value is logged."""
    if error.sqlstate.startswith(("22", "23")):
        return condition
    line = _first_line(_message(throwable))
    return line if condition in line else f"{condition}: {line}"


def _java_exception(error: BaseException) -> Any:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None)


def _causes(throwable: Any) -> Iterator[Any]:
    """Yield the throwable and its causes, outermost first; at most 20, because chains can loop."""
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
