"""Replication origins, slots, and single tables of subscriptions, by functions.

Comes in: names, LSNs. Goes out: facts about an origin. A call that changes something goes out as a
``FunctionRequest`` for ``commands.calls``, because it waits for workers and locks, and a query must
not wait under the engine's lock. With a null argument nothing is requested, as PostgreSQL's strict
functions do.

Each subscription has an origin ``pg_OID``, whose position is the floor. A function creates other
origins. As in PostgreSQL, only superusers may call the functions of origins.

The answer of a slot's function is not known under the lock either: the query ends with an
``AnswerNeeded``, and runs again when there is an answer.

Source: manual, section 9.28.6; origin.c, slotfuncs.c, logicalfuncs.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.sql.grammar.quoting import truncate_identifier
from wal2lake.sql.sysviews.functions.call import Call, FunctionRequest
from wal2lake.sql.sysviews.functions.regproc import pg_lsn_in, regclass_in

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def pg_replication_origin_oid(call: Call, name: str | None) -> int | None:
    """Return the number of an origin; null if no origin has the name."""
    _check_superuser(call, "pg_replication_origin_oid")
    return call.source.origin_numbers().get(name) if name is not None else None


def pg_replication_origin_progress(
    call: Call, name: str | None, flush: bool | None
) -> int | None:
    """Return an origin's position; null before the first transaction."""
    _check_superuser(call, "pg_replication_origin_progress")
    if name is None or flush is None:
        return None
    for origin in call.source.origins():
        if origin.name == name:
            return int(origin.remote_lsn) or None
    for subscription in call.source.subscriptions():
        if f"pg_{subscription.oid}" == name:
            return call.source.applied_ends().get(subscription.oid) or None
    raise UndefinedObjectError(f'replication origin "{name}" does not exist')


def pg_replication_origin_advance(call: Call, name: str | None, lsn: object) -> str:
    """Request that an origin's position advances: nothing below it will be applied."""
    _check_superuser(call, "pg_replication_origin_advance")
    position = pg_lsn_in(call, lsn)
    if name is not None and position is not None:
        call.requests.append(
            FunctionRequest("pg_replication_origin_advance", (name, position))
        )
    return ""


def origin_function(name: str) -> Callable[..., object]:
    """Return a function that creates or drops an origin, or uses the session's origin."""

    def ask(call: Call, *arguments: object) -> object:
        _check_superuser(call, name)
        if None in arguments:
            return None
        request = arguments
        if name == "pg_replication_origin_xact_setup":
            lsn, timestamp = arguments
            request = pg_lsn_in(call, lsn), _since_2000(timestamp)
        answer = call.ask(FunctionRequest(name, request))
        return "" if answer is None and name not in _ORIGIN_VALUES else answer

    return ask


_ORIGIN_VALUES: Final = frozenset(
    {"pg_replication_origin_create", "pg_replication_origin_session_progress"}
)
"""Functions that do not return void: their result may be null."""


