"""Computes the line of a version's checksum file. Pure.

In: everything that is in the version. Out: JSON text as Delta writes it, from which Delta (and
``version``) derive the next version's instead of reading the table's whole log.

Source: Delta transaction log protocol, "Version Checksum File", "File Size Histogram Schema",
"Deleted File Count Histogram Schema"; delta-spark 4.4 Checksum.scala.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.lake.delta.log.place import Object, dump
from wal2lake.lake.tablefiles import DataFile

_MOST_FILES: Final = 50
"""Most files that Delta lists in a checksum; beyond that it writes only their number."""

_DELETED_BOUNDS: Final = (*(10**i for i in range(8)), (1 << 31) - 1)
"""Lower bounds of the second and later bins of the histogram of deleted rows."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of Delta's histograms."""

    sizes: tuple[int, ...]
    """Lower bounds of file sizes, in bytes."""
    deleted: int
    """Number of bins for deleted rows."""


def checksum_line(
    metadata: Object,
    protocol: Object,
    txn_id: str,
    *,
    transactions: Iterable[Object] = (),
    domains: Iterable[Object] = (),
    files: Sequence[DataFile] = (),
    bins: Bins,
) -> str:
    """Return the line. ``transactions``: the ``txn`` actions in force; ``domains``: the
    ``domainMetadata`` actions in force."""
    counts, sizes = [0] * len(bins.sizes), [0] * len(bins.sizes)
    deleted = [0] * bins.deleted
    for file in files:
        size_bin = bisect_right(bins.sizes, file.size) - 1
        counts[size_bin] += 1
        sizes[size_bin] += file.size
        deleted[min(bisect_right(_DELETED_BOUNDS, file.deleted), bins.deleted - 1)] += 1
    line: dict[str, object] = {
        "txnId": txn_id,
        "tableSizeBytes": sum(sizes),
        "numFiles": len(files),
        "numDeletedRecordsOpt": sum(file.deleted for file in files),
        "numDeletionVectorsOpt": sum(file.vector is not None for file in files),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": list(transactions),
        "domainMetadata": list(domains),
        "metadata": metadata,
        "protocol": protocol,
        "fileSizeHistogram": {
            "sortedBinBoundaries": list(bins.sizes),
            "fileCounts": counts,
            "totalBytes": sizes,
        },
        "deletedRecordCountsHistogramOpt": {"deletedRecordCounts": deleted},
    }
    if len(files) <= _MOST_FILES:
        line["allFiles"] = [{**file.action, "dataChange": False} for file in files]
    return dump(line)
