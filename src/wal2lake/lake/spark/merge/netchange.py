"""Reduces staged changes to the net change: at most one row per key.

Comes in: a DataFrame in the layout of ``staging.layout``, its ``ChangeShape``, and for key changes
the table as it is. Goes out: a DataFrame with one row per touched key,

    op tinyint    I: the row is exactly these values; U: the stored row, if there is one,
                  gets the values that are known; D: no row
    lsn bigint    commit LSN of the last event of the row; may be null for D
    n<i>          values of column i; the key's are always there
    u<i>          U only: n<i> is not known, keep the stored value (columns of shape.unchanged)

The meaning is that of applying the events one by one, in (lsn, ord) order, to a dict by key:
UPDATE and DELETE of a missing row do nothing (update_missing, delete_missing). Keys that are equal
by their types are one key (``alike``).

Why this way. The row that a key holds lives from an I to a D, or comes from the table. A *reset*
is an event that makes the key's history before it irrelevant. One window sorted by (key, lsn, ord)
carries along the last reset and, for each column that may be unknown, the last known value; the
key's last event then has everything. That is one shuffle and one streaming pass. Measured on 1.7 M
events: 1.5 s, with ``max_by`` aggregates 1.9 s (their buffers are not fixed-size rows, so Spark
sorts twice). A chain of unchanged values costs nothing extra. Key changes join the lives of
several keys (``moves``).

Sources: PostgreSQL worker.c (apply_handle_insert, _update, _delete), heapam.c
(ExtractReplicaIdentity: when an old key is sent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from wal2lake.lake.spark.merge.alike import AlikeKeys
from wal2lake.lake.spark.merge.follow import ARRIVE
from wal2lake.lake.spark.merge.moves import (
    BaseTable,
    follow_moves,
    net_of_lives,
    plain_touches,
)
from wal2lake.lake.staging.layout import (
    INSERT,
    TRUNCATE,
    UPDATE,
    ChangeShape,
    RowFailure,
    Seq,
    Uniqueness,
    key_taken,
)
from wal2lake.pgtypes.equality import loose_columns


@dataclass(frozen=True, slots=True)
class NetChange:
    """Effect of one batch on one table."""

    rows: DataFrame
    """Rows of the net change, as the module describes; lazy, deterministic, each key once."""
    replaces: bool
    """True if the table's content is removed and ``rows`` are all I, because of a TRUNCATE or
    because ``rows`` are the whole table."""
    whole: bool = False
    """True if ``rows`` are the table as the batch leaves it."""
    found_by: Mapping[int, str] = field(default_factory=dict)
    """Key columns whose equal values may be written differently: the column of ``rows`` that has
    the key as the table stores it; null if the table has no such key."""


def net_change(
    changes: DataFrame,
    shape: ChangeShape,
    base: DataFrame | None,
    uniqueness: Uniqueness,
) -> NetChange | RowFailure:
    """Reduce a batch, or return the first event that violates the primary key.

    ``base`` is the table at the version on which the caller will write, columns in the order of
    ``shape.fields``; None: the table is empty. Runs Spark jobs only for key changes (their lives
    are materialised) and when not ``trusted`` (the look-up).
    """
    if not loose_columns(shape.fields, shape.key):
        return _net_change(changes, shape, base, uniqueness)
    alike = AlikeKeys(shape)
    stored = None if base is None else alike.base(base)
    net = _net_change(alike.changes(changes), alike.shape, stored, uniqueness)
    if isinstance(net, RowFailure):
        return net
    rows, found_by = alike.written(net.rows, None if net.replaces else stored)
    return replace(net, rows=rows, found_by=found_by)


def _net_change(
    changes: DataFrame,
    shape: ChangeShape,
    base: DataFrame | None,
    uniqueness: Uniqueness,
) -> NetChange | RowFailure:
    events = changes.filter(F.col("op") != TRUNCATE)
    if shape.truncate is not None:
        events = events.filter(after(shape.truncate))
        base = None
    if not shape.key:
        # Without a key only inserts are left, and each is a row of its own.
        return NetChange(
            events.filter(F.col("op") == INSERT), replaces=shape.truncate is not None
        )
    table = BaseTable(base, shape) if base is not None else None
    if shape.moved:
        moves = follow_moves(events, shape, table, uniqueness.trusted)
        failure = _first_conflict(moves.touches, table, uniqueness)
        if failure is not None:
            return failure
        rows = net_of_lives(moves, shape, table)
    else:
        if not uniqueness.trusted:
            touches = plain_touches(events, shape)
            failure = _first_conflict(touches, table, uniqueness)
            if failure is not None:
                return failure
        rows = _last_of_each_key(events, shape)
    if table is None:
        # The table is empty: an update or delete of a row from before the batch finds none.
        rows = rows.filter(F.col("op") == INSERT)
    return NetChange(rows, replaces=shape.truncate is not None)


def after(seq: Seq) -> Column:
    """Return the condition for events after this one."""
    lsn, ordinal = F.col("lsn"), F.col("ord")
    same = (lsn == seq.commit_lsn) & (ordinal > seq.ordinal)
    return (lsn > seq.commit_lsn) | same


def _last_of_each_key(events: DataFrame, shape: ChangeShape) -> DataFrame:
    """Compute the net change of a batch in which no key changes."""
    op = F.col("op")
    by_key = Window.partitionBy(*(f"n{i}" for i in shape.key)).orderBy("lsn", "ord")
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    reset = F.last(F.when(op != UPDATE, op), ignorenulls=True).over(so_far)
    last_known = {
        i: F.last(
            F.when(~F.coalesce(f"u{i}", F.lit(False)), F.struct(f"n{i}")),
            ignorenulls=True,
        ).over(so_far)
        for i in sorted(shape.unchanged)
    }
    last = events.select(
        F.coalesce(reset, F.lit(UPDATE).cast("tinyint")).alias("op"),
        "lsn",
        *(
            last_known[i].alias(f"w{i}") if i in last_known else F.col(f"n{i}")
            for i in range(len(shape.fields))
        ),
        F.lead(op).over(by_key).isNull().alias("last"),
    ).filter("last")
    return last.select(
        "op",
        "lsn",
        *(
            F.col(f"w{i}.n{i}").alias(f"n{i}") if i in last_known else F.col(f"n{i}")
            for i in range(len(shape.fields))
        ),
        *(F.col(f"w{i}").isNull().alias(f"u{i}") for i in last_known),
    )


def _first_conflict(
    touches: DataFrame, table: BaseTable | None, uniqueness: Uniqueness
) -> RowFailure | None:
    """Return the first event whose key is taken; None without a look-up if the key is trusted."""
    if uniqueness.trusted:
        return None
    arrivals = touches.filter(F.col("kind").isin(INSERT, ARRIVE))
    conflicts = arrivals.filter(F.col("head.kind").isin(INSERT, ARRIVE))
    if table is not None:
        on_base = arrivals.filter(F.col("head").isNull())
        conflicts = conflicts.unionByName(table.only_stored(on_base, "k"))
    first = conflicts.select("lsn", "ord", "kind").orderBy("lsn", "ord").first()
    if first is None:
        return None
    return key_taken(
        Seq(first["lsn"], first["ord"]), uniqueness, inserted=first["kind"] == INSERT
    )
