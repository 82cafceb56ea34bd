"""Plugins by name.

A plugin of an installed package is checked here, before a slot is made for it or a transaction
decoded: an object that lacks a callback would fail at the first transaction that needs it.

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
"""Callbacks that a plugin must define whose ``streams`` is true."""

_TWO_PHASE: Final = (
    "begin_prepare",
    "prepare",
    "commit_prepared",
    "rollback_prepared",
)
"""Callbacks that a plugin must define whose ``two_phase`` is true."""

_OPTIONAL: Final = tuple(
    name
    for name, value in vars(Base).items()
    if callable(value) and not name.startswith("_")
)
"""Callbacks that ``Base`` has a default for."""

_ATTRIBUTES: Final = ("is_text", "streams", "two_phase")


def load_plugin(name: str, allowed: Collection[str]) -> OutputPlugin:
    """Make a new plugin. 58P01 if there is none of that name or it cannot be loaded, 42501 if it
    is not allowed, 55000 if it lacks a required callback."""
    make = BUILT_IN.get(name)
    if make is not None:
        return make()
    found = next((one for one in entry_points(group=GROUP) if one.name == name), None)
    if found is None:
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
        plugin: OutputPlugin = found.load()()
    except Exception as error:
        raise UsageError(
            f'could not load library "{name}": {error}', sqlstate="58P01"
        ) from error
    check_callbacks(name, plugin)
    return plugin


def check_callbacks(name: str, plugin: OutputPlugin) -> None:
    """Raise 55000, with all that is missing, if a plugin lacks what it must define. Its
    ``startup`` may change ``streams`` and ``two_phase``: the caller checks again behind it."""
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
    """The names of what a plugin must define and does not, in the order of the port."""
    defined = list(_REQUIRED)
    if getattr(plugin, "streams", False):
        defined += _STREAMING
    if getattr(plugin, "two_phase", False):
        defined += _TWO_PHASE
    if getattr(plugin, "streams", False) and getattr(plugin, "two_phase", False):
        defined.append("stream_prepare")
    missing = [one for one in defined if not _is_defined(plugin, one)]
    # A plugin that does not derive from Base must have what Base would give it.
    missing += [
        one
        for one in _OPTIONAL
        if one not in defined and not callable(getattr(plugin, one, None))
    ]
    return missing + [one for one in _ATTRIBUTES if not hasattr(plugin, one)]


def _is_defined(plugin: OutputPlugin, name: str) -> bool:
    """True if a plugin has a callback that is not the default of ``Base``."""
    found = getattr(plugin, name, None)
    default = getattr(Base, name, None)
    return callable(found) and (
        default is None or getattr(found, "__func__", found) is not default
    )
