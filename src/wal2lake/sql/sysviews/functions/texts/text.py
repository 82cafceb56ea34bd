"""Text made for SQL: quoting, format(), arrays in one text, text of bytes; bytes of bytes.

Comes in: values of a query. Goes out: text. The embedded engine does not have these functions, or
has them with other results.

Source: src/backend/utils/adt/quote.c, varlena.c, encode.c, mb/mbutils.c (convert_from); manual,
sections 9.4 and 9.5.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.sql.grammar import quote_identifier, quote_literal
from wal2lake.sql.parameters.encodings import canonical_encoding, decode_text
from wal2lake.sql.query.values.literals import bytea_in
from wal2lake.sql.sysviews.functions.call import Call

_ALL: Final = 1 << 31

_NO_BASE64: Final = re.compile(r"[^A-Za-z0-9+/= \t\n\r]")


def array_to_string(
    call: Call, items: list[str | None] | None, separator: str | None, null: str | None
) -> str | None:
    """Join elements; nulls are left out unless ``null`` is a text for them."""
    if items is None or separator is None:
        return None
    shown = (null if item is None else item for item in items)
    return separator.join(item for item in shown if item is not None)


def bytea(call: Call, text: str | None) -> bytes | None:
    """byteain()."""
    return None if text is None else bytea_in(text)


def convert_from(call: Call, data: bytes | None, encoding: str | None) -> str | None:
    """Decode a bytea in that encoding to text."""
    if data is None or encoding is None:
        return None
    name = canonical_encoding(encoding)
    if name is None:
        raise UsageError(f'invalid source encoding name "{encoding}"')
    return decode_text(data, name)


def encode(call: Call, data: bytes | None, form: str | None) -> str | None:
    """Encode a bytea as hex, escape or base64; base64 has lines of 76 characters."""
    if data is None or form is None:
        return None
    match form.lower():
        case "hex":
            return data.hex()
        case "escape":
            return "".join(map(_escaped, data))
        case "base64":
            text = base64.b64encode(data).decode()
            return "\n".join(
                text[start : start + 76] for start in range(0, len(text), 76)
            )
    raise UsageError(f'unrecognized encoding: "{form}"', sqlstate="22023")


def _escaped(byte: int) -> str:
    if byte == ord("\\"):
        return "\\\\"
    return f"\\{byte:03o}" if byte == 0 or byte >= 0x80 else chr(byte)


def decode(call: Call, text: str | None, form: str | None) -> bytes | None:
    """Decode text in hex, escape or base64 to a bytea."""
    if text is None or form is None:
        return None
    match form.lower():
        case "hex":
            return bytea_in("\\x" + text)
        case "escape":
            return bytea_in(text)
        case "base64":
            wrong = _NO_BASE64.search(text)
            if wrong is not None:
                raise UsageError(
                    f'invalid symbol "{wrong[0]}" found while decoding base64 sequence'
                )
            try:
                return base64.b64decode("".join(text.split()), validate=True)
            except ValueError:
                raise UsageError(
                    "invalid base64 end sequence",
                    hint="Input data is missing padding, is truncated, or is otherwise"
                    " corrupted.",
                ) from None
    raise UsageError(f'unrecognized encoding: "{form}"', sqlstate="22023")


def get_byte(call: Call, data: bytes | None, number: int | None) -> int | None:
    """Return a byte; numbers begin at 0."""
    if data is None or number is None:
        return None
    if not 0 <= number < len(data):
        raise UsageError(
            f"index {number} out of valid range, 0..{len(data) - 1}", sqlstate="2202E"
        )
    return data[number]


def bytea_substr(
    call: Call, data: bytes | None, start: int | None, length: int | None = _ALL
) -> bytes | None:
    """Return ``length`` bytes from ``start``, which counts from 1; bytes before 1 count as well."""
    if data is None or start is None or length is None:
        return None
    if length < 0:
        raise UsageError("negative substring length not allowed", sqlstate="22011")
    return data[max(start - 1, 0) : max(start - 1 + length, 0)]


def quote_ident(call: Call, text: str | None) -> str | None:
    """Quote a name as an identifier."""
    return None if text is None else quote_identifier(text)


def quote_literal_function(call: Call, value: object) -> str | None:
    """Quote a value as a string constant."""
    return None if value is None else quote_literal(str(value)).lstrip()


def quote_nullable(call: Call, value: object) -> str:
    """Quote a value as a string constant; null becomes NULL."""
    return quote_literal_function(call, value) or "NULL"


def format_function(call: Call, template: str | None, *values: object) -> str | None:
    """format() with %s, %I, %L and %%, and positions of arguments."""
    if template is None:
        return None
    out: list[str] = []
    arguments = list(values)
    position_in_text = argument_number = 0
    while (percent := template.find("%", position_in_text)) >= 0:
        out.append(template[position_in_text:percent])
        position_in_text = percent + 1
        digits = ""
        while template[position_in_text : position_in_text + 1].isdigit():
            digits += template[position_in_text]
            position_in_text += 1
        if digits and template[position_in_text : position_in_text + 1] == "$":
            position_in_text += 1
            position = int(digits)
        else:
            position = 0
        kind = template[position_in_text : position_in_text + 1]
        position_in_text += 1
        if kind == "%":
            out.append("%")
            continue
        if kind not in ("s", "I", "L"):
            raise UsageError(
                f'unrecognized format() type specifier "{kind}"'
                if kind
                else "unterminated format() type specifier",
            )
        argument_number = position or argument_number + 1
        if argument_number > len(arguments):
            raise UsageError("too few arguments for format()")
        out.append(_formatted(kind, arguments[argument_number - 1]))
    out.append(template[position_in_text:])
    return "".join(out)


def _formatted(kind: str, value: object) -> str:
    text = ("t" if value else "f") if isinstance(value, bool) else str(value)
    if kind == "I":
        if value is None:
            raise UsageError("null values cannot be formatted as an SQL identifier")
        return quote_identifier(text)
    if kind == "L":
        return "NULL" if value is None else quote_literal(text).lstrip()
    return "" if value is None else text


_QUOTED_IN_RECORDS: Final = re.compile(r'[\s"\\(),]')


def record_out(call: Call, values: Sequence[str | None] | None) -> str | None:
    """Return the text of a record of these values (rowtypes.c)."""
    if values is None:
        return None
    return f"({','.join(_in_record(value) for value in values)})"


def _in_record(value: str | None) -> str:
    if value is None:
        return ""
    if value and not _QUOTED_IN_RECORDS.search(value):
        return value
    doubled = value.replace("\\", "\\\\").replace('"', '""')
    return f'"{doubled}"'
