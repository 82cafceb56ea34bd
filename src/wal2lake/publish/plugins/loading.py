"""Plugins by name.

Source: LoadOutputPlugin() in logical.c; the setting output_plugin_libraries of the minor releases
of August 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.publish.plugins.pgoutput import PgOutput
from wal2lake.publish.plugins.port import OutputPlugin
from wal2lake.publish.plugins.test_decoding import TestDecoding
from wal2lake.publish.plugins.wal2json import Wal2Json

GROUP: Final = "wal2lake.output_plugins"

BUILT_IN: Final[Mapping[str, Callable[[], OutputPlugin]]] = {
    "pgoutput": PgOutput,
    "test_decoding": TestDecoding,
    "wal2json": Wal2Json,
}


def load_plugin(name: str, allowed: Collection[str]) -> OutputPlugin:
    """A new one. 58P01 if there is none of that name, 42501 if it is not allowed."""
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
    plugin: OutputPlugin = found.load()()
    return plugin
