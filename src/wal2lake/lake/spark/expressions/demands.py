"""Evaluates what Delta demands of the rows of one table, by Spark.

Comes in: a table's CHECK constraints, invariants and generated columns, in Spark's SQL; rows that
are about to be written. Goes out: the generated columns, and the rows that violate a condition.
Called by ``upsert`` while a batch is staged.

Why this way. These expressions mean what Spark says that they mean, so Spark evaluates them, in one
job for all rows that can be checked at once. Everything else about the rows is done as for other
tables. If a job fails, the rows are halved until the failing row is alone.

As in Delta's own writer, a condition that is NULL is violated. A generated column that the
publisher sends keeps the value that was sent, if it is the one that the expression has; otherwise
the row is refused.

Sources: Delta transaction log protocol, "CHECK Constraints", "Generated Columns", "Column
Invariants"; delta-spark 4.4 CheckDeltaInvariant.scala, GeneratedColumn.scala.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from wal2lake.errors import (
    FeatureNotSupportedError,
    InternalError,
    StorageError,
    Wal2LakeError,
    sqlstate_of,
)
from wal2lake.lake.expressions import RefusedRow, RefusedValue
from wal2lake.lake.port import FieldSpec, TableState
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.expressions.evaluate import as_stored, is_transient
from wal2lake.pgtypes.spark_ddl import identifier

_ROW: Final = "_wal2lake_row"
"""Number of a row; no table has a column of that name."""

_KEPT: Final = 256
"""Most tables' demands that are cached, each for one definition."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition that must be true for each row."""

    name: str
    """The constraint's name, or the column's."""
    expression: str
    is_not_null: bool = False
    """Whether it is the NOT NULL of column ``name``."""


