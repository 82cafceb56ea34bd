"""Texts of one type as values of another type that is stored as text.

Comes in: a text column, and the type whose input function its values must pass. Goes out: the
canonical texts, null for refused values; refusals go to the ``Failures``. Called by the
conversion of text if the mapping ``reads``: the publisher's column has another type than ours, so
the texts are the output of that type's function, and must still pass the input of ours.

Each distinct value is read once. Values that PostgreSQL reads and this module does not (dates with
month names) are refused, and so are types without a reader here.

Sources: PostgreSQL manual, chapter 8; numeric_in, uuid_in, json_in, jsonb_in, time_in, timetz_in,
interval_in, inet_in, cidr_in, macaddr_in, bit_in, namein, charin, oidin in src/backend/utils/adt.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    Context,
    Decimal,
    InvalidOperation,
)
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import Wal2LakeError, sqlstate_of
from wal2lake.pgtypes.decode.addresses import shown_address
from wal2lake.pgtypes.decode.conversion import Failures, Rejected, without
from wal2lake.pgtypes.decode.jsontext import canonical_json, checked_json
from wal2lake.pgtypes.registry.pg_type import (
    format_type,
    numeric_precision_scale,
)

_SPACE: Final = " \t\n\v\f\r"
_NAME_BYTES: Final = 63
_TEXT: Final = frozenset((25, 1042, 1043))
"""Types that accept any text."""
_NUMERIC: Final = 1700


def reads_any(type_oid: int) -> bool:
    """Return whether every text is a value of the type, without conversion."""
    return type_oid in _TEXT


def has_input(type_oid: int) -> bool:
    """Return whether there is a reader for the type."""
    return type_oid in _READERS


def read_as(
    array: pa.StringArray, type_oid: int, typmod: int, failures: Failures
) -> pa.StringArray:
    """Convert the array to values of the type. Rows that fail are null."""
    if type_oid in _TEXT or not len(array):
        return array
    codes = array.dictionary_encode()
    name = format_type(type_oid, typmod)
    read = _READERS.get(type_oid)
    stored: list[str | None] = []
    refused: dict[int, Rejected] = {}
    for number, text in enumerate(codes.dictionary.to_pylist()):
        try:
            if read is None:
                raise Rejected(
                    "0A000", f"values of another type cannot become values of {name}"
                )
            value = read(text, name)
            if type_oid == _NUMERIC:
                value = _scaled(value, typmod, name)
            stored.append(value)
        except Rejected as reason:
            refused[number] = reason
            stored.append(None)
        except Wal2LakeError as error:
            sqlstate = sqlstate_of(error) or "22P02"
            refused[number] = Rejected(sqlstate, error.message.partition(': "')[0])
            stored.append(None)
    indices = codes.indices
    texts = pa.array(stored, pa.string()).take(indices)
    if refused:
        numbers = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False)
        bad = np.isin(numbers, list(refused))
        for row in np.flatnonzero(bad).tolist():
            why = refused[int(numbers[row])]
            failures.add(row, why.sqlstate, why.message)
        texts = without(texts, bad)
    return texts


def _invalid(name: str) -> Rejected:
    return Rejected("22P02", f"invalid input syntax for type {name}")


_DECIMAL: Final = re.compile(
    r"[+-]?(?:{0}\.?(?:{0})?|\.{0})(?:e[+-]?{0})?\Z".format("[0-9]+(?:_[0-9]+)*")
)
_PREFIXED: Final = re.compile(r"[+-]?0[xob]", re.ASCII)
_EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""Decimal context for numbers with more digits than Python's default of 28."""
_SPECIAL: Final = {
    "nan": "NaN",
    "inf": "Infinity",
    "+inf": "Infinity",
    "-inf": "-Infinity",
}


