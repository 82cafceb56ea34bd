"""One transaction that has not ended: its rows in memory, then in pieces on disk.

    take(streamed) ─▶ batches by relation version ── flush() ─▶ pieces (Parquet, not fsynced)
                                                                  │ secure(): fsync
    roll_back(xid) ─▶ a set of xids                               ▼
                                        commit: rejoined(): rows as if sent whole, or
                                                attached(): the pieces as files of a segment

Each row has the xid of its subtransaction; the row counts unless that is rolled back. A piece is
never changed: readers skip rows with the xids that the manifest names.

A failed ``flush`` leaves the rows in memory: call again. One thread owns a Spool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.changelog import files, parquet
from wal2lake.changelog.journal.journal import JournalPlace
from wal2lake.changelog.manifest import LogFile, MessagesFile, RowsFile
from wal2lake.changelog.parquet import RowsInMemory, VersionRows, collect
from wal2lake.changelog.reader import LogReader
from wal2lake.errors import UnusableLogError
from wal2lake.model import INVALID_LSN, Lsn, Oid, Relation
from wal2lake.observe import failpoint
from wal2lake.wire.columnar import ChangeBlock, OpenStream, Streamed, as_messages


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one relation version in a file of the spool."""

    rows: RowsFile
    """Facts of the file. ``streamed`` is true; the LSNs are not known yet."""
    first_xid: int
    """Lowest xid of a row."""
    last_xid: int
    """Highest xid of a row."""

    def may_have(self, xids: Iterable[int]) -> tuple[int, ...]:
        """Return those of ``xids`` to which rows may belong."""
        return tuple(x for x in xids if self.first_xid <= x <= self.last_xid)


@dataclass(frozen=True, slots=True)
class PreparedFacts:
    """The fields of a Prepare message."""

    gid: str
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    """Microseconds since 2000-01-01 UTC, at the publisher."""


