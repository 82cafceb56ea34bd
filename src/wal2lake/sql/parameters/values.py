"""Checks the values of parameters, and prints them for SHOW.

Comes in: a definition and the text of SET. Goes out: the stored form, or PostgreSQL's error; and
SHOW's form of a stored value. Pure.

Source: src/backend/utils/misc/guc.c (parse_bool, parse_int, convert_int_from_base_unit),
src/backend/commands/variable.c (check_datestyle, check_timezone, check_client_encoding).
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.model import Lsn
from wal2lake.pgtypes import zone_for
from wal2lake.sql.parameters.definition import (
    ParameterDefinition,
    ParameterKind,
    Unit,
)
from wal2lake.sql.parameters.encodings import canonical_encoding
from wal2lake.sql.parameters.table import AS_OF_LSN, AS_OF_TIME

_UNITS: Final[dict[Unit, tuple[tuple[str, Fraction], ...]]] = {
    Unit.NONE: (),
    Unit.MILLISECONDS: (
        ("d", Fraction(86_400_000)),
        ("h", Fraction(3_600_000)),
        ("min", Fraction(60_000)),
        ("s", Fraction(1000)),
        ("ms", Fraction(1)),
        ("us", Fraction(1, 1000)),
    ),
    Unit.SECONDS: (
        ("d", Fraction(86_400)),
        ("h", Fraction(3600)),
        ("min", Fraction(60)),
        ("s", Fraction(1)),
        ("ms", Fraction(1, 1000)),
        ("us", Fraction(1, 1_000_000)),
    ),
    Unit.MEGABYTES: (
        ("TB", Fraction(1 << 20)),
        ("GB", Fraction(1 << 10)),
        ("MB", Fraction(1)),
        ("kB", Fraction(1, 1 << 10)),
        ("B", Fraction(1, 1 << 20)),
    ),
    Unit.BYTES: (
        ("TB", Fraction(1 << 40)),
        ("GB", Fraction(1 << 30)),
        ("MB", Fraction(1 << 20)),
        ("kB", Fraction(1 << 10)),
        ("B", Fraction(1)),
    ),
    Unit.KILOBYTES: (
        ("TB", Fraction(1 << 30)),
        ("GB", Fraction(1 << 20)),
        ("MB", Fraction(1 << 10)),
        ("kB", Fraction(1)),
        ("B", Fraction(1, 1024)),
    ),
    Unit.BLOCKS: (
        ("TB", Fraction(1 << 27)),
        ("GB", Fraction(1 << 17)),
        ("MB", Fraction(1 << 7)),
        ("kB", Fraction(1, 8)),
        ("B", Fraction(1, 8192)),
    ),
}

_TIMES: Final = (
    'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".'
)
_SIZES: Final = 'Valid units for this parameter are "B", "kB", "MB", "GB", and "TB".'

_UNIT_HINTS: Final = {
    Unit.MILLISECONDS: _TIMES,
    Unit.SECONDS: _TIMES,
    Unit.BYTES: _SIZES,
    Unit.KILOBYTES: _SIZES,
    Unit.MEGABYTES: _SIZES,
    Unit.BLOCKS: _SIZES,
}

_INT_MAX: Final = 2_147_483_647

_NUMBER = re.compile(r"\s*[+-]?(?:\d|\.\d)")

_INTEGER = re.compile(
    r"\s*([+-]?(?:0[xX][0-9A-Fa-f]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?))"
    r"\s*([A-Za-z]*)\s*"
)

_REAL = re.compile(
    r"\s*([+-]?(?:0[xX][0-9A-Fa-f]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?))"
    r"\s*([A-Za-z]*)\s*"
)


def check_value(definition: ParameterDefinition, text: str) -> str:
    """Check a value and return its stored form; raises UsageError."""
    if definition.kind is ParameterKind.BOOL:
        value = _boolean(definition, text)
    elif definition.kind is ParameterKind.INTEGER:
        value = _integer(definition, text)
    elif definition.kind is ParameterKind.REAL:
        value = _real(definition, text)
    elif definition.kind is ParameterKind.ENUM:
        value = _choice(definition, text)
    else:
        value = text
    check = _CHECKS.get(definition.name)
    return value if check is None else check(value)


def show_value(definition: ParameterDefinition, stored: str) -> str:
    """The form in which SHOW prints a stored value."""
    if definition.unit is Unit.NONE or not stored.removeprefix("-").strip("0."):
        return stored
    number = Fraction(stored)
    if number <= 0:
        return stored
    # Take the largest unit that needs no fraction, as convert_int_from_base_unit() does.
    for unit, factor in _UNITS[definition.unit]:
        if definition.kind is ParameterKind.INTEGER and factor <= 1:
            return f"{round(number / factor)}{unit}"
        if number % factor == 0:
            return f"{number / factor}{unit}"
    return stored


def _invalid(
    name: str, text: str, hint: str | None = None, *, detail: str | None = None
) -> UsageError:
    message = f'invalid value for parameter "{name}": "{text}"'
    return UsageError(message, detail=detail, hint=hint)


def parse_boolean(text: str) -> bool | None:
    """parse_bool(): unambiguous prefixes of true, false, yes, no; on, off, 1, 0; or None."""
    word = text.strip().lower()
    if not word:
        return None
    for name, value in (("true", True), ("false", False), ("yes", True), ("no", False)):
        if name.startswith(word):
            return value
    return {"on": True, "of": False, "off": False, "1": True, "0": False}.get(word)


def _boolean(definition: ParameterDefinition, text: str) -> str:
    value = parse_boolean(text)
    if value is None:
        raise UsageError(f'parameter "{definition.name}" requires a Boolean value')
    return "on" if value else "off"


def _integer(definition: ParameterDefinition, text: str) -> str:
    name = definition.name
    value, hint = _whole_number(text, definition.unit)
    if value is None:
        raise _invalid(name, text, hint)
    if not definition.minimum <= value <= definition.maximum:
        word = f" {definition.unit.value}" if definition.unit.value else ""
        raise UsageError(
            f'{value}{word} is outside the valid range for parameter "{name}" '
            f"({definition.minimum}{word} .. {definition.maximum}{word})"
        )
    return str(value)


def milliseconds(text: str) -> tuple[int | None, str | None]:
    """Read a duration as PostgreSQL reads it; None, and perhaps a hint, if it is none."""
    return _whole_number(text, Unit.MILLISECONDS)


def _whole_number(text: str, base: Unit) -> tuple[int | None, str | None]:
    """parse_int(): the number in the base unit; None, and perhaps a hint, if the text is wrong."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None, _unit_hint(base, text)
    digits, unit = match.groups()
    is_hex = "x" in digits.lower()
    number = Fraction(int(digits, 16)) if is_hex else Fraction(digits)
    if unit:
        factor = dict(_UNITS[base]).get(unit)
        if factor is None:
            return None, _UNIT_HINTS.get(base)
        number *= factor
    value = round(number)
    if not -_INT_MAX - 1 <= value <= _INT_MAX:
        return None, "Value exceeds integer range."
    return value, None


