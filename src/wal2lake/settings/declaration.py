"""Declares a setting: a field of a dataclass, whose metadata says what is allowed.

In: a default, a description, limits. Out: a dataclass field. Called by ``sections``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")


def setting(
    default: T,
    doc: str,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] = (),
    pattern: str | None = None,
    allowed: str | None = None,
    restart: bool = False,
    receivers: bool = True,
    secret: bool = False,
    command_line: bool = True,
) -> T:
    """Declare one setting. ``pattern`` is a regular expression for the whole value, and
    ``allowed`` describes it in words. ``restart``: SIGHUP does not change the setting.
    ``receivers``: receivers use the setting. ``secret``: no message shows the value.
    ``command_line``: a command line, which every user of the machine can read, may have it."""
    metadata = {
        "doc": doc,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "pattern": pattern,
        "allowed": allowed,
        "restart": restart,
        "receivers": receivers,
        "secret": secret,
        "command_line": command_line,
    }
    if isinstance(default, Mapping):
        made: Any = field(
            default_factory=lambda: MappingProxyType({}), metadata=metadata
        )
    else:
        made = field(default=default, metadata=metadata)
    # The type checker sees the field's value, the dataclass decorator sees the field.
    result: T = made
    return result
