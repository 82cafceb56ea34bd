"""Replication origins, slots, and single tables of subscriptions, by functions.

Comes in: names, LSNs. Goes out: what is known of an origin; and what changes something, as a
``FunctionRequest`` for ``commands.calls``: it waits for workers and locks, which no query may do
under the engine's lock. A null argument asks for nothing, as with PostgreSQL's strict functions.

Each subscription has an origin, ``pg_`` with its OID, whose position is the floor; others are
created. As in PostgreSQL these functions are for superusers.

What a slot's function answers is not known under the lock either: the query is given up with an
``Asked``, and run again when there is an answer.

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
    """The number of an origin, null if there is none of that name."""
    _check_superuser(call, "pg_replication_origin_oid")
    return call.source.origin_numbers().get(name) if name is not None else None


def pg_replication_origin_progress(
    call: Call, name: str | None, flush: bool | None
) -> int | None:
    """Return an origin's position; null before the first one."""
    _check_superuser(call, "pg_replication_origin_progress")
    if name is None or flush is None:
        return None
    for one in call.source.origins():
        if one.name == name:
            return int(one.remote_lsn) or None
    for subscription in call.source.subscriptions():
        if f"pg_{subscription.oid}" == name:
            return call.source.applied_ends().get(subscription.oid) or None
    raise UndefinedObjectError(f'replication origin "{name}" does not exist')


def pg_replication_origin_advance(call: Call, name: str | None, lsn: object) -> str:
    """Nothing below the position is wanted any more."""
    _check_superuser(call, "pg_replication_origin_advance")
    position = pg_lsn_in(call, lsn)
    if name is not None and position is not None:
        call.requests.append(
            FunctionRequest("pg_replication_origin_advance", (name, position))
        )
    return ""


def origin_function(name: str) -> Callable[..., object]:
    """One that makes an origin, or drops it, or is about that of the session."""

    def ask(call: Call, *arguments: object) -> object:
        _check_superuser(call, name)
        if None in arguments:
            return None
        given = arguments
        if name == "pg_replication_origin_xact_setup":
            lsn, at = arguments
            given = pg_lsn_in(call, lsn), _since_2000(at)
        found = call.ask(FunctionRequest(name, given))
        return "" if found is None and name not in _ORIGIN_VALUES else found

    return ask


_ORIGIN_VALUES: Final = frozenset(
    {"pg_replication_origin_create", "pg_replication_origin_session_progress"}
)
"""Functions whose result is null if an argument is."""


def _since_2000(at: object) -> int:
    """Microseconds. Text is in ISO 8601, in UTC if it does not say."""
    try:
        found = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    except ValueError:
        raise UsageError(
            f'invalid input syntax for type timestamp with time zone: "{at}"',
            sqlstate="22007",
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - _EPOCH) // timedelta(microseconds=1)


def table_function(name: str) -> Callable[..., str]:
    """A function of a table (a name or its OID) and, if need be, of a subscription's name."""

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
"""The engine's types of what functions of slots give."""

_DEFAULTS: Final[Mapping[str, tuple[bool, ...]]] = {
    "pg_create_logical_replication_slot": (False, False, False),
}

_MAY_BE_NULL: Final = "pg_logical_slot_"
"""Begins the names of functions whose limits may be null."""


def rows_of(name: str) -> Callable[..., object]:
    """A function of a slot that gives rows."""

    def ask(call: Call, *arguments: object) -> object:
        _check_replication(call)
        if None in arguments and not name.startswith(_MAY_BE_NULL):
            return [None]
        missing = _DEFAULTS.get(name, ())
        given = [*arguments, *missing[max(0, len(arguments) - 2) :]]
        if name.startswith(_MAY_BE_NULL) or name == "pg_replication_slot_advance":
            given[1] = pg_lsn_in(call, given[1])
        plain = (_plain(one) for one in given)
        return call.ask(FunctionRequest(name, tuple(plain)))

    return ask


def _plain(value: object) -> object:
    """Make a value hashable; a text is truncated as PostgreSQL's type name does."""
    if isinstance(value, str):
        return truncate_identifier(value)
    return tuple(value) if isinstance(value, list) else value


def pg_drop_replication_slot(call: Call, name: str | None) -> str:
    """Nobody needs what it holds any more."""
    _check_replication(call)
    if name is not None:
        call.ask(
            FunctionRequest("pg_drop_replication_slot", (truncate_identifier(name),))
        )
    return ""


def physical_slot_function(name: str) -> Callable[..., object]:
    """A function of physical slots, which a node does not have: there is no physical log."""

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
    """The end of what is published: all that is visible now is below it."""
    return call.ask(FunctionRequest("pg_current_wal_lsn", ()))


def pg_log_standby_snapshot(call: Call) -> object:
    """For whoever waits for a consistent point: here every point is one."""
    return call.ask(FunctionRequest("pg_current_wal_lsn", ()))


def pg_logical_emit_message(
    call: Call,
    transactional: object,
    prefix: str | None,
    content: object,
    flush: object = False,
) -> object:
    """A message for readers of slots; its position. Each call is one of its own, also where
    their arguments are the same."""
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
    """Return the file name on timeline 1, with segments of 16 MiB, as IDENTIFY_SYSTEM and SHOW have
    them."""
    lsn = pg_lsn_in(call, value)
    if lsn is None:
        return None
    # A position between two segments belongs to the first.
    before = max(lsn - 1, 0)
    return f"{1:08X}{before >> 32:08X}{(before & 0xFFFFFFFF) >> 24:08X}"


def pg_export_snapshot(call: Call) -> object:
    """A name for what the transaction sees, for SET TRANSACTION SNAPSHOT of others."""
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
