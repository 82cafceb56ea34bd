"""Which part of the log becomes one commit of each table. Pure.

A batch is a run of whole segments from the position of the table that is furthest behind. Each
table takes from it only what lies at or above its own position, so a table that was
copied later, or committed before a crash, joins without a special case.

Source: DESIGN 6 (Apply), invariant 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wal2lake.changelog.manifest import Manifest, RowsFile
from wal2lake.model import Lsn, Oid

RelationName = tuple[str, str]
"""Namespace and name at the publisher: tables go by name (reference, traps)."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one batch for one table."""

    relid: Oid
    """Our table."""
    position: Lsn
    """Rows with commit LSN >= it are still to come for this table."""
    files: tuple[RowsFile, ...]

    @property
    def insert_only(self) -> bool:
        """Nothing but INSERT: a plain append is enough."""
        return all(f.inserts == f.rows for f in self.files)

    def behind(self, position: Lsn) -> TableChanges:
        """Without the rows below ``position``."""
        files = tuple(f for f in self.files if f.max_commit_lsn >= position)
        return replace(self, position=max(self.position, position), files=files)

    def below(self, cut: Lsn | None) -> tuple[RowsFile, ...]:
        """The files with rows below ``cut``; None: all."""
        return tuple(f for f in self.files if cut is None or f.min_commit_lsn < cut)

    @property
    def rows(self) -> int:
        """Rows in the files, those below the position included."""
        return sum(f.rows for f in self.files)


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of segments, divided by table."""

    manifests: tuple[Manifest, ...]
    end: Lsn
    """Everything below is in this batch or before it: the cursor its commits carry."""
    tables: tuple[TableChanges, ...]
    others: tuple[RowsFile, ...] = ()
    """Files of relations whose table takes no part: to be skipped, if that is allowed."""

    @property
    def rows(self) -> int:
        """All rows of the batch's tables."""
        return sum(t.rows for t in self.tables)


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Positions of one batch at the publisher; ``start`` is the lowest, ``end`` the highest."""

    start: Lsn
    """The lowest position of a table that takes part."""
    decided: Lsn
    """Position of the published vector: what commits below it is decided for all tables."""
    end: Lsn
    """Everything below is in the batch or before it."""
    cut: Lsn | None = None
    """First transaction that is left out; None: the batch is applied whole."""

    @property
    def catching_up(self) -> bool:
        """True if only tables behind the published vector take the batch."""
        return self.start < self.decided

    @property
    def reached(self) -> Lsn:
        """Position of the tables once the batch is applied."""
        return self.end if self.cut is None else self.cut

    def below(self, cut: Lsn) -> BatchBounds:
        """The same batch without the transactions at or above ``cut``."""
        return replace(self, cut=cut)


def choose(
    waiting: Sequence[Manifest], *, max_bytes: int, max_rows: int, at_least: Lsn
) -> tuple[Manifest, ...]:
    """The first segments that fit the limits; at least one if there is any, and at
    least up to the position ``at_least``."""
    chosen: list[Manifest] = []
    size = rows = 0
    for one in waiting:
        size += one.size
        rows += sum(f.rows for f in one.files)
        enough = bool(chosen) and chosen[-1].sealed_lsn >= at_least
        if enough and (size > max_bytes or rows > max_rows):
            break
        chosen.append(one)
    return tuple(chosen)


def divide(
    manifests: Sequence[Manifest],
    *,
    positions: Mapping[RelationName, tuple[Oid, Lsn]],
    end: Lsn,
) -> Batch:
    """Give each table its files.

    ``positions`` names the tables that take part (copied, not paused) with their
    position; files of relations that are not in it go to ``others``.
    """
    files: dict[Oid, list[RowsFile]] = {}
    others: list[RowsFile] = []
    for file in _files(manifests):
        target = positions.get((file.relation.namespace, file.relation.name))
        if target is None:
            others.append(file)
            continue
        relid, position = target
        if file.max_commit_lsn >= position:
            files.setdefault(relid, []).append(file)
    by_relid = dict(positions.values())
    tables = tuple(
        TableChanges(relid, by_relid[relid], tuple(parts))
        for relid, parts in files.items()
    )
    return Batch(tuple(manifests), end, tables, tuple(others))


def _files(manifests: Iterable[Manifest]) -> Iterable[RowsFile]:
    for one in manifests:
        yield from one.files
