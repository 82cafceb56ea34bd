"""JSON constants: validation, and jsonb's canonical form.

Comes in: a literal's text. Goes out: the text that the lake stores for it. Called by
``literals`` and ``inputs``.

Sources: PostgreSQL manual 8.14; jsonb_util.c (order of keys), escape_json().
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Never

from wal2lake.errors import UsageError


def checked_json(text: str) -> str:
    """Validate json, whose text stays unchanged; raises 22P02."""
    _parsed(text, "json")
    return text


def canonical_json(text: str) -> str:
    """Write jsonb's canonical form: keys by length, then bytes, the last of equal keys; numbers as
    numeric."""
    try:
        return _printed(_parsed(text, "jsonb"))
    except RecursionError:
        raise UsageError("stack depth limit exceeded", sqlstate="54001") from None


def _parsed(text: str, kind: str) -> Any:
    def constant(name: str) -> Never:
        raise ValueError(name)

    try:
        return json.loads(
            text, parse_float=Decimal, parse_int=Decimal, parse_constant=constant
        )
    except (ValueError, RecursionError):
        raise UsageError(
            f"invalid input syntax for type {'json'}",
            sqlstate="22P02",
            detail=f"The constant is not valid {kind}.",
        ) from None


def _printed(value: Any) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
        inner = ", ".join(f"{_string(k)}: {_printed(value[k])}" for k in keys)
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_printed, value)) + "]"
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if (value and value.adjusted() >= 131_072) or exponent < -16_383:  # type: ignore[operator]
            raise UsageError("value overflows numeric format", sqlstate="22003")
        shown = f"{value:f}"
        return shown.removeprefix("-") if value == 0 else shown
    if isinstance(value, str):
        return _string(value)
    return json.dumps(value)


def _string(text: str) -> str:
    if "\0" in text:
        raise UsageError(
            "unsupported Unicode escape sequence",
            sqlstate="22P05",
            detail="\\u0000 cannot be converted to text.",
        )
    return json.dumps(text, ensure_ascii=False)
