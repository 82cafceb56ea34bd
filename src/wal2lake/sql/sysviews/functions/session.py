"""The running session, as it sees itself: parameters, search path, the version, values that it has
taken of sequences; and the functions that change something else.

Comes in: parameter names. Goes out: their values; ``set_config`` changes them, and
``pg_stat_reset_subscription_stats`` sets counts in the catalog to zero, and
``pg_reload_conf`` has the settings read again.

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
    """nextval, currval, setval or lastval. Each call is one of its own, whatever it is called
    with."""

    def ask(call: Call, *arguments: object) -> object:
        if None in arguments:
            return None
        call.emitted += 1
        given = list(arguments)
        if given:
            given[0] = _sequence(call, given[0])
        return call.ask(FunctionRequest(name, (call.emitted, *given)))

    return ask


def _sequence(call: Call, target: object) -> int | None:
    """Return the OID of a sequence; 42809 for another kind of object. The sequence belongs to its
    owner."""
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
    """The first schema of the search path."""
    return next(iter(call.search_path(implicit=False)), None)


def current_schemas(call: Call, implicit: bool | None) -> list[str] | None:
    """The schemas of the search path."""
    return None if implicit is None else call.search_path(implicit=implicit)


def pg_stat_reset_subscription_stats(call: Call, subid: int | None) -> str:
    """Count one subscription's errors from zero, or with null those of all."""
    _check_superuser(call, "pg_stat_reset_subscription_stats")
    if subid == 0:
        raise UsageError("invalid subscription OID 0")
    call.source.reset_stats(None if subid is None else Oid(subid))
    return ""


def pg_stat_reset_replication_slot(call: Call, name: str | None) -> str:
    """Count what one slot decodes from zero, or with null what all do."""
    _check_superuser(call, "pg_stat_reset_replication_slot")
    names = [use.slot.name for use, _ in call.source.slots()]
    if name is not None and name not in names:
        raise no_such_slot(name)
    for one in names if name is None else (name,):
        call.source.slot_statistics.reset(one)
    return ""


def pg_cancel_backend(call: Call, pid: int | None) -> bool | None:
    """Cancel a session as a CancelRequest does; false: there is no such session."""
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
    """End that session, and what it streams; false: there is none. ``timeout``: it is not waited
    for, whatever this says."""
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
    call: Call, pid: int | None, denied: str, whose: str, those: str, this: str
) -> None:
    found = next((one for one in call.source.sessions() if one.pid == pid), None)
    if found is None:
        return
    authority = call.facts.authority
    owner = authority.by_name.get(found.user)
    if owner is None or owner.superuser:
        if not authority.is_superuser(call.role):
            raise UsageError(
                denied,
                sqlstate="42501",
                detail=f"Only roles with the SUPERUSER attribute may {those} of roles with"
                " the SUPERUSER attribute.",
            )
    elif not any(
        authority.has_privileges_of(call.role, one)
        for one in (owner.oid, _PG_SIGNAL_BACKEND)
    ):
        raise UsageError(
            denied,
            sqlstate="42501",
            detail=f"Only roles with privileges of the role {whose} or with privileges of"
            f' the "pg_signal_backend" role may {this}.',
        )


def pg_reload_conf(call: Call) -> bool:
    """SIGHUP as a function. What the file has is looked at later: errors are in the log."""
    _check_superuser(call, "pg_reload_conf")
    return call.source.reload_settings()


def _check_superuser(call: Call, function: str) -> None:
    if not call.facts.authority.is_superuser(call.role):
        raise UsageError(f"permission denied for function {function}", sqlstate="42501")


def pg_client_encoding(call: Call) -> str:
    """The client's encoding."""
    return call.context.parameters["client_encoding"]
