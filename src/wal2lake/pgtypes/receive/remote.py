"""Which decoder a type of the publisher has, and why some have none.

Comes in: a type's OID, and what the publisher's catalog says of the types that are not
built in (``RemoteType``; pg asks, the catalog keeps them as JSON, executors get them pickled).
Goes out: a ``Reader`` of single values, or ``NoDecoder`` with the reason, which is asked
for before streaming starts.

The format of money is the publisher's choice, and so among what it is asked for.

A type without send function is sent as text always, so it needs none. An extension's base
type has a format of its own: known are citext and hstore.

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
"""Below it an OID means the same type everywhere."""

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
    """A type whose binary form is not known here (0A000); the message says why."""


@dataclass(frozen=True, slots=True)
class RemoteType:
    """A type of the publisher that is not built in; money, whose text it decides."""

    oid: Oid
    name: str
    """``schema.name``."""
    kind: str
    """pg_type.typtype; ``a`` for a true array, ``x`` for a base type that belongs to an
    extension of its name."""
    sent: bool
    """It has a send function; without, its values come as text."""
    part: Oid = INVALID_OID
    """An array's element, a domain's base type, a range's subtype, a multirange's range."""
    attributes: tuple[Oid, ...] = ()
    """Types of a composite's columns."""
    delimiter: str = ","
    """Between the elements of arrays of this type."""
    samples: tuple[str, ...] = ()
    """Texts of the values ``money.SAMPLES``."""


def money_type(samples: Sequence[str]) -> RemoteType:
    """money, as a publisher writes it: the texts of MONEY_SAMPLES."""
    return RemoteType(Oid(MONEY), "money", "b", True, samples=tuple(samples))


RemoteTypes = Mapping[int, RemoteType]
"""By OID."""


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
    """The inverse, by OID; nothing for None."""
    found = {}
    for oid, name, kind, sent, part, attributes, *rest in json.loads(text or "[]"):
        found[oid] = RemoteType(
            Oid(oid),
            name,
            kind,
            sent,
            Oid(part),
            tuple(Oid(a) for a in attributes),
            rest[0] if rest else ",",
            tuple(rest[1:]),
        )
    return found


def base_type(oid: int, types: RemoteTypes) -> int:
    """The type below any number of domains."""
    for _ in range(len(types)):
        known = types.get(oid)
        if known is None or known.kind != "d":
            return oid
        oid = known.part
    return oid


def element_type(oid: int, types: RemoteTypes) -> int | None:
    """The element of a true array type; None: it is not one."""
    known = types.get(oid)
    if known is not None:
        return int(known.part) if known.kind == "a" else None
    built_in = type_by_oid(oid)
    if built_in is None or not built_in.is_array:
        return None
    return int(built_in.element_oid)


def sent_as_text(oid: int, types: RemoteTypes) -> bool:
    """The publisher has no binary form of this type."""
    known = types.get(oid)
    if known is not None:
        return not known.sent
    built_in = type_by_oid(oid)
    return built_in is not None and built_in.send_function is None


def binary_is_text(oid: int, types: RemoteTypes) -> bool:
    """The binary form of this type is its text."""
    oid = base_type(oid, types)
    known = types.get(oid)
    if known is None:
        return oid in TEXT_TYPES
    return known.kind == "e" or (
        known.kind == "x" and _bare(known.name) in _TEXT_EXTENSIONS
    )


def check_decoder(oid: int, types: RemoteTypes) -> None:
    """Raise NoDecoder if values of this type may come that nothing here can decode.

    For a column: a column whose type has no send function is text and needs no decoder.
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
    known = types.get(oid)
    if known is not None:
        return known.attributes + ((known.part,) if known.part else ())
    element = element_type(oid, types)
    return () if element is None else (element,)


def shown_type(oid: int, types: RemoteTypes) -> str:
    """The type's name for a message."""
    known = types.get(oid)
    return format_type(oid) if known is None else known.name


def reader_for(oid: int, types: RemoteTypes) -> Reader:
    """The decoder of one type; NoDecoder with the reason."""
    oid = base_type(oid, types)
    reader = READERS.get(oid)
    if reader is not None:
        return reader
    known = types.get(oid)
    if known is not None:
        return _remote(known, types)
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


def _remote(known: RemoteType, types: RemoteTypes) -> Reader:
    match known.kind:
        case "e":
            return decoded
        case "a":
            element = types.get(known.part)
            return _array(known.part, element.delimiter if element else ",", types)
        case "r":
            return range_reader(reader_for(known.part, types))
        case "m":
            return multirange_reader(reader_for(known.part, types))
        case "c":
            return record_reader(_lookup(types))
    if known.oid == MONEY and known.samples:
        try:
            return money_reader(known.samples)
        except UsageError as reason:
            raise NoDecoder(reason.message) from None
    reader = _EXTENSIONS.get(_bare(known.name))
    if reader is None or known.kind != "x":
        raise NoDecoder(_without_decoder(known.oid, types))
    return reader


def _array(element: int, delimiter: str, types: RemoteTypes) -> Reader:
    one = reader_for(element, types)
    return lambda data: array_from_binary(data, element, one, delimiter)


def _lookup(types: RemoteTypes) -> Callable[[int], Reader]:
    """Decoders by OID, each made once."""
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
        known = types.get(oid) is not None or type_by_oid(oid) is not None
        reason = "its format is not known" if known else "the type is not known"
    return f"cannot decode the binary format of type {shown_type(oid, types)}: {reason}"