@dataclass(slots=True)
class Spool:
    """Rows of one transaction that has not ended, as the module describes them."""

    directory: Path
    number: int
    stream: OpenStream
    """State of the stream after all rows that have been taken."""
    prepared: PreparedFacts | None = None
    """None: the transaction is not prepared."""
    rolled_back: set[int] = field(default_factory=set)
    pieces: list[Piece] = field(default_factory=list)
    message_pieces: list[MessagesFile] = field(default_factory=list)
    unsynced: set[str] = field(default_factory=set)
    """Names of files that are not durable yet."""
    unusable: bool = False
    """An fsync has failed: a second one would not report the data that the first one lost."""
    needs: int | None = None
    """The first journal file with changes that no checkpoint has; None: there is none."""
    covered: JournalPlace | None = None
    """The journal record up to which the checkpoint is complete; None: no checkpoint."""
    half_here: bool = False
    """The transaction is sent unstreamed and its Prepare has not arrived: after a restart no
    checkpoint of it could be continued."""
    _rows: RowsInMemory = field(default_factory=dict)
    _messages: list[Any] = field(default_factory=list)
    raw_bytes: int | None = 0
    """Bytes that the pieces needed in memory, which may be far more than on disk; None: not
    known."""
    _next_k: int = 0
    buffered: int = 0
    """Bytes of rows and messages in memory."""

    # ------------------------------------------------------------------ filling

    def take(self, streamed: Streamed) -> None:
        """Append rows and messages. No I/O."""
        self.stream = streamed.stream
        for block in streamed.blocks:
            self.buffered += collect(self._rows, block)
        if streamed.messages is not None:
            self._messages.append(streamed.messages)
            self.buffered += streamed.messages.nbytes

    def roll_back(self, xid: int) -> None:
        """Exclude the rows of this subtransaction."""
        self.rolled_back.add(xid)

    @property
    def piece_bytes(self) -> int:
        """Bytes of the spool's files."""
        rows = sum(piece.rows.file.size for piece in self.pieces)
        return rows + sum(piece.file.size for piece in self.message_pieces)

    # ------------------------------------------------------------------ to disk

    def flush(self) -> None:
        """Write rows and messages from memory to pieces, not durable before ``secure``."""
        pieces: list[Piece] = []
        messages: list[MessagesFile] = []
        written: list[str] = []
        try:
            for k, version in enumerate(self._rows.values(), self._next_k):
                pieces.append(self._write_rows(k, version, written))
            if self._messages:
                messages.append(self._write_messages(written))
        except BaseException:
            for name in written:
                files.remove(self.directory / name)
            raise
        self.pieces += pieces
        self.message_pieces += messages
        self.unsynced.update(written)
        self._next_k += len(pieces)
        if self.raw_bytes is not None:
            self.raw_bytes += self.buffered
        self._rows, self._messages, self.buffered = {}, [], 0

    def _write_rows(self, k: int, version: VersionRows, written: list[str]) -> Piece:
        content, facts = parquet.encode_rows(version)
        name = files.spool_rows_name(self.number, version.relation.relid, k)
        low = [pc.min(batch.column("xid")).as_py() for batch in version.batches]
        high = [pc.max(batch.column("xid")).as_py() for batch in version.batches]
        file = self._write(name, content, written)
        rows = replace(parquet.describe_rows(file, version, facts), streamed=True)
        return Piece(rows, min(low), max(high))

    def _write_messages(self, written: list[str]) -> MessagesFile:
        content, facts = parquet.encode_messages(self._messages)
        name = files.spool_messages_name(self.number, len(self.message_pieces))
        file = self._write(name, content, written)
        return MessagesFile(file, facts.messages, facts.content_bytes, INVALID_LSN)

    def _write(self, name: str, content: Any, written: list[str]) -> LogFile:
        path = self.directory / name
        data = memoryview(content)
        temporary = files.write_temporary(path, data, sync=False)
        try:
            temporary.rename(path)
            written.append(name)
            failpoint("spool.piece_written")
        except OSError as error:
            files.remove(temporary)
            raise files.storage_error("rename file", temporary, error) from error
        return LogFile(name, len(data), files.checksum(data))

    def secure(self) -> None:
        """Make the content of all pieces durable; their names need an fsync of the directory.

        After a failure the log must be opened again, which writes the pieces again.
        """
        if self.unusable:
            raise UnusableLogError(
                f'change log in "{self.directory}" must be opened again after an error',
                hint="Check the file system of the log directory.",
            )
        for name in sorted(self.unsynced):
            path = self.directory / name
            try:
                files.sync_file(path)
            except OSError as error:
                self.unusable = True
                raise files.storage_error("fsync file", path, error) from error
            self.unsynced.discard(name)

    def file_names(self) -> list[str]:
        """Return the names of all pieces."""
        return [
            *(piece.rows.file.name for piece in self.pieces),
            *(piece.file.name for piece in self.message_pieces),
        ]

    # ------------------------------------------------------------------ at its commit

    def rejoined(self, commit_lsn: Lsn) -> list[ChangeBlock]:
        """Read all rows that count into memory, in the form of a transaction sent whole."""
        reader = LogReader(self.directory)
        blocks = []
        for piece in self.pieces:
            table = reader.read(piece.rows.file).combine_chunks()
            for batch in table.to_batches():
                blocks += self._block(
                    piece.rows.relation, piece.rows.type_names, batch, commit_lsn
                )
        for version in self._rows.values():
            for batch in version.batches:
                blocks += self._block(
                    version.relation, version.type_names, batch, commit_lsn
                )
        return blocks

    def _block(
        self,
        relation: Relation,
        type_names: Mapping[Oid, str],
        batch: Any,
        commit_lsn: Lsn,
    ) -> list[ChangeBlock]:
        batch = self._counting(batch)
        if not batch.num_rows:
            return []
        index = batch.schema.get_field_index("xid")
        lsns = pa.array(np.full(batch.num_rows, int(commit_lsn), np.int64))
        columns = [
            lsns if i == index else batch.column(i) for i in range(len(batch.schema))
        ]
        field_ = pa.field("commit_lsn", pa.int64(), nullable=False)
        schema = pa.schema(
            [field_ if i == index else f for i, f in enumerate(batch.schema)]
        )
        whole = pa.RecordBatch.from_arrays(columns, schema=schema)
        return [ChangeBlock(relation, type_names, whole)]

    def _counting(self, batch: Any) -> Any:
        """Filter out rows or messages that are rolled back."""
        if not self.rolled_back:
            return batch
        gone = np.fromiter(self.rolled_back, np.int64, len(self.rolled_back))
        keep = np.isin(batch.column("xid").to_numpy(), gone, invert=True)
        return batch if keep.all() else batch.filter(pa.array(keep))

    def messages(self, commit_lsn: Lsn) -> Iterator[Any]:
        """Yield batches of the messages that count, one piece after the other."""
        reader = LogReader(self.directory)
        for piece in self.message_pieces:
            for batch in reader.read(piece.file).combine_chunks().to_batches():
                yield as_messages(self._counting(batch), commit_lsn)
        for batch in self._messages:
            yield as_messages(self._counting(batch), commit_lsn)

    def attached(self, commit_lsn: Lsn) -> list[RowsFile]:
        """Return all pieces as files of a segment, still under the spool's names."""
        attached_files = []
        for piece in self.pieces:
            rows = replace(
                piece.rows, min_commit_lsn=commit_lsn, max_commit_lsn=commit_lsn
            )
            if gone := piece.may_have(self.rolled_back):
                rows = self._without(rows, gone)
            if rows.rows:
                attached_files.append(rows)
        return attached_files

    def _without(self, rows: RowsFile, gone: tuple[int, ...]) -> RowsFile:
        """Return the facts of the file without the rows of these subtransactions."""
        table = LogReader(self.directory).read(rows.file, ["xid", "op"])
        xids = table.column("xid").to_numpy()
        away = np.isin(xids, np.array(gone, np.int64))
        if not away.any():
            return rows
        counts = np.bincount(table.column("op").to_numpy()[~away], minlength=256)
        return replace(
            rows,
            inserts=int(counts[ord("I")]),
            updates=int(counts[ord("U")]),
            deletes=int(counts[ord("D")]),
            truncates=int(counts[ord("T")]),
            rolled_back=tuple(int(x) for x in np.unique(xids[away])),
        )
