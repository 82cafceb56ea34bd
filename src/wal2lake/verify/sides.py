"""The two kinds of side of a comparison: a server that hashes, and a version of a lake table.

Comes in: a session in a transaction with a snapshot, or the files of a version. Goes out: digests,
hashes and values of rows, by the same division. Called by ``compare``.

Neither side keeps rows: a server sends one line for each block, and the lake's files are read batch
by batch. Hashes of rows are asked for differing blocks only, and only for blocks whose digests show
that the rows are few. One row is read for each key hash, however often a key is there.

Hashes are unsigned here and signed in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wal2lake.pg import Session
from wal2lake.pgtypes import arrow_to_text
from wal2lake.verify.digests import BlockDigests
from wal2lake.verify.division import (
    SAMPLE_STEP,
    Division,
    divided_by_hash,
    divided_by_order,
)
from wal2lake.verify.forms import ColumnForm, NotComparable, ValueForm
from wal2lake.verify.rowhashes import Hashes, RowHashes, hash_rows, united
from wal2lake.verify.statements import PROBE, TableStatements, shortened

Progress = Callable[[int], None]
"""Is told the number of rows that have been read since; raises if the comparison shall end."""


Texts = tuple[str | None, ...]
"""Values as text."""


@dataclass(frozen=True, slots=True)
class RowValues:
    """One row that differs, as text."""

    key_hash: int
    first: int
    """The row's first hash."""
    texts: tuple[str | None, ...]


class Side(Protocol):
    """One side of a comparison."""

    def divide(self) -> Division:
        """Choose the blocks by this side's rows."""
        ...

    def digests(self, division: Division) -> BlockDigests:
        """Return the digest of each block."""
        ...

    def hashes(self, division: Division, blocks: NDArray[np.int64]) -> RowHashes:
        """Return the hashes of the rows of some blocks."""
        ...

    def values(self, keys: Hashes) -> list[RowValues]:
        """Return one row for each of these key hashes that the side has."""
        ...


# ---- a server ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerSide:
    """A table of a server, as a session's transaction sees it."""

    session: Session
    statements: TableStatements

    def divide(self) -> Division:
        """Choose the blocks by this side's rows."""
        statements = self.statements
        if not statements.is_ordered:
            count = self.session.query(statements.count(), patient=True)[0][0]
            return divided_by_hash(int(str(count)))
        rows = self.session.query(statements.sample(SAMPLE_STEP), patient=True)
        sample = np.array([int(str(row[0])) for row in rows], np.int64)
        return divided_by_order(statements.key[0], sample, SAMPLE_STEP)

    def digests(self, division: Division) -> BlockDigests:
        """Return the digest of each block, computed by the server in one aggregate."""
        rows = self.session.query(self.statements.digests(division), patient=True)
        return BlockDigests.answered(division.blocks, rows)

    def hashes(self, division: Division, blocks: NDArray[np.int64]) -> RowHashes:
        """Return the hashes of the rows of some blocks."""
        statement = self.statements.hashes(division, blocks.tolist())
        rows = self.session.query(statement, patient=True)
        numbers = np.array([[int(str(n)) for n in row] for row in rows], np.int64)
        key, first, second = numbers.reshape(-1, 3).T.copy().view(np.uint64)
        return RowHashes(key, first, second)

    def values(self, keys: Hashes) -> list[RowValues]:
        """Return one row for each of these key hashes that the side has."""
        statement = self.statements.values(keys.view(np.int64).tolist())
        return [
            RowValues(_unsigned(row[0]), _unsigned(row[1]), row[2:])
            for row in self.session.query(statement, patient=True)
        ]

    def within(self, division: Division, blocks: Sequence[int]) -> ServerSide:
        """Return the side of the rows of some blocks, or of all where the division does not tell
        which they are."""
        return replace(self, statements=self.statements.within(division, blocks))

    def whole_rows(self, keys: Hashes) -> Iterator[tuple[Texts, Texts]]:
        """Yield all rows with one of these key hashes: the key as it is compared, and the values of
        all columns as the server writes them."""
        count = len(self.statements.key)
        statement = self.statements.whole_rows(keys.view(np.int64).tolist())
        for row in self.session.query(statement, patient=True):
            yield tuple(row[:count]), tuple(row[count:])


def _unsigned(text: str | None) -> int:
    return int(str(text)) % (1 << 64)


def check_hashes(session: Session) -> None:
    """Raise NotComparable if the server hashes differently than this node does."""
    if session.server_version < 140000:
        raise NotComparable("the source is older than PostgreSQL 14")
    columns = [pa.array([1], pa.int64()), pa.array(["wal2lake"])]
    forms = [ColumnForm(form, form.oid) for form in (ValueForm.INTEGER, ValueForm.TEXT)]
    expected = int(hash_rows(columns, forms, ()).first[0])
    if _unsigned(session.value(PROBE)) != expected:
        raise NotComparable(
            "the server's hash functions are not those of PostgreSQL 14 to 18 on a"
            " little-endian machine"
        )


