"""Checks the options of a COPY.

Comes in: options as written, in the new or an old syntax. Goes out: ``CopyOptions``, or
PostgreSQL's error; the checks are in PostgreSQL's order.

Source: ProcessCopyOptions() in src/backend/commands/copy.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.sql.grammar.lexer import syntax_error


class CopyFormat(Enum):
    """The formats of the rows."""

    TEXT = "text"
    CSV = "csv"
    BINARY = "binary"


class Header(Enum):
    """Treatment of the first line of a COPY FROM."""

    NONE = "none"
    SKIP = "skip"
    MATCH = "match"
    """The line has the names of the columns."""


class AllColumns(Enum):
    """``*`` in place of a list of column names."""

    COLUMNS = "*"


@dataclass(frozen=True, slots=True)
class CopyOption:
    """One option, under its name in the new syntax, the list in parentheses."""

    name: str
    value: str | tuple[str, ...] | AllColumns | None
    """The option's value. A tuple: a list in parentheses. None: the option has no value."""
    start: int = field(default=0, compare=False)
    """The first character of the option, 0-based, in characters of the statement."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of one COPY, checked and with defaults."""

    format: CopyFormat = CopyFormat.TEXT
    delimiter: str = "\t"
    null: str = "\\N"
    header: Header = Header.NONE
    """COPY TO: any value but NONE writes the line."""
    quote: str = '"'
    escape: str = '"'
    force_quote: tuple[str, ...] | AllColumns = ()
    encoding: str | None = None
    """PostgreSQL's name of the encoding. None: the client's encoding."""
    force_not_null: tuple[str, ...] | AllColumns = ()
    force_null: tuple[str, ...] | AllColumns = ()
    skips_errors: bool = False
    """ON_ERROR ignore: rows with values that cannot be read are left out."""
    reject_limit: int | None = None
    verbosity: str = "default"
    """LOG_VERBOSITY: silent, default or verbose."""


_SYNTAX: Final = "42601"
_INVALID: Final = "22023"
_NOT_IN_TEXT: Final = frozenset("\\.abcdefghijklmnopqrstuvwxyz0123456789")


def copy_options(
    options: Sequence[CopyOption],
    canonical: Callable[[str], str | None],
    *,
    is_from: bool = False,
) -> CopyOptions:
    """Check the options of a COPY TO or FROM; raises PostgreSQL's errors.

    ``canonical`` gives PostgreSQL's name of an encoding for any of its spellings, or None.
    """
    values: dict[str, Any] = {}
    for option in options:
        if option.name not in _READERS:
            raise syntax_error(f'option "{option.name}" not recognized', option.start)
        if option.name in values:
            raise syntax_error("conflicting or redundant options", option.start)
        if option.name == "on_error" and is_from:
            values[option.name] = _on_error_from(option)
            continue
        if option.name == "header" and is_from:
            values[option.name] = _header_from(option)
            continue
        values[option.name] = _READERS[option.name](option)
        if option.name == "encoding":
            values["encoding"] = canonical(values["encoding"])
            if values["encoding"] is None:
                raise _option_error(
                    option,
                    'argument to option "encoding" must be a valid encoding name',
                )
    return _check_combinations(values, is_from=is_from)


def _check_combinations(values: dict[str, Any], *, is_from: bool) -> CopyOptions:
    """Check which options may be combined, and fill in the defaults."""
    form = values.get("format", CopyFormat.TEXT)
    csv, binary = form is CopyFormat.CSV, form is CopyFormat.BINARY
    for name in ("delimiter", "null", "default"):
        if binary and name in values:
            raise SqlSyntaxError(f"cannot specify {name.upper()} in BINARY mode")
    delimiter = values.get("delimiter", "," if csv else "\t")
    null = values.get("null", "" if csv else "\\N")
    quote = values.get("quote", '"')
    escape = values.get("escape", quote)
    _check_one_byte("delimiter", delimiter)
    if delimiter in "\r\n":
        raise _invalid_value("COPY delimiter cannot be newline or carriage return")
    for name, text in (("null", null), ("default", values.get("default", ""))):
        if "\r" in text or "\n" in text:
            raise _invalid_value(
                f"COPY {name} representation cannot use newline or carriage return"
            )
    if not csv and delimiter in _NOT_IN_TEXT:
        raise _invalid_value(f'COPY delimiter cannot be "{delimiter}"')
    header = values.get("header", Header.NONE)
    if binary and header is not Header.NONE:
        raise FeatureNotSupportedError("cannot specify HEADER in BINARY mode")
    if csv:
        _check_one_byte("quote", quote)
        if delimiter == quote:
            raise _invalid_value("COPY delimiter and quote must be different")
        _check_one_byte("escape", escape)
    else:
        for name in ("quote", "escape", "force_quote", "force_not_null", "force_null"):
            if values.get(name, ()) != ():
                raise FeatureNotSupportedError(f"COPY {name.upper()} requires CSV mode")
    if is_from and values.get("force_quote"):
        raise FeatureNotSupportedError("COPY FORCE_QUOTE cannot be used with COPY FROM")
    for name in ("force_not_null", "force_null"):
        if values.get(name) and not is_from:
            raise _copy_from_only(name)
    if delimiter in null:
        raise _invalid_value(
            "COPY delimiter character must not appear in the NULL specification"
        )
    if csv and quote in null:
        raise _invalid_value(
            "CSV quote character must not appear in the NULL specification"
        )
    if not is_from:
        _refuse_those_of_from(values)
    elif values.get("default") is not None:
        raise FeatureNotSupportedError("COPY FROM with DEFAULT is not supported")
    elif binary and values.get("on_error"):
        raise SqlSyntaxError("only ON_ERROR STOP is allowed in BINARY mode")
    if "reject_limit" in values and not values.get("on_error"):
        raise _invalid_value("COPY REJECT_LIMIT requires ON_ERROR to be set to IGNORE")
    return CopyOptions(
        form,
        delimiter,
        null,
        header,
        quote,
        escape,
        values.get("force_quote", ()),
        values.get("encoding"),
        values.get("force_not_null", ()),
        values.get("force_null", ()),
        bool(values.get("on_error")),
        values.get("reject_limit"),
        values.get("log_verbosity", "default"),
    )


