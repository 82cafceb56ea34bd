"""Reads literals by PostgreSQL's input functions and writes them as typed Spark constants.

Comes in: the text of a literal, and the type that the context gives it. Goes out: an operand that
Spark reads as the same value. Called by ``casts``.

Spark's own rules differ: Spark reads no hexadecimal bytea, no time without seconds, and a uuid in
one spelling only. A spelling that PostgreSQL reads and this module does not, such as a date with
the name of a month, is refused.

Sources: PostgreSQL manual, chapter 8; the input functions in src/backend/utils/adt.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.decode.jsontext import canonical_json, checked_json
from wal2lake.pgtypes.receive.value.network import read_cidr, read_inet
from wal2lake.sql.query.values import intervals, moments
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.moments import parse_time, parse_timetz, rounded_clock
from wal2lake.sql.query.values.types import Operand, Type, cast, decimal

_INTEGER = re.compile(r"\s*[+-]?\d+\s*\Z")

_MAX_REAL = 3.4028235677973366e38
"""FLT_MAX and half a unit in its last place: the greatest number not rounded to infinity."""


def constant(text: str, kind: Type, zone: str) -> Operand:
    """Read ``'text'::kind`` in the session's time zone; raises 22P02, 22007, 22003, 0A000."""
    if kind.foreign is not None:
        return Operand(exp.Literal.string(text), kind)
    if kind.element is not None:
        items = [
            exp.Null() if item is None else constant(item, kind.element, zone).node
            for item in _array(text, kind)
        ]
        array = exp.Array(expressions=items)
        return Operand(cast(array, t.spark_name(kind)), kind.computed())
    if kind.oid in t.MOMENTS:
        return moments.constant(text, kind, zone)
    if kind.oid == t.TIMETZ:
        shown = parse_timetz(text, zone)
        if kind.typmod != -1:
            shown = rounded_clock(shown, kind.typmod)
        return Operand(exp.Literal.string(shown), kind)
    read = _READERS.get(kind.oid)
    if read is None:
        raise t.refuse(f"a constant of type {kind.name}")
    return read(text, kind)


def invalid(text: str, kind: Type) -> UsageError:
    """PostgreSQL's error for malformed input."""
    return UsageError(
        f'invalid input syntax for type {kind.name}: "{text}"', sqlstate="22P02"
    )


def _integer(text: str, kind: Type) -> Operand:
    if not _INTEGER.match(text):
        raise invalid(text, kind)
    value, limit = int(text), 1 << (t.INTEGER_BITS[kind.oid] - 1)
    if not -limit <= value < limit:
        raise UsageError(
            f'value "{text}" is out of range for type {kind.name}', sqlstate="22003"
        )
    node = cast(exp.Literal.string(str(value)), t.spark_name(kind))
    return Operand(node, kind)


def number(text: str, kind: Type | None = None) -> Operand:
    """Read a numeric constant and keep its scale."""
    kind = kind or t.plain(t.NUMERIC)
    bare = text.strip().lower().removeprefix("+")
    special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(
        bare.replace("infinity", "inf")
    )
    if special is not None:
        return Operand(exp.Literal.string(special), t.plain(t.NUMERIC))
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise invalid(text, kind) from None
    if not value.is_finite() or abs(value.adjusted()) > 1000:
        raise invalid(text, kind)
    digits = f"{value:f}"
    if value == 0:
        digits = digits.removeprefix("-")
    whole, _, fraction = digits.lstrip("-").partition(".")
    precision = len(whole.lstrip("0")) + len(fraction)
    if precision > t.MAX_DIGITS:
        return Operand(exp.Literal.string(digits), t.plain(t.NUMERIC))
    kind_of_digits = decimal(max(precision, 1), len(fraction))
    return Operand(
        cast(exp.Literal.string(digits), t.spark_name(kind_of_digits)), kind_of_digits
    )


def _float(text: str, kind: Type) -> Operand:
    try:
        value = float(text)
    except ValueError:
        raise invalid(text, kind) from None
    if "_" in text:
        raise invalid(text, kind)
    if "inf" not in text.lower() and (
        value in (float("inf"), -float("inf"))
        or (kind.oid == t.FLOAT4 and abs(value) > _MAX_REAL)
    ):
        raise UsageError(
            f'"{text}" is out of range for type {kind.name}', sqlstate="22003"
        )
    return Operand(cast(exp.Literal.string(repr(value)), t.spark_name(kind)), kind)


def _boolean(text: str, kind: Type) -> Operand:
    word = text.strip().lower()
    for full in ("true", "yes", "on", "1"):
        if word and full.startswith(word) and word != "o":
            return Operand(exp.Boolean(this=True), kind)
    for full in ("false", "no", "off", "0"):
        if word and full.startswith(word) and word != "o":
            return Operand(exp.Boolean(this=False), kind)
    raise invalid(text, kind)


def bytea_in(text: str) -> bytes:
    """byteain(): read the hexadecimal format, or the escape format with octal digits."""
    if text.startswith("\\x"):
        digits = re.sub(r"\s", "", text[2:])
        wrong = re.search(r"[^0-9A-Fa-f]", digits)
        if wrong is not None:
            raise UsageError(
                f'invalid hexadecimal digit: "{wrong[0]}"', sqlstate="22023"
            )
        if len(digits) % 2:
            raise UsageError(
                "invalid hexadecimal data: odd number of digits", sqlstate="22023"
            )
        return bytes.fromhex(digits)
    raw = text.encode()
    if re.search(rb"\\(?!\\|[0-3][0-7][0-7])", raw.replace(rb"\\", b"")):
        raise UsageError("invalid input syntax for type bytea", sqlstate="22P02")
    return re.sub(
        rb"\\(\\|[0-3][0-7][0-7])",
        lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 8)]),
        raw,
    )


