"""Functions about the running session: parameters, search path, version, sequence values; and
functions that reset statistics, signal sessions or reload the settings.

Comes in: parameter names. Goes out: their values. ``set_config`` changes a parameter,
``pg_stat_reset_subscription_stats`` sets counts in the catalog to zero, and ``pg_reload_conf``
makes all processes read the settings again.

Source: manual, sections 9.17, 9.27.1, 9.28.1 and 9.28.2; sequence.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wal2lake import __version__
from wal2lake.errors import UsageError
from wal2lake.model import Oid
from wal2lake.publish.statistics import no_such_slot
from wal2lake.sql.parameters import SERVER_VERSION
from wal2lake.sql.sysviews.functions.call import Call, FunctionRequest
from wal2lake.sql.sysviews.functions.regproc import regclass_in

VERSION: Final = f"PostgreSQL {SERVER_VERSION} (wal2lake {__version__})"


def current_setting(
    call: Call, name: str | None, missing_ok: bool | None = False
) -> str | None:
    """SHOW as a function."""
    if name is None:
        return None
    if missing_ok and name not in call.context.parameters:
        return None
    return call.context.parameters[name]


def set_config(
    call: Call, name: str | None, value: str | None, is_local: bool | None
) -> str | None:
    """SET as a function; a null value resets."""
    if name is None:
        raise UsageError("SET requires parameter name", sqlstate="22004")
    if value is None:
        call.context.parameters.reset(name, local=bool(is_local))
    else:
        call.context.parameters.set(name, value, local=bool(is_local))
    return call.context.parameters[name]


_KINDS: Final = {
    "r": "tables",
    "p": "partitioned tables",
    "v": "views",
    "i": "indexes",
    "I": "partitioned indexes",
}
"""errdetail_relkind_not_supported()."""


def sequence_function(name: str) -> Callable[..., object]:
    """Return nextval, currval, setval or lastval.

    Two calls with equal arguments are two requests."""

    def ask(call: Call, *arguments: object) -> object:
        if None in arguments:
            return None
        call.emitted += 1
        resolved = list(arguments)
        if resolved:
            resolved[0] = _sequence(call, resolved[0])
        return call.ask(FunctionRequest(name, (call.emitted, *resolved)))

    return ask


def _sequence(call: Call, target: object) -> int | None:
    """Return the OID of a sequence.

    Raises 42809 for another kind of object, and 42501 unless the current role owns the sequence."""
    oid = regclass_in(call, target)
    relation = call.facts.by_oid.get(oid or 0)
    if relation is None:
        raise UsageError(f"could not open relation with OID {oid}")
    if relation.kind != "S":
        raise UsageError(
            f'cannot open relation "{relation.name}"',
            sqlstate="42809",
            detail=f"This operation is not supported for {_KINDS[relation.kind]}.",
        )
    if not call.facts.authority.owns(call.role, relation.owner):
        raise UsageError(
            f"permission denied for sequence {relation.name}", sqlstate="42501"
        )
    return oid


_PG_SIGNAL_BACKEND: Final = Oid(4200)


def current_schema(call: Call) -> str | None:
    """Return the first schema of the search path."""
    return next(iter(call.search_path(implicit=False)), None)


def current_schemas(call: Call, implicit: bool | None) -> list[str] | None:
    """Return the schemas of the search path."""
    return None if implicit is None else call.search_path(implicit=implicit)


def pg_stat_reset_subscription_stats(call: Call, subid: int | None) -> str:
    """Set the error counts of a subscription to zero; null: of all subscriptions."""
    _check_superuser(call, "pg_stat_reset_subscription_stats")
    if subid == 0:
        raise UsageError("invalid subscription OID 0")
    call.source.reset_stats(None if subid is None else Oid(subid))
    return ""


def pg_stat_reset_replication_slot(call: Call, name: str | None) -> str:
    """Set the decoding statistics of a slot to zero; null: of all slots."""
    _check_superuser(call, "pg_stat_reset_replication_slot")
    names = [use.slot.name for use, _ in call.source.slots()]
    if name is not None and name not in names:
        raise no_such_slot(name)
    for slot_name in names if name is None else (name,):
        call.source.slot_statistics.reset(slot_name)
    return ""


def pg_cancel_backend(call: Call, pid: int | None) -> bool | None:
    """Cancel a session's query as a CancelRequest does; false: there is no such session."""
    _check_signal(
        call,
        pid,
        "permission denied to cancel query",
        "whose query is being canceled",
        "cancel queries",
        "cancel this query",
    )
    return None if pid is None else call.source.signal(pid, terminate=False)


def pg_terminate_backend(
    call: Call, pid: int | None, timeout: int | None = 0
) -> bool | None:
    """End a session and its stream; false: there is no such session.

    The function does not wait for the end of the session, whatever ``timeout`` is."""
    if timeout is None:
        return None
    if timeout < 0:
        raise UsageError('"timeout" must not be negative', sqlstate="22003")
    _check_signal(
        call,
        pid,
        "permission denied to terminate process",
        "whose process is being terminated",
        "terminate processes",
        "terminate this process",
    )
    return None if pid is None else call.source.signal(pid, terminate=True)


def _check_signal(
    call: Call, pid: int | None, denied: str, whose: str, action: str, this_action: str
) -> None:
    session = next((role for role in call.source.sessions() if role.pid == pid), None)
    if session is None:
        return
    authority = call.facts.authority
    owner = authority.by_name.get(session.user)
    if owner is None or owner.superuser:
        if not authority.is_superuser(call.role):
            raise UsageError(
                denied,
                sqlstate="42501",
                detail=f"Only roles with the SUPERUSER attribute may {action} of roles with"
                " the SUPERUSER attribute.",
            )
    elif not any(
        authority.has_privileges_of(call.role, role)
        for role in (owner.oid, _PG_SIGNAL_BACKEND)
    ):
        raise UsageError(
            denied,
            sqlstate="42501",
            detail=f"Only roles with privileges of the role {whose} or with privileges of"
            f' the "pg_signal_backend" role may {this_action}.',
        )


def pg_reload_conf(call: Call) -> bool:
    """SIGHUP as a function. The processes read the file later, and log its errors."""
    _check_superuser(call, "pg_reload_conf")
    return call.source.reload_settings()


def _check_superuser(call: Call, function: str) -> None:
    if not call.facts.authority.is_superuser(call.role):
        raise UsageError(f"permission denied for function {function}", sqlstate="42501")


def pg_client_encoding(call: Call) -> str:
    """Return the client's encoding."""
    return call.context.parameters["client_encoding"]
