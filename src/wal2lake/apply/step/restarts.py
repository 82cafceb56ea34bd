"""Sequences that a replicated TRUNCATE ... RESTART IDENTITY restarts.

In: the parts of a batch, and their tables. Out: for each table whose sequences restart, the values
for the rows that the batch inserts after the restart, and the last value of each sequence after the
batch. Called by the apply worker under the commit lock, before it stages.

The catalog restarts the sequences: ``expect`` records the restart before the tables commit,
``publish`` carries it out. As in PostgreSQL's subscriber, the sequences that the target's columns
own are restarted.

The log is read only for files with a TRUNCATE of a table that has sequences.

Source: apply_handle_truncate in worker.c, ExecuteTruncateGuts in tablecmds.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wal2lake.apply.batch import TableChanges
from wal2lake.apply.local.visible import unfinished_copies
from wal2lake.apply.participants import Participants
from wal2lake.catalog import Catalog, OwnedSequence, TableDef
from wal2lake.changelog import LogReader, RowsFile
from wal2lake.errors import UsageError, sqlstate_of
from wal2lake.lake import TablePort
from wal2lake.lake.staging import ColumnDefaults, Fill, Fills
from wal2lake.model import Lsn, Oid

_INSERT = ord("I")
_TRUNCATE = ord("T")
_RESTART_IDENTITY = 2


@dataclass(frozen=True, slots=True)
class Restart:
    """Effect of a batch on the sequences of one table."""

    fills: Fills
    """Values of the columns with sequences, numbered from the batch's first insert."""
    lasts: Mapping[Oid, int | None]
    """Last value taken from each sequence after the batch. None if no value was taken."""


def find_restarts(
    catalog: Catalog,
    reader: LogReader,
    tables: Participants,
    parts: Sequence[TableChanges],
    cut: Lsn | None,
) -> dict[Oid, Restart]:
    """Return the restarts by table. Raises CorruptLogError, StorageError."""
    restarts: dict[Oid, Restart] = {}
    owned: dict[Oid, OwnedSequence] = {}
    for part in parts:
        table = tables[part.relid].definition
        has_sequences = any(c.sequence is not None for c in table.columns)
        if not has_sequences or not any(f.truncates for f in part.files):
            continue
        files = part.below(cut)
        before = _inserts_before(reader, files, part.position, cut)
        if before is not None:
            owned = owned or {
                sequence.oid: sequence for sequence in catalog.sequences()
            }
            restarts[part.relid] = _restart(owned, table, files, before)
    return restarts


def fills_of(
    defaults: ColumnDefaults,
    files: Sequence[RowsFile],
    table: TableDef,
    restart: Restart | None,
) -> Fills:
    """Return the defaults of the columns that some of the files' rows lack."""
    sent = [{c.name for c in f.relation.columns} for f in files if f.inserts]
    wanted = [
        c.name
        for c in table.columns
        if (c.default is not None or (c.sequence is not None and restart is None))
        and any(c.name not in names for names in sent)
    ]
    restarted: Fills = {} if restart is None else restart.fills
    if not wanted:
        return restarted
    fills = defaults(table.oid, wanted)
    taken = defaults.numbered(fills, sum(f.inserts for f in files))
    return {**taken, **restarted}


def pending_restarts(
    catalog: Catalog, port: TablePort, subid: Oid, reached: Lsn
) -> tuple[set[Oid], set[tuple[Oid, Oid]]]:
    """Return the sequences that restart when ``reached`` is published, and the running copies into
    their tables, which may have taken values before the restart. The caller holds the commit
    lock."""
    sequences = catalog.expected_restarts(subid, reached)
    voided: set[tuple[Oid, Oid]] = set()
    for relid in set(sequences.values()):
        table = catalog.table_by_oid(relid)
        if table is not None:
            voided |= set(unfinished_copies(catalog, port.state(table.location), relid))
    return set(sequences), voided


def _inserts_before(
    reader: LogReader, files: Sequence[RowsFile], position: Lsn, cut: Lsn | None
) -> int | None:
    """Return how many inserts staging numbers before the last restart; None if there is no
    restart."""
    last = None
    before = 0
    for file in files:
        if file.truncates:
            inside = _last_restart(reader, file, position, cut)
            last = last if inside is None else before + inside
        before += file.inserts
    return last


def _last_restart(
    reader: LogReader, file: RowsFile, position: Lsn, cut: Lsn | None
) -> int | None:
    """Return how many of the file's inserts in range come before its last restart."""
    by = "xid" if file.streamed else "commit_lsn"
    rows = reader.read(file.file, [by, "op", "options"])
    if "options" not in rows.schema.names:
        return None
    ids, ops = rows.column(by).to_numpy(), rows.column("op").to_numpy()
    options = rows.column("options").fill_null(0).to_numpy()
    if file.streamed:
        counts = np.isin(ids, np.array(file.rolled_back, np.int64), invert=True)
    else:
        counts = ids >= int(position)
        if cut is not None:
            counts &= ids < int(cut)
    ops, options = ops[counts], options[counts]
    restarts = np.flatnonzero((ops == _TRUNCATE) & (options & _RESTART_IDENTITY != 0))
    if not len(restarts):
        return None
    return int(np.count_nonzero(ops[: restarts[-1]] == _INSERT))


def _restart(
    owned: Mapping[Oid, OwnedSequence],
    table: TableDef,
    files: Sequence[RowsFile],
    before: int,
) -> Restart:
    fills: dict[str, Fill] = {}
    lasts: dict[Oid, int | None] = {}
    after_restart = sum(file.inserts for file in files) - before
    sent = [{c.name for c in f.relation.columns} for f in files if f.inserts]
    for column in table.columns:
        sequence = None if column.sequence is None else owned.get(column.sequence)
        if sequence is None:
            continue
        lasts[sequence.oid] = None
        if all(column.name in names for names in sent):
            continue
        first = sequence.start - before * sequence.increment
        fills[column.name] = Fill(
            sequence=sequence.oid, first=first, step=sequence.increment
        )
        if after_restart:
            try:
                lasts[sequence.oid] = sequence.behind(None, after_restart)[1]
            except UsageError as error:
                failed = (sqlstate_of(error) or "XX000", error.message)
                fills[column.name] = Fill(error=failed)
    return Restart(fills, lasts)
