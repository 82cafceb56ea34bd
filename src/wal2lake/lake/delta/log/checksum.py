"""Computes the line of a version's checksum file. Pure.

In: the totals of a version's files, and its other parts. Out: JSON text as Delta writes it, from
which Delta (and ``version``) derive the next version's instead of reading the table's whole log.
A version's totals follow from those of the version before and the commit's own files, so a commit
costs the same in a table of ten files and in one of a million.

Source: Delta transaction log protocol, "Version Checksum File", "File Size Histogram Schema",
"Deleted File Count Histogram Schema"; delta-spark 4.4 Checksum.scala, FileSizeHistogramUtils.scala,
DeletedRecordCountsHistogramUtils.scala.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.lake.delta.log.place import Object, dump
from wal2lake.lake.delta.protocol.features import reader_features
from wal2lake.lake.tablefiles import DataFile

MOST_FILES: Final = 50
"""Most files that Delta lists in a checksum; beyond that it writes only their number."""

CURSORS_END: Final = "delta.setTransactionRetentionDuration"
"""Property of a table that forgets ``txn`` actions. Delta then lists none in the checksum."""

_MIB: Final = 1 << 20

SIZE_BOUNDS: Final = (
    0,
    *(8192 << i for i in range(10)),
    *(i * _MIB for i in range(8, 41, 4)),
    *(i * _MIB for i in range(48, 121, 8)),
    *(i * _MIB for i in range(124, 145, 4)),
    *(i * _MIB for i in range(160, 577, 16)),
    *(i * _MIB for i in range(640, 1409, 64)),
    *(i * _MIB for i in range(1536, 2049, 128)),
    *(i * _MIB for i in range(2304, 4097, 256)),
    *((8 << i) * 1024 * _MIB for i in range(6)),
)
"""Delta's lower bounds of file sizes, in bytes."""

_DELETED_BOUNDS: Final = (*(10**i for i in range(8)), (1 << 31) - 1)
"""Lower bounds of the second and later bins of the histogram of deleted rows."""

_DELETED_BINS: Final = len(_DELETED_BOUNDS) + 1


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of all files of a version together."""

    files: int
    size: int
    """Bytes."""
    deleted: int
    """Deleted rows."""
    vectors: int
    """Files with a deletion vector."""
    bounds: tuple[int, ...]
    """Lower bounds of file sizes: other writers may have chosen others."""
    counts: tuple[int, ...]
    """Number of files by size."""
    sizes: tuple[int, ...]
    """Bytes of files by size."""
    by_deleted: tuple[int, ...]
    """Number of files by deleted rows."""

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> Totals:
        """Return the totals of these files."""
        return NO_FILES.after((), files)

    def after(self, gone: Iterable[DataFile], new: Iterable[DataFile]) -> Totals:
        """Return the totals when files go and others come."""
        files, size, deleted, vectors = (
            self.files,
            self.size,
            self.deleted,
            self.vectors,
        )
        counts, sizes = list(self.counts), list(self.sizes)
        by_deleted = list(self.by_deleted)
        for sign, group in ((-1, gone), (1, new)):
            for file in group:
                files += sign
                size += sign * file.size
                deleted += sign * file.deleted
                vectors += sign * (file.vector is not None)
                size_bin = bisect_right(self.bounds, file.size) - 1
                counts[size_bin] += sign
                sizes[size_bin] += sign * file.size
                deleted_bin = bisect_right(_DELETED_BOUNDS, file.deleted)
                by_deleted[min(deleted_bin, len(by_deleted) - 1)] += sign
        return Totals(
            files,
            size,
            deleted,
            vectors,
            self.bounds,
            tuple(counts),
            tuple(sizes),
            tuple(by_deleted),
        )

    @classmethod
    def read(cls, line: Mapping[str, Any], protocol: Object) -> Totals | None:
        """Read the totals of a checksum; None if it lacks something."""
        by_size = line.get("fileSizeHistogram") or line.get("histogramOpt")
        by_deleted = line.get("deletedRecordCountsHistogramOpt")
        if by_size is None:
            return None
        count = int(line["numFiles"])
        deleted, vectors = (
            line.get("numDeletedRecordsOpt"),
            line.get("numDeletionVectorsOpt"),
        )
        if by_deleted is not None:
            bins = tuple(by_deleted["deletedRecordCounts"])
        elif "deletionVectors" not in reader_features(protocol):
            bins, deleted, vectors = (count, *[0] * (_DELETED_BINS - 1)), 0, 0
        else:
            return None
        if deleted is None or vectors is None:
            return None
        return cls(
            count,
            int(line["tableSizeBytes"]),
            int(deleted),
            int(vectors),
            tuple(by_size["sortedBinBoundaries"]),
            tuple(by_size["fileCounts"]),
            tuple(by_size["totalBytes"]),
            bins,
        )


NO_FILES: Final = Totals(
    0,
    0,
    0,
    0,
    SIZE_BOUNDS,
    (0,) * len(SIZE_BOUNDS),
    (0,) * len(SIZE_BOUNDS),
    (0,) * _DELETED_BINS,
)
"""Totals of a table without files."""


def checksum_line(
    metadata: Object,
    protocol: Object,
    txn_id: str,
    totals: Totals,
    *,
    transactions: Iterable[Object] = (),
    domains: Iterable[Object] = (),
    files: Iterable[DataFile] | None = None,
    committed_ms: int | None = None,
) -> str:
    """Return the line. ``transactions``: the ``txn`` actions in force; ``domains``: the
    ``domainMetadata`` actions in force; ``files``: all files, None: not known; ``committed_ms``:
    the commit's own time."""
    line: dict[str, object] = {
        "txnId": txn_id,
        "tableSizeBytes": totals.size,
        "numFiles": totals.files,
    }
    has_vectors = "deletionVectors" in reader_features(protocol)
    if has_vectors:
        line["numDeletedRecordsOpt"] = totals.deleted
        line["numDeletionVectorsOpt"] = totals.vectors
    line |= {"numMetadata": 1, "numProtocol": 1}
    if committed_ms is not None:
        line["inCommitTimestampOpt"] = committed_ms
    if CURSORS_END not in metadata["configuration"]:
        line["setTransactions"] = list(transactions)
    line |= {
        "domainMetadata": list(domains),
        "metadata": metadata,
        "protocol": protocol,
        "fileSizeHistogram": {
            "sortedBinBoundaries": list(totals.bounds),
            "fileCounts": list(totals.counts),
            "totalBytes": list(totals.sizes),
        },
    }
    if has_vectors:
        line["deletedRecordCountsHistogramOpt"] = {
            "deletedRecordCounts": list(totals.by_deleted)
        }
    if totals.files <= MOST_FILES and files is not None:
        line["allFiles"] = [_listed(file) for file in files]
    return dump(line)


def _listed(file: DataFile) -> dict[str, object]:
    """Return a file as a checksum lists it. Absent tags are a null: Delta's JSON parser (since
    jackson-module-scala 2.19) makes an empty map of an absent one, and then Delta takes the file
    for another one than the log's."""
    return {"tags": None, **file.action, "dataChange": False}