def _unit_hint(base: Unit, text: str) -> str | None:
    """The hint about units, if the text begins with a number."""
    return _UNIT_HINTS.get(base) if _NUMBER.match(text) else None


def _real(definition: ParameterDefinition, text: str) -> str:
    """The number in the base unit, with the digits that SHOW prints."""
    name, match = definition.name, _REAL.fullmatch(text)
    hint = _unit_hint(definition.unit, text)
    if match is None:
        raise _invalid(name, text, hint)
    digits, unit = match.groups()
    value = float(int(digits, 16)) if "x" in digits.lower() else float(digits)
    if unit:
        factor = dict(_UNITS[definition.unit]).get(unit)
        if factor is None:
            raise _invalid(name, text, hint)
        value *= float(factor)
    if math.isinf(value):
        raise _invalid(name, text, hint)
    if not definition.least <= value <= definition.greatest:
        word = f" {definition.unit.value}" if definition.unit.value else ""
        raise UsageError(
            f'{value:g}{word} is outside the valid range for parameter "{name}" '
            f"({definition.least:g}{word} .. {definition.greatest:g}{word})"
        )
    return f"{value:g}"


def _choice(definition: ParameterDefinition, text: str) -> str:
    word = text.lower()
    for choice in definition.choices:
        if choice == word:
            return choice
    for spelling, choice in definition.synonyms:
        if spelling == word:
            return choice
    available = ", ".join(definition.choices)
    raise _invalid(definition.name, text, f"Available values: {available}.")


