"""Describes a parameter: its kind, unit, limits, and the sessions that may change it.

``table``, ``planner``, ``unused`` and ``node`` build their lists of these types.

Source: src/include/utils/guc_tables.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ParameterKind(Enum):
    """pg_settings.vartype."""

    BOOL = "bool"
    """on or off."""
    INTEGER = "integer"
    """An integer with limits, and with or without a unit."""
    REAL = "real"
    """A number with a fraction; its limits are ``least`` and ``greatest``."""
    STRING = "string"
    """Any text, unless ``values`` has a check for the parameter."""
    ENUM = "enum"
    """One of ``choices``."""


class ParameterContext(Enum):
    """pg_settings.context: the sessions that may change a parameter, and when."""

    INTERNAL = "internal"
    """The parameter cannot be changed: it shows a fact about the server."""
    POSTMASTER = "postmaster"
    """The configuration file sets it, at start."""
    SUPERUSER = "superuser"
    """Any session of a superuser may change it."""
    USER = "user"
    """Any session may change it."""


class Unit(Enum):
    """The base unit, which a number without a unit has."""

    NONE = ""
    """A number without a unit."""
    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "B"
    KILOBYTES = "kB"
    BLOCKS = "8kB"
    """Blocks of 8 kB."""
    MEGABYTES = "MB"


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
    kind: ParameterKind
    default: str
    """The default as SHOW prints it; for integers, a number in the base unit."""
    description: str
    context: ParameterContext = ParameterContext.USER
    report: bool = False
    """GUC_REPORT: changes are sent to the client as ParameterStatus."""
    unit: Unit = Unit.NONE
    minimum: int = 0
    maximum: int = 2_147_483_647
    least: float = 0
    greatest: float = 0
    choices: tuple[str, ...] = ()
    """The values of an enum, as SHOW prints them."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Hidden spellings, each with the value that it stands for."""
    is_list: bool = False
    """GUC_LIST_INPUT: SET takes several values."""
    quotes_items: bool = False
    """GUC_LIST_QUOTE: each value of SET is quoted as an identifier."""
    follows: str | None = None
    """The name of the parameter that gives the value until this one is set."""
