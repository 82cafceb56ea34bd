"""Loads output plugins by name.

A plugin of an installed package is checked when it is loaded, before a slot is created or a
transaction decoded: a plugin that lacks a callback would otherwise fail at the first transaction
that needs the callback.

Source: LoadOutputPlugin() and StartupDecodingContext() in logical.c; the setting
output_plugin_libraries of the minor releases of August 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.publish.plugins.pgoutput import PgOutput
from wal2lake.publish.plugins.port import Base, OutputPlugin
from wal2lake.publish.plugins.test_decoding import TestDecoding
from wal2lake.publish.plugins.wal2json import Wal2Json

GROUP: Final = "wal2lake.output_plugins"

BUILT_IN: Final[Mapping[str, Callable[[], OutputPlugin]]] = {
    "pgoutput": PgOutput,
    "test_decoding": TestDecoding,
    "wal2json": Wal2Json,
}


_REQUIRED: Final = ("begin", "change", "commit")
"""Callbacks that every plugin must define, as in PostgreSQL."""

_STREAMING: Final = ("stream_start", "stream_stop", "stream_commit")
"""Callbacks that a plugin must define if its ``streams`` is true."""

_TWO_PHASE: Final = (
    "begin_prepare",
    "prepare",
    "commit_prepared",
    "rollback_prepared",
)
"""Callbacks that a plugin must define if its ``two_phase`` is true."""

_OPTIONAL: Final = tuple(
    name
    for name, value in vars(Base).items()
    if callable(value) and not name.startswith("_")
)
"""Callbacks that ``Base`` has a default for."""

_ATTRIBUTES: Final = ("is_text", "streams", "two_phase")


def load_plugin(name: str, allowed: Collection[str]) -> OutputPlugin:
    """Create a plugin. Raises 58P01 if no plugin has that name or it cannot be loaded, 42501 if it
    is not allowed, 55000 if it lacks a required callback."""
    make = BUILT_IN.get(name)
    if make is not None:
        return make()
    entry_point = next(
        (
            candidate
            for candidate in entry_points(group=GROUP)
            if candidate.name == name
        ),
        None,
    )
    if entry_point is None:
        raise UsageError(
            f'could not access file "{name}": No such file or directory',
            sqlstate="58P01",
        )
    if name not in allowed:
        raise UsageError(
            f'library "{name}" may not be used as an output plugin',
            sqlstate="42501",
            hint="If it is safe for all REPLICATION users to use this library as an output"
            ' plugin, add it to "output_plugin_libraries" and reload the server'
            " configuration.",
        )
    try:
        plugin: OutputPlugin = entry_point.load()()
    except Exception as error:
        raise UsageError(
            f'could not load library "{name}": {error}', sqlstate="58P01"
        ) from error
    check_callbacks(name, plugin)
    return plugin


def check_callbacks(name: str, plugin: OutputPlugin) -> None:
    """Raise 55000, with a list, if a plugin lacks required callbacks. The plugin's ``startup`` may
    change ``streams`` and ``two_phase``, so the caller checks again afterwards."""
    missing = _missing(plugin)
    if missing:
        raise UsageError(
            f'output plugin "{name}" does not have all required callbacks',
            sqlstate="55000",
            detail=f"Missing: {', '.join(missing)}.",
            hint="Derive its class from wal2lake.publish.plugins.port.Base, and define what"
            " is missing.",
        )


def _missing(plugin: OutputPlugin) -> list[str]:
    """Return the names of missing callbacks and attributes, in the order of the port."""
    required = list(_REQUIRED)
    if getattr(plugin, "streams", False):
        required += _STREAMING
    if getattr(plugin, "two_phase", False):
        required += _TWO_PHASE
    if getattr(plugin, "streams", False) and getattr(plugin, "two_phase", False):
        required.append("stream_prepare")
    missing = [name for name in required if not _is_defined(plugin, name)]
    # A plugin that does not derive from Base needs its optional callbacks, too.
    missing += [
        name
        for name in _OPTIONAL
        if name not in required and not callable(getattr(plugin, name, None))
    ]
    return missing + [name for name in _ATTRIBUTES if not hasattr(plugin, name)]


def _is_defined(plugin: OutputPlugin, name: str) -> bool:
    """Whether a plugin has a callback other than the default of ``Base``."""
    callback = getattr(plugin, name, None)
    default = getattr(Base, name, None)
    return callable(callback) and (
        default is None or getattr(callback, "__func__", callback) is not default
    )
