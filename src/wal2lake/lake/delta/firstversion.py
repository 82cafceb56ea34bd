"""Version 0 of a table, as Delta writes it for a table without rows.

In: the metadata and the protocol that Delta's transaction has prepared. Out: the lines of the
commit and of its checksum file, and both on disk.

Why not Delta's own commit. After it has written the two lines it reads the new table back with
two Spark jobs, to find that it is empty: that took a third of a second a table, most of what
CREATE SUBSCRIPTION took. There is nothing to conflict with either: whoever comes second finds
the file there. The checksum has everything that Delta derives the next version's from; were
anything missing, the first commit would read the table back instead.

Called by ``tables``. Sources: Delta transaction log protocol, "Commit Provenance Information"
and "Version Checksum File"; delta-spark 4.4 Checksum.scala.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from wal2lake.errors import DuplicateObjectError, StorageError

COMMIT: Final = f"{0:020}.json"
CHECKSUM: Final = f"{0:020}.crc"

FEATURES: Final = frozenset(
    {
        "appendOnly",
        "columnMapping",
        "deletionVectors",
        "invariants",
        "timestampNtz",
        "variantType",
    }
)
"""Features of Delta's that need nothing more of version 0 than to be named in the protocol."""

_Object = Mapping[str, Any]


def is_plain(protocol: _Object) -> bool:
    """Whether version 0 of such a table is what is written here."""
    features = {
        *protocol.get("readerFeatures", ()),
        *protocol.get("writerFeatures", ()),
    }
    return features <= FEATURES


def commit_lines(metadata: _Object, protocol: _Object, txn_id: str) -> list[str]:
    """What CREATE TABLE commits."""
    made = {
        "timestamp": metadata["createdTime"],
        "operation": "CREATE TABLE",
        "operationParameters": {
            "partitionBy": json.dumps(metadata["partitionColumns"]),
            "clusterBy": "[]",
            "description": None,
            "isManaged": "false",
            "properties": _dump(metadata["configuration"]),
        },
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {},
        "txnId": txn_id,
    }
    actions = ({"commitInfo": made}, {"metaData": metadata}, {"protocol": protocol})
    return [_dump(action) for action in actions]


def checksum_line(
    metadata: _Object,
    protocol: _Object,
    txn_id: str,
    *,
    size_bounds: Sequence[int],
    deleted_bins: int,
) -> str:
    """What version 0 adds up to. ``size_bounds`` and ``deleted_bins`` are Delta's: the
    lower bounds of its histogram of file sizes, and how many bins its histogram of deleted
    rows has."""
    none = [0] * len(size_bounds)
    return _dump(
        {
            "txnId": txn_id,
            "tableSizeBytes": 0,
            "numFiles": 0,
            "numDeletedRecordsOpt": 0,
            "numDeletionVectorsOpt": 0,
            "numMetadata": 1,
            "numProtocol": 1,
            "setTransactions": [],
            "domainMetadata": [],
            "metadata": metadata,
            "protocol": protocol,
            "fileSizeHistogram": {
                "sortedBinBoundaries": list(size_bounds),
                "fileCounts": none,
                "totalBytes": none,
            },
            "deletedRecordCountsHistogramOpt": {
                "deletedRecordCounts": [0] * deleted_bins
            },
            "allFiles": [],
        }
    )


def write_locally(table: Path, commit: Sequence[str], checksum: str) -> None:
    """Both files below a table's directory, which is made; not yet durable.

    The commit is whole from its first moment; without the checksum, which a crash may leave out,
    the first commit takes longer. DuplicateObjectError if there is one.
    """
    log = table / "_delta_log"
    try:
        log.mkdir(parents=True, exist_ok=True)
        _place(log / COMMIT, "\n".join(commit), os.link)
        _place(log / CHECKSUM, checksum, os.replace)
    except FileExistsError as error:
        raise DuplicateObjectError(
            f'there is a Delta table at "{table}" already', sqlstate="42P07"
        ) from error
    except OSError as error:
        raise StorageError(
            f'could not create Delta table at "{table}": {error.strerror}',
            sqlstate="58030",
        ) from error


def _place(path: Path, text: str, give_name: Callable[[Path, Path], None]) -> None:
    """A file of that name, whole from the first moment."""
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        written.write_text(f"{text}\n", encoding="utf-8")
        give_name(written, path)
    finally:
        with suppress(FileNotFoundError):
            written.unlink()


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
