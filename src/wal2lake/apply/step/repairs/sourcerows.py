"""Stages rows of the source as a batch of one table.

Comes in: rows as they are at the source at an LSN, and the state of their table. Goes out: a staged
batch, which the caller commits. Called by ``repairing`` and by copies that write differing rows
only (``tablesync.healing``).

The rows take the way of a batch: they become a file in log layout, whose rows commit at the LSN,
and are staged like those of a segment, so values are converted and checked alike. Rows are looked
up by the primary key. Whether a row is here does not matter: an UPDATE inserts a missing row, an
INSERT replaces one that is here, and a DELETE of a missing row does nothing.

The commit says that its rows come from the subscription's origin, as capture hands it on to
subscribers of this node.

Source: docs/decisions/0037-repair.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.apply.step.restarts import fills_of
from wal2lake.catalog import Subscription, TableDef
from wal2lake.changelog import (
    LogFile,
    RowsFile,
    VersionRows,
    describe_rows,
    encode_rows,
)
from wal2lake.lake import BatchCommits, TableState
from wal2lake.lake.batch import BatchPort, RepairOrigin, Staged, StageRequest
from wal2lake.lake.staging import (
    NO_COMMITS,
    ColumnDefaults,
    ConversionRules,
    HistoryTarget,
    LogSource,
    LsnRange,
)
from wal2lake.model import ConflictType, Lsn, Oid, Relation, Resolution
from wal2lake.pg import RemoteTable
from wal2lake.pgtypes import Resolutions, ValuePolicies, remote_types_from_json
from wal2lake.settings import Settings

_UNIX_TO_POSTGRES_US: Final = 946_684_800_000_000

_AS_SENT: Final = Resolutions(
    {
        ConflictType.INSERT_EXISTS: Resolution.APPLY_REMOTE,
        ConflictType.UPDATE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
        ConflictType.UPDATE_MISSING: Resolution.APPLY_REMOTE,
        ConflictType.DELETE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
        ConflictType.DELETE_MISSING: Resolution.SKIP,
    }
)
"""The source's row is right, whatever is here."""


@dataclass(frozen=True, slots=True)
class RepairedRow:
    """A row as the source has it, or the key of one that it does not have."""

    op: str
    """I, U or D, as in the log."""
    values: tuple[str | None, ...]
    """Texts of the relation's columns; of a D only those of its key count."""


@dataclass(frozen=True, slots=True)
class RowRepair:
    """Rows of one table that are put right."""

    relid: Oid
    lsn: Lsn
    """LSN of the snapshot from which the rows are."""
    relation: Relation
    """The table at the source. Key columns are those of its primary key."""
    rows: tuple[RepairedRow, ...]


def keyed_relation(remote: RemoteTable) -> Relation:
    """Return a table as a Relation message whose key is the primary key."""
    relation = remote.schema.as_relation()
    return replace(
        relation,
        columns=tuple(
            replace(column, is_key=column.name in remote.key)
            for column in relation.columns
        ),
    )


class SourceRows:
    """Stages rows of the source. Thread-safe."""

    def __init__(self, batches: BatchPort, defaults: ColumnDefaults) -> None:
        """``defaults``: defaults of columns that the source does not send."""
        self._batches = batches
        self._defaults = defaults

    def stage(
        self,
        subscription: Subscription,
        settings: Settings,
        repair: RowRepair,
        definition: TableDef,
        state: TableState,
        history: TableState | None,
    ) -> Staged:
        """Stage the rows on ``state``. ``history``: the state of the table that records them.

        Rows that the table cannot take are failures of the result, as in a batch."""
        version = _in_log_layout(repair)
        buffer, facts = encode_rows(version)
        file = describe_rows(LogFile("repair", buffer.size, 0), version, facts)
        now_us = time.time_ns() // 1000
        with tempfile.TemporaryDirectory(prefix="wal2lake-repair-") as directory:
            path = Path(directory) / "rows.parquet"
            path.write_bytes(buffer)
            request = StageRequest(
                namespace=definition.namespace,
                name=definition.name,
                state=state,
                key=definition.key,
                constraint=definition.index_name,
                sources=[_source(path, file)],
                span=LsnRange(repair.lsn),
                append=False,
                trusted=False,
                types=remote_types_from_json(subscription.remote_types),
                rules=ConversionRules(
                    ValuePolicies.parse(subscription.value_policies),
                    frozenset(c.name for c in definition.columns if c.not_null),
                    frozenset(definition.key),
                    settings.apply.max_value_bytes,
                    subscription.follows_schema,
                    definition.checks,
                    definition.generated,
                ),
                fills=fills_of(self._defaults, [file], definition, None),
                resolutions=_AS_SENT,
                nulls=frozenset(
                    c.name
                    for c in definition.columns
                    if c.default is None and not c.not_null
                ),
                commits=_commits(subscription, settings, repair, now_us),
                deferrable=definition.key_deferral.deferrable,
                history=None if history is None else HistoryTarget(history, NO_COMMITS),
                repairs=RepairOrigin(
                    f"pg_{subscription.oid}",
                    int(repair.lsn),
                    now_us - _UNIX_TO_POSTGRES_US,
                ),
            )
            return self._batches.stage(request)


def _commits(
    subscription: Subscription, settings: Settings, repair: RowRepair, now_us: int
) -> BatchCommits | None:
    """Return the writer of the rows, if writers are tracked."""
    if not settings.apply.track_commit_timestamp:
        return None
    lsn, xid, time_us = (
        np.array([value], np.int64) for value in (int(repair.lsn), 0, now_us)
    )
    return BatchCommits(int(subscription.oid), lsn, xid, time_us)


def _source(path: Path, file: RowsFile) -> LogSource:
    return LogSource(str(path), file.relation, file.rows, file.file.size)


def _in_log_layout(repair: RowRepair) -> VersionRows:
    """Return the rows as the log would have them, all of one transaction."""
    count = len(repair.rows)
    deletes = np.array([row.op == "D" for row in repair.rows])
    columns: dict[str, pa.Array] = {
        "commit_lsn": pa.array(np.full(count, int(repair.lsn), np.int64)),
        "ordinal": pa.array(np.arange(count, dtype=np.int64)),
        "op": pa.array([ord(row.op) for row in repair.rows], pa.uint8()),
        "old": pa.array(np.where(deletes, ord("K"), 0).astype(np.uint8)),
    }
    for place, column in enumerate(repair.relation.columns):
        texts = [row.values[place] for row in repair.rows]
        columns[f"c{place}"] = _encoded(texts, ~deletes)
        if column.is_key and deletes.any():
            columns[f"o{place}"] = _encoded(texts, deletes)
    return VersionRows(repair.relation, {}, [pa.record_batch(columns)])


def _encoded(texts: Sequence[str | None], kept: np.ndarray) -> pa.Array:
    return pa.array(
        [
            text.encode() if is_kept and text is not None else None
            for text, is_kept in zip(texts, kept.tolist(), strict=True)
        ],
        pa.binary(),
    )
