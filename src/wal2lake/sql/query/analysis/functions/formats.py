"""Translates to_char(), to_date() and to_timestamp() with constant templates.

Comes in: operands, the template among them. Goes out: an operand. Called by ``calls``.

A template is split into PostgreSQL's keywords, the longest first. A keyword without a rule is
refused, as are TH, TM, SP and escapes. A text for to_date() or to_timestamp() must match the
template exactly: PostgreSQL also accepts and guesses other texts, which are refused here.

Source: PostgreSQL manual 9.8; DCH_keywords and DCH_to_char in formatting.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

from wal2lake.sql.query.analysis.functions.strings import (
    constant_text,
    no_function,
    text,
)
from wal2lake.sql.query.values import casts, moments
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, plain


def _words(text_: str) -> tuple[str, ...]:
    return tuple(text_.split())


_KEYWORDS: Final = _words(
    "SSSSS MONTH Y,YYY A.D. A.M. B.C. P.M. IDDD IYYY HH24 HH12 SSSS YYYY Month month"
    " DAY DDD IYY MON TZH TZM YYY Day day Mon mon FF1 FF2 FF3 FF4 FF5 FF6 AD AM BC CC DD"
    " DY FX HH ID IW IY MI MM MS OF PM RM SS TZ US WW YY Dy dy D I J Q W Y"
)
_NAMED: Final = frozenset(_words("MONTH Month month MON Mon mon DAY Day day DY Dy dy"))
_ANY_CASE: Final = frozenset(_KEYWORDS) - _NAMED
_MONTHS: Final = _words(
    "January February March April May June July August September October November"
    " December"
)
_DAYS: Final = _words("Sunday Monday Tuesday Wednesday Thursday Friday Saturday")

_NUMBERS: Final[Mapping[str, tuple[str, int]]] = {
    "YYYY": ("year(:x)", 4),
    "YYY": ("year(:x) % 1000", 3),
    "YY": ("year(:x) % 100", 2),
    "Y": ("year(:x) % 10", 1),
    "IYYY": ("extract(yearofweek from :x)", 4),
    "MM": ("month(:x)", 2),
    "DD": ("day(:x)", 2),
    "DDD": ("dayofyear(:x)", 3),
    "D": ("dayofweek(:x)", 1),
    "ID": ("(weekday(:x) + 1)", 1),
    "HH24": ("hour(:x)", 2),
    "HH12": ("((hour(:x) + 11) % 12 + 1)", 2),
    "HH": ("((hour(:x) + 11) % 12 + 1)", 2),
    "MI": ("minute(:x)", 2),
    "SS": ("second(:x)", 2),
    "MS": ("(pmod(unix_micros(cast(:x as timestamp)), 1000000) div 1000)", 3),
    "US": ("pmod(unix_micros(cast(:x as timestamp)), 1000000)", 6),
    "SSSS": ("(hour(:x) * 3600 + minute(:x) * 60 + second(:x))", 0),
    "SSSSS": ("(hour(:x) * 3600 + minute(:x) * 60 + second(:x))", 0),
    "Q": ("quarter(:x)", 0),
    "WW": ("((dayofyear(:x) - 1) div 7 + 1)", 2),
    "W": ("((day(:x) - 1) div 7 + 1)", 0),
    "IW": ("weekofyear(:x)", 2),
    "J": ("(datediff(cast(:x as date), date '1970-01-01') + 2440588)", 0),
    "CC": ("((year(:x) + 99) div 100)", 2),
}
"""Spark's expression of a number, and its least number of digits without FM."""
_LONGER: Final = frozenset(("YYYY", "IYYY", "CC"))
"""Keywords that have more digits from the year 10000 on."""

_NAMES: Final[Mapping[str, tuple[tuple[str, ...], str, int]]] = {
    **{
        word: (tuple(change(m) for m in _MONTHS), "month(:x)", 9)
        for word, change in (("MONTH", str.upper), ("Month", str), ("month", str.lower))
    },
    **{
        word: (tuple(change(m[:3]) for m in _MONTHS), "month(:x)", 0)
        for word, change in (("MON", str.upper), ("Mon", str), ("mon", str.lower))
    },
    **{
        word: (tuple(change(d) for d in _DAYS), "dayofweek(:x)", 9)
        for word, change in (("DAY", str.upper), ("Day", str), ("day", str.lower))
    },
    **{
        word: (tuple(change(d[:3]) for d in _DAYS), "dayofweek(:x)", 0)
        for word, change in (("DY", str.upper), ("Dy", str), ("dy", str.lower))
    },
}
"""The names, the expression that chooses one, and the width to pad it to without FM."""

_Piece = tuple[str, bool, bool]
"""A keyword or text; whether it is a keyword; whether FM comes before it."""


def _pieces(name: str, template: str) -> list[_Piece]:
    pieces: list[_Piece] = []
    place, fill = 0, False
    while place < len(template):
        if template[place] == "\\":
            raise t.refuse(f'{name}() with "{template}"')
        if template[place] == '"':
            end = template.find('"', place + 1)
            if end < 0:
                raise t.refuse(f'{name}() with "{template}"')
            pieces.append((template[place + 1 : end], False, False))
            place = end + 1
            continue
        if template[place : place + 2] in ("FM", "fm"):
            place, fill = place + 2, True
            continue
        if template[place : place + 2] in ("TM", "tm", "FX", "fx"):
            raise t.refuse(f'{name}() with "{template}"')
        word = _keyword(template, place)
        if word is None:
            pieces.append((template[place], False, False))
            place += 1
            continue
        written = template[place : place + len(word)]
        pieces.append((written if word in ("AM", "PM") else word, True, fill))
        place, fill = place + len(word), False
        if template[place : place + 2].upper() in ("TH", "SP"):
            raise t.refuse(f'{name}() with "{template}"')
    return pieces


