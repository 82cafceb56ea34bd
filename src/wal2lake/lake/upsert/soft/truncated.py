"""Carries out a TRUNCATE of a table that keeps deleted rows: it marks all rows.

Comes in: the table's live files, as the changes before the TRUNCATE have left them. Goes out: the
same files without the rows that were not marked, and new ones with these rows, marked. Called by
``runs.whole``.

The table is read a row group at a time, and written as it is read, so memory does not grow with the
table. What the changes before and behind the TRUNCATE do to marked rows is theirs: a row that is
inserted takes the place of a marked row with its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.port import FieldSpec, TableState
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.soft.kept import marked_rows
from wal2lake.lake.upsert.stored import StoredRows, held_rows


def mark_rows(
    live: LiveFiles,
    state: TableState,
    fields: Sequence[FieldSpec],
    rules: ConflictRules,
    lsn: int,
) -> None:
    """Mark all rows as deleted by the transaction that committed at ``lsn``."""
    if rules.soft is None:
        raise InternalError("deleted rows of this table are removed")
    column, names = rules.soft.column, [field.name for field in state.fields]
    stored = StoredRows(state, live.files, live)
    parts = stored.live_places(range(len(names)))
    with TableWriter(state.location, state.physical_fields, durable=False) as writer:
        for number, of_file in groupby(parts, itemgetter(0)):
            gone = [np.zeros(0, np.uint64)]
            for _, places, rows in of_file:
                is_live = rows.column(column).is_null().to_numpy()
                if not is_live.any():
                    continue
                marked = rows.select(names).filter(pa.array(is_live))
                ends = np.full(marked.num_rows, lsn, np.int64)
                marked = marked_rows(fields, marked, ends, rules)
                if rules.commits is not None:
                    marked = rules.commits.of(ends).appended(marked)
                writer.write_all(marked)
                gone.append(places[is_live])
            file, places = stored.files[number], np.concatenate(gone)
            if places.size:
                live.remove(file, places.astype(np.int64), held_rows(state, file))
        live.add(writer.finish())