def _refuse_those_of_from(values: dict[str, Any]) -> None:
    if values.get("freeze"):
        raise _copy_from_only("freeze")
    if "default" in values:
        # Among the options that COPY TO refuses, only DEFAULT has SQLSTATE 0A000.
        raise FeatureNotSupportedError("COPY DEFAULT cannot be used with COPY TO")


def _check_one_byte(option_name: str, text: str) -> None:
    if len(text.encode()) != 1:
        raise FeatureNotSupportedError(
            f"COPY {option_name} must be a single one-byte character"
        )


def _invalid_value(message: str) -> UsageError:
    return UsageError(message, sqlstate=_INVALID)


def _copy_from_only(name: str) -> UsageError:
    return _invalid_value(f"COPY {name.upper()} cannot be used with COPY TO")


def _option_error(option: CopyOption, message: str) -> SqlSyntaxError:
    return syntax_error(message, option.start, sqlstate=_INVALID)


# ---- values ----------------------------------------------------------------------------


def _string(option: CopyOption) -> str:
    match option.value:
        case None:
            raise SqlSyntaxError(f"{option.name} requires a parameter")
        case AllColumns():
            return "*"
        case tuple():
            return ".".join(option.value)
        case str():
            return option.value


def _format(option: CopyOption) -> CopyFormat:
    text = _string(option)
    try:
        return CopyFormat(text)
    except ValueError:
        raise _option_error(option, f'COPY format "{text}" not recognized') from None


def _boolean(option: CopyOption) -> bool:
    truth = _boolean_or_none(option)
    if truth is None:
        raise SqlSyntaxError(f"{option.name} requires a Boolean value")
    return truth


def _boolean_or_none(option: CopyOption) -> bool | None:
    if option.value is None:
        return True
    word = _string(option).lower()
    if word in ("1", "true", "on"):
        return True
    return False if word in ("0", "false", "off") else None


def _header(option: CopyOption) -> Header:
    if _header_from(option) is Header.MATCH:
        word = _string(option)
        raise FeatureNotSupportedError(f'cannot use "{word}" with HEADER in COPY TO')
    return _header_from(option)


def _header_from(option: CopyOption) -> Header:
    truth = _boolean_or_none(option)
    if truth is not None:
        return Header.SKIP if truth else Header.NONE
    if _string(option).lower() == "match":
        return Header.MATCH
    raise SqlSyntaxError(f'{option.name} requires a Boolean value or "match"')


def _columns(option: CopyOption) -> tuple[str, ...] | AllColumns:
    if not isinstance(option.value, tuple | AllColumns):
        raise _option_error(
            option, f'argument to option "{option.name}" must be a list of column names'
        )
    return option.value


def _on_error(option: CopyOption) -> None:
    raise _option_error(option, "COPY ON_ERROR cannot be used with COPY TO")


def _on_error_from(option: CopyOption) -> bool:
    text = _string(option)
    if text.lower() not in ("stop", "ignore"):
        raise _option_error(option, f'COPY ON_ERROR "{text}" not recognized')
    return text.lower() == "ignore"


def _reject_limit(option: CopyOption) -> int:
    text = _string(option)
    try:
        number = int(text)
    except ValueError:
        raise SqlSyntaxError(f"{option.name} requires a numeric value") from None
    if number <= 0:
        raise _invalid_value(f"REJECT_LIMIT ({number}) must be greater than zero")
    return number


def _log_verbosity(option: CopyOption) -> str:
    text = _string(option)
    if text.lower() not in ("silent", "default", "verbose"):
        raise _option_error(option, f'COPY LOG_VERBOSITY "{text}" not recognized')
    return text.lower()


_READERS: Final[dict[str, Callable[[CopyOption], Any]]] = {
    "format": _format,
    "freeze": _boolean,
    "delimiter": _string,
    "null": _string,
    "default": _string,
    "header": _header,
    "quote": _string,
    "escape": _string,
    "force_quote": _columns,
    "force_not_null": _columns,
    "force_null": _columns,
    "encoding": _string,
    "on_error": _on_error,
    "reject_limit": _reject_limit,
    "log_verbosity": _log_verbosity,
}
