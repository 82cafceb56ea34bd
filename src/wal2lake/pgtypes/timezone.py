"""The values of TimeZone: ``zone_for``.

Comes in: the value of ``SET TimeZone``. Goes out: the canonical name and a tzinfo.
Called by the session when the setting changes and by ``encode.text``.

A number counts hours east of Greenwich. Any other text with an offset is a POSIX zone, even without
a name, and counts west: ``'+05:30'`` is five and a half hours behind Greenwich.

Reads the time zone database of the operating system or of the tzdata package through Python's
``zoneinfo``, which caches it. It counts as a constant table, like a locale, not as I/O of this
room.

Source: check_timezone in src/backend/commands/variable.c; pg_tzset() and tzparse() in
src/timezone; PostgreSQL manual 8.5.3.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Final

from wal2lake.errors import UsageError

_POSIX: Final = re.compile(
    r"(?:[A-Za-z]*|<[A-Za-z0-9:+-]+>)([+-]?)(\d{1,3})(?::(\d\d?)(?::(\d\d?))?)?\Z"
)
_HOURS: Final = re.compile(
    r"\s*([+-]?)(?:(0[xX][0-9A-Fa-f]+)|((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))\Z"
)
_ALIASES: Final = {"utc": "UTC", "gmt": "GMT", "zulu": "Zulu"}

_DAY_SECONDS: Final = 24 * 3600
"""Python's limit of an offset. PostgreSQL's is 167 hours, but no place on Earth needs more than
14."""

_OUT_OF_RANGE: Final = "UTC timezone offset is out of range."


def zone_for(name: str) -> tuple[str, tzinfo]:
    """Return the zone of a TimeZone setting: (its name as SHOW prints it, the zone).

    Takes hours east of Greenwich (``-7``, ``5.5``), names in any case, and POSIX zones with a
    fixed offset (``XST7``: west). Raises UsageError (22023) as PostgreSQL does, and also for POSIX
    rules with daylight saving time and for offsets of a day and more.
    """
    hours = _HOURS.match(name)
    if hours is not None:
        number = float(int(hours[2], 16)) if hours[2] else float(hours[3])
        # An offset is a whole number of seconds, cut towards 0.
        seconds = int(min(number, _DAY_SECONDS) * 3600)
        if seconds >= _DAY_SECONDS:
            raise _invalid(name, _OUT_OF_RANGE)
        return fixed_zone(-seconds if hours[1] == "-" else seconds)
    zone = named_zone(name)
    if zone is None:
        raise _invalid(name)
    canonical, place = zone
    if isinstance(place, timezone):
        east = int(place.utcoffset(None).total_seconds())
        # A number of hours makes the name of a zone with seconds, which is read again.
        if east % 60 and fixed_zone(east)[0] != canonical:
            raise UsageError(
                f'time zone "{name}" appears to use leap seconds',
                detail="PostgreSQL does not support leap seconds.",
            )
    return zone


def named_zone(text: str) -> tuple[str, tzinfo] | None:
    """Return the zone of a name or a POSIX zone, as ``zone_for``; None if there is none."""
    alias = _ALIASES.get(text.lower())
    if alias is not None:
        return alias, UTC
    zone = _in_database(text)
    if zone is not None:
        return zone.key, zone
    posix = _POSIX.match(text)
    if posix is None:
        return None
    hours, minutes, rest = (int(part or 0) for part in posix.groups()[1:])
    if minutes > 59 or rest > 59 or hours >= 24:
        return None
    west = hours * 3600 + minutes * 60 + rest
    east = west if posix[1] == "-" else -west
    return text.upper(), timezone(timedelta(seconds=east))


def fixed_zone(seconds: int) -> tuple[str, tzinfo]:
    """Return the zone so many seconds east of Greenwich, with its name, as ``<-07>+07``."""
    magnitude = abs(seconds)
    text = f"{magnitude // 3600:02d}"
    if magnitude % 3600:
        text += f":{magnitude % 3600 // 60:02d}"
    if magnitude % 60:
        text += f":{magnitude % 60:02d}"
    east, west = ("-", "+") if seconds < 0 else ("+", "-")
    name = f"<{east}{text}>{west}{text}"
    if magnitude >= _DAY_SECONDS:
        raise _invalid(name, _OUT_OF_RANGE)
    return name, timezone(timedelta(seconds=seconds))


def _in_database(text: str) -> zoneinfo.ZoneInfo | None:
    if text.startswith((".", "/")) or ".." in text or "\0" in text:
        return None
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    for key in zoneinfo.available_timezones():
        if key.lower() == text.lower():
            return zoneinfo.ZoneInfo(key)
    return None


def _invalid(name: str, detail: str | None = None) -> UsageError:
    return UsageError(
        f'invalid value for parameter "TimeZone": "{name}"', detail=detail
    )
