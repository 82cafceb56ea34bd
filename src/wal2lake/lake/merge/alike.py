"""Keys whose equal values may be written differently (``pgtypes/equality``), for the net change.

Comes in: staged changes, their shape, the table before them. Goes out: the same in which the key's
columns hold what is compared, and further columns behind the table's what is stored; and the way
back, with the key that each row has in the table. Called by ``netchange`` where a key has such
columns; most have none, and nothing of this runs.

Why this way. The net change and key changes compare keys in a dozen places. With the keys made
alike before it they need not know of it, and MERGE still compares columns as they are: a row of the
table is found by the key that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from wal2lake.lake.staging.changes import ChangeShape
from wal2lake.pgtypes.equality import alike_sql, loose_columns
from wal2lake.pgtypes.spark_ddl import identifier


class AlikeKeys:
    """Keys of one batch that are equal by type."""

    def __init__(self, shape: ChangeShape) -> None:
        """``shape``: as it is staged."""
        loose = loose_columns(shape.fields, shape.key)
        self._sql = {shape.key[place]: one for place, one in loose.items()}
        width = len(shape.fields)
        self._kept = {i: width + n for n, i in enumerate(self._sql)}
        self._key = shape.key
        more = (shape.fields[i] for i in self._sql)
        self.shape = replace(shape, fields=(*shape.fields, *more))
        """With the columns behind the table's."""

    def changes(self, staged: DataFrame) -> DataFrame:
        """Staged changes, with a shape of ``self.shape``."""
        rows = staged.withColumns(
            {f"n{to}": F.col(f"n{i}") for i, to in self._kept.items()}
        ).withColumns({f"n{i}": self._alike(f"n{i}", i) for i in self._sql})
        if not self.shape.moved:
            return rows
        rows = rows.withColumns({f"o{i}": self._alike(f"o{i}", i) for i in self._sql})
        # The key is written differently, and the row is where it was.
        stays = reduce(
            lambda a, b: a & b,
            (F.col(f"o{i}").eqNullSafe(F.col(f"n{i}")) for i in self._key),
        )
        return rows.withColumn("moved", F.col("moved") & ~stays)

    def base(self, table: DataFrame) -> DataFrame:
        """The table, likewise; columns in the order of the fields."""
        fields = self.shape.fields
        stored = [F.col(identifier(f.name)) for f in fields]
        compared = list(stored)
        for i in self._sql:
            compared[i] = self._alike(identifier(fields[i].name), i)
        return table.select(
            *(column.alias(f"b{i}") for i, column in enumerate(compared))
        )

    def _alike(self, name: str, i: int) -> Column:
        return F.expr(alike_sql(name, self._sql[i]))

    def written(
        self, net: DataFrame, base: DataFrame | None
    ) -> tuple[DataFrame, Mapping[int, str]]:
        """A net change as the table has its columns; and by which columns of it, where it is not
        the key's own, MERGE finds the table's rows. ``base`` as above."""
        found = {i: f"w{i}" for i in self._sql}
        rows = net
        if base is not None:
            names = [f"n{i}" for i in self._key]
            there = base.select(
                *(F.col(f"b{i}").alias(f"n{i}") for i in self._key),
                *(F.col(f"b{to}").alias(found[i]) for i, to in self._kept.items()),
            )
            rows = net.join(there, names, "left")
        kept = {f"n{i}": F.col(f"n{to}") for i, to in self._kept.items()}
        rows = rows.withColumns(kept).drop(*(f"n{to}" for to in self._kept.values()))
        return rows, found if base is not None else {}
