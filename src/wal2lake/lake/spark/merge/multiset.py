"""Applies batches of a table without a primary key that do not fit into memory, or that only Spark
may write.

Comes in: staged changes whose rows are identified by their whole content, and the table's state.
Goes out: the table's new content as one DataFrame, for an overwrite, and the events that found no
row. Called by ``batches``.

    events ─▶ a digest of each content ─▶ heights of the stacks (NumPy) ─▶ rows to remove, to add
    table ─▶ rows with one of the digests, numbered within each digest ─┘

Why this way. MERGE cannot take one of several equal rows. Which rows are removed depends on the
order of events and on whether each event finds a row, but the only fact about a row that matters
is which content it has. So values stay with Spark, and this process holds 32 bytes of each
content, and about 150 bytes of each event. The same functions as for smaller batches then apply
the rules. The overwrite writes the whole table; since its cost is the table's, smaller batches are
applied in memory.

Two contents are the same if their SHA-256 digests are. If columns may hold values that are equal
but not identical (``pgtypes.equality``), a row has a second digest of its values made identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from wal2lake.errors import InternalError
from wal2lake.lake.port import TableState
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.merge.merge import Merge, tune
from wal2lake.lake.spark.merge.netchange import NetChange, after
from wal2lake.lake.staging.layout import (
    DELETE,
    NAMED_CONFLICTS,
    TRUNCATE,
    UPDATE,
    ChangeShape,
    RowConflict,
    spark_schema,
)
from wal2lake.lake.staging.stage import StagedChanges
from wal2lake.lake.upsert.conflicts import missing_rows
from wal2lake.lake.upsert.keys import Places
from wal2lake.lake.upsert.lives.lives import (
    NOT_MOVED,
    STORED,
    Events,
    Lives,
    net_lives,
)
from wal2lake.lake.upsert.lives.occurrences import by_occurrence
from wal2lake.model import ConflictType
from wal2lake.pgtypes.equality import alike_sql, loose_columns
from wal2lake.pgtypes.spark_ddl import identifier

Index = npt.NDArray[np.int64]


def plan_multiset(
    spark: SparkSession,
    state: TableState,
    staged: StagedChanges,
    *,
    shows_rows: bool = False,
) -> tuple[Merge, Sequence[RowConflict]]:
    """Return the table's whole new content, ready for one commit, and the conflicts of events that
    found no row, in log order."""
    session = spark.newSession()
    tune(session, staged)
    shape = staged.shape
    with translated(f'Delta table "{state.location}"'):
        changes = session.read.schema(spark_schema(shape)).parquet(*staged.paths)
        changes = changes.filter(F.col("op") != TRUNCATE)
        if shape.truncate is not None:
            changes = changes.filter(after(shape.truncate))
        table = _read_stored(session, state, shape)
        batch = _Batch(session, shape, changes, table)
        conflicts = batch.conflicts(shows_rows)
        rows = batch.content()
    return Merge(session, state, staged, NetChange(rows, True, whole=True)), conflicts


def _read_stored(
    session: SparkSession, state: TableState, shape: ChangeShape
) -> DataFrame | None:
    """Return ``v<i>`` and the digests ``h`` and ``e``; None if a TRUNCATE has emptied the
    table."""
    if shape.truncate is not None:
        return None
    rows = (
        session.read.format("delta")
        .option("versionAsOf", state.version)
        .load(state.location)
        .select(*(identifier(f.name) for f in shape.fields))
        .toDF(*(f"v{i}" for i in range(len(shape.fields))))
    )
    return rows.withColumn("h", _digest(rows, shape, "v")).withColumn(
        "e", _digest(rows, shape, "v", equal=True)
    )


class _Batch:
    """One batch, evaluated when it is constructed."""

    def __init__(
        self,
        session: SparkSession,
        shape: ChangeShape,
        changes: DataFrame,
        table: DataFrame | None,
    ) -> None:
        self._session, self._shape, self._changes = session, shape, changes
        self._table = table
        loose = bool(loose_columns(shape.fields, shape.key))
        digests = changes.select(
            "lsn",
            "ord",
            "op",
            *(
                (
                    _digest(changes, shape, prefix, equal=equal)
                    if prefix == "n" or shape.moved
                    else F.lit(None).cast("binary")
                ).alias(name)
                for prefix, equal, name in (
                    ("n", False, "n"),
                    ("o", False, "o"),
                    ("n", True, "ne"),
                    ("o", True, "oe"),
                )
                if loose or not equal
            ),
        )
        arrow = digests.toArrow().sort_by([("lsn", "ascending"), ("ord", "ascending")])
        self._lsn = arrow.column("lsn").to_numpy()
        self._ord = arrow.column("ord").to_numpy()
        op = arrow.column("op").to_numpy().astype(np.int8)
        self._op = op
        moved = np.flatnonzero(op == UPDATE)
        digests_of_rows = _all_digests(arrow, "n", "o", moved)
        codes = digests_of_rows.dictionary_encode()
        self._contents = codes.dictionary
        self._classes = self._contents
        if loose:
            # The first row of each content gives its class.
            first = np.unique(codes.indices.to_numpy(), return_index=True)[1]
            equal = _all_digests(arrow, "ne", "oe", moved)
            self._classes = equal.take(pa.array(first))
        numbers = codes.indices.to_numpy().astype(np.int64)
        olds = np.full(len(op), NOT_MOVED, np.int64)
        olds[moved] = numbers[len(op) :]
        # In each UPDATE the columns that are not sent are unknown, and no others.
        unknown = dict.fromkeys(sorted(shape.unchanged), op == UPDATE)
        events = Events(op, numbers[: len(op)], olds, unknown)
        self._touched: DataFrame | None = None
        self._content = self._rank = np.zeros(0, np.int64)
        if table is not None:
            self._find_stored(table)
        none = np.zeros(len(self._content), np.int64)
        places = Places(self._content, none, np.arange(len(none)))
        classes = None
        if loose:
            encoded = self._classes.dictionary_encode()
            classes = encoded.indices.to_numpy().astype(np.int64)
        occurrences = by_occurrence(events, places, len(self._contents), classes)
        present = np.zeros(occurrences.count, np.bool_)
        present[occurrences.places.key] = True
        self._place = np.full(occurrences.count, -1, np.int64)
        self._place[occurrences.places.key] = occurrences.places.row
        lives = net_lives(occurrences.events, present, unique=False)
        assert isinstance(lives, Lives)
        self._lives = lives

    def _find_stored(self, table: DataFrame) -> None:
        """Number the stored rows whose content the batch names, and count the rows of each
        content."""
        self._named = self._frame(e=self._classes.unique())
        same = Window.partitionBy("h").orderBy(F.lit(1))
        self._touched = (
            table.join(self._named, "e", "left_semi")
            .withColumn("rank", F.row_number().over(same))
            # The checkpoint fixes the numbers of equal rows.
            .localCheckpoint()
        )
        counts = self._touched.groupBy("h", "e").count().toArrow()
        held = counts.column("h").cast(pa.binary()).combine_chunks()
        equal = counts.column("e").cast(pa.binary()).combine_chunks()
        new = pc.invert(pc.is_in(held, self._contents))
        self._contents = pa.concat_arrays([self._contents, held.filter(new)])
        self._classes = pa.concat_arrays([self._classes, equal.filter(new)])
        order = pc.index_in(held, self._contents).to_numpy()
        many = counts.column("count").to_numpy()
        self._content = np.repeat(order.astype(np.int64), many)
        starts = np.cumsum(many) - many
        self._rank = np.arange(len(self._content)) - np.repeat(starts, many) + 1

    def _frame(self, **columns: pa.Array) -> DataFrame:
        return self._session.createDataFrame(pa.table(columns))

    def content(self) -> DataFrame:
        """Return the table as the batch leaves it, as columns ``n<i>``."""
        width = range(len(self._shape.fields))
        parts = [self._written_rows()]
        if self._table is not None and self._touched is not None:
            rest = self._table.join(self._named, "e", "left_anti")
            removed = self._frame(**self._places(self._lives.removed))
            kept = self._touched.join(removed, ["h", "rank"], "left_anti")
            parts += [
                frame.select(*(F.col(f"v{i}").alias(f"n{i}") for i in width))
                for frame in (rest, kept)
            ]
        return reduce(DataFrame.unionAll, parts)

    def _places(self, keys: Index) -> dict[str, pa.Array]:
        """Return digest and number of stored rows; both null where the key is STORED."""
        is_new = keys == STORED
        places = self._place[np.where(is_new, 0, keys)]
        places = np.where(is_new, 0, places)
        if not len(self._content):
            nulls = pa.nulls(len(keys), pa.int64())
            return {"h": pa.nulls(len(keys), pa.binary()), "rank": nulls}
        index = pa.array(self._content[places], mask=is_new)
        rank = pa.array(self._rank[places].astype(np.int64), mask=is_new)
        return {"h": self._contents.take(index), "rank": rank}

    def _written_rows(self) -> DataFrame:
        lives, shape = self._lives, self._shape
        unknown = sorted(shape.unchanged)
        columns = {
            "lsn": pa.array(self._lsn[lives.last]),
            "ord": pa.array(self._ord[lives.last]),
        }
        known_columns = [
            F.col(f"n{i}") for i in range(len(shape.fields)) if i not in unknown
        ]
        if not unknown:
            rows = self._frame(**columns).join(self._changes, ["lsn", "ord"])
            return rows.select(*known_columns)
        source = lives.sources[unknown[0]]
        if any(not np.array_equal(lives.sources[i], source) for i in unknown):
            raise InternalError("columns that are not sent come from different events")
        stored = source == STORED
        columns |= self._places(lives.base)
        columns["slsn"] = pa.array(self._lsn[np.where(stored, 0, source)], mask=stored)
        columns["sord"] = pa.array(self._ord[np.where(stored, 0, source)], mask=stored)
        sent = self._changes.select(
            F.col("lsn").alias("slsn"),
            F.col("ord").alias("sord"),
            *(F.col(f"n{i}").alias(f"t{i}") for i in unknown),
        )
        rows = self._frame(**columns).join(
            self._changes.select("lsn", "ord", *known_columns), ["lsn", "ord"]
        )
        rows = rows.join(sent, ["slsn", "sord"], "left")
        if self._touched is None:
            values = {i: F.col(f"t{i}") for i in unknown}
        else:
            held = self._touched.select("h", "rank", *(f"v{i}" for i in unknown))
            rows = rows.join(held, ["h", "rank"], "left")
            values = {
                i: F.when(F.col("slsn").isNull(), F.col(f"v{i}")).otherwise(
                    F.col(f"t{i}")
                )
                for i in unknown
            }
        return rows.select(
            *(
                values[i].alias(f"n{i}") if i in values else F.col(f"n{i}")
                for i in range(len(shape.fields))
            )
        )

    def conflicts(self, shows_rows: bool) -> Sequence[RowConflict]:
        """Return the conflicts of events that found no row."""
        missed = self._lives.missed
        if not missed.size:
            return ()
        named = missed[:NAMED_CONFLICTS]
        positions = self._frame(
            lsn=pa.array(self._lsn[named]), ord=pa.array(self._ord[named])
        )
        table = self._changes.join(positions, ["lsn", "ord"]).toArrow()
        table = table.sort_by([("lsn", "ascending"), ("ord", "ascending")])
        conflicts = missing_rows(
            self._shape, table, np.arange(table.num_rows), values=shows_rows
        )
        rest = missed[NAMED_CONFLICTS:]
        for kind, chosen in (
            (ConflictType.DELETE_MISSING, self._op[rest] == DELETE),
            (ConflictType.UPDATE_MISSING, self._op[rest] != DELETE),
        ):
            if chosen.any():
                first = int(self._lsn[rest[chosen][0]])
                conflicts.append(
                    RowConflict(kind, first, None, count=int(chosen.sum()))
                )
        return conflicts


def _all_digests(rows: pa.Table, new: str, old: str, moved: Index) -> pa.Array:
    """Return the digests of all events, followed by those of the old rows of events that have
    two."""
    return pa.chunked_array(
        [
            *rows.column(new).cast(pa.binary()).chunks,
            *rows.column(old).cast(pa.binary()).take(pa.array(moved)).chunks,
        ],
        pa.binary(),
    ).combine_chunks()


def _digest(
    rows: DataFrame, shape: ChangeShape, prefix: str, *, equal: bool = False
) -> Column:
    """Return 32 bytes that are the same for rows of the same content, and different for others;
    with ``equal``, the same for rows that are equal by their types."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    loose = loose_columns(shape.fields, shape.key) if equal else {}
    texts = []
    for place, i in enumerate(shape.key):
        name = f"{prefix}{i}"
        value = F.expr(alike_sql(name, loose.get(place)))
        texts.append(_encode(value, kinds[name]))
    return F.unhex(F.sha2(F.concat(*texts), 256))


def _encode(value: Column, kind: T.DataType) -> Column:
    """Return a text, never null, that encodes the value uniquely; no text is a prefix of
    another."""
    if isinstance(kind, T.TimestampType):
        text = F.unix_micros(value).cast("string")
    elif isinstance(kind, T.BinaryType):
        text = F.hex(value)
    elif isinstance(kind, T.ArrayType):
        element = kind.elementType
        text = F.array_join(F.transform(value, lambda item: _encode(item, element)), "")
    elif isinstance(kind, T.MapType):
        key, element = kind.keyType, kind.valueType
        pairs = F.transform(
            F.map_entries(value),
            lambda e: F.concat(_encode(e["key"], key), _encode(e["value"], element)),
        )
        text = F.array_join(F.array_sort(pairs), "")
    else:
        # Floating point numbers have their shortest digits, -0.0 and NaN.
        text = value.cast("string")
    size = F.length(text).cast("string")
    return F.when(value.isNull(), F.lit("N")).otherwise(
        F.concat(F.lit("V"), size, F.lit(":"), text)
    )
