"""PostgreSQL text to booleans, numbers, text and bytes, column by column.

Comes in: a BinaryArray of values as the publisher sent them, and the mapping. Goes out: a
Conversion. Called by ``text`` only.

The fast parsers are Arrow's own casts. They are as strict as PostgreSQL's input functions or
stricter, except in the cases that ``suspects`` covers: Arrow converts a number too large for a
double to infinity and one too small to zero, while PostgreSQL refuses both; and a decimal that is
too large silently overflows its 128 bits. The interpreters accept all values that PostgreSQL's
input functions accept (spaces around a number, hex integers, bool words), because the target's
type need not be the source's.

Sources: int.c, numutils.c, bool.c, float.c, numeric.c, varlena.c (byteain).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.decode.conversion import (
    Conversion,
    Failures,
    Mask,
    Rejected,
    binary_array,
    convert,
    packed,
    plain_by,
    raw,
    valid_mask,
    without,
)
from wal2lake.pgtypes.decode.inputs import read_as
from wal2lake.pgtypes.decode.length import fitted
from wal2lake.pgtypes.mapping import TypeMapping

_SPACE = b" \t\n\v\f\r"
_INVALID_UTF8 = 'invalid byte sequence for encoding "UTF8"'
_INVALID_NUL = 'invalid byte sequence for encoding "UTF8": 0x00'


def _invalid_syntax(mapping: TypeMapping) -> Rejected:
    return Rejected("22P02", f"invalid input syntax for type {mapping.type_name}")


def _out_of_range(mapping: TypeMapping) -> Rejected:
    return Rejected("22003", f"value is out of range for type {mapping.type_name}")


# --- bool -------------------------------------------------------------------------------

_BOOL_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def decode_bool(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert t and f, and the words that boolin accepts."""

    def interpret(text: bytes) -> bool:
        word = text.strip(_SPACE).decode("ascii", "replace").lower()
        if word in ("on", "1"):
            return True
        if word in ("off", "of", "0"):
            return False
        for whole, value in _BOOL_WORDS.items():
            if word and whole.startswith(word):
                return value
        raise _invalid_syntax(mapping)

    return convert(values, pa.bool_(), _parse_bool, interpret, plain=plain_by("[tf]"))


def _parse_bool(values: pa.BinaryArray) -> pa.Array:
    data, offsets = raw(values)
    valid = valid_mask(values)
    lengths = np.diff(offsets)
    right = lengths == 1 if valid is None else (lengths == 1) | ~valid
    if not right.all():
        raise pa.ArrowInvalid("not a boolean")
    if len(data) == 0:
        return pa.nulls(len(values), pa.bool_())
    firsts = data[np.minimum(offsets[:-1], len(data) - 1)]
    true = firsts == ord("t")
    either = true | (firsts == ord("f"))
    if not (either if valid is None else either | ~valid).all():
        raise pa.ArrowInvalid("not a boolean")
    return pa.array(true, mask=None if valid is None else ~valid)


# --- integers ---------------------------------------------------------------------------

_INTEGER = re.compile(rb"([+-]?)(?:0[xX]_?[0-9a-fA-F]|0[oO]_?[0-7]|0[bB]_?[01]|[0-9])")