# ---- the lake ----------------------------------------------------------------------------


class RowReader(Protocol):
    """Reads some columns of a version (``PlainRead``)."""

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is known only by reading them."""
        ...

    def batches(self) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        """Read all rows."""
        ...


@dataclass(frozen=True, slots=True)
class LakeSide:
    """A version of a lake table."""

    read: RowReader
    """The version with the compared columns, in their order."""
    key_read: RowReader | None
    """The same version with the first column of the key, if blocks are ranges of its values."""
    forms: tuple[ColumnForm, ...]
    key: tuple[int, ...]
    progress: Progress

    def divide(self) -> Division:
        """Choose the blocks by this side's rows."""
        if self.key_read is None:
            rows = self.read.rows
            if rows is None:
                rows = sum(len(columns[0]) for columns in self._batches())
            return divided_by_hash(rows)
        sample: list[NDArray[np.int64]] = []
        skipped = 0
        with self.key_read.batches() as batches:
            for batch in batches:
                self.progress(0)
                column = batch.column(0).cast(pa.int64()).drop_null()
                values = column.to_numpy(zero_copy_only=False)
                sample.append(values[SAMPLE_STEP - 1 - skipped :: SAMPLE_STEP])
                skipped = (skipped + len(values)) % SAMPLE_STEP
        chosen = np.concatenate(sample) if sample else np.zeros(0, np.int64)
        return divided_by_order(self.key[0], chosen, SAMPLE_STEP)

    def digests(self, division: Division) -> BlockDigests:
        """Return the digest of each block."""
        digests = BlockDigests.empty(division.blocks)
        # Ranges of the key need no hashes of it.
        key = self.key if division.bounds is None else ()
        for columns in self._batches():
            hashes = hash_rows(columns, self.forms, key)
            digests.add(division.of(columns, hashes), hashes)
        return digests

    def hashes(self, division: Division, blocks: NDArray[np.int64]) -> RowHashes:
        """Return the hashes of the rows of some blocks."""
        parts: list[RowHashes] = []
        for columns in self._batches():
            hashes = hash_rows(columns, self.forms, self.key)
            chosen = np.isin(division.of(columns, hashes), blocks)
            parts.append(hashes.chosen(chosen))
        return united(parts)

    def values(self, keys: Hashes) -> list[RowValues]:
        """Return one row for each of these key hashes that the side has."""
        row_values: list[RowValues] = []
        for columns in self._batches():
            hashes = hash_rows(columns, self.forms, self.key)
            rows = np.flatnonzero(np.isin(hashes.key, keys))
            if not len(rows):
                continue
            here, firsts = np.unique(hashes.key[rows], return_index=True)
            rows, keys = rows[firsts], np.setdiff1d(keys, here)
            taken = pa.array(rows)
            texts = [
                _texts(column.take(taken), form, whole=n in self.key)
                for n, (column, form) in enumerate(
                    zip(columns, self.forms, strict=True)
                )
            ]
            chosen = hashes.chosen(rows)
            row_values += [
                RowValues(int(key), int(first), row)
                for key, first, row in zip(
                    chosen.key, chosen.first, zip(*texts, strict=True), strict=True
                )
            ]
        return row_values

    def keys(self, keys: Hashes) -> Iterator[Texts]:
        """Yield the key of each row with one of these key hashes, as it is compared. Keys that are
        there twice come twice."""
        for columns in self._batches():
            hashes = hash_rows(columns, self.forms, self.key)
            rows = pa.array(np.flatnonzero(np.isin(hashes.key, keys)))
            texts = [
                _texts(columns[n].take(rows), self.forms[n], whole=True)
                for n in self.key
            ]
            yield from zip(*texts, strict=True)

    def _batches(self) -> Iterator[Sequence[pa.Array]]:
        with self.read.batches() as batches:
            for batch in batches:
                self.progress(len(batch))
                if len(batch):
                    yield batch.columns


def _texts(column: pa.Array, form: ColumnForm, *, whole: bool) -> list[str | None]:
    typmod = -1 if form.digits is not None else form.typmod
    oid = form.type_oid if form.value.width is None else form.value.oid
    if form.value is ValueForm.FLOAT:
        column = column.cast(pa.float64())
    texts = arrow_to_text(column, oid, typmod)
    shown: list[str | None] = []
    for encoded in texts:
        text = None if encoded is None else encoded.decode("utf-8", "replace")
        if text is not None and encoded is not None and not whole:
            text = shortened(text, encoded)
        shown.append(text)
    return shown