def _numeric(text: str, name: str) -> str:
    word = text.strip(_SPACE).lower()
    special = _SPECIAL.get(word.replace("infinity", "inf"))
    if special is not None:
        return special
    try:
        if _PREFIXED.match(word):
            return str(int(word, 0))
        if not _DECIMAL.match(word):
            raise _invalid(name)
        value = Decimal(word)
    except (InvalidOperation, ValueError):
        raise _invalid(name) from None
    if (value and value.adjusted() >= 131_072) or value.as_tuple().exponent < -16_383:  # type: ignore[operator]
        raise Rejected("22003", "value overflows numeric format")
    if not value:
        return f"{0:.{max(0, -value.as_tuple().exponent)}f}"  # type: ignore[operator]
    return f"{value:f}"


def _scaled(text: str, typmod: int, name: str) -> str:
    """Apply the declared scale; a value that would be rounded is refused, as in a decimal
    column."""
    limits = numeric_precision_scale(typmod)
    if limits is None or text == "NaN":
        return text
    if text.endswith("Infinity"):
        raise Rejected("22003", "numeric field overflow")
    precision, scale = limits
    value = Decimal(text)
    with_scale = value.quantize(Decimal((0, (1,), -scale)), context=_EXACT)
    if with_scale != value:
        raise Rejected("22003", f"numeric cannot be stored exactly as {name}")
    if value and value.adjusted() >= precision - scale:
        raise Rejected("22003", "numeric field overflow")
    return f"{with_scale:f}" if value else f"{0:.{max(0, scale)}f}"


_UUID: Final = re.compile(r"(?:[0-9a-f]{4}-?){7}[0-9a-f]{4}\Z", re.IGNORECASE)


def _uuid(text: str, name: str) -> str:
    bare = text
    if bare.startswith("{") and bare.endswith("}"):
        bare = bare[1:-1]
    if not _UUID.match(bare):
        raise _invalid(name)
    digits = bare.replace("-", "").lower()
    return "-".join(
        digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )


def _json(text: str, name: str) -> str:
    del name
    return checked_json(text)


def _jsonb(text: str, name: str) -> str:
    del name
    return canonical_json(text)


_TIME: Final = re.compile(
    r"(?:\d{4,6}-\d\d-\d\d[ T])?(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d*))?)?"
    r"\s*([+-]\d\d(?::?\d\d){0,2}|Z)?\Z",
    re.IGNORECASE,
)


