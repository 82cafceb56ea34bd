"""Expressions of users that resolve conflicts: looked at when they are set, evaluated by Spark.

Comes in: an expression, a table's fields; later pairs of rows, ``local`` and ``remote``. Goes out:
for each pair what the expression names, or the values that it makes, or why it failed. Called by
``upsert`` while a batch is staged, and by the commands that set ``conflict_resolution``.

An expression sees one pair of rows and what is known of their commits, and nothing else: what it
says must be the same when a batch is repeated after a crash. So the analyzed plan has to be a
projection of that pair, deterministic, without the time, the session or anything that Spark
looks up elsewhere.

Only the rows that meet are given to Spark, in one job for all that can be decided at once. If that
fails, it is halved until the first pair that fails is alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from wal2lake.errors import UsageError, Wal2LakeError, sqlstate_of
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.session import Pool, use_pool
from wal2lake.lake.staging.convert import SentColumn, convert_column, mapping_of
from wal2lake.model import Oid
from wal2lake.pgtypes import CONFLICT_CHOICES, ConflictExpression
from wal2lake.pgtypes.spark_ddl import identifier

_FACTS: Final = (
    "local_commit_time timestamp, remote_commit_time timestamp, local_origin string"
)

_TEXT: Final = Oid(25)

_REFUSED: Final = frozenset(
    (
        "current_date",
        "curdate",
        "current_time",
        "current_timestamp",
        "current_timestamp_like",
        "now",
        "localtimestamp",
        "current_user",
        "user",
        "session_user",
        "current_catalog",
        "current_database",
        "current_schema",
        "current_timezone",
        "version",
        "java_method",
        "reflect",
        "try_reflect",
    )
)
"""Deterministic to Spark, or not a matter of two rows."""

_MISSING: Final = frozenset(("FIELD_NOT_FOUND", "UNRESOLVED_COLUMN"))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows that meet, one after the other; all columns have as many values."""

    local: pa.Table
    remote: pa.Table
    """Both with the fields of the table."""
    facts: pa.Table
    """Of the commits, as ``_FACTS``."""

    def part(self, start: int, count: int) -> Pairs:
        """Some of them."""
        return Pairs(
            self.local.slice(start, count),
            self.remote.slice(start, count),
            self.facts.slice(start, count),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one pair."""

    choice: str | None = None
    """One of ``CONFLICT_CHOICES``."""
    row: pa.Table | None = None
    """The merged row."""
    error: tuple[str, str] | None = None
    """SQLSTATE and message."""


def facts_table(
    local_us: Sequence[int | None],
    remote_us: Sequence[int | None],
    origins: Sequence[str | None],
) -> pa.Table:
    """Times are microseconds since 1970."""
    moment = pa.timestamp("us", "UTC")
    return pa.table(
        [
            pa.array(local_us, pa.int64()).cast(moment),
            pa.array(remote_us, pa.int64()).cast(moment),
            pa.array(origins, pa.string()),
        ],
        names=["local_commit_time", "remote_commit_time", "local_origin"],
    )


class Expressions:
    """Any thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def check(
        self,
        fields: Sequence[FieldSpec],
        key: Sequence[str],
        expression: ConflictExpression,
    ) -> None:
        """Raises UsageError: 42601, 42703, 42883, 42804, or 0A000 for what may say something else
        the next time."""
        known = {field.name: field for field in fields}
        for name, _ in expression.values:
            if name not in known:
                raise _no_column(name, fields)
            if name in key or not _is_plain(known[name]):
                raise UsageError(
                    f'column "{name}" cannot be set by a conflict resolution',
                    sqlstate="0A000",
                    detail="It is in the primary key, which both rows have in common."
                    if name in key
                    else "Values of its type are not made here.",
                )
        try:
            with translated():
                try:
                    frame = self._frame(None, fields)
                    found = frame.selectExpr(*self._items(fields, expression))
                    analyzed = found._jdf.queryExecution().analyzed()
                    kind = found.schema.fields[0].dataType.simpleString()
                except ParseException as error:
                    raise UsageError(
                        f'syntax error in "{expression.text}"',
                        sqlstate="42601",
                        detail=str(error).strip().splitlines()[0],
                        hint="It is Spark SQL.",
                    ) from None
                except AnalysisException as error:
                    condition = (error.getCondition() or "").split(".")[0]
                    if condition not in _MISSING:
                        raise
                    name = (error.getMessageParameters() or {}).get(
                        "fieldName",
                        (error.getMessageParameters() or {}).get("objectName", ""),
                    )
                    raise _no_column(name.replace("`", ""), fields) from None
                names = sorted(set(_names(analyzed)) & _REFUSED)
                source = analyzed.children().head()
                is_pair = (
                    analyzed.nodeName() == "Project"
                    and source.children().isEmpty()
                    and analyzed.subqueries().isEmpty()
                )
                deterministic = bool(analyzed.deterministic())
        except UsageError:
            raise
        except Wal2LakeError as error:
            raise UsageError(
                f'invalid expression in "conflict_resolution": "{expression.text}"',
                sqlstate=sqlstate_of(error) or "42601",
                detail=str(error),
            ) from None
        if names or not is_pair or not deterministic:
            what = f"{names[0]}()" if names else "random values, subqueries, aggregates"
            raise UsageError(
                f'expression in "conflict_resolution" is not deterministic: "'
                f'{expression.text}"',
                sqlstate="0A000",
                detail=f"It uses {what}. A batch may be repeated, and must come to the"
                " same.",
                hint="Use the columns of local and remote, local_commit_time,"
                " remote_commit_time and local_origin.",
            )
        if expression.choice is not None and kind != "string":
            raise UsageError(
                f'expression in "conflict_resolution" must be text, not {kind}:'
                f' "{expression.text}"',
                sqlstate="42804",
                hint=f"It names one of {', '.join(CONFLICT_CHOICES)}.",
            )

    def evaluate(
        self,
        fields: Sequence[FieldSpec],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> list[Outcome]:
        """One for each pair up to the first that fails, which is the last. ``required``: columns
        that must not be null."""
        use_pool(self._spark, Pool.APPLY)
        outcomes: list[Outcome] = []
        for outcome in self._outcomes(fields, required, expression, pairs):
            outcomes.append(outcome)
            if outcome.error is not None:
                break
        return outcomes

    def _outcomes(
        self,
        fields: Sequence[FieldSpec],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> Iterator[Outcome]:
        count = pairs.local.num_rows
        try:
            with translated():
                frame = self._frame(pairs, fields)
                found = frame.selectExpr(*self._items(fields, expression)).toArrow()
        except UsageError as error:
            if count == 1:
                yield Outcome(error=(sqlstate_of(error) or "22000", error.message))
                return
            half = count // 2
            for part in (pairs.part(0, half), pairs.part(half, count - half)):
                yield from self._outcomes(fields, required, expression, part)
            return
        if expression.choice is not None:
            yield from map(_chosen, found.column(0).to_pylist())
            return
        yield from self._merged(fields, required, expression, pairs, found)

    def _merged(
        self,
        fields: Sequence[FieldSpec],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
        found: pa.Table,
    ) -> Iterator[Outcome]:
        rows = pairs.remote
        errors: dict[int, tuple[str, str]] = {}
        for number, (name, _) in enumerate(expression.values):
            at = next(i for i, field in enumerate(fields) if field.name == name)
            field = fields[at]
            column, bad = _as_stored(found.column(number), field)
            if name in required or not field.nullable:
                nulls = column.is_null().to_pylist()
                text = f'null value in column "{name}" violates not-null constraint'
                bad = {
                    **{i: ("23502", text) for i, null in enumerate(nulls) if null},
                    **bad,
                }
            errors = {**bad, **errors}
            rows = rows.set_column(at, rows.column_names[at], column)
        for i in range(rows.num_rows):
            if i in errors:
                yield Outcome(error=errors[i])
            else:
                yield Outcome(row=rows.slice(i, 1))

    def _items(
        self, fields: Sequence[FieldSpec], expression: ConflictExpression
    ) -> list[str]:
        if expression.choice is not None:
            return [f"({expression.choice}) AS choice"]
        kinds = {field.name: field.spark_ddl for field in fields}
        return [
            f"CAST(({value}) AS {kinds[name]}) AS v{i}"
            for i, (name, value) in enumerate(expression.values)
        ]

    def _frame(self, pairs: Pairs | None, fields: Sequence[FieldSpec]) -> DataFrame:
        plain = [(i, field) for i, field in enumerate(fields) if _is_plain(field)]
        row = ", ".join(f"{identifier(f.name)}: {f.spark_ddl}" for _, f in plain)
        schema = StructType.fromDDL(
            f"local struct<{row}>, remote struct<{row}>, {_FACTS}"
        )
        if pairs is None:
            return self._spark.createDataFrame([], schema)
        sides = [
            pa.StructArray.from_arrays(
                [side.column(i).combine_chunks() for i, _ in plain],
                names=[field.name for _, field in plain],
            )
            for side in (pairs.local, pairs.remote)
        ]
        table = pa.table(
            [*sides, *pairs.facts.columns],
            names=["local", "remote", *pairs.facts.column_names],
        )
        return self._spark.createDataFrame(table, schema)


def _is_plain(field: FieldSpec) -> bool:
    """Spark takes values of it from Arrow."""
    return "variant" not in field.spark_ddl.lower()


def _no_column(name: str, fields: Sequence[FieldSpec]) -> UsageError:
    return UsageError(
        f'column "{name}" does not exist',
        sqlstate="42703",
        hint="Write local.column or remote.column. Columns: "
        + ", ".join(f'"{field.name}"' for field in fields[:20])
        + (", ..." if len(fields) > 20 else "")
        + ".",
    )


def _names(node: Any) -> Iterator[str]:
    """Of all expressions in a plan's node."""
    expressions = node.expressions()
    waiting = [expressions.apply(i) for i in range(expressions.size())]
    while waiting:
        one = waiting.pop()
        yield one.prettyName().lower()
        children = one.children()
        waiting += [children.apply(i) for i in range(children.size())]


def _chosen(said: str | None) -> Outcome:
    text = None if said is None else said.strip().lower()
    if text in CONFLICT_CHOICES:
        return Outcome(choice=text)
    what = "null" if said is None else "another word"
    return Outcome(
        error=(
            "22023",
            f"conflict resolution must be one of {', '.join(CONFLICT_CHOICES)}: the"
            f" expression says {what}",
        )
    )


def _as_stored(
    column: pa.ChunkedArray, field: FieldSpec
) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
    """Values as the column's type has them; those that it does not take."""
    mapping = mapping_of(field)
    values = column.combine_chunks()
    if not pa.types.is_string(mapping.arrow_type):
        return values.cast(mapping.arrow_type), {}
    sent = SentColumn(values.cast(pa.string()).cast(pa.binary()), None, _TEXT)
    done = convert_column(sent, field, mapping)
    return done.array, {b.row: (b.sqlstate, b.message) for b in done.bad}
