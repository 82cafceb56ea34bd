"""Compares a table with its copy: digests of blocks, then the rows of blocks that differ.

Comes in: two sides at one state. Goes out: a ``Comparison``: the number of rows of each kind of
difference, and the keys and columns of the first of them. Called by ``verifying``, ``pairing``.

    1. digests of all blocks        a line for each block; equal in the common case, and all is
                                    done; both sides compute theirs at the same time
    2. hashes of rows               of differing blocks, up to a number of rows
    3. values of rows               of the first few differing keys, to name their columns

Blocks have about the same number of rows in the copy only if the copy is right. A block that has
too many rows at one side (the copy lost most of them, or has them many times) is *unread*: its
counts are reported, and its rows are not fetched.

A row with another hash is *changed* if both sides have its key, else *missing* (in the copy) or
*extra*. Without a key there are only missing and extra rows. Rows are counted as often as they are
there: a row that is there twice is extra once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wal2lake.verify.digests import BlockDigests
from wal2lake.verify.rowhashes import Hashes, RowHashes
from wal2lake.verify.sides import LakeSide, RowValues, ServerSide, Side, Texts

MOST_ROWS: Final = 200_000
"""Rows of a table whose hashes are fetched: a dozen blocks. They take some 100 MB, as text in an
answer and as keys of a dictionary. With more differences, whole parts of the table differ, and a
list of rows helps nobody."""

MOST_PORTION: Final = 2_000_000
"""Rows whose hashes are compared at a time to find all that differ: 48 MB at each side, and as much
again as text. A guess."""

_ASKED_KEYS: Final = 20_000
"""Keys that one statement asks for: 400 kB of text."""

MOST_NAMED: Final = 10_000
"""Rows that are named, with their key and columns: some 10 MB of text. More can be named when these
have been repaired."""


class DifferenceKind(Enum):
    """Kinds of differing rows."""

    CHANGED = "changed"
    """Both sides have the key, with different values."""
    MISSING = "missing"
    """The copy lacks the row."""
    EXTRA = "extra"
    """The copy has a row that the source lacks."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row that differs."""

    kind: DifferenceKind
    key: tuple[tuple[str, str | None], ...]
    """Names and values, as text, of the key's columns; without a key, of all columns."""
    columns: tuple[str, ...] = ()
    """Columns with different values, if the row is changed."""
    values: tuple[tuple[str | None, str | None], ...] = ()
    """Value at the source and value of the copy, as text, of each of ``columns``."""

    def __str__(self) -> str:
        """Return the difference in one line, whatever names and values contain."""
        key = ", ".join(
            f"{name}={'null' if value is None else _short(value)}"
            for name, value in self.key
        )
        columns = f": {', '.join(self.columns)}" if self.columns else ""
        return _escaped(f"{self.kind.value} ({key}){columns}")


@dataclass(frozen=True, slots=True)
class UnreadBlock:
    """A differing block whose rows are too many to be fetched."""

    place: str
    """The rows that belong to the block, in words."""
    rows: int
    """Number of rows of the source."""
    copy_rows: int

    @property
    def differing_rows(self) -> int:
        """Lowest possible number of differing rows."""
        return max(1, abs(self.rows - self.copy_rows))

    def __str__(self) -> str:
        """Return the block in one line."""
        return f"{self.place}: {self.rows} rows at the source, {self.copy_rows} in the copy"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for one table."""

    blocks: int
    rows: int
    """Number of rows of the source."""
    copy_rows: int
    differing_blocks: int = 0
    counts: tuple[tuple[DifferenceKind, int], ...] = ()
    """Number of differing rows by kind, in the blocks whose rows were fetched."""
    unread: tuple[UnreadBlock, ...] = ()
    """Differing blocks whose rows were not fetched."""
    named: tuple[RowDifference, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all blocks are equal."""
        return self.differing_blocks == 0

    @property
    def differing_rows(self) -> int:
        """Number of differing rows; with unread blocks, the lowest possible one."""
        return sum(count for _, count in self.counts) + sum(
            block.differing_rows for block in self.unread
        )