def _clock(text: str, name: str) -> tuple[str, str | None]:
    """Return the canonical time, and the offset as written."""
    match = _TIME.match(text.strip(_SPACE))
    if match is None:
        raise Rejected("22007", f"invalid input syntax for type {name}")
    hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3] or 0)
    micros = round(float(f"0.{match[4] or 0}") * 1_000_000)
    total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros
    if minutes > 59 or seconds > 60 or total > 86_400_000_000:
        raise Rejected("22008", "date/time field value out of range")
    seconds, micros = divmod(total, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0").rstrip(".")
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return clock + fraction, match[5]


def _time(text: str, name: str) -> str:
    return _clock(text, name)[0]


def _timetz(text: str, name: str) -> str:
    clock, offset = _clock(text, name)
    if offset is None or offset in ("Z", "z"):
        # The session's zone is UTC.
        return clock + "+00"
    digits = offset[1:].replace(":", "")
    parts = [digits[position : position + 2] for position in range(0, len(digits), 2)]
    while len(parts) > 1 and parts[-1] == "00":
        parts.pop()
    return clock + offset[0] + ":".join(parts)


_INTERVAL: Final = re.compile(
    r"(?:[+-]?\d{1,9} (?:years?|mons?|days?)\s*)*"
    r"(?:[+-]?\d{1,7}:[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?)?\Z"
)


def _interval(text: str, name: str) -> str:
    bare = text.strip(_SPACE)
    if bare.lower() in ("infinity", "-infinity"):
        return bare.lower()
    if not re.search(r"\d", bare):
        raise Rejected("22007", f"invalid input syntax for type {name}")
    if _INTERVAL.match(bare) is None:
        raise Rejected(
            "0A000", f"only intervals as PostgreSQL prints them are read as {name}"
        )
    months = days = micros = 0
    for number, unit in _PART.findall(bare):
        if unit == "day":
            days += int(number)
        else:
            months += int(number) * (12 if unit == "year" else 1)
    clock = _CLOCK.search(bare)
    if clock is not None:
        seconds = (int(clock[2]) * 60 + int(clock[3])) * 60 + int(clock[4] or 0)
        micros = seconds * 1_000_000 + int((clock[5] or "").ljust(6, "0"))
        micros = -micros if clock[1] == "-" else micros
    return _shown_interval(months, days, micros)


_PART: Final = re.compile(r"([+-]?\d+) (year|mon|day)")
_CLOCK: Final = re.compile(r"([+-]?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d+))?)?\Z")


def _shown_interval(months: int, days: int, micros: int) -> str:
    """Write an interval in IntervalStyle postgres (EncodeInterval)."""
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    shown = ""
    before = False
    for number, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if number:
            sign = "+" if before and number > 0 else ""
            plural = "" if number == 1 else "s"
            shown += f"{' ' if shown else ''}{sign}{number} {unit}{plural}"
            before = number < 0
    if micros or not shown:
        sign = "-" if micros < 0 else "+" if before else ""
        seconds, fraction = divmod(abs(micros), 1_000_000)
        rest = f".{fraction:06d}".rstrip("0").rstrip(".")
        shown += (
            f"{' ' if shown else ''}{sign}{seconds // 3600:02d}"
            f":{seconds // 60 % 60:02d}:{seconds % 60:02d}{rest}"
        )
    return shown


def _address(text: str, name: str) -> str:
    is_cidr = name == "cidr"
    address, slash, width = text.strip(_SPACE).partition("/")
    try:
        parsed = ipaddress.ip_address(address)
        bits = int(width) if slash else parsed.max_prefixlen
        network = ipaddress.ip_network((address, bits), strict=False)
    except ValueError:
        raise _invalid(name) from None
    if "%" in address:
        raise _invalid(name)
    if is_cidr and network.network_address != parsed:
        raise Rejected("22P02", "invalid cidr value")
    shown = shown_address(parsed.packed)
    return f"{shown}/{bits}" if is_cidr or bits != parsed.max_prefixlen else shown


def _macaddr(text: str, name: str) -> str:
    digits = re.sub(r"[:.-]", "", text.strip(_SPACE)).lower()
    if not re.fullmatch(r"[0-9a-f]{12}", digits):
        raise _invalid(name)
    return ":".join(digits[position : position + 2] for position in range(0, 12, 2))


def _bits(text: str, name: str) -> str:
    del name
    digits = text[1:] if text[:1] in ("b", "B") else text
    if text[:1] in ("x", "X"):
        digits = text[1:]
        if re.fullmatch(r"[0-9A-Fa-f]*", digits) is None:
            raise Rejected("22P02", "not a valid hexadecimal digit")
        return "".join(f"{int(digit, 16):04b}" for digit in digits)
    if digits.strip("01"):
        raise Rejected("22P02", "not a valid binary digit")
    return digits


def _name(text: str, name: str) -> str:
    del name
    return text.encode()[:_NAME_BYTES].decode(errors="ignore")


def _oid(text: str, name: str) -> str:
    word = text.strip(_SPACE)
    if not re.fullmatch(r"[+-]?(?:[0-9]+|0[xX][0-9A-Fa-f]+)", word):
        raise _invalid(name)
    number = int(word, 16 if "x" in word.lower() else 10)
    if not -(1 << 31) <= number < 1 << 32:
        raise Rejected("22003", f"value is out of range for type {name}")
    return str(number % (1 << 32))


_READERS: Final[Mapping[int, Callable[[str, str], str]]] = MappingProxyType(
    {
        19: _name,
        26: _oid,
        114: _json,
        650: _address,
        829: _macaddr,
        869: _address,
        1083: _time,
        1186: _interval,
        1266: _timetz,
        1560: _bits,
        1562: _bits,
        _NUMERIC: _numeric,
        2950: _uuid,
        3802: _jsonb,
    }
)
