"""Makes keys identical whose equal values may be written differently, for the net change.

Comes in: staged changes, their shape, the table before them. Goes out: the same, where the key's
columns hold the compared values (``pgtypes.equality``), and further columns after the table's hold
the stored ones. Afterwards it converts the net change back, with the key that each row has in the
table. Called by ``netchange`` for keys that have such columns; most keys have none.

Why this way. The net change and key changes compare keys in a dozen places, which need not handle
equality if the keys are made identical before. MERGE still compares columns as they are: it finds
a row of the table by the key that the table stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from wal2lake.lake.staging.layout import ChangeShape
from wal2lake.pgtypes.equality import alike_sql, loose_columns
from wal2lake.pgtypes.spark_ddl import identifier


class AlikeKeys:
    """Keys of one batch that are equal by type."""

    def __init__(self, shape: ChangeShape) -> None:
        """``shape``: as it is staged."""
        loose = loose_columns(shape.fields, shape.key)
        self._sql = {shape.key[place]: looseness for place, looseness in loose.items()}
        width = len(shape.fields)
        self._kept = {i: width + n for n, i in enumerate(self._sql)}
        self._key = shape.key
        stored_fields = (shape.fields[i] for i in self._sql)
        self.shape = replace(shape, fields=(*shape.fields, *stored_fields))
        """The shape with the added columns."""

    def changes(self, staged: DataFrame) -> DataFrame:
        """Return the staged changes with the shape ``self.shape``."""
        rows = staged.withColumns(
            {f"n{to}": F.col(f"n{i}") for i, to in self._kept.items()}
        ).withColumns({f"n{i}": self._alike(f"n{i}", i) for i in self._sql})
        if not self.shape.moved:
            return rows
        rows = rows.withColumns({f"o{i}": self._alike(f"o{i}", i) for i in self._sql})
        # The key is only written differently, so the row keeps its place.
        stays = reduce(
            lambda a, b: a & b,
            (F.col(f"o{i}").eqNullSafe(F.col(f"n{i}")) for i in self._key),
        )
        return rows.withColumn("moved", F.col("moved") & ~stays)

    def base(self, table: DataFrame) -> DataFrame:
        """Return the table with compared and stored columns, in the order of the fields."""
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
        """Return a net change with the table's columns, and the columns of it by which MERGE finds
        the table's rows instead of by the key's own. ``base`` as ``base()`` returns it."""
        stored_keys = {i: f"w{i}" for i in self._sql}
        rows = net
        if base is not None:
            names = [f"n{i}" for i in self._key]
            keys_of_table = base.select(
                *(F.col(f"b{i}").alias(f"n{i}") for i in self._key),
                *(
                    F.col(f"b{to}").alias(stored_keys[i])
                    for i, to in self._kept.items()
                ),
            )
            rows = net.join(keys_of_table, names, "left")
        kept = {f"n{i}": F.col(f"n{to}") for i, to in self._kept.items()}
        rows = rows.withColumns(kept).drop(*(f"n{to}" for to in self._kept.values()))
        return rows, stored_keys if base is not None else {}