def compare(
    source: Side,
    copy: Side,
    columns: Sequence[str],
    key: Sequence[int],
    *,
    quoted: bool = True,
) -> Comparison:
    """Compare two sides. The copy chooses the blocks. ``quoted``: the result may have values of
    rows, not only counts."""
    division = copy.divide()
    with ThreadPoolExecutor(1, "source") as source_thread:
        awaited = source_thread.submit(source.digests, division)
        ours = copy.digests(division)
        theirs = awaited.result()
    differing = ours.differing(theirs)
    if not len(differing):
        return Comparison(division.blocks, theirs.rows, ours.rows)
    readable = _readable(differing, theirs, ours)
    unread = tuple(
        UnreadBlock(
            division.place(block, columns if quoted else None),
            int(theirs.counts[block]),
            int(ours.counts[block]),
        )
        for block in np.setdiff1d(differing, readable).tolist()
    )
    differences: list[_KeyDifference] = []
    if len(readable):
        differences = _differences(
            source.hashes(division, readable),
            copy.hashes(division, readable),
            bool(key),
        )
    counts = Counter[DifferenceKind]()
    for each in differences:
        counts[each.kind] += each.times
    shown = differences[:MOST_NAMED] if quoted else []
    return Comparison(
        division.blocks,
        theirs.rows,
        ours.rows,
        len(differing),
        tuple((kind, counts[kind]) for kind in DifferenceKind if counts[kind]),
        unread,
        tuple(_named(source, copy, shown, columns, key)),
    )


@dataclass(frozen=True, slots=True)
class DifferingRows:
    """Rows to remove from a copy and to write into it, so that it has those of the source. Keys are
    as they are compared, rows as the source writes their values."""

    blocks: int
    differing_blocks: int
    removed: tuple[Texts, ...] = ()
    """Keys of rows of the copy that the source lacks, or that the copy has more than once."""
    written: tuple[Texts, ...] = ()
    """All columns of rows of the source that the copy lacks or has with other values."""


def differing_rows(
    source: ServerSide, copy: LakeSide, most_rows: int, most_characters: int
) -> DifferingRows | None:
    """Return the rows that differ, of tables with a key; None if more than ``most_rows`` differ, or
    their values have more than ``most_characters``."""
    division = copy.divide()
    theirs, ours = source.digests(division), copy.digests(division)
    differing = ours.differing(theirs)
    removed: list[Texts] = []
    written: list[Texts] = []
    for blocks in _portions(differing, theirs, ours):
        within = source.within(division, blocks.tolist())
        keys = _differing_keys(
            within.hashes(division, blocks), copy.hashes(division, blocks)
        )
        if len(removed) + len(written) + len(keys) > most_rows:
            return None
        for start in range(0, len(keys), _ASKED_KEYS):
            part = keys[start : start + _ASKED_KEYS]
            here = Counter(copy.keys(part))
            there: set[Texts] = set()
            for key, row in within.whole_rows(part):
                there.add(key)
                written.append(row)
                most_characters -= sum(len(value or "") for value in row)
                if most_characters < 0:
                    return None
            removed += [
                key for key, times in here.items() if times > 1 or key not in there
            ]
    return DifferingRows(
        division.blocks, len(differing), tuple(removed), tuple(written)
    )


def _portions(
    differing: NDArray[np.int64], theirs: BlockDigests, ours: BlockDigests
) -> Iterator[NDArray[np.int64]]:
    """Yield the blocks in portions of about MOST_PORTION rows."""
    rows = np.maximum(theirs.counts[differing], ours.counts[differing])
    portions = np.cumsum(rows) // MOST_PORTION
    for portion in np.unique(portions):
        yield differing[portions == portion]