# -- parameters with rules of their own

_STYLES: Final = {
    "iso": "ISO",
    "sql": "SQL",
    "postgres": "Postgres",
    "german": "German",
}
_ORDERS: Final = {
    "ymd": "YMD",
    "dmy": "DMY",
    "euro": "DMY",
    "european": "DMY",
    "mdy": "MDY",
    "us": "MDY",
    "noneuro": "MDY",
    "noneuropean": "MDY",
}


def _date_style(text: str) -> str:
    """DateStyle: a style, an order, or both."""
    style: str | None = None
    order: str | None = None
    for word in (part.strip().strip('"').lower() for part in text.split(",")):
        if word == "default":
            style, order = style or "ISO", order or "MDY"
        elif word in _STYLES and style in (None, _STYLES[word]):
            style = _STYLES[word]
            if style == "German":
                order = order or "DMY"
        elif word in _ORDERS and (order in (None, _ORDERS[word]) or style == "German"):
            order = _ORDERS[word]
        else:
            is_known_word = word in _STYLES or word in _ORDERS
            raise _invalid(
                "DateStyle",
                text,
                detail='Conflicting "DateStyle" specifications.'
                if is_known_word
                else f'Unrecognized key word: "{word}".',
            )
    return f"{style or 'ISO'}, {order or 'MDY'}"


def _time_zone(text: str) -> str:
    """check_timezone()."""
    return zone_for(text)[0]


def _client_encoding(text: str) -> str:
    name = canonical_encoding(text)
    if name is None:
        raise _invalid("client_encoding", text)
    return name


def _standard_conforming_strings(value: str) -> str:
    if value != "on":
        raise FeatureNotSupportedError(
            '"standard_conforming_strings" cannot be set to off',
            hint="Write E'...' for a string with backslash escapes.",
        )
    return value


def _array_nulls(value: str) -> str:
    if value != "on":
        raise FeatureNotSupportedError(
            '"array_nulls" cannot be set to off',
            hint='Write "NULL" in double quotes for an element that is this text.',
        )
    return value


def _transform_null_equals(value: str) -> str:
    if value != "off":
        raise FeatureNotSupportedError(
            '"transform_null_equals" cannot be set to on', hint="Write IS NULL."
        )
    return value


def _backslash_quote(value: str) -> str:
    if value == "off":
        raise FeatureNotSupportedError(
            '"backslash_quote" cannot be set to off',
            hint="Write two quotes for a quote in a string.",
        )
    return value


def _track_activities(value: str) -> str:
    if value != "on":
        raise FeatureNotSupportedError(
            '"track_activities" cannot be set to off',
            hint="pg_stat_activity shows a session's query to its own role and to members of"
            " pg_read_all_stats only.",
        )
    return value


def _timezone_abbreviations(text: str) -> str:
    if text.lower() != "default":
        raise FeatureNotSupportedError(
            f'"timezone_abbreviations" cannot be set to "{text}"',
            hint="Write the time zone's whole name.",
        )
    return text


_LISTED_NAME: Final = r'("(?:[^"]|"")*"|[^\s,"][^\s,]*)'
_NAME_LIST: Final = re.compile(rf"\s*(?:{_LISTED_NAME}\s*(?:,\s*{_LISTED_NAME}\s*)*)?")


def _self_grant(text: str) -> str:
    """check_createrole_self_grant()."""
    if _NAME_LIST.fullmatch(text) is None:
        raise _invalid("createrole_self_grant", text, detail="List syntax is invalid.")
    for listed in re.findall(_LISTED_NAME, text):
        word = (
            listed[1:-1].replace('""', '"')
            if listed.startswith('"')
            else listed.lower()
        )
        if word.lower() not in ("set", "inherit"):
            raise _invalid(
                "createrole_self_grant",
                text,
                detail=f'Unrecognized key word: "{word}".',
            )
    return text