def _since_2000(value: object) -> int:
    """Return microseconds since 2000. Text is in ISO 8601, and in UTC if it has no zone."""
    try:
        moment = (
            value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        )
    except ValueError:
        raise UsageError(
            f'invalid input syntax for type timestamp with time zone: "{value}"',
            sqlstate="22007",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def table_function(name: str) -> Callable[..., str]:
    """Return a function of a table (name or OID) and an optional subscription name."""

    def ask(call: Call, table: object, *subscription: str | None) -> str:
        relid = regclass_in(call, table)
        if relid is not None and None not in subscription:
            call.requests.append(FunctionRequest(name, (relid, *subscription)))
        return ""

    return ask


STRUCTS: Final[Mapping[str, str]] = {
    "pg_create_logical_replication_slot": "STRUCT(slot_name VARCHAR,lsn UBIGINT)[]",
    "pg_copy_logical_replication_slot": "STRUCT(slot_name VARCHAR,lsn UBIGINT)[]",
    "pg_create_physical_replication_slot": "STRUCT(slot_name VARCHAR,lsn UBIGINT)[]",
    "pg_copy_physical_replication_slot": "STRUCT(slot_name VARCHAR,lsn UBIGINT)[]",
    "pg_replication_slot_advance": "STRUCT(slot_name VARCHAR,end_lsn UBIGINT)[]",
    **{
        f"pg_logical_slot_{verb}_changes": f"STRUCT(lsn UBIGINT,xid UINTEGER,data {kind})[]"
        for verb, kind in (
            ("get", "VARCHAR"),
            ("peek", "VARCHAR"),
            ("get_binary", "BLOB"),
            ("peek_binary", "BLOB"),
        )
    },
}
"""The engine's types of the results of slot functions."""

_DEFAULTS: Final[Mapping[str, tuple[bool, ...]]] = {
    "pg_create_logical_replication_slot": (False, False, False),
}

_MAY_BE_NULL: Final = "pg_logical_slot_"
"""Begins the names of functions whose limits may be null."""


def rows_of(name: str) -> Callable[..., object]:
    """Return a function of a slot that returns rows."""

    def ask(call: Call, *arguments: object) -> object:
        _check_replication(call)
        if None in arguments and not name.startswith(_MAY_BE_NULL):
            return [None]
        missing = _DEFAULTS.get(name, ())
        complete = [*arguments, *missing[max(0, len(arguments) - 2) :]]
        if name.startswith(_MAY_BE_NULL) or name == "pg_replication_slot_advance":
            complete[1] = pg_lsn_in(call, complete[1])
        plain = (_plain(argument) for argument in complete)
        return call.ask(FunctionRequest(name, tuple(plain)))

    return ask


def _plain(value: object) -> object:
    """Make a value hashable; a text is truncated as PostgreSQL's type name does."""
    if isinstance(value, str):
        return truncate_identifier(value)
    return tuple(value) if isinstance(value, list) else value


def pg_drop_replication_slot(call: Call, name: str | None) -> str:
    """Drop a slot."""
    _check_replication(call)
    if name is not None:
        call.ask(
            FunctionRequest("pg_drop_replication_slot", (truncate_identifier(name),))
        )
    return ""


def physical_slot_function(name: str) -> Callable[..., object]:
    """Return a function that refuses physical slots: a node has no physical log."""

    def refuse(call: Call, *arguments: object) -> object:
        _check_replication(call)
        raise FeatureNotSupportedError(
            f"{name}() is not supported here: a node has no physical replication slots",
            hint="Use a logical replication slot: pg_create_logical_replication_slot().",
        )

    return refuse


def pg_sync_replication_slots(call: Call) -> object:
    """Raise PostgreSQL's error for a server that is no standby."""
    _check_replication(call)
    raise UsageError(
        "replication slots can only be synchronized to a standby server",
        sqlstate="55000",
    )


def pg_current_wal_lsn(call: Call) -> object:
    """Return the end of the published log; every visible change is below it."""
    return call.ask(FunctionRequest("pg_current_wal_lsn", ()))


def visible_lsn(call: Call, *subscription: str | None) -> object:
    """Return the position of the source below which readers see everything."""
    if None in subscription:
        return None
    return call.ask(FunctionRequest("wal2lake.visible_lsn", subscription))


def pg_log_standby_snapshot(call: Call) -> object:
    """Return the current position: in a node every position is a consistent point."""
    return call.ask(FunctionRequest("pg_current_wal_lsn", ()))


def pg_logical_emit_message(
    call: Call,
    transactional: object,
    prefix: str | None,
    content: object,
    flush: object = False,
) -> object:
    """Emit a message for readers of slots, and return its position.

    Two calls with equal arguments are two messages."""
    if transactional is None or prefix is None or content is None or flush is None:
        return None
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(content, bytes):
        raise UndefinedObjectError(
            "pg_logical_emit_message() takes text or bytea",
            sqlstate="42883",
            hint="You might need to add explicit type casts.",
        )
    call.emitted += 1
    arguments = (call.emitted, transactional, prefix, content)
    return call.ask(FunctionRequest("pg_logical_emit_message", arguments))


def pg_walfile_name(call: Call, value: object) -> str | None:
    """Return the file name on timeline 1 with segments of 16 MiB, which IDENTIFY_SYSTEM and SHOW
    report."""
    lsn = pg_lsn_in(call, value)
    if lsn is None:
        return None
    # A position between two segments belongs to the first.
    before = max(lsn - 1, 0)
    return f"{1:08X}{before >> 32:08X}{(before & 0xFFFFFFFF) >> 24:08X}"


def pg_export_snapshot(call: Call) -> object:
    """Return a name of the transaction's snapshot for SET TRANSACTION SNAPSHOT."""
    return call.ask(FunctionRequest("pg_export_snapshot", ()))


def _check_replication(call: Call) -> None:
    role = next((r for r in call.facts.roles if r.oid == call.role), None)
    if role is None or not (role.superuser or role.replication):
        raise UsageError(
            "permission denied to use replication slots",
            sqlstate="42501",
            detail="Only roles with the REPLICATION attribute may use replication slots.",
        )


def _check_superuser(call: Call, function: str) -> None:
    if not call.facts.authority.is_superuser(call.role):
        raise UsageError(f"permission denied for function {function}", sqlstate="42501")
