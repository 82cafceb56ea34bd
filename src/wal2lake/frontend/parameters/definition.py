"""What is known of a parameter: its kind, unit, limits, and who may change it.

In: nothing. Out: the types of which ``table``, ``planner`` and ``node`` make their lists.

Source: src/include/utils/guc_tables.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """pg_settings.vartype."""

    BOOL = "bool"
    """on or off."""
    INTEGER = "integer"
    """With limits, perhaps with a unit."""
    REAL = "real"
    """The same with a fraction; its limits are ``least`` and ``greatest``."""
    STRING = "string"
    """Anything, or what the parameter's own check lets pass."""
    ENUM = "enum"
    """One of ``choices``."""


class Context(Enum):
    """pg_settings.context: who may change it when."""

    INTERNAL = "internal"
    """Nobody: a fact about the server."""
    POSTMASTER = "postmaster"
    """The configuration file, at start."""
    SUPERUSER = "superuser"
    """Any session of a superuser."""
    USER = "user"
    """Any session."""


class Unit(Enum):
    """What a bare number means."""

    NONE = ""
    """A pure number."""
    MILLISECONDS = "ms"
    """Time."""
    SECONDS = "s"
    """Time."""
    BYTES = "B"
    """Memory."""
    KILOBYTES = "kB"
    """Memory."""
    BLOCKS = "8kB"
    """Memory, in blocks."""
    MEGABYTES = "MB"
    """Memory."""


BOOLEANS: Final = (
    ("true", "on"),
    ("false", "off"),
    ("yes", "on"),
    ("no", "off"),
    ("1", "on"),
    ("0", "off"),
)
"""Hidden spellings of the choices on and off."""


@dataclass(frozen=True, slots=True)
class ParameterDefinition:
    """One parameter, named as SHOW prints it."""

    name: str
    kind: Kind
    default: str
    """In the form SHOW prints, except integers: a bare number in the base unit."""
    description: str
    context: Context = Context.USER
    report: bool = False
    """GUC_REPORT: changes go to the client as ParameterStatus."""
    unit: Unit = Unit.NONE
    minimum: int = 0
    maximum: int = 2_147_483_647
    least: float = 0
    greatest: float = 0
    choices: tuple[str, ...] = ()
    """The first spelling of a value is the one shown; see ``synonyms``."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Hidden spellings of a choice."""
    is_list: bool = False
    """GUC_LIST_INPUT: SET takes several values."""
    quotes_items: bool = False
    """GUC_LIST_QUOTE: each value of SET is quoted as an identifier."""
    follows: str | None = None
    """Has the value of this parameter unless it was set itself."""
