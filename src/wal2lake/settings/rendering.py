"""The default ``wal2lake.toml``: every setting, commented out, with unit and default.

The text is generated from the dataclasses of ``sections`` alone, so it can be neither incomplete
nor out of date. A setting that stays commented out follows the default of later versions.

Called by: ``wal2lake init``, and the documentation's check.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from wal2lake.settings.sections import SECTIONS

_UNITS: Final = (
    ("_ms", "milliseconds"),
    ("_bytes", "bytes"),
    ("_percent", "percent"),
)

_HEADER: Final = """\
# Settings of this wal2lake node.
#
# Every setting is shown with its default, commented out. To change one, remove the "#".
# An environment variable WAL2LAKE_<SECTION>_<NAME> wins over this file, and the command
# line over both. Changes take effect when the node is started; SIGHUP to its first process
# is enough for those that are not marked "at start".
"""

_WIDTH: Final = 88


def render_default_toml(changes: Mapping[str, object] | None = None) -> str:
    """Return the text of a new node's file; ``changes`` maps ``section.name`` to a value that
    is written without the comment sign."""
    chosen = changes or {}
    lines = [_HEADER]
    for section, kind in SECTIONS.items():
        lines.append(f"[{section}]")
        lines.append(f"# {(kind.__doc__ or '').strip()}")
        lines.append("")
        for f in fields(kind):
            lines.extend(_render(section, f, chosen))
            lines.append("")
    return "\n".join(lines)


def _render(section: str, f: Field[Any], chosen: Mapping[str, object]) -> Iterator[str]:
    noted = facts(f)
    text = f"{f.metadata['doc']} ({noted})" if noted else f.metadata["doc"]
    yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    if f.default is MISSING:
        # A TOML table: a header line, then "name" = "value" lines.
        yield f"# [{section}.{f.name}]"
        return
    name = f"{section}.{f.name}"
    if name in chosen:
        yield f"{f.name} = {_literal(chosen[name])}"
    else:
        yield f"# {f.name} = {_literal(f.default)}"


def facts(f: Field[Any]) -> str:
    """Return unit, range and default of a setting, and whether it is read at start only."""
    facts = [unit for suffix, unit in _UNITS if f.name.endswith(suffix)]
    if f.metadata["choices"]:
        facts.append(" or ".join(f.metadata["choices"]))
    elif f.metadata["minimum"] is not None:
        facts.append(f"{f.metadata['minimum']} to {f.metadata['maximum']}")
    if f.default is not MISSING:
        facts.append(f"default {_literal(f.default)}")
    if f.metadata["restart"]:
        facts.append("at start")
    return ", ".join(facts)


def _literal(value: object) -> str:
    # A JSON string or integer is also valid TOML.
    return json.dumps(value)
