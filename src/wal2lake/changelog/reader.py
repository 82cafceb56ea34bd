"""Reading of sealed segments, to apply or to relay them.

A reader polls ``after(number)``: one listdir, then one small file per new segment. The
writer and ``retention`` may run in other processes. A segment appears with the rename of its
manifest and disappears with the removal of its manifest, oldest first, so the existing numbers
have no gap. A listing during a removal can show a gap; the listing is repeated, and a gap that
stays is corruption.

There are two ways to check values in Parquet files: ``verify`` compares every byte with the
manifest's CRC-32 (page headers and footer included), ``read`` checks the checksum of each page.
Threads may share a LogReader.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.changelog import files, manifest
from wal2lake.changelog.manifest import LogFile, Manifest, RowsFile
from wal2lake.errors import DAMAGED, words_of
from wal2lake.model import Lsn

# A listing fails only if another step of the writer or of retention coincides with it.
_LISTINGS: Final = 5

_READ_BYTES: Final = 1 << 20


class LogReader:
    """The sealed segments of one directory."""

    def __init__(self, directory: Path) -> None:
        """Do no I/O yet; the directory must exist at the first read."""
        self._directory = directory

    def after(self, number: int, *, limit: int | None = None) -> list[Manifest]:
        """Return the manifests of segments above ``number``, in order, at most ``limit``.

        Raises CorruptLogError, ConfigurationError (a newer format), StorageError. A
        segment that retention removes meanwhile is skipped.
        """
        numbers = [n for n in self.numbers() if n > number]
        return list(self.load(numbers[:limit]))

    def above(self, lsn: Lsn) -> list[Manifest]:
        """Return the manifests of segments with a transaction that ends above ``lsn``, in order.

        For the start of a reader, which then continues with ``after``. Errors as ``after``.
        """
        manifests: list[Manifest] = []
        for segment in self.load(reversed(self.numbers())):
            if segment.sealed_lsn <= lsn:
                break
            manifests.append(segment)
        return manifests[::-1]

    def newest(self) -> Manifest | None:
        """Return the newest segment's manifest; None: no segment was ever sealed."""
        return next(self.load(reversed(self.numbers())), None)

    def path(self, file: LogFile) -> Path:
        """Return the path of a file of a manifest."""
        return self._directory / file.name

    def verify(self, file: LogFile) -> None:
        """Compare a whole file with its manifest; raises CorruptLogError, StorageError."""
        path = self.path(file)
        try:
            size = path.stat().st_size
            if size != file.size:
                raise manifest.corrupt(
                    path, f"It has {size} bytes where its manifest says {file.size}."
                )
            crc = 0
            with path.open("rb") as content:
                while piece := content.read(_READ_BYTES):
                    crc = files.checksum(piece, crc)
        except FileNotFoundError as error:
            raise manifest.corrupt(path, "The file is missing.") from error
        except OSError as error:
            raise files.storage_error("read file", path, error) from error
        if crc != file.crc32:
            raise manifest.corrupt(path, "It fails its checksum.")

    def read(self, file: LogFile, columns: Sequence[str] | None = None) -> Any:
        """Read a file, or some of its columns, as a pyarrow.Table; pages are checked."""
        path = self.path(file)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
                return parquet.read(columns=None if columns is None else list(columns))
        except FileNotFoundError as error:
            raise manifest.corrupt(path, "The file is missing.") from error
        except (OSError, pa.ArrowException) as error:
            # An error of the operating system does not mean that the file is damaged.
            if isinstance(error, OSError) and error.errno:
                raise files.storage_error("read file", path, error) from error
            raise manifest.corrupt(path, DAMAGED, words_of(error)) from error

    def batches(self, file: LogFile) -> Iterator[Any]:
        """Read a file as pyarrow.RecordBatches, in order; pages are checked. Errors as
        ``read``."""
        path = self.path(file)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
                yield from parquet.iter_batches()
        except FileNotFoundError as error:
            raise manifest.corrupt(path, "The file is missing.") from error
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise files.storage_error("read file", path, error) from error
            raise manifest.corrupt(path, DAMAGED, words_of(error)) from error

    def operations(self, rows: RowsFile) -> tuple[Any, Any]:
        """Return commit LSN and operation of each row that counts, as NumPy arrays."""
        by = "xid" if rows.streamed else "commit_lsn"
        table = self.read(rows.file, [by, "op"])
        keys, ops = table.column(by).to_numpy(), table.column("op").to_numpy()
        if not rows.streamed:
            return keys, ops
        if rows.rolled_back:
            gone = np.array(rows.rolled_back, np.int64)
            ops = ops[np.isin(keys, gone, invert=True)]
        return np.full(len(ops), int(rows.min_commit_lsn), np.int64), ops

    def numbers(self) -> list[int]:
        """Return the numbers of the existing segments, ascending and without a gap."""
        for _ in range(_LISTINGS):
            numbers = files.manifest_numbers(self._directory)
            gaps = [a + 1 for a, b in itertools.pairwise(numbers) if b != a + 1]
            if not gaps:
                return numbers
        path = self._directory / files.manifest_name(gaps[0])
        raise manifest.corrupt(path, "The file is missing.")

    def load(self, numbers: Sequence[int] | Iterator[int]) -> Iterator[Manifest]:
        """Yield manifests; a segment that retention has removed meanwhile is skipped."""
        for number in numbers:
            path = self._directory / files.manifest_name(number)
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                # Retention has removed the segment since the listing.
                continue
            except OSError as error:
                raise files.storage_error("read file", path, error) from error
            segment = manifest.decode(content, path)
            if segment.number != number:
                raise manifest.corrupt(
                    path, f"It says that it is number {segment.number}."
                )
            yield segment
