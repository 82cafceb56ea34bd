"""The running session, as it sees itself: parameters, search path, the version.

Comes in: parameter names. Goes out: their values; ``set_config`` changes them.

Source: manual, sections 9.27.1 and 9.28.1.
"""

from __future__ import annotations

from typing import Final

from wal2lake import __version__
from wal2lake.errors import UsageError
from wal2lake.frontend.parameters import SERVER_VERSION
from wal2lake.frontend.sysviews.functions.call import Call

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


def current_schema(call: Call) -> str | None:
    """The first schema of the search path."""
    return next(iter(call.search_path(implicit=False)), None)


def current_schemas(call: Call, implicit: bool | None) -> list[str] | None:
    """The schemas of the search path."""
    return None if implicit is None else call.search_path(implicit=implicit)


def pg_client_encoding(call: Call) -> str:
    """The client's encoding."""
    return call.context.parameters["client_encoding"]