def _bytea(text: str, kind: Type) -> Operand:
    return Operand(exp.HexString(this=bytea_in(text).hex()), kind)


def _uuid(text: str, kind: Type) -> Operand:
    try:
        return Operand(exp.Literal.string(str(uuid.UUID(text))), kind)
    except ValueError:
        raise invalid(text, kind) from None


def _time(text: str, kind: Type) -> Operand:
    return Operand(exp.Literal.string(parse_time(text)), kind)


def _text(text: str, kind: Type) -> Operand:
    return Operand(exp.Literal.string(text), kind)


def _jsonb(text: str, kind: Type) -> Operand:
    return Operand(exp.Literal.string(canonical_json(text)), kind)


def _json(text: str, kind: Type) -> Operand:
    return Operand(exp.Literal.string(checked_json(text)), kind)


def _interval(text: str, kind: Type) -> Operand:
    return intervals.constant(text, kind.typmod)


def _bits(text: str, kind: Type) -> Operand:
    digits = text.removeprefix("b").removeprefix("B")
    if text[:1] in ("x", "X"):
        try:
            digits = "".join(f"{int(digit, 16):04b}" for digit in text[1:])
        except ValueError:
            digits = "?"
    wrong = next((c for c in digits if c not in "01"), None)
    if wrong is not None:
        raise UsageError(f'"{wrong}" is not a valid binary digit', sqlstate="22P02")
    return Operand(exp.Literal.string(digits), kind)


def _inet(text: str, kind: Type) -> Operand:
    address, slash, width = text.strip().partition("/")
    try:
        parsed = ipaddress.ip_address(address)
        bits = int(width) if slash else parsed.max_prefixlen
        network = ipaddress.ip_network((address, bits), strict=False)
    except ValueError:
        raise invalid(text, kind) from None
    if "%" in address:
        raise invalid(text, kind)
    if kind.oid == t.CIDR and network.network_address != parsed:
        raise UsageError(
            f'invalid cidr value: "{text}"',
            sqlstate="22P02",
            detail="Value has bits set to right of mask.",
        )
    family = b"\x02" if parsed.version == 4 else b"\x03"
    data = family + bytes((bits, kind.oid == t.CIDR, len(parsed.packed)))
    read = read_cidr if kind.oid == t.CIDR else read_inet
    return Operand(exp.Literal.string(read(data + parsed.packed)), kind)


def _macaddr(text: str, kind: Type) -> Operand:
    digits = re.sub(r"[:.-]", "", text.strip())
    if not re.fullmatch(r"[0-9A-Fa-f]{12}", digits):
        raise invalid(text, kind)
    pairs = re.findall("..", digits.lower())
    return Operand(exp.Literal.string(":".join(pairs)), kind)


def _oid(text: str, kind: Type) -> Operand:
    if not _INTEGER.match(text):
        raise invalid(text, kind)
    if not -(1 << 31) <= int(text) < 1 << 32:
        raise UsageError(
            f'value "{text}" is out of range for type {kind.name}', sqlstate="22003"
        )
    value = int(text) % (1 << 32)
    return Operand(cast(exp.Literal.string(str(value)), t.spark_name(kind)), kind)


_READERS: Mapping[int, Callable[[str, Type], Operand]] = MappingProxyType(
    {
        t.BOOL: _boolean,
        t.BYTEA: _bytea,
        t.INT2: _integer,
        t.INT4: _integer,
        t.INT8: _integer,
        t.NUMERIC: number,
        t.FLOAT4: _float,
        t.FLOAT8: _float,
        t.TIME: _time,
        t.UUID: _uuid,
        t.TEXT: _text,
        t.VARCHAR: _text,
        t.BPCHAR: _text,
        t.NAME: _text,
        t.JSON: _json,
        t.JSONB: _jsonb,
        t.INTERVAL: _interval,
        t.BIT: _bits,
        t.VARBIT: _bits,
        t.INET: _inet,
        t.CIDR: _inet,
        t.MACADDR: _macaddr,
        t.OID: _oid,
    }
)

_BOUNDS = re.compile(r"\[\s*([+-]?\d+)\s*:\s*([+-]?\d+)\s*\]\s*=\s*(?=\{)")

_ITEM = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",{}\\]+))\s*(,|\}\Z)', re.DOTALL)


def _array(text: str, kind: Type) -> list[str | None]:
    """Read a one-dimensional array literal as array_in() does."""
    body = text.strip()
    bounds = _BOUNDS.match(body)
    if bounds is not None:
        if int(bounds[1]) != 1:
            raise t.refuse("an array with a lower bound other than 1")
        inner = _array(body[bounds.end() :], kind)
        if len(inner) != int(bounds[2]):
            raise UsageError(
                f'malformed array literal: "{text}"',
                sqlstate="22P02",
                detail="Specified array dimensions do not match array contents.",
            )
        return inner
    if not body.startswith("{") or not body.endswith("}"):
        raise UsageError(f'malformed array literal: "{text}"', sqlstate="22P02")
    if body[1:-1].strip() == "":
        return []
    items: list[str | None] = []
    end = 1
    while end < len(body):
        item = _ITEM.match(body, end)
        if item is None:
            raise t.refuse(f'the array literal "{text}"')
        if item[1] is not None:
            items.append(re.sub(r"\\(.)", r"\1", item[1], flags=re.DOTALL))
        else:
            bare = item[2].strip()
            items.append(None if bare.lower() == "null" else bare)
        end = item.end()
        if item[3] == ",":
            continue
    return items
