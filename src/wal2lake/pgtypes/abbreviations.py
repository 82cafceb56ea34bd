"""Zones that an expression or a constant names: ``expression_zone``, ``constant_zone``.

Comes in: a text, as behind AT TIME ZONE or in ``'2024-07-01 12:00 CET'``, and the session's zone.
Goes out: the zone. Both know abbreviations before names, so ``'CET'`` has no summer time there. An
abbreviation of the session's own zone has the meaning that it has there; if that may differ from
the list, or if the list takes the offset from the history of a place, it is refused.

Source: DecodeTimezoneName() and DecodeTimezoneAbbrev() in datetime.c; timezonesets/Default.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.timezone import fixed_zone, named_zone, zone_for

_DEFAULT: Final = """
-36000 HST TAHT
-34200 MART
-32400 AKST GAMT
-28800 AKDT PST
-25200 MST PDT
-21600 CST MDT GALT
-18000 ACT COT CDT EST PET
-14400 BOT EDT AMT AST
-12600 NFT NST
-10800 BRA BRT CLST GFT PMST PYST UYT WGT ADT
-9000 NDT
-7200 BRST FNT PMDT UYST WGST
-3600 EGT FNST AZOT
0 EGST AZOST GMT UCT UT UTC Z ZULU WET
3600 WAT BST CET MET MEZ WETDST
7200 SAST IST BDST CEST CETDST EET MEST MESZ METDST
10800 EAT IDT EEST EETDST FET
12600 IRT
14400 MSD MUT RET SCT
16200 AFT
18000 PKT TJT UZT MUST MVT TFT
20700 NPT
21600 ALMT BDT BTT KGST PKST UZST XJT YEKST
23400 MMT
25200 ALMST ICT WAST CXT
28800 BNT BORT CCT HKT MYT PHT AWST WADT
31500 ACWST
32400 JAYT JST KST ULAST AWSST WDT PWT
34200 ACST CAST
36000 DDUT KDT AEST LIGT CHUT MPT PGT TRUT YAPT
37800 ACSST ACDT CADT LHST SADT
39600 AESST AEDT PONT VUT
43200 NZT FJT GILT MHT NZST TVT WAKT WFT
45900 CHAST
46800 FJST NZDT TOT
49500 CHADT
"""
"""Abbreviations with a fixed offset, in seconds east of Greenwich."""

_PLACES: Final = """
ART ARST CLT GYT PYT VET DAVT MAWT AMST ANAST ANAT AZST AZT GEST GET IRKST IRKT KGT KRAST KRAT LKT
MAGST MAGT NOVST NOVT OMSST OMST PETST PETT SGT TMT ULAT VLAST VLAT YAKST YAKT YEKT FKST FKT LHDT
MSK VOLT IOT CKT EASST EAST KOST LINT NUT TKT
"""
"""Abbreviations whose offset depends on the year."""

_OF_PLACES: Final = frozenset(_PLACES.split())

_FIXED: Final = {
    word: int(line.split()[0])
    for line in _DEFAULT.strip().splitlines()
    for word in line.split()[1:]
}

_YEARS: Final = range(1900, 2038)
"""The zone database has no abbreviations before, and repeats the rules after."""


_OFFSET: Final = re.compile(r"([+-])(\d\d?):?(\d\d)?:?(\d\d)?\Z")

_MOST_HOURS: Final = 16
"""MAX_TZDISP_HOUR, exclusive."""


def expression_zone(text: str, session: str) -> tuple[str, tzinfo]:
    """Return the zone of a text: (its name, the zone). ``session``: the session's TimeZone.

    Raises 22023 if there is none, 0A000 for an abbreviation whose meaning is not fixed."""
    word = text.upper()
    name, place = zone_for(session)
    if isinstance(place, timezone) and re.match(rf"<?{re.escape(word)}[>0-9+-]", name):
        return name, place
    seconds = _FIXED.get(word)
    own = _offsets(session, word)
    if word in _OF_PLACES or (own and own != {seconds}):
        raise FeatureNotSupportedError(
            f'time zone abbreviation "{text}" is not supported',
            hint="Use a zone's name, as America/New_York.",
        )
    if seconds is not None:
        return word, timezone(timedelta(seconds=seconds))
    zone = named_zone(text)
    if zone is None:
        raise UsageError(f'time zone "{text}" not recognized')
    return zone


def constant_zone(text: str, session: str) -> tzinfo | None:
    """Return the zone that a timestamp's text names; None if a word means nothing.

    Raises 22023 if a name with other characters means nothing, else as ``expression_zone``."""
    try:
        return expression_zone(text, session)[1]
    except FeatureNotSupportedError:
        raise
    except UsageError:
        if text.isalpha():
            return None
        # ParseDateTime() makes such names lower-case.
        raise UsageError(f'time zone "{text.lower()}" not recognized') from None


def offset_zone(text: str, whole_text: str) -> tzinfo:
    """Return the zone of an offset or of Z in a constant, which an error quotes."""
    offset = _OFFSET.match(text)
    if offset is None:
        return UTC
    parts = [int(p or 0) for p in offset.groups()[1:]]
    if parts[0] >= _MOST_HOURS or max(parts) > 59:
        raise UsageError(
            f'time zone displacement out of range: "{whole_text}"', sqlstate="22009"
        )
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
    return timezone(timedelta(seconds=seconds if offset[1] == "+" else -seconds))


def interval_zone(text: str) -> tuple[str, tzinfo]:
    """Return the zone that is ahead of Greenwich by an interval."""
    interval = interval_of(text)
    if interval.months or interval.days:
        raise UsageError(
            f'interval time zone "{interval}" must not include months or days'
        )
    return fixed_zone(int(interval.microseconds / 1_000_000))


@cache
def _offsets(zone: str, word: str) -> frozenset[int]:
    """Return the offsets that an abbreviation has had in a zone."""
    place = zone_for(zone)[1]
    if isinstance(place, timezone) or not word.isalpha():
        return frozenset()
    moments = (
        datetime(year, month, 1, tzinfo=UTC).astimezone(place)
        for year in _YEARS
        for month in range(1, 13)
    )
    return frozenset(
        int((moment.utcoffset() or timedelta()).total_seconds())
        for moment in moments
        if moment.tzname() == word
    )