def _keyword(template: str, place: int) -> str | None:
    for word in _KEYWORDS:
        candidate = template[place : place + len(word)]
        if candidate == word or (word in _ANY_CASE and candidate == word.lower()):
            return word
    return None


def to_char(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate to_char() of a date or timestamp."""
    operand = operands[0]
    if operand.type.number or operand.type.oid == t.INTERVAL:
        raise t.refuse(f"to_char() of {operand.type.name}")
    if operand.type.oid not in t.MOMENTS:
        raise no_function(name, operand.type)
    moment = moments.converted(operand, t.TIMESTAMP, zone)
    local = moment.node
    parts: list[str] = []
    for word, is_keyword, fill in _pieces(name, constant_text(name, operands[1])):
        if not is_keyword:
            parts.append(_quoted(word))
        elif word in _NUMBERS:
            number, digits = _NUMBERS[word]
            field = f"cast({number} as string)"
            # FM has no effect on fractions. lpad() would cut a longer number.
            if word in ("MS", "US") or (digits and not fill):
                least = str(digits)
                if word in _LONGER:
                    least = f"greatest({digits}, length({field}))"
                field = f"lpad({field}, {least}, '0')"
            parts.append(field)
        elif word in _NAMES:
            names, place, width = _NAMES[word]
            listed = ", ".join(map(_quoted, names))
            field = f"element_at(array({listed}), {place})"
            parts.append(
                f"rpad({field}, {width}, ' ')" if width and not fill else field
            )
        elif word.upper() in ("AM", "PM"):
            words = ("AM", "PM") if word.isupper() else ("am", "pm")
            parts.append(f"if(hour(:x) < 12, '{words[0]}', '{words[1]}')")
        else:
            raise t.refuse(f'to_char() with "{word}"')
    if not parts:
        # An empty template gives NULL.
        return Operand(t.cast(exp.Null(), "STRING"), plain(t.TEXT))
    # Spark's element_at() gives the last element for a NULL index, so test for NULL first.
    error = t.failure("0A000", "to_char() of years before 1 is not supported")
    text_ = (
        f"if(:x is null, null, if(year(:x) < 1, cast({error} as string),"
        f" concat({', '.join(parts)})))"
    )
    node = moments.unless_infinite(moment, "cast(null as string)", let(text_, x=local))
    return Operand(node, plain(t.TEXT))


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"


_READ: Final = {
    "YYYY": r"(\\d{4})",
    "MM": r"(\\d\\d)",
    "DD": r"(\\d\\d)",
    "HH24": r"(\\d\\d)",
    "MI": r"(\\d\\d)",
    "SS": r"(\\d\\d)",
    "US": r"(\\d{6})",
    "MS": r"(\\d{3})",
}
_LEAST: Final = {"YYYY": "0001", "MM": "01", "DD": "01"}


def _read(name: str, operands: Sequence[Operand], zone: str) -> exp.Expression:
    """The ISO 8601 text of the fields that the template finds in a text."""
    template = constant_text(name, operands[1])
    shape = ""
    places: dict[str, int] = {}
    for word, is_keyword, fill in _pieces(name, template):
        if not is_keyword:
            shape += "".join(f"\\\\x{{{ord(c):x}}}" for c in word)
            continue
        if word not in _READ or fill or word in places:
            raise t.refuse(f'{name}() with "{template}"')
        places[word] = len(places) + 1
        shape += _READ[word]
    if "YYYY" not in places or ("MS" in places and "US" in places):
        raise t.refuse(f'{name}() with "{template}"')

    def part(word: str) -> str:
        if word not in places:
            return f"'{_LEAST.get(word, '00')}'"
        return f"regexp_extract(:x, '^{shape}\\\\z', {places[word]})"

    fraction = part("US") if "US" in places else part("MS")
    error = t.failure(
        "0A000", "a text that does not look like the template is not supported"
    )
    parts = ", '-', ".join(map(part, ("YYYY", "MM", "DD")))
    clock = ", ':', ".join(map(part, ("HH24", "MI", "SS")))
    whole = f"concat({parts}, ' ', {clock}, '.', {fraction})"
    value = casts.as_known(operands[0], zone)
    return let(
        f"if(:x is null, null, if(:x rlike '^{shape}\\\\z', {whole},"
        f" cast({error} as string)))",
        x=text(name, value, zone),
    )


def to_date(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate to_date()."""
    read = _read(name, operands, zone)
    return Operand(spark("cast(left(:x, 10) as date)", x=read), plain(t.DATE))


def to_timestamp(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate to_timestamp() of a text, in the session's time zone."""
    read = t.cast(_read(name, operands, zone), "TIMESTAMP_NTZ")
    local = Operand(read, plain(t.TIMESTAMP))
    return moments.converted(local, t.TIMESTAMPTZ, zone)
