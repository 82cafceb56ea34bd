"""Checks users' expressions that resolve conflicts when they are set, and evaluates them by Spark.

Comes in: an expression, a table's fields; later pairs of rows, ``local`` and ``remote``. Goes out:
for each pair the row that the expression chooses, or the values that it computes, or its error.
Called by ``upsert`` while a batch is staged, and by the commands that set ``conflict_resolution``.

An expression sees one pair of rows and the facts of their commits, and nothing else: its result
must be the same when a batch is repeated after a crash. So it consists of functions in
``allowed``, and its analyzed plan must be a deterministic projection of that pair.

The expression is checked again before it is first evaluated: when it was set, the table may not
have existed, or had other columns.

Spark evaluates only the rows that meet, in one job for all conflicts that can be decided at once.
If that job fails, the rows are halved until the first failing pair is alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructType

from wal2lake.errors import StorageError, UsageError, Wal2LakeError, sqlstate_of
from wal2lake.lake.executors import Pool
from wal2lake.lake.expressions import FACTS, EvaluatedPair, Pairs
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.errors import QUERY_CANCELED, translate, translated
from wal2lake.lake.spark.expressions.allowed import (
    check_analyzed,
    check_parsed,
    refused,
)
from wal2lake.lake.spark.session import use_pool
from wal2lake.lake.staging.convert import SentColumn, convert_column, mapping_of
from wal2lake.model import Oid
from wal2lake.pgtypes import CONFLICT_CHOICES, ConflictExpression
from wal2lake.pgtypes.spark_ddl import identifier

_TEXT: Final = Oid(25)

_KEPT: Final = 256
"""Most checked expressions that are cached, each for one definition of its table."""

_MISSING: Final = frozenset(("FIELD_NOT_FOUND", "UNRESOLVED_COLUMN"))


class SparkExpressions:
    """``lake.Expressions`` on one session. Safe for all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[object, tuple[str, str] | None] = {}

    def check_text(self, expression: ConflictExpression) -> None:
        """Check an expression, as ``check`` does, as far as possible without the table."""
        with _user_errors(expression):
            self._check_text(expression)

    def check(
        self,
        fields: Sequence[FieldSpec],
        key: Sequence[str],
        expression: ConflictExpression,
    ) -> None:
        """Check an expression. Raises UsageError: 42601, 42703, 42883, 42804, or 0A000 if its
        result could differ the next time."""
        _check_columns(fields, key, expression)
        with _user_errors(expression, fields):
            self._check_text(expression)
            frame = self._frame(None, fields)
            result = frame.selectExpr(*self._items(fields, expression))
            plan = result._jdf.queryExecution().analyzed()
            is_pair = (
                plan.nodeName() == "Project"
                and plan.children().head().children().isEmpty()
                and plan.subqueries().isEmpty()
                and bool(plan.deterministic())
            )
            if not is_pair:
                raise refused(expression.text, "more than the two rows")
            check_analyzed(self._spark, expression.text, plan)
            kinds = [field.dataType for field in result.schema.fields]
        if expression.choice is None:
            row = cast(StructType, frame.schema["remote"].dataType)
            expected_kinds = [row[name].dataType for name, _ in expression.values]
        else:
            expected_kinds = [StringType()]
        if kinds != expected_kinds:
            raise UsageError(
                f'expression in "conflict_resolution" must be {_listed(expected_kinds)}, not'
                f' {_listed(kinds)}: "{expression.text}"',
                sqlstate="42804",
                hint=f"It names one of {', '.join(CONFLICT_CHOICES)}."
                if expression.choice is not None
                else None,
            )

    def _check_text(self, expression: ConflictExpression) -> None:
        for part in _parts(expression):
            check_parsed(self._spark, part)

    def evaluate(
        self,
        fields: Sequence[FieldSpec],
        key: Sequence[str],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> list[EvaluatedPair]:
        """Return one result for each pair up to the first that fails, which is the last.
        ``required``: columns that must not be null."""
        use_pool(self._spark, Pool.APPLY)
        error = self._checked(fields, key, expression)
        if error is not None:
            return [EvaluatedPair(error=error)]
        outcomes: list[EvaluatedPair] = []
        for outcome in self._outcomes(fields, required, expression, pairs):
            outcomes.append(outcome)
            if outcome.error is not None:
                break
        return outcomes

    def _checked(
        self,
        fields: Sequence[FieldSpec],
        key: Sequence[str],
        expression: ConflictExpression,
    ) -> tuple[str, str] | None:
        """Return the error of ``check``, SQLSTATE and message; None if there is none."""
        question = (expression, tuple(fields), tuple(key))
        if question not in self._known:
            try:
                self.check(fields, key, expression)
                failure = None
            except UsageError as error:
                if error.sqlstate == QUERY_CANCELED:
                    raise
                failure = (sqlstate_of(error), error.message)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[question] = failure
            return failure
        return self._known[question]

    def _outcomes(
        self,
        fields: Sequence[FieldSpec],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> Iterator[EvaluatedPair]:
        count = pairs.local.num_rows
        try:
            with translated():
                frame = self._frame(pairs, fields)
                result = frame.selectExpr(*self._items(fields, expression)).toArrow()
        except Wal2LakeError as error:
            if is_transient(error):
                raise
            if count == 1:
                yield EvaluatedPair(error=(sqlstate_of(error), error.message))
                return
            half = count // 2
            for part in (pairs.part(0, half), pairs.part(half, count - half)):
                yield from self._outcomes(fields, required, expression, part)
            return
        if expression.choice is not None:
            choices = result.column(0).cast(pa.binary()).to_pylist()
            yield from map(_parse_choice, choices)
            return
        yield from self._merged(fields, required, expression, pairs, result)

    def _merged(
        self,
        fields: Sequence[FieldSpec],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
        values: pa.Table,
    ) -> Iterator[EvaluatedPair]:
        rows = pairs.remote
        errors: dict[int, tuple[str, str]] = {}
        for number, (name, _) in enumerate(expression.values):
            position = next(i for i, field in enumerate(fields) if field.name == name)
            field = fields[position]
            column, bad = as_stored(values.column(number), field)
            if name in required or not field.nullable:
                nulls = column.is_null().to_pylist()
                text = f'null value in column "{name}" violates not-null constraint'
                bad = {
                    **{i: ("23502", text) for i, null in enumerate(nulls) if null},
                    **bad,
                }
            errors = {**bad, **errors}
            rows = rows.set_column(position, rows.column_names[position], column)
        for i in range(rows.num_rows):
            if i in errors:
                yield EvaluatedPair(error=errors[i])
            else:
                yield EvaluatedPair(row=rows.slice(i, 1))

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
            f"local struct<{row}>, remote struct<{row}>, {FACTS}"
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
    """Whether Spark takes values of the field from Arrow."""
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


def _parts(expression: ConflictExpression) -> list[str]:
    if expression.choice is not None:
        return [expression.choice]
    return [value for _, value in expression.values]


def _check_columns(
    fields: Sequence[FieldSpec], key: Sequence[str], expression: ConflictExpression
) -> None:
    by_name = {field.name: field for field in fields}
    for name, _ in expression.values:
        if name not in by_name:
            raise _no_column(name, fields)
        if not key:
            raise UsageError(
                "rows of a table without a primary key cannot be merged",
                sqlstate="0A000",
                hint="Choose one of the rows: (expression).",
            )
        if name in key or not _is_plain(by_name[name]):
            raise UsageError(
                f'column "{name}" cannot be set by a conflict resolution',
                sqlstate="0A000",
                detail="It is in the primary key, which both rows have in common."
                if name in key
                else "An expression cannot return values of its type.",
            )


@contextmanager
def _user_errors(
    expression: ConflictExpression, fields: Sequence[FieldSpec] = ()
) -> Iterator[None]:
    """Translate Spark's errors about an expression into errors of the user."""
    try:
        with translated():
            try:
                yield
            except ParseException as error:
                raise UsageError(
                    f'syntax error in "{expression.text}"',
                    sqlstate="42601",
                    detail=translate(error).message,
                    hint="Write it in Spark SQL.",
                ) from None
            except AnalysisException as error:
                condition = (error.getCondition() or "").split(".")[0]
                if condition not in _MISSING:
                    raise
                parameters = error.getMessageParameters() or {}
                name = parameters.get("fieldName", parameters.get("objectName", ""))
                raise _no_column(name.replace("`", ""), fields) from None
    except UsageError:
        raise
    except Wal2LakeError as error:
        if is_transient(error):
            raise
        raise UsageError(
            f'invalid expression in "conflict_resolution": "{expression.text}"',
            sqlstate=sqlstate_of(error),
            detail=error.message,
        ) from None


def is_transient(error: Wal2LakeError) -> bool:
    """Whether the cause is not the expression: an interruption, a disk, another writer's
    commit."""
    return isinstance(error, StorageError) or error.sqlstate == QUERY_CANCELED


def _listed(kinds: Sequence[DataType]) -> str:
    names = [kind.simpleString().replace("string", "text") for kind in kinds]
    return ", ".join(names)


def _parse_choice(word: bytes | None) -> EvaluatedPair:
    """Return the resolution that a text names; Spark may have made the text of invalid bytes."""
    text = None if word is None else word.decode(errors="replace").strip().lower()
    if text in CONFLICT_CHOICES:
        return EvaluatedPair(choice=text)
    described = "null" if word is None else "another word"
    return EvaluatedPair(
        error=(
            "22023",
            f"conflict resolution must be one of {', '.join(CONFLICT_CHOICES)}: the"
            f" expression says {described}",
        )
    )


def as_stored(
    column: pa.ChunkedArray, field: FieldSpec
) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
    """Convert values to the column's stored type; return the errors of values that do not fit,
    too."""
    values = column.combine_chunks()
    try:
        return _converted(values, field)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        if len(values) == 1:
            text = f'value of column "{field.name}" cannot be stored'
            kind = mapping_of(field).arrow_type
            return pa.nulls(1, kind), {0: ("22000", text)}
    done = [as_stored(column.take(pa.array([i])), field) for i in range(len(values))]
    bad = {i: errors[0] for i, (_, errors) in enumerate(done) if errors}
    return pa.concat_arrays([array for array, _ in done]), bad


def _converted(
    values: pa.Array, field: FieldSpec
) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
    mapping = mapping_of(field)
    if not pa.types.is_string(mapping.arrow_type):
        done = values.cast(mapping.arrow_type)
        # Spark's texts may be invalid UTF-8, also inside arrays.
        done.validate(full=True)
        return done, {}
    sent = SentColumn(values.cast(pa.string()).cast(pa.binary()), None, _TEXT)
    done = convert_column(sent, field, mapping)
    return done.array, {b.row: (b.sqlstate, b.message) for b in done.bad}