class DemandsOfTables:
    """Delta's demands, by table. Safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[object, TableDemands] = {}

    def of(self, state: TableState, sent: frozenset[str]) -> TableDemands | None:
        """Return a table's demands; None if it has none. ``sent``: the columns that the publisher
        sends. 0A000 for an expression that Spark does not evaluate row by row."""
        if state.is_plain:
            return None
        constraints = tuple(sorted(state.constraints.items()))
        generated = frozenset(f.name for f in state.fields if f.generation) - sent
        definition = (state.fields, constraints, generated)
        demands = self._known.get(definition)
        if demands is None:
            demands = TableDemands(self._spark, state, generated)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[definition] = demands
        return demands


class TableDemands:
    """``RowDemands`` of one table."""

    def __init__(
        self, spark: SparkSession, state: TableState, generated: frozenset[str]
    ) -> None:
        """``generated``: the columns that are computed."""
        self._spark = spark
        self._fields = {field.name: field for field in state.fields}
        self._computed = [
            (field, field.generation)
            for field in state.fields
            if field.generation is not None and field.name in generated
        ]
        self._conditions = list(_conditions(state, generated))
        self.generated = generated
        self.inputs = self._read([text for _, text in self._computed])
        self.checked = self._read(
            [condition.expression for condition in self._conditions]
        )

    def _read(self, expressions: Sequence[str]) -> frozenset[str]:
        """Return the columns that expressions read."""
        by_name = {name.lower(): name for name in self._fields}
        columns: set[str] = set()
        for text in expressions:
            try:
                with translated():
                    frame = self._spark.createDataFrame([], self._schema(self._fields))
                    chosen = frame.selectExpr(f"({text}) AS v")
                    plan = chosen._jdf.queryExecution().analyzed()
                    if plan.nodeName() != "Project" or not plan.subqueries().isEmpty():
                        raise _not_evaluated(text)
                    references = plan.references().iterator()
                    while references.hasNext():
                        columns.add(by_name[references.next().name().lower()])
            except FeatureNotSupportedError:
                raise
            except Wal2LakeError as error:
                if is_transient(error):
                    raise
                raise _not_evaluated(text, error.message) from error
        return frozenset(columns)

    def _schema(self, names: Sequence[str] | dict[str, FieldSpec]) -> StructType:
        columns = [f"{identifier(n)} {self._fields[n].spark_ddl}" for n in names]
        return StructType.fromDDL(", ".join([*columns, f"{_ROW} bigint"]))

    def compute(self, rows: pa.Table) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        """Return the generated columns, as in RowDemands."""
        items = [
            f"CAST(({text}) AS {field.spark_ddl}) AS v{i}"
            for i, (field, text) in enumerate(self._computed)
        ]
        return self._compute(rows, items)

    def _compute(
        self, rows: pa.Table, items: Sequence[str]
    ) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        count = rows.num_rows
        try:
            values = self._project(rows, self.inputs, items)
        except Wal2LakeError as error:
            if _is_of_no_row(error):
                raise
            if count > 1:
                return self._halves(rows, items)
            nulls = {
                field.name: pa.nulls(1, rows.column(field.name).type)
                for field, _ in self._computed
            }
            (first, _), *_ = self._computed
            refused = RefusedValue(0, first.name, sqlstate_of(error), error.message)
            return nulls, [refused]
        columns: dict[str, pa.Array] = {}
        failed: list[RefusedValue] = []
        for i, (field, _) in enumerate(self._computed):
            array, bad = as_stored(values.column(i), field)
            columns[field.name] = array
            failed += [
                RefusedValue(row, field.name, sqlstate, message)
                for row, (sqlstate, message) in bad.items()
            ]
        return columns, sorted(failed, key=lambda value: value.row)

    def _halves(
        self, rows: pa.Table, items: Sequence[str]
    ) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        half = rows.num_rows // 2
        low, failed = self._compute(rows.slice(0, half), items)
        high, others = self._compute(rows.slice(half), items)
        failed += [replace(value, row=value.row + half) for value in others]
        both = {name: pa.concat_arrays([low[name], high[name]]) for name in low}
        return both, failed

    def violating(self, rows: pa.Table) -> Mask:
        """Mark rows, as in RowDemands."""
        if not self._conditions or not rows.num_rows:
            return np.zeros(rows.num_rows, np.bool_)
        try:
            return self._violating(rows, self._conditions)
        except Wal2LakeError as error:
            if _is_of_no_row(error):
                raise
            if rows.num_rows == 1:
                return np.ones(1, np.bool_)
        half = rows.num_rows // 2
        parts = (rows.slice(0, half), rows.slice(half))
        return np.concatenate([self.violating(part) for part in parts])

    def _violating(self, rows: pa.Table, conditions: Sequence[_Condition]) -> Mask:
        hold = " AND ".join(f"coalesce(({c.expression}), false)" for c in conditions)
        answer = self._project(rows, self.checked, [f"NOT ({hold}) AS v"])
        mask: Mask = answer.column(0).to_numpy().astype(np.bool_)
        return mask

    def explain(self, relation: str, row: pa.Table) -> RefusedRow:
        """Return the error of a row, as in RowDemands; the first by the conditions' names."""
        for condition in sorted(
            self._conditions, key=lambda condition: condition.name.encode()
        ):
            try:
                if not self._violating(row, [condition]).any():
                    continue
            except Wal2LakeError as error:
                if _is_of_no_row(error):
                    raise
                return RefusedRow(sqlstate_of(error), error.message, False)
            if condition.is_not_null:
                return RefusedRow(
                    "23502",
                    f'null value in column "{condition.name}" of relation "{relation}"'
                    " violates not-null constraint",
                    True,
                )
            return RefusedRow(
                "23514",
                f'new row for relation "{relation}" violates check constraint'
                f' "{condition.name}"',
                True,
            )
        # The evaluation that refused the row had failed for a reason that has passed.
        raise StorageError(
            f'could not evaluate the constraints of relation "{relation}"',
            sqlstate="57P01",
        )

    def _project(
        self, rows: pa.Table, read: frozenset[str], items: Sequence[str]
    ) -> pa.Table:
        """Evaluate expressions that read some columns of the rows, in the rows' order."""
        names = sorted(read)
        numbers = pa.array(np.arange(rows.num_rows))
        columns = [*(rows.column(name) for name in names), numbers]
        table = pa.table(columns, names=[*names, _ROW])
        with translated():
            frame = self._spark.createDataFrame(table, self._schema(names))
            values = frame.selectExpr(*items, _ROW).toArrow()
        return values.sort_by(_ROW)


def _conditions(state: TableState, generated: frozenset[str]) -> list[_Condition]:
    conditions = [_Condition(name, text) for name, text in state.constraints.items()]
    for field in state.fields:
        name = identifier(field.name)
        if field.invariant is not None:
            conditions.append(_Condition(field.name, field.invariant))
        if field.generation is None:
            continue
        if field.name not in generated:
            text = f"{name} <=> CAST(({field.generation}) AS {field.spark_ddl})"
            conditions.append(_Condition(field.name, text))
        elif not field.nullable:
            conditions.append(_Condition(field.name, f"{name} IS NOT NULL", True))
    return conditions


def _is_of_no_row(error: Wal2LakeError) -> bool:
    """Whether the job failed for a reason that no value of a row is known to give."""
    return is_transient(error) or isinstance(error, InternalError)


def _not_evaluated(text: str, why: str | None = None) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'an expression of Delta Lake\'s table cannot be evaluated: "{text}"',
        detail=why,
    )
