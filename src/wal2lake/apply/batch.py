"""Selects the part of the log that becomes one commit of each table. Pure.

A batch is a run of whole segments from the position of the table that is furthest behind. Each
table takes only the changes at or above its own position, so a table that was copied later, or that
committed before a crash, joins without a special case.

Source: DESIGN 6 (Apply), invariant 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wal2lake.changelog.manifest import Manifest, RowsFile
from wal2lake.model import Lsn, Oid

RelationName = tuple[str, str]
"""Namespace and name at the publisher. Tables are matched by name."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one batch for one table."""

    relid: Oid
    """OID of the local table."""
    position: Lsn
    """The table still needs the rows whose commit LSN is at or above it."""
    files: tuple[RowsFile, ...]

    @property
    def insert_only(self) -> bool:
        """Whether there are only INSERTs, so that a plain append is enough."""
        return all(f.inserts == f.rows for f in self.files)

    def behind(self, position: Lsn) -> TableChanges:
        """Return the changes without the rows below ``position``."""
        files = tuple(f for f in self.files if f.max_commit_lsn >= position)
        return replace(self, position=max(self.position, position), files=files)

    def below(self, cut: Lsn | None) -> tuple[RowsFile, ...]:
        """Return the files with rows below ``cut``; all of them if it is None."""
        return tuple(f for f in self.files if cut is None or f.min_commit_lsn < cut)

    @property
    def rows(self) -> int:
        """Number of rows in the files, rows below the position included."""
        return sum(f.rows for f in self.files)


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of segments, divided by table."""

    manifests: tuple[Manifest, ...]
    end: Lsn
    """End of the batch, exclusive: the cursor that its commits carry."""
    tables: tuple[TableChanges, ...]
    others: tuple[RowsFile, ...] = ()
    """Files of relations whose table takes no part. They are skipped, if that is allowed."""

    @property
    def rows(self) -> int:
        """Number of rows of the batch's tables."""
        return sum(t.rows for t in self.tables)


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Positions of one batch at the publisher; ``start`` is the lowest, ``end`` the highest."""

    start: Lsn
    """The lowest position of a table that takes part."""
    decided: Lsn
    """Position of the published vector. Every transaction below it is applied or skipped in all
    tables."""
    end: Lsn
    """End of the batch, exclusive."""
    cut: Lsn | None = None
    """First transaction that is left out. If None, the batch is applied whole."""

    @property
    def catching_up(self) -> bool:
        """Whether only tables behind the published vector take part."""
        return self.start < self.decided

    @property
    def reached(self) -> Lsn:
        """Position of the tables after the batch."""
        return self.end if self.cut is None else self.cut

    def below(self, cut: Lsn) -> BatchBounds:
        """Leave out the transactions at or above ``cut``."""
        return replace(self, cut=cut)


def choose(
    waiting: Sequence[Manifest], *, max_bytes: int, max_rows: int, at_least: Lsn
) -> tuple[Manifest, ...]:
    """Choose the first segments within the limits, but at least one segment, and at least all
    segments up to the position ``at_least``."""
    chosen: list[Manifest] = []
    size = rows = 0
    for manifest in waiting:
        size += manifest.size
        rows += sum(f.rows for f in manifest.files)
        enough = bool(chosen) and chosen[-1].sealed_lsn >= at_least
        if enough and (size > max_bytes or rows > max_rows):
            break
        chosen.append(manifest)
    return tuple(chosen)


def divide(
    manifests: Sequence[Manifest],
    *,
    positions: Mapping[RelationName, tuple[Oid, Lsn]],
    end: Lsn,
) -> Batch:
    """Give each table its files.

    ``positions`` holds the tables that take part (copied, not paused), each with its position. The
    files of other relations go to ``others``.
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
    for manifest in manifests:
        yield from manifest.files