def decode_integer(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert decimal digits; also spaces, signs, 0x, 0o, 0b and underscores, as int4in does."""
    arrow = mapping.arrow_type
    low, high = -(1 << arrow.bit_width - 1), (1 << arrow.bit_width - 1) - 1

    def interpret(text: bytes) -> int:
        stripped = text.strip(_SPACE)
        match = _INTEGER.match(stripped)
        if match is None:
            raise _invalid_syntax(mapping)
        digits = stripped.lstrip(b"+-").lower()
        try:
            prefixed = digits[:1] == b"0" and digits[1:2] in (b"x", b"o", b"b")
            number = int(digits, 0 if prefixed else 10)
        except ValueError:
            raise _invalid_syntax(mapping) from None
        if match[1] == b"-":
            number = -number
        if not low <= number <= high:
            raise _out_of_range(mapping)
        return number

    return convert(
        values,
        arrow,
        lambda part: part.cast(arrow),
        interpret,
        plain=plain_by(f"-?[0-9]{{1,{len(str(high))}}}"),
    )


# --- floating point ---------------------------------------------------------------------

_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?\Z")
_FLOAT_WORDS = {"nan": "nan", "inf": "inf", "infinity": "inf"}
_EXACT_DIGITS = {32: 6, 64: 15}
"""Number of decimal digits that a float of so many bits always preserves (FLT_DIG, DBL_DIG)."""


def decode_float(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert numbers with correct rounding and -0, NaN, and infinities in PostgreSQL's words.

    With ``mapping.exact`` a number that would print with other digits is bad.
    """
    arrow = mapping.arrow_type
    shortest = np.float32 if arrow == pa.float32() else float

    def interpret(text: bytes) -> float:
        word = text.strip(_SPACE).decode("ascii", "replace").lower()
        unsigned = word.lstrip("+-")
        if len(word) - len(unsigned) <= 1 and unsigned in _FLOAT_WORDS:
            sign = "-" if word.startswith("-") else ""
            return float(sign + _FLOAT_WORDS[unsigned])
        if _FLOAT.match(word) is None:
            raise _invalid_syntax(mapping)
        # With Arrow, because a float4 must be rounded only once, from the text.
        number = float(pa.scalar(word).cast(arrow).as_py())
        nothing = number == 0 and re.search("[1-9]", word.partition("e")[0])
        if number in (float("inf"), float("-inf")) or nothing:
            raise _out_of_range(mapping)
        if mapping.exact and Decimal(str(shortest(number))) != Decimal(word):
            raise Rejected(
                "22003", f"numeric cannot be stored exactly as {mapping.type_name}"
            )
        return number

    safe = _EXACT_DIGITS[arrow.bit_width]

    def suspects(part: pa.BinaryArray, array: pa.Array) -> Mask | None:
        odd = _suspect_floats(part, array)
        if not mapping.exact:
            return odd
        # Counts sign, point and leading zero as digits, so it marks too many rows, never too few.
        long = pc.fill_null(pc.greater(pc.binary_length(part), safe), False)
        longer: Mask = long.to_numpy(zero_copy_only=False)
        return longer if odd is None else odd | longer

    return convert(
        values,
        arrow,
        lambda part: part.cast(arrow),
        interpret,
        suspects,
        plain=plain_by("-?[0-9.]+(e[+-]?[0-9]+)?|NaN|-?Infinity"),
    )


def _suspect_floats(values: pa.BinaryArray, array: pa.Array) -> Mask | None:
    numbers = array.fill_null(1).to_numpy(zero_copy_only=False)
    odd: Mask = ~np.isfinite(numbers) | (numbers == 0)
    if not odd.any():
        return None
    rows = np.flatnonzero(odd)
    texts = values.take(pa.array(rows))
    exact = pc.is_in(
        texts, pa.array([b"0", b"-0", b"NaN", b"Infinity", b"-Infinity"], pa.binary())
    ).to_numpy(zero_copy_only=False)
    odd[rows[exact]] = False
    return odd if odd.any() else None


# --- numeric ----------------------------------------------------------------------------


_DECIMAL128_DIGITS = 38


def decode_decimal(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert numeric to decimal(p,s); a value that does not fit exactly is bad, not rounded."""
    arrow = mapping.arrow_type
    shown = f"decimal({arrow.precision},{arrow.scale})"
    quantum = Decimal(1).scaleb(-arrow.scale)

    def interpret(text: bytes) -> Decimal:
        word = text.strip(_SPACE).decode("ascii", "replace")
        unsigned = word.lstrip("+-").lower()
        if unsigned in _FLOAT_WORDS:
            name = "NaN" if unsigned == "nan" else "Infinity"
            raise Rejected("22003", f'numeric "{name}" cannot be stored as {shown}')
        try:
            prefixed = unsigned[:2] in ("0x", "0o", "0b")
            number = Decimal(int(word, 0) if prefixed else word)
        except (InvalidOperation, ValueError):
            raise _invalid_syntax(mapping) from None
        if not number.is_finite():
            raise _invalid_syntax(mapping)
        with localcontext(prec=2 * len(word) + 80):
            try:
                stored = number.quantize(quantum)
            except InvalidOperation:
                raise _overflow(shown) from None
            if stored != number:
                raise Rejected("22003", f"numeric cannot be stored exactly as {shown}")
        if stored.adjusted() - stored.as_tuple().exponent >= arrow.precision and stored:  # type: ignore[operator]
            raise _overflow(shown)
        return stored

    digits = arrow.precision - arrow.scale
    whole = f"[0-9]{{1,{digits}}}" if digits else "0"
    fraction = f"([.][0-9]{{1,{arrow.scale}}})?" if arrow.scale else ""
    plain = plain_by(f"-?{whole}{fraction}")
    return convert(
        values,
        arrow,
        lambda part: part.cast(arrow),
        interpret,
        lambda part, _: _suspect_decimals(part, digits, plain),
        plain=plain,
    )


def _suspect_decimals(
    values: pa.BinaryArray, digits: int, plain: Callable[[pa.BinaryArray], Mask]
) -> Mask | None:
    """Find numbers that may have silently overflowed Arrow's 128 bits: when they were read (more
    than 38 digits), or when they were scaled (too many digits before the point)."""
    lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    point = pc.find_substring(values, b".").fill_null(0).to_numpy(zero_copy_only=False)
    before = np.where(point < 0, lengths, point)
    data, offsets = raw(values)
    odd: Mask = (before > digits) | (lengths > _DECIMAL128_DIGITS)
    if (data[offsets[0] : offsets[-1]] | 0x20 == ord("e")).any():
        odd = np.ones(len(values), np.bool_)
    if not odd.any():
        return None
    rows = np.flatnonzero(odd)
    odd[rows[plain(values.take(pa.array(rows)))]] = False
    if values.null_count:
        odd &= values.is_valid().to_numpy(zero_copy_only=False)
    return odd


def _overflow(shown: str) -> Rejected:
    return Rejected("22003", f"numeric field overflow: it does not fit {shown}")


# --- text -------------------------------------------------------------------------------


def decode_text_family(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Copy text byte for byte; invalid UTF-8 and NUL are bad, because a Parquet string allows
    neither.

    Texts of another type are read as values of the mapping's type, and texts with another
    declared length are fitted to the mapping's.
    """
    failures = Failures()
    try:
        array = values.cast(pa.string())
    except pa.ArrowInvalid:

        def interpret(text: bytes) -> str:
            try:
                return text.decode()
            except UnicodeDecodeError:
                raise Rejected("22021", _INVALID_UTF8) from None

        decoded = convert(
            values,
            pa.string(),
            lambda part: part.cast(pa.string()),
            interpret,
            plain=_decodable,
        )
        failures.extend(decoded.failures, np.arange(len(values)))
        array = decoded.array
    data, offsets = raw(values)
    if not data[offsets[0] : offsets[-1]].all():
        holds_nul = pc.fill_null(
            pc.greater_equal(pc.find_substring(values, pattern=b"\0"), 0), False
        ).to_numpy(zero_copy_only=False)
        failures.add_rows(np.flatnonzero(holds_nul), "22021", _INVALID_NUL)
        array = without(array, holds_nul)
    if mapping.reads is not None:
        array = read_as(array, *mapping.reads, failures)
    if mapping.length is not None:
        array = fitted(array, mapping.length, failures)
    return failures.conclude(array)


def _decodable(values: pa.BinaryArray) -> Mask:
    decodable = np.ones(len(values), np.bool_)
    for row, text in enumerate(values.to_pylist()):
        try:
            (text or b"").decode()
        except UnicodeDecodeError:
            decodable[row] = False
    return decodable


# --- bytea ------------------------------------------------------------------------------

_ESCAPE = re.compile(rb"\\(?:([0-3][0-7][0-7])|(\\)|(.?))", re.DOTALL)


def decode_bytea(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert hex format in bulk; escape format, which an older source may send, one by one."""

    def interpret(text: bytes) -> bytes:
        if text.startswith(b"\\x"):
            digits = text[2:].translate(None, _SPACE)
            try:
                return binascii.unhexlify(digits)
            except binascii.Error:
                odd = len(digits) % 2 and not digits.strip(b"0123456789abcdefABCDEF")
                what = "odd number of digits" if odd else "invalid digit"
                raise Rejected("22023", f"invalid hexadecimal data: {what}") from None
        return _ESCAPE.sub(_unescape(mapping), text)

    return convert(
        values,
        pa.binary(),
        _parse_hex,
        interpret,
        plain=plain_by(r"\\x([0-9a-fA-F]{2})*"),
    )


def _unescape(mapping: TypeMapping) -> Callable[[re.Match[bytes]], bytes]:
    def replacement(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 8)])
        if match[2]:
            return b"\\"
        raise _invalid_syntax(mapping)

    return replacement


def _parse_hex(values: pa.BinaryArray) -> pa.Array:
    """Decode all digits of the column with one call; the offsets are halved."""
    data, offsets, null = packed(values)
    lengths = np.diff(offsets)
    present = np.ones(len(values), np.bool_) if null is None else ~null
    starts = offsets[:-1][present]
    sizes = lengths[present]
    if (sizes < 2).any() or (sizes & 1).any():
        raise pa.ArrowInvalid("not hex")
    if (data[starts] != ord("\\")).any() or (data[starts + 1] != ord("x")).any():
        raise pa.ArrowInvalid("not hex")
    digits = np.ones(len(data), np.bool_)
    digits[starts] = False
    digits[starts + 1] = False
    try:
        decoded = binascii.unhexlify(data[digits].tobytes())
    except binascii.Error:
        raise pa.ArrowInvalid("not hex") from None
    halved = np.zeros(len(offsets), np.int32)
    halved[1:] = np.cumsum(np.where(present, lengths // 2 - 1, 0))
    return binary_array(decoded, halved, null)
