"""The decoder of each type of the publisher, or the reason why it has none.

Comes in: a type's OID, and facts from the publisher's catalog about types that are not built in
(``RemoteType``; pg reads them, the catalog keeps them as JSON, executors get them pickled).
Goes out: a ``Reader`` of single values, or ``NoDecoder`` with the reason. Decoders are checked
before streaming starts.

The format of money depends on the publisher's settings, so samples of it are read from the
publisher.

A type without send function is always sent as text, so it needs no decoder. An extension's base
type has a format of its own: citext and hstore are supported.

Source: pg_type, pg_range, pg_attribute; logicalrep_write_tuple in proto.c.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.model import INVALID_OID, Oid
from wal2lake.pgtypes.binary import array_from_binary
from wal2lake.pgtypes.receive.value.cursor import decoded
from wal2lake.pgtypes.receive.value.money import MONEY, money_reader
from wal2lake.pgtypes.receive.value.nested import (
    multirange_reader,
    range_reader,
    read_hstore,
    record_reader,
    vector_reader,
)
from wal2lake.pgtypes.receive.value.scalar import READERS, TEXT_TYPES, Reader
from wal2lake.pgtypes.registry.pg_type import (
    format_type,
    multirange_range,
    range_subtype,
    type_by_oid,
)

FIRST_NORMAL_OID: Final = 16_384
"""Lower OIDs mean the same type on every server."""

_VECTORS: Final = {22: 21, 30: 26}
_RECORD: Final = 2249
_EXTENSIONS: Final[Mapping[str, Reader]] = MappingProxyType(
    {"citext": decoded, "hstore": read_hstore}
)
_TEXT_EXTENSIONS: Final = frozenset(("citext",))
_REASONS: Final = {
    MONEY: "its text depends on the publisher's lc_monetary, which is not known",
    **dict.fromkeys(
        (24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191),
        "its text is a name in the publisher's catalog",
    ),
}


class NoDecoder(FeatureNotSupportedError):
    """The binary form of a type is not supported (0A000); the message has the reason."""


@dataclass(frozen=True, slots=True)
class RemoteType:
    """A type of the publisher that is not built in; also money, whose text depends on it."""

    oid: Oid
    name: str
    """``schema.name``."""
    kind: str
    """pg_type.typtype; ``a`` for a true array, ``x`` for a base type of an extension with the
    same name."""
    sent: bool
    """The type has a send function; otherwise its values are sent as text."""
    part: Oid = INVALID_OID
    """Element of an array, base type of a domain, subtype of a range, range of a multirange."""
    attributes: tuple[Oid, ...] = ()
    """Types of a composite's columns."""
    delimiter: str = ","
    """Delimiter of elements in arrays of this type."""
    samples: tuple[str, ...] = ()
    """Texts of the values ``money.MONEY_SAMPLES``."""


def money_type(samples: Sequence[str]) -> RemoteType:
    """Build the type money from a publisher's texts of MONEY_SAMPLES."""
    return RemoteType(Oid(MONEY), "money", "b", True, samples=tuple(samples))


RemoteTypes = Mapping[int, RemoteType]
"""Types by OID."""


def remote_types_to_json(types: Sequence[RemoteType]) -> str:
    """Encode types for the catalog."""
    return json.dumps(
        [
            [int(t.oid), t.name, t.kind, t.sent, int(t.part), list(t.attributes)]
            + ([t.delimiter, *t.samples] if t.delimiter != "," or t.samples else [])
            for t in types
        ]
    )


def remote_types_from_json(text: str | None) -> dict[int, RemoteType]:
    """Decode the text from ``remote_types_to_json`` to types by OID; empty for None."""
    types = {}
    for oid, name, kind, sent, part, attributes, *rest in json.loads(text or "[]"):
        types[oid] = RemoteType(
            Oid(oid),
            name,
            kind,
            sent,
            Oid(part),
            tuple(Oid(a) for a in attributes),
            rest[0] if rest else ",",
            tuple(rest[1:]),
        )
    return types


def base_type(oid: int, types: RemoteTypes) -> int:
    """Return the type under any number of domains."""
    for _ in range(len(types)):
        remote_type = types.get(oid)
        if remote_type is None or remote_type.kind != "d":
            return oid
        oid = remote_type.part
    return oid


def element_type(oid: int, types: RemoteTypes) -> int | None:
    """Return the element type of a true array type; None: it is not one."""
    remote_type = types.get(oid)
    if remote_type is not None:
        return int(remote_type.part) if remote_type.kind == "a" else None
    built_in = type_by_oid(oid)
    if built_in is None or not built_in.is_array:
        return None
    return int(built_in.element_oid)


