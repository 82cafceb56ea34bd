"""Text made for SQL: quoting, format(), arrays in one text, text of bytes.

Comes in: values of a query. Goes out: text. These are here because the embedded engine has none
of them, or other ones.

Source: src/backend/utils/adt/quote.c, varlena.c, mb/mbutils.c (convert_from); manual, section 9.4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.frontend.grammar import quote_identifier, quote_literal
from wal2lake.frontend.parameters.encodings import canonical_encoding, decode_text
from wal2lake.frontend.query.values.literals import bytea_in
from wal2lake.frontend.sysviews.functions.call import Call


def array_to_string(
    call: Call, items: list[str | None] | None, separator: str | None, null: str | None
) -> str | None:
    """The elements in one text; nulls are left out unless there is a text for them."""
    if items is None or separator is None:
        return None
    shown = (null if item is None else item for item in items)
    return separator.join(item for item in shown if item is not None)


def bytea(call: Call, text: str | None) -> bytes | None:
    """byteain()."""
    return None if text is None else bytea_in(text)


def convert_from(call: Call, data: bytes | None, encoding: str | None) -> str | None:
    """A bytea in that encoding as text."""
    if data is None or encoding is None:
        return None
    name = canonical_encoding(encoding)
    if name is None:
        raise UsageError(f'invalid source encoding name "{encoding}"')
    return decode_text(data, name)


def quote_ident(call: Call, text: str | None) -> str | None:
    """A name as an identifier."""
    return None if text is None else quote_identifier(text)


def quote_literal_function(call: Call, value: object) -> str | None:
    """A value as a string constant."""
    return None if value is None else quote_literal(str(value)).lstrip()


def quote_nullable(call: Call, value: object) -> str:
    """The same; NULL for null."""
    return quote_literal_function(call, value) or "NULL"


def format_function(call: Call, template: str | None, *values: object) -> str | None:
    """format(): %s, %I, %L and %%, with positions."""
    if template is None:
        return None
    out: list[str] = []
    given = list(values)
    at = taken = 0
    while (mark := template.find("%", at)) >= 0:
        out.append(template[at:mark])
        at = mark + 1
        digits = ""
        while template[at : at + 1].isdigit():
            digits += template[at]
            at += 1
        if digits and template[at : at + 1] == "$":
            at += 1
            position = int(digits)
        else:
            position = 0
        kind = template[at : at + 1]
        at += 1
        if kind == "%":
            out.append("%")
            continue
        if kind not in ("s", "I", "L"):
            raise UsageError(
                f'unrecognized format() type specifier "{kind}"'
                if kind
                else "unterminated format() type specifier",
            )
        taken = position or taken + 1
        if taken > len(given):
            raise UsageError("too few arguments for format()")
        out.append(_formatted(kind, given[taken - 1]))
    out.append(template[at:])
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
    """A record of these values, as texts (rowtypes.c)."""
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