def _differing_keys(source: RowHashes, copy: RowHashes) -> Hashes:
    """Return the key hashes of rows that are not equally often at both sides."""
    rows = np.concatenate(
        [np.stack([side.key, side.first, side.second]) for side in (source, copy)],
        axis=1,
    )
    sign = np.concatenate(
        [np.ones(len(source), np.int64), -np.ones(len(copy), np.int64)]
    )
    order = np.lexsort(rows)
    rows, sign = rows[:, order], sign[order]
    if not len(sign):
        return source.key
    begins = np.flatnonzero(
        np.concatenate([[True], (rows[:, 1:] != rows[:, :-1]).any(axis=0)])
    )
    uneven = np.add.reduceat(sign, begins) != 0
    keys: Hashes = np.unique(rows[0, begins[uneven]])
    return keys


def _readable(
    blocks: NDArray[np.int64], theirs: BlockDigests, ours: BlockDigests
) -> NDArray[np.int64]:
    """Return the blocks that have at most MOST_ROWS rows together, the first ones that fit."""
    chosen: list[int] = []
    left = MOST_ROWS
    for block in blocks.tolist():
        rows = max(int(theirs.counts[block]), int(ours.counts[block]))
        if rows <= left:
            chosen.append(block)
            left -= rows
    return np.array(chosen, np.int64)


# ---- differing rows ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KeyDifference:
    kind: DifferenceKind
    key: int
    times: int = 1


def _differences(
    source: RowHashes, copy: RowHashes, has_key: bool
) -> list[_KeyDifference]:
    theirs, ours = _counted(source), _counted(copy)
    missing: defaultdict[int, int] = defaultdict(int)
    extra: defaultdict[int, int] = defaultdict(int)
    for row, times in (theirs - ours).items():
        missing[row[0]] += times
    for row, times in (ours - theirs).items():
        extra[row[0]] += times
    differences: list[_KeyDifference] = []
    for key in sorted(missing.keys() | extra.keys()):
        changed = min(missing[key], extra[key]) if has_key else 0
        for kind, times in (
            (DifferenceKind.CHANGED, changed),
            (DifferenceKind.MISSING, missing[key] - changed),
            (DifferenceKind.EXTRA, extra[key] - changed),
        ):
            if times:
                differences.append(_KeyDifference(kind, key, times))
    return differences


def _counted(hashes: RowHashes) -> Counter[tuple[int, int, int]]:
    return Counter(
        zip(
            hashes.key.tolist(),
            hashes.first.tolist(),
            hashes.second.tolist(),
            strict=True,
        )
    )


def _named(
    source: Side,
    copy: Side,
    differences: Sequence[_KeyDifference],
    columns: Sequence[str],
    key: Sequence[int],
) -> Iterator[RowDifference]:
    if not differences:
        return
    keys: Hashes = np.array(sorted({each.key for each in differences}), np.uint64)
    theirs, ours = _by_key(source.values(keys)), _by_key(copy.values(keys))
    for each in differences:
        there, here = theirs[each.key], ours[each.key]
        rows = here if each.kind is DifferenceKind.EXTRA else there
        if not rows:
            # The sides stand still, so a row that was hashed can be read.
            continue
        texts = rows[0].texts
        shown = tuple((columns[i], texts[i]) for i in key or range(len(columns)))
        differing: list[tuple[str, str | None, str | None]] = []
        if each.kind is DifferenceKind.CHANGED and here:
            pairs = zip(columns, texts, here[0].texts, strict=True)
            differing = [(name, a, b) for name, a, b in pairs if a != b]
        yield RowDifference(
            each.kind,
            shown,
            tuple(name for name, _, _ in differing),
            tuple((a, b) for _, a, b in differing),
        )


def _by_key(rows: Sequence[RowValues]) -> defaultdict[int, list[RowValues]]:
    by_key: defaultdict[int, list[RowValues]] = defaultdict(list)
    for row in rows:
        by_key[row.key_hash].append(row)
    return by_key


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _escaped(text: str) -> str:
    """Return the text with a backslash sequence for each character that is not printed."""
    return "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode()
        for c in text
    )
