"""Follows rows whose keys change from key to key.

An UPDATE that changes the key is two *touches* of one event: it leaves (L) the old key and arrives
(A) at the new one. Every other event touches one key, as I, U or D. Seen from one key, I D L A are
resets. The stretch between two resets is a *segment*, and its *head* is the reset that began it
(none: the row was in the table before the batch). A segment that an L ends continues in the
segment that the A of the same event begins. So segments link up into *lives*, each the history of
one row:

    key 1   base ──U──U──L           I ──U            life of base row 1: U U A U D
    key 2                A ──U──D        │            life of that I: I U A
    key 3                                L→A (key 4)

Each touch is labelled with its life's root (an I, or a base key). Then the net change is again the
last touch of each life, as it was the last event of each key. A value that is not known anywhere
in a life whose root is a base row is read from the table, where that row is still stored under its
root key.

A *link* is one key-changing UPDATE: what its old key held, and what its new key held. For most
links that alone tells whether their row was there and where its life began. Links that follow
another arrival are followed in log order by one Python worker (``follow``): each depends on the
link before it, and a loop of joins would cost a few Spark jobs a round. A key change whose old row
is missing does nothing (update_missing), not even a reset, so such events are removed and the
heads are computed again without them.

Sources: PostgreSQL worker.c (apply_handle_update_internal), heapam.c (heap_update).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from wal2lake.lake.spark.merge.follow import ARRIVE, FOUND, LEAVE, LINKS, follow
from wal2lake.lake.staging.layout import DELETE, INSERT, UPDATE, ChangeShape


class BaseTable:
    """The table before the batch, with its columns named b<i> (keys) and v<i>."""

    __slots__ = ("_rows", "_shape")

    def __init__(self, rows: DataFrame, shape: ChangeShape) -> None:
        self._shape = shape
        self._rows = rows.toDF(*(f"v{i}" for i in range(len(shape.fields))))

    def only_stored(self, rows: DataFrame, prefix: str) -> DataFrame:
        """Keep those of ``rows`` whose key <prefix><i> is in the table."""
        return rows.join(self._keys(prefix), self._names(prefix), "left_semi")

    def flag_stored(self, rows: DataFrame, prefix: str) -> DataFrame:
        """Add ``stored``: whether the key <prefix><i> is in the table."""
        keys = self._keys(prefix).withColumn("hit", F.lit(True))
        flagged = rows.join(keys, self._names(prefix), "left")
        return flagged.withColumn("stored", F.col("hit").isNotNull()).drop("hit")

    def with_values(self, rows: DataFrame, positions: list[int]) -> DataFrame:
        """Join b<i> of ``rows`` with the table, adding v<i> of the wanted columns as s<i>."""
        columns = [F.col(f"v{i}").alias(f"b{i}") for i in self._shape.key]
        columns += [F.col(f"v{i}").alias(f"s{i}") for i in positions]
        stored = self._rows.select(*columns)
        return rows.join(stored, self._names("b"), "inner")

    def _names(self, prefix: str) -> list[str]:
        return [f"{prefix}{i}" for i in self._shape.key]

    def _keys(self, prefix: str) -> DataFrame:
        return self._rows.select(
            *(F.col(f"v{i}").alias(f"{prefix}{i}") for i in self._shape.key)
        )


def plain_touches(events: DataFrame, shape: ChangeShape) -> DataFrame:
    """Return the touches of a batch without key changes, with their heads."""
    return _with_heads(_touch(events, shape, F.col("op"), "n"), shape)


@dataclass(frozen=True, slots=True)
class BatchMoves:
    """A batch with key changes, without the key changes that have no effect."""

    touches: DataFrame
    """Touches with their heads."""
    roots: DataFrame
    """For each arrival (alsn, aord) the root of its life: an insert of the batch (plsn,
    pord), or the key of a stored row (p<i>); never both."""


def follow_moves(
    events: DataFrame, shape: ChangeShape, table: BaseTable | None, trusted: bool
) -> BatchMoves:
    """Find the key changes that found their row, and the row that each found.

    ``trusted``: a key that no event of the batch has filled or emptied is in the table.
    """
    touches = _with_heads(_all_touches(events, shape), shape)
    links = _links(touches, shape)
    if table is None:
        links = links.withColumn("stored", F.lit(False))
    elif trusted:
        links = links.withColumn("stored", F.lit(True))
    else:
        links = table.flag_stored(links, "p")
    links = links.localCheckpoint()
    resolved = _resolve_links(links, shape).localCheckpoint()
    idle = resolved.filter(~F.col("there")).select(
        F.col("alsn").alias("lsn"), F.col("aord").alias("ord")
    )
    if not idle.isEmpty():
        events = events.join(idle, ["lsn", "ord"], "left_anti")
        touches = _with_heads(_all_touches(events, shape), shape)
    inserted = F.col("inserted")
    begins = links.select(
        F.col("alsn").alias("rlsn"), F.col("aord").alias("rord"), *_columns("p", shape)
    )
    rooted = resolved.filter("there")
    on_insert = rooted.filter(inserted).select(
        "alsn",
        "aord",
        F.col("rlsn").alias("plsn"),
        F.col("rord").alias("pord"),
        *(
            F.lit(None).cast(shape.fields[i].spark_ddl).alias(f"p{i}")
            for i in shape.key
        ),
    )
    on_base = (
        rooted.filter(~inserted)
        .join(begins, ["rlsn", "rord"])
        .select(
            "alsn",
            "aord",
            F.lit(None).cast("bigint").alias("plsn"),
            F.lit(None).cast("bigint").alias("pord"),
            *_columns("p", shape),
        )
    )
    return BatchMoves(touches, on_insert.unionByName(on_base))


def _links(touches: DataFrame, shape: ChangeShape) -> DataFrame:
    """Return one row per key-changing UPDATE, as ``follow.LINKS``, and its keys p<i>, d<i>."""

    def side(kind: int, key: str, head: str) -> DataFrame:
        return touches.filter(F.col("kind") == kind).select(
            F.col("lsn").alias("alsn"),
            F.col("ord").alias("aord"),
            F.col("head.kind").alias(f"{head}kind"),
            F.col("head.lsn").alias(f"{head}lsn"),
            F.col("head.ord").alias(f"{head}ord"),
            *(F.col(f"k{i}").alias(f"{key}{i}") for i in shape.key),
        )

    return side(LEAVE, "p", "f").join(side(ARRIVE, "d", "o"), ["alsn", "aord"])


def _resolve_links(links: DataFrame, shape: ChangeShape) -> DataFrame:
    """Return the rows that each link found at its old key, as ``follow.FOUND``."""
    kind = F.col("fkind")
    inserted = F.coalesce(kind == INSERT, F.lit(False))
    follows = F.coalesce(kind == ARRIVE, F.lit(False))
    alone = links.filter(~follows)
    resolved = alone.select(
        "alsn",
        "aord",
        (inserted | (kind.isNull() & F.col("stored"))).alias("there"),
        inserted.alias("inserted"),
        F.when(inserted, F.col("flsn")).otherwise(F.col("alsn")).alias("rlsn"),
        F.when(inserted, F.col("ford")).otherwise(F.col("aord")).alias("rord"),
    )
    hanging = links.filter(follows)
    if hanging.isEmpty():
        return resolved
    # A hanging link depends only on links that arrived at its old key.
    left_keys = hanging.select(*(F.col(f"p{i}").alias(f"d{i}") for i in shape.key))
    fed = alone.join(left_keys, [f"d{i}" for i in shape.key], "left_semi")
    names = [part.split()[0] for part in LINKS.split(", ")]
    in_order = (
        hanging.select(*names)
        .unionByName(fed.select(*names))
        .repartition(1)
        .sortWithinPartitions("alsn", "aord")
    )
    followed = links.sparkSession.createDataFrame(
        in_order.rdd.mapPartitions(follow), FOUND, verifySchema=False
    )
    return resolved.unionByName(
        followed.join(hanging.select("alsn", "aord"), ["alsn", "aord"], "left_semi")
    )


def net_of_lives(
    moves: BatchMoves, shape: ChangeShape, table: BaseTable | None
) -> DataFrame:
    """Compute the net change of a batch with key changes."""
    lives = _lives(moves, shape).localCheckpoint()
    width = range(len(shape.fields))
    unknown = sorted(shape.unchanged)
    rooted_here = F.col("rlsn").isNotNull()
    dead = F.col("kind") == DELETE
    stays = _all_equal("b", "k", shape)

    def output(op: int, flags: bool) -> list[Column]:
        head = [F.lit(op).cast("tinyint").alias("op"), F.col("lsn")]
        values = [
            F.col(f"k{i}").alias(f"n{i}") if i in shape.key else F.col(f"n{i}")
            for i in width
        ]
        missing = [
            (F.col(f"u{i}") if flags else F.lit(False)).alias(f"u{i}") for i in unknown
        ]
        return head + values + missing

    living = lives.filter(~dead)
    net = living.filter(rooted_here).select(*output(INSERT, False))
    if table is None:
        return net
    # Rows that arrived at a key. A row that the table holds there was removed by the batch;
    # if the table holds none, updates of that key did nothing.
    came = living.filter(rooted_here | ~stays)
    taken = came.select(*(F.col(f"k{i}").alias(f"b{i}") for i in shape.key))
    stayed = (
        living.filter(~rooted_here & stays)
        .join(taken, _columns("b", shape), "left_anti")
        .select(*output(UPDATE, True))
    )
    moved = living.filter(~rooted_here & ~stays)
    if unknown:
        moved = table.with_values(moved, unknown)
        for i in unknown:
            value = F.when(F.col(f"u{i}"), F.col(f"s{i}")).otherwise(F.col(f"n{i}"))
            moved = moved.withColumn(f"n{i}", value)
    moved = moved.select(*output(INSERT, False))
    vacated = lives.filter(~rooted_here & (dead | ~stays)).select(*_columns("b", shape))
    empty = vacated.join(taken, _columns("b", shape), "left_anti")
    deleted = empty.select(
        F.lit(DELETE).cast("tinyint").alias("op"),
        F.lit(None).cast("bigint").alias("lsn"),
        *(
            F.col(f"b{i}").alias(f"n{i}")
            if i in shape.key
            else F.lit(None).cast(shape.fields[i].spark_ddl).alias(f"n{i}")
            for i in width
        ),
        *(F.lit(False).alias(f"u{i}") for i in unknown),
    )
    return net.unionByName(stayed).unionByName(moved).unionByName(deleted)


def _lives(moves: BatchMoves, shape: ChangeShape) -> DataFrame:
    """Return one row per life: its root (rlsn, rord | b<i>), last kind and LSN, last key,
    values."""
    keys = shape.key
    touches = moves.touches
    kind, head = F.col("kind"), F.col("head")
    starts = kind.isin(INSERT, ARRIVE)
    segment = F.when(starts, F.struct("lsn", "ord", "kind")).otherwise(head)
    touches = touches.withColumn("segment", segment)
    # Events of a key whose row is gone are update_missing or delete_missing.
    gone = F.coalesce(F.col("segment.kind").isin(DELETE, LEAVE), F.lit(False))
    touches = touches.filter((kind != LEAVE) & ~gone)
    own = F.col("segment.kind") == INSERT
    base = F.col("segment").isNull()
    labelled = touches.join(
        moves.roots,
        (F.col("segment.lsn") == F.col("alsn"))
        & (F.col("segment.ord") == F.col("aord"))
        & (F.col("segment.kind") == ARRIVE),
        "left",
    ).select(
        "lsn",
        "ord",
        "kind",
        *_columns("k", shape),
        *(f"n{i}" for i in range(len(shape.fields))),
        *(f"u{i}" for i in sorted(shape.unchanged)),
        F.when(own, F.col("segment.lsn")).otherwise(F.col("plsn")).alias("rlsn"),
        F.when(own, F.col("segment.ord")).otherwise(F.col("pord")).alias("rord"),
        *(
            F.when(base, F.col(f"k{i}")).otherwise(F.col(f"p{i}")).alias(f"b{i}")
            for i in keys
        ),
    )
    life = Window.partitionBy("rlsn", "rord", *_columns("b", shape))
    in_order = life.orderBy("lsn", "ord")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last_known = {
        i: F.last(
            F.when(
                (kind != DELETE) & ~F.coalesce(f"u{i}", F.lit(False)),
                F.struct(f"n{i}"),
            ),
            ignorenulls=True,
        ).over(so_far)
        for i in sorted(shape.unchanged)
    }
    last = labelled.select(
        "kind",
        "lsn",
        "rlsn",
        "rord",
        *_columns("b", shape),
        *_columns("k", shape),
        *(
            last_known[i].alias(f"w{i}") if i in last_known else F.col(f"n{i}")
            for i in range(len(shape.fields))
        ),
        F.lead("kind").over(in_order).isNull().alias("last"),
    ).filter("last")
    return last.select(
        "kind",
        "lsn",
        "rlsn",
        "rord",
        *_columns("b", shape),
        *_columns("k", shape),
        *(
            F.col(f"w{i}.n{i}").alias(f"n{i}") if i in last_known else F.col(f"n{i}")
            for i in range(len(shape.fields))
        ),
        *(F.col(f"w{i}").isNull().alias(f"u{i}") for i in last_known),
    )


def _all_touches(events: DataFrame, shape: ChangeShape) -> DataFrame:
    moved = F.coalesce("moved", F.lit(False))
    still = _touch(events.filter(~moved), shape, F.col("op"), "n")
    moves = events.filter(moved)
    leave = _touch(moves, shape, F.lit(LEAVE).cast("tinyint"), "o")
    arrive = _touch(moves, shape, F.lit(ARRIVE).cast("tinyint"), "n")
    return still.unionByName(leave).unionByName(arrive)


def _touch(
    events: DataFrame, shape: ChangeShape, kind: Column, key_prefix: str
) -> DataFrame:
    return events.select(
        "lsn",
        "ord",
        kind.alias("kind"),
        *(F.col(f"{key_prefix}{i}").alias(f"k{i}") for i in shape.key),
        *(f"n{i}" for i in range(len(shape.fields))),
        *(f"u{i}" for i in sorted(shape.unchanged)),
    )


def _with_heads(touches: DataFrame, shape: ChangeShape) -> DataFrame:
    """Add ``head``: the last reset of the key before this touch (lsn, ord, kind)."""
    by_key = Window.partitionBy(*_columns("k", shape)).orderBy("lsn", "ord")
    before = by_key.rowsBetween(Window.unboundedPreceding, -1)
    reset = F.when(F.col("kind") != UPDATE, F.struct("lsn", "ord", "kind"))
    return touches.withColumn("head", F.last(reset, ignorenulls=True).over(before))


def _columns(prefix: str, shape: ChangeShape) -> list[str]:
    return [f"{prefix}{i}" for i in shape.key]


def _all_equal(left: str, right: str, shape: ChangeShape) -> Column:
    same = F.lit(True)
    for i in shape.key:
        same = same & (F.col(f"{left}{i}") == F.col(f"{right}{i}"))
    return same
