"""The options of START_REPLICATION ... LOGICAL for pgoutput.

In: names with values from the command. Out: PgoutputOptions, or the error that PostgreSQL 18
raises in pgoutput's startup callback, with its context. Checks are in PostgreSQL's order: each
option in turn, then missing options, then options that exclude each other.

Source: src/backend/replication/pgoutput/pgoutput.c (parse_output_parameters, pgoutput_startup);
utils/adt/varlena.c (SplitIdentifierString).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.wire.pgoutput import PROTOCOL_MAX
from wal2lake.wire.replication.scanner import folded, quoted_ident, truncated
from wal2lake.wire.replication.slotoptions import Option, conflicting, unrecognized

_STREAMING: Final = 2
_TWO_PHASE: Final = 3
_PARALLEL: Final = 4
"""The first protocol that has the feature."""

_STRTOUL: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)\Z")
_SPACES: Final = " \t\n\r\f\v"
_MAX_UINT32: Final = (1 << 32) - 1


class Streaming(Enum):
    """Whether transactions are sent before they commit."""

    OFF = "off"
    ON = "on"
    PARALLEL = "parallel"
    """Like ON, and Stream Abort has LSN and time."""


class OriginFilter(Enum):
    """Origins whose changes are sent."""

    ANY = "any"
    NONE = "none"
    """Only changes that were made at the publisher itself."""


@dataclass(frozen=True, slots=True)
class PgoutputOptions:
    """Options that a subscriber gives to pgoutput."""

    proto_version: int
    """1 to 4."""
    publication_names: tuple[str, ...]
    binary: bool = False
    messages: bool = False
    streaming: Streaming = Streaming.OFF
    two_phase: bool = False
    origin: OriginFilter = OriginFilter.ANY


def write_pgoutput_options(options: PgoutputOptions) -> tuple[Option, ...]:
    """Return the options that differ from the defaults, in the order of PostgreSQL's own
    subscriber."""
    names = ",".join(quoted_ident(name) for name in options.publication_names)
    written = [Option("proto_version", str(options.proto_version))]
    if options.streaming is not Streaming.OFF:
        written.append(Option("streaming", options.streaming.value))
    if options.two_phase:
        written.append(Option("two_phase", "on"))
    if options.origin is not OriginFilter.ANY:
        written.append(Option("origin", options.origin.value))
    written.append(Option("publication_names", names))
    if options.binary:
        written.append(Option("binary", "true"))
    if options.messages:
        written.append(Option("messages", "true"))
    return tuple(written)


def read_pgoutput_options(options: Iterable[Option], *, slot: str) -> PgoutputOptions:
    """Read and check the options; raises UsageError. ``slot`` is for its context."""
    try:
        parsed = _read(options)
        _check_protocol(parsed)
    except UsageError as error:
        error.context = (
            f'slot "{slot}", output plugin "pgoutput", in the startup callback'
        )
        raise
    return parsed


def _read(options: Iterable[Option]) -> PgoutputOptions:
    seen: set[str] = set()
    proto_version = 0
    names: tuple[str, ...] = ()
    binary = messages = two_phase = False
    streaming, origin = Streaming.OFF, OriginFilter.ANY
    for option in options:
        if option.name not in _KNOWN:
            raise unrecognized("pgoutput option", option.name)
        if option.name in seen:
            raise conflicting()
        seen.add(option.name)
        match option.name:
            case "proto_version":
                proto_version = _proto_version(option.string())
            case "publication_names":
                names = _split_identifiers(option.string())
            case "binary":
                binary = option.boolean()
            case "messages":
                messages = option.boolean()
            case "streaming":
                streaming = _streaming(option)
            case "two_phase":
                two_phase = option.boolean()
            case "origin":
                origin = _origin(option.string())
    for required in ("proto_version", "publication_names"):
        if required not in seen:
            raise UsageError(f'option "{required}" missing')
    return PgoutputOptions(
        proto_version, names, binary, messages, streaming, two_phase, origin
    )


_KNOWN: Final = frozenset(PgoutputOptions.__slots__)


def _check_protocol(options: PgoutputOptions) -> None:
    version = options.proto_version
    # PostgreSQL prints the version as a signed number.
    sent = version - (1 << 32) if version > _MAX_UINT32 >> 1 else version
    if version > PROTOCOL_MAX:
        raise FeatureNotSupportedError(
            f"client sent proto_version={sent} but server only supports protocol"
            f" {PROTOCOL_MAX} or lower"
        )
    if version < 1:
        raise FeatureNotSupportedError(
            f"client sent proto_version={sent} but server only supports protocol 1 or"
            " higher"
        )
    for wanted, what, needed in (
        (options.streaming is Streaming.ON, "streaming", _STREAMING),
        (options.streaming is Streaming.PARALLEL, "parallel streaming", _PARALLEL),
        (options.two_phase, "two-phase commit", _TWO_PHASE),
    ):
        if wanted and version < needed:
            raise UsageError(
                f"requested proto_version={version} does not support {what}, need"
                f" {needed} or higher"
            )


def _proto_version(text: str) -> int:
    """Read a version as strtoul() does: an empty text is 0, and a negative number is a large
    one."""
    match = _STRTOUL.match(text)
    if match is None:
        if text:
            raise UsageError("invalid proto_version")
        return 0
    digits = match[2].lstrip("0") or "0"
    if len(digits) > 20 or int(digits) >= 1 << 64:
        raise UsageError("invalid proto_version")
    number = int(digits)
    if match[1] == "-" and number:
        number = (1 << 64) - number
    if number > _MAX_UINT32:
        raise UsageError(f'proto_version "{text}" out of range')
    return number


def _streaming(option: Option) -> Streaming:
    if option.value is not None and option.string().lower() == "parallel":
        return Streaming.PARALLEL
    try:
        return Streaming.ON if option.boolean() else Streaming.OFF
    except SqlSyntaxError:
        raise SqlSyntaxError(
            f'{option.name} requires a Boolean value or "parallel"'
        ) from None


def _origin(value: str) -> OriginFilter:
    for choice in OriginFilter:
        if value.lower() == choice.value:
            return choice
    raise UsageError(f'unrecognized origin value: "{value}"')


def _split_identifiers(text: str) -> tuple[str, ...]:
    """Split comma-separated identifiers; an empty text has none."""
    names: list[str] = []
    rest = text.lstrip(_SPACES)
    while rest or names:
        name, rest = _identifier(rest)
        names.append(name)
        rest = rest.lstrip(_SPACES)
        if not rest:
            break
        if rest[0] != ",":
            raise _bad_names()
        rest = rest[1:].lstrip(_SPACES)
    return tuple(names)


def _identifier(text: str) -> tuple[str, str]:
    """Return the identifier at the start of the text, and the rest."""
    if text.startswith('"'):
        match = _QUOTED.match(text)
        if match is None:
            raise _bad_names()
        return truncated(match[1].replace('""', '"')), text[match.end() :]
    match = _UNQUOTED.match(text)
    if match is None:
        raise _bad_names()
    return folded(match[0]), text[match.end() :]


_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_UNQUOTED: Final = re.compile(r"[^, \t\n\r\f\v]+")


def _bad_names() -> UsageError:
    return UsageError("invalid publication_names syntax", sqlstate="42602")
