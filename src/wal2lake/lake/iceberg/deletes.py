"""Writes which rows of data files are deleted, in both of Iceberg's forms.

Comes in: row numbers by data file. Goes out: the content of files, and where in them each data
file's rows are. Called by ``mirror``; pure.

Format 3 has deletion vectors: blobs in a Puffin file, whose bytes are those in Delta's own files,
from the blob's size to its checksum. A reader of Iceberg finds them only in a Puffin file, so each
is written again, some hundred bytes beside Delta's.

    Puffin    PFA1, blobs, PFA1, footer (JSON), its size i32 (little-endian), flags 0, PFA1
    blob      size of what follows but the checksum i32, magic, portable 64-bit Roaring bitmap,
              CRC-32 of magic and bitmap u32 (both big-endian)

Format 2 has position delete files: Parquet with the path of a data file and a row number, one file
for each data file, so that the next commit can replace one without the others.

Sources: Puffin specification, "Blob types", "deletion-vector-v1"; Iceberg table specification,
"Row-level Deletes".
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from wal2lake.lake.delta.deletionvectors import Rows

_PUFFIN: Final = b"PFA1"
_MAGIC: Final = struct.pack("<i", 1681511377)
_SIZE: Final = struct.Struct(">i")
_CHECKSUM: Final = struct.Struct(">I")
_FOOTER_SIZE: Final = struct.Struct("<i")
_NO_FLAGS: Final = bytes(4)

_ROW_POSITION: Final = 2147483645
"""Id of the field ``_pos``, from which a vector is computed."""

PATH_ID: Final = 2147483546
POSITION_ID: Final = 2147483545

_POSITION_DELETES: Final = pa.schema(
    [
        pa.field(
            "file_path",
            pa.string(),
            nullable=False,
            metadata={"PARQUET:field_id": str(PATH_ID)},
        ),
        pa.field(
            "pos",
            pa.int64(),
            nullable=False,
            metadata={"PARQUET:field_id": str(POSITION_ID)},
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class VectorBlob:
    """Place of one data file's vector in a Puffin file."""

    offset: int
    size: int
    """Bytes, size and checksum included."""
    rows: int
    """Number of deleted rows."""


def puffin_of(
    vectors: Mapping[str, Rows], properties: Mapping[str, str]
) -> tuple[bytes, dict[str, VectorBlob]]:
    """Return the content of a Puffin file, and the place of each data file's vector.

    ``vectors`` by the path of the data file; ``properties`` says who wrote the file.
    """
    content = bytearray(_PUFFIN)
    blobs: dict[str, VectorBlob] = {}
    described = []
    for path, rows in vectors.items():
        data = _MAGIC + BitMap64(rows).serialize()
        blob = _SIZE.pack(len(data)) + data + _CHECKSUM.pack(zlib.crc32(data))
        blobs[path] = VectorBlob(len(content), len(blob), len(rows))
        described.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION],
                # The snapshot that adds the file has them.
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {
                    "referenced-data-file": path,
                    "cardinality": str(len(rows)),
                },
            }
        )
        content += blob
    footer = {"blobs": described, "properties": dict(properties)}
    payload = json.dumps(footer, separators=(",", ":")).encode()
    content += _PUFFIN + payload
    content += _FOOTER_SIZE.pack(len(payload)) + _NO_FLAGS + _PUFFIN
    return bytes(content), blobs


def position_deletes_of(path: str, rows: Rows) -> bytes:
    """Return the content of a position delete file for one data file."""
    table = pa.table(
        [
            pa.repeat(pa.scalar(path), len(rows)),
            pa.array(rows, pa.uint64()).cast("int64"),
        ],
        schema=_POSITION_DELETES,
    )
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    return content.getvalue()