def _buffer_usage_limit(value: str) -> str:
    """check_vacuum_buffer_usage_limit(), in kilobytes."""
    if value != "0" and int(value) < 128:
        raise UsageError(
            f'invalid value for parameter "vacuum_buffer_usage_limit": {value}',
            detail='"vacuum_buffer_usage_limit" must be 0 or between 128 kB and'
            " 16777216 kB.",
        )
    return value


_SEARCH_CONFIGURATIONS: Final = frozenset(
    [
        "simple",
        "arabic",
        "armenian",
        "basque",
        "catalan",
        "danish",
        "dutch",
        "english",
        "estonian",
        "finnish",
        "french",
        "german",
        "greek",
        "hindi",
        "hungarian",
        "indonesian",
        "irish",
        "italian",
        "lithuanian",
        "nepali",
        "norwegian",
        "portuguese",
        "romanian",
        "russian",
        "serbian",
        "spanish",
        "swedish",
        "tamil",
        "turkish",
        "yiddish",
    ]
)
"""The text search configurations of PostgreSQL 18 after initdb (pg_ts_config)."""


def _search_configuration(text: str) -> str:
    name = text.strip().lower().removeprefix("pg_catalog.")
    if name not in _SEARCH_CONFIGURATIONS:
        raise _invalid("default_text_search_config", text)
    return f"pg_catalog.{name}"


def _application_name(text: str) -> str:
    """pg_clean_ascii(): bytes that are not printable ASCII are written in hexadecimal."""
    return "".join(
        c if " " <= c <= "~" else "".join(f"\\x{b:02x}" for b in c.encode("utf-8"))
        for c in text
    )[:63]


def _relation_kinds(text: str) -> str:
    """check_restrict_nonsystem_relation_kind()."""
    for word in (part.strip().strip('"').lower() for part in text.split(",")):
        if word not in ("", "view", "foreign-table"):
            raise _invalid(
                "restrict_nonsystem_relation_kind",
                text,
                detail=f'Unrecognized key word: "{word}".',
            )
    return text


def _as_of_lsn(text: str) -> str:
    """wal2lake.as_of_lsn: a position as PostgreSQL prints it; empty for the newest state."""
    try:
        return str(Lsn.parse(text.strip())) if text.strip() else ""
    except ValueError as error:
        raise _invalid(AS_OF_LSN, text, detail=str(error)) from None


def _as_of_time(text: str) -> str:
    """wal2lake.as_of_time: stored as written.

    A time without an offset is in the session's time zone at the time of reading.
    """
    if text.strip():
        moment(text, datetime.UTC)
    return text.strip()


def moment(text: str, zone: datetime.tzinfo) -> datetime.datetime:
    """Parse the ISO 8601 time of ``wal2lake.as_of_time``; raises UsageError (22007).

    A time without an offset is in ``zone``.
    """
    try:
        parsed = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f'invalid value for parameter "{AS_OF_TIME}": "{text}"',
            sqlstate="22007",
            hint="Write a time as in 2026-05-01 12:30:00+00.",
        ) from None
    return parsed.replace(tzinfo=zone) if parsed.tzinfo is None else parsed


_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    AS_OF_LSN: _as_of_lsn,
    AS_OF_TIME: _as_of_time,
    "DateStyle": _date_style,
    "restrict_nonsystem_relation_kind": _relation_kinds,
    "TimeZone": _time_zone,
    "client_encoding": _client_encoding,
    "standard_conforming_strings": _standard_conforming_strings,
    "array_nulls": _array_nulls,
    "createrole_self_grant": _self_grant,
    "default_text_search_config": _search_configuration,
    "vacuum_buffer_usage_limit": _buffer_usage_limit,
    "backslash_quote": _backslash_quote,
    "timezone_abbreviations": _timezone_abbreviations,
    "track_activities": _track_activities,
    "transform_null_equals": _transform_null_equals,
    "application_name": _application_name,
}
