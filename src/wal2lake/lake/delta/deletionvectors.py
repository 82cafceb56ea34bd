"""Reads and writes deletion vectors: which rows of a data file are deleted, in Delta's format.

Comes in: row numbers of files, and the descriptors of existing vectors. Goes out: one file of
vectors in the table's directory with a descriptor for each, and row numbers read back.

    file        version u8 = 1, then for each vector (big-endian)
                size i32, data, CRC-32 of the data u32
    data        magic i32 = 1681511377 (little-endian), a portable 64-bit Roaring bitmap;
                read, not written: magic i32 = 1681511376, number of bitmaps i32, then for each
                its size i32 (big-endian) and a 32-bit bitmap of rows from place * 2^32 on
    descriptor  storageType (u: file by UUID below the table, p: by path, i: inline),
                pathOrInlineDv, offset (of size), sizeInBytes (of data), cardinality

Sources: Delta transaction log protocol, "Deletion Vectors", "Deletion Vector Format", "Deletion
Vector File Storage Format"; Roaring's "Extension for 64-bit Implementations".
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from wal2lake.errors import StorageError
from wal2lake.lake.delta.z85 import decode_z85, encode_z85
from wal2lake.lake.store import open_writer, read_part, storage_error
from wal2lake.lake.tablefiles import absolute_place
from wal2lake.pgtypes.choices.remedies import COPIED_ANEW

Descriptor = Mapping[str, Any]
"""The ``deletionVector`` object of an add action."""

Rows = npt.NDArray[np.uint64]
"""Ascending row numbers within a data file."""

_VERSION: Final = b"\x01"
_MAGIC: Final = struct.pack("<i", 1681511377)
_NATIVE_MAGIC: Final = struct.pack(">i", 1681511376)
_SIZE: Final = struct.Struct(">i")
_CHECKSUM: Final = struct.Struct(">I")
_UUID_DIGITS: Final = 20


def united_rows(rows: npt.NDArray[Any], more: npt.NDArray[Any]) -> Rows:
    """Return the row numbers that either array has. Neither need be in order."""
    # numpy.union1d hashes the numbers, which takes several times as long.
    both = np.sort(np.concatenate([rows.astype(np.uint64), more.astype(np.uint64)]))
    is_first = np.ones(len(both), np.bool_)
    np.not_equal(both[1:], both[:-1], out=is_first[1:])
    return both[is_first]


def rows_without(rows: Rows, others: Rows) -> Rows:
    """Return the row numbers of a vector that another one does not have."""
    return np.setdiff1d(rows, others, assume_unique=True)


def write_vectors(location: str, vectors: Iterable[Rows]) -> list[Descriptor]:
    """Write one new file below the table's ``location``, if there is a vector; return a
    descriptor for each.

    The file is not synced: ``DeltaTables.sync`` does that with the commit that names it.
    """
    content = bytearray(_VERSION)
    identity = uuid.uuid4()
    encoded = encode_z85(identity.bytes)
    descriptors: list[Descriptor] = []
    for rows in vectors:
        data = _MAGIC + BitMap64(rows).serialize()
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": encoded,
                "offset": len(content),
                "sizeInBytes": len(data),
                "cardinality": len(rows),
            }
        )
        content += _SIZE.pack(len(data)) + data + _CHECKSUM.pack(zlib.crc32(data))
    if not descriptors:
        return []
    name = f"deletion_vector_{identity}.bin"
    file = open_writer(location, name)
    try:
        file.sink.write(bytes(content))
        file.finish(durable=False)
    except OSError as error:
        file.discard()
        path = f"{location.rstrip('/')}/{name}"
        raise storage_error("write to file", path, error) from error
    return descriptors


def read_vector(location: str, descriptor: Descriptor) -> Rows:
    """Return the row numbers of an existing vector; StorageError if it is damaged."""
    kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
    size = int(descriptor["sizeInBytes"])
    if kind == "i":
        return _rows(decode_z85(text)[:size], "inline")
    path = absolute_place(text) if kind == "p" else path_below(location, text)
    offset = int(descriptor.get("offset") or 0)
    content = read_part(path, offset, _SIZE.size + size + _CHECKSUM.size)
    data = content[_SIZE.size : _SIZE.size + size]
    if (
        len(content) != _SIZE.size + size + _CHECKSUM.size
        or _SIZE.unpack_from(content)[0] != size
        or _CHECKSUM.unpack_from(content, _SIZE.size + size)[0] != zlib.crc32(data)
    ):
        raise _damaged(path)
    return _rows(data, path)


def _rows(data: bytes, path: str) -> Rows:
    try:
        if data.startswith(_MAGIC):
            numbers = BitMap64.deserialize(data[len(_MAGIC) :]).to_array()
            return np.asarray(numbers, np.uint64)
        if data.startswith(_NATIVE_MAGIC):
            return np.concatenate(list(_native_rows(data)))
    except (ValueError, struct.error) as error:
        raise _damaged(path) from error
    raise _damaged(path)


def _native_rows(data: bytes) -> Iterator[Rows]:
    (count,) = _SIZE.unpack_from(data, len(_NATIVE_MAGIC))
    offset = len(_NATIVE_MAGIC) + _SIZE.size
    yield np.zeros(0, np.uint64)
    for place in range(count):
        (size,) = _SIZE.unpack_from(data, offset)
        offset += _SIZE.size
        low = BitMap.deserialize(data[offset : offset + size]).to_array()
        offset += size
        yield np.asarray(low, np.uint64) + np.uint64(place << 32)


def path_below(location: str, text: str) -> str:
    """Return the path of a file of vectors by the name that a descriptor of type ``u`` has."""
    prefix = text[:-_UUID_DIGITS]
    identity = uuid.UUID(bytes=decode_z85(text[-_UUID_DIGITS:]))
    folder = f"{location.rstrip('/')}/{prefix}".rstrip("/")
    return f"{folder}/deletion_vector_{identity}.bin"


def _damaged(path: str) -> StorageError:
    return StorageError(
        f'deletion vector in "{path}" is damaged',
        sqlstate="XX001",
        hint=f"Restore the file from a backup, or {COPIED_ANEW}.",
    )