def sent_as_text(oid: int, types: RemoteTypes) -> bool:
    """Return whether the publisher has no binary form of this type."""
    remote_type = types.get(oid)
    if remote_type is not None:
        return not remote_type.sent
    built_in = type_by_oid(oid)
    return built_in is not None and built_in.send_function is None


def binary_is_text(oid: int, types: RemoteTypes) -> bool:
    """Return whether the binary form of this type is its text."""
    oid = base_type(oid, types)
    remote_type = types.get(oid)
    if remote_type is None:
        return oid in TEXT_TYPES
    return remote_type.kind == "e" or (
        remote_type.kind == "x" and _bare(remote_type.name) in _TEXT_EXTENSIONS
    )


def check_decoder(oid: int, types: RemoteTypes) -> None:
    """Raise NoDecoder if a column of this type may have values that cannot be decoded.

    A column whose type has no send function is sent as text and needs no decoder.
    """
    if not sent_as_text(oid, types):
        _check(oid, types, ())


def _check(oid: int, types: RemoteTypes, above: tuple[int, ...]) -> None:
    if oid in above:
        return
    for part in _parts(oid, types):
        if sent_as_text(part, types):
            raise NoDecoder(
                f"type {shown_type(part, types)} has no binary format, and is part of"
                f" type {shown_type(oid, types)}"
            )
        _check(part, types, (*above, oid))
    reader_for(oid, types)


def _parts(oid: int, types: RemoteTypes) -> tuple[int, ...]:
    remote_type = types.get(oid)
    if remote_type is not None:
        return remote_type.attributes + (
            (remote_type.part,) if remote_type.part else ()
        )
    element = element_type(oid, types)
    return () if element is None else (element,)


def shown_type(oid: int, types: RemoteTypes) -> str:
    """Return the type's name for messages."""
    remote_type = types.get(oid)
    return format_type(oid) if remote_type is None else remote_type.name


def reader_for(oid: int, types: RemoteTypes) -> Reader:
    """Return the decoder of one type; raises NoDecoder with the reason."""
    oid = base_type(oid, types)
    reader = READERS.get(oid)
    if reader is not None:
        return reader
    remote_type = types.get(oid)
    if remote_type is not None:
        return _remote(remote_type, types)
    if oid in _VECTORS:
        return vector_reader(READERS[_VECTORS[oid]])
    if oid == _RECORD:
        return record_reader(_lookup(types))
    subtype = range_subtype(oid)
    if subtype is not None:
        return range_reader(reader_for(subtype, types))
    of_range = multirange_range(oid)
    if of_range is not None:
        return multirange_reader(reader_for(of_range, types))
    built_in = type_by_oid(oid)
    if built_in is not None and built_in.is_array:
        element = built_in.element_oid
        return _array(element, built_in.delimiter, types)
    raise NoDecoder(_without_decoder(oid, types))


def _remote(remote_type: RemoteType, types: RemoteTypes) -> Reader:
    match remote_type.kind:
        case "e":
            return decoded
        case "a":
            element = types.get(remote_type.part)
            return _array(
                remote_type.part, element.delimiter if element else ",", types
            )
        case "r":
            return range_reader(reader_for(remote_type.part, types))
        case "m":
            return multirange_reader(reader_for(remote_type.part, types))
        case "c":
            return record_reader(_lookup(types))
    if remote_type.oid == MONEY and remote_type.samples:
        try:
            return money_reader(remote_type.samples)
        except UsageError as reason:
            raise NoDecoder(reason.message) from None
    reader = _EXTENSIONS.get(_bare(remote_type.name))
    if reader is None or remote_type.kind != "x":
        raise NoDecoder(_without_decoder(remote_type.oid, types))
    return reader


def _array(element: int, delimiter: str, types: RemoteTypes) -> Reader:
    read_element = reader_for(element, types)
    return lambda data: array_from_binary(data, element, read_element, delimiter)


def _lookup(types: RemoteTypes) -> Callable[[int], Reader]:
    """Return a function that finds decoders by OID and caches them."""
    made: dict[int, Reader] = {}

    def of(oid: int) -> Reader:
        reader = made.get(oid)
        if reader is None:
            reader = made[oid] = reader_for(oid, types)
        return reader

    return of


def _bare(name: str) -> str:
    return name.rpartition(".")[2].strip('"')


def _without_decoder(oid: int, types: RemoteTypes) -> str:
    reason = _REASONS.get(oid)
    if reason is None:
        exists = types.get(oid) is not None or type_by_oid(oid) is not None
        reason = "its format is not known" if exists else "the type is not known"
    return f"cannot decode the binary format of type {shown_type(oid, types)}: {reason}"
