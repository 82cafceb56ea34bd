"""The values of TimeZone: ``zone_for``.

Comes in: the value of ``SET TimeZone``. Goes out: the canonical name and a tzinfo.
Called by the session when the setting changes and by ``encode.text``.

Reads the time zone database of the operating system or of the tzdata package through Python's
``zoneinfo``, which caches it. It counts as a constant table, like a locale, not as I/O of this
room.

Source: check_timezone in src/backend/commands/variable.c; PostgreSQL manual 8.5.3.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, timedelta, timezone, tzinfo

from wal2lake.errors import UsageError

_POSIX = re.compile(
    r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]+>)([+-]?)(\d{1,3})(?::(\d\d)(?::(\d\d))?)?\Z"
)
_HOURS = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)\Z")
_ALIASES = {"utc": "UTC", "gmt": "GMT", "zulu": "Zulu", "z": "UTC"}


def zone_for(name: str) -> tuple[str, tzinfo]:
    """Return the zone of a TimeZone setting: (its name as SHOW prints it, the zone).

    Takes names in any case, hours east of Greenwich (``-7``, ``5.5``), and POSIX names
    with a fixed offset (``XST7``: west). Raises UsageError (22023) as PostgreSQL does, and also
    for POSIX rules with daylight saving time.
    """
    text = name.strip()
    if _HOURS.match(text):
        seconds = round(float(text) * 3600)
        if abs(seconds) >= 24 * 3600:
            raise _invalid(name)
        return _offset_name(seconds), timezone(timedelta(seconds=seconds))
    alias = _ALIASES.get(text.lower())
    if alias is not None:
        return alias, UTC
    zone = _named(text)
    if zone is not None:
        return zone.key, zone
    posix = _POSIX.match(text)
    if posix is not None:
        west = -1 if posix[1] == "-" else 1
        seconds = int(posix[2]) * 3600 + int(posix[3] or 0) * 60 + int(posix[4] or 0)
        if seconds < 24 * 3600:
            return text, timezone(timedelta(seconds=-west * seconds))
    raise _invalid(name)


def _named(text: str) -> zoneinfo.ZoneInfo | None:
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


def _offset_name(seconds: int) -> str:
    """Return PostgreSQL's name for a zone given in hours, such as ``<-07>+07``."""
    magnitude = abs(seconds)
    text = f"{magnitude // 3600:02d}"
    if magnitude % 3600:
        text += f":{magnitude % 3600 // 60:02d}"
    if magnitude % 60:
        text += f":{magnitude % 60:02d}"
    east, west = ("-", "+") if seconds < 0 else ("+", "-")
    return f"<{east}{text}>{west}{text}"


def _invalid(name: str) -> UsageError:
    return UsageError(f'invalid value for parameter "TimeZone": "{name}"')
