"""Replication origins, and single tables of subscriptions, by functions.

Comes in: names, LSNs. Goes out: what is known of an origin; and what changes something, as a
``Request`` for ``commands.calls``: it waits for workers and locks, which no query may do under
the engine's lock. A null argument asks for nothing, as with PostgreSQL's strict functions.

Each subscription has an origin, ``pg_`` with its OID, whose position is the floor. As in
PostgreSQL these functions are for superusers.

Source: manual, section 9.28.6; origin.c.
"""

from __future__ import annotations

from collections.abc import Callable

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.frontend.sysviews.functions.call import Call, Request
from wal2lake.frontend.sysviews.functions.regproc import pg_lsn_in, regclass_in


def pg_replication_origin_oid(call: Call, name: str | None) -> int | None:
    """The number of an origin, null if there is none of that name."""
    _check_superuser(call, "pg_replication_origin_oid")
    names = [f"pg_{s.oid}" for s in call.source.subscriptions()]
    return names.index(name) + 1 if name in names else None


def pg_replication_origin_progress(
    call: Call, name: str | None, flush: bool | None
) -> int | None:
    """Its position; null before the first one."""
    _check_superuser(call, "pg_replication_origin_progress")
    if name is None or flush is None:
        return None
    for subscription in call.source.subscriptions():
        if f"pg_{subscription.oid}" == name:
            return int(subscription.floor) or None
    raise UndefinedObjectError(f'replication origin "{name}" does not exist')


def pg_replication_origin_advance(call: Call, name: str | None, lsn: object) -> str:
    """Nothing below the position is wanted any more."""
    _check_superuser(call, "pg_replication_origin_advance")
    position = pg_lsn_in(call, lsn)
    if name is not None and position is not None:
        call.requests.append(Request("pg_replication_origin_advance", (name, position)))
    return ""


def table_function(name: str) -> Callable[..., str]:
    """A function of a table (a name or its OID) and, if need be, of a subscription's name."""

    def ask(call: Call, table: object, *subscription: str | None) -> str:
        relid = regclass_in(call, table)
        if relid is not None and None not in subscription:
            call.requests.append(Request(name, (relid, *subscription)))
        return ""

    return ask


def _check_superuser(call: Call, function: str) -> None:
    if not call.facts.authority.is_superuser(call.role):
        raise UsageError(f"permission denied for function {function}", sqlstate="42501")
