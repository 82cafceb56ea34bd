"""Translates INSERT, UPDATE and DELETE to Spark SQL. Pure.

Comes in: SQL text, parameters, table definitions. Goes out: a ``SparkWrite``. Values are stored
as PostgreSQL stores them: columns are matched by name, defaults are filled in, each value is
assigned to its column's type, and NULL is refused if the column is NOT NULL.

Delta's UPDATE and DELETE allow no subqueries. A statement with a subquery, FROM or USING is
executed as a MERGE: a SELECT finds the keys of the rows and their new values, and its result is
merged into the table. That requires a primary key.

Called by: the command, once per statement.
Source: PostgreSQL manual, INSERT, UPDATE, DELETE, 10.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import (
    About,
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.pgtypes.spark_ddl import identifier
from wal2lake.sql.query.analysis.writes import (
    rewrite_write,
    stored_rows,
    stored_value,
)
from wal2lake.sql.query.generatedalways import refuse_update, refuse_values
from wal2lake.sql.query.plain import (
    PlainInsert,
    PlainWrite,
    plain_insert,
    plain_write,
)
from wal2lake.sql.query.translate import (
    BoundParameter,
    Resolver,
    TableRef,
    bind,
    generate,
    parse,
    place_tables,
    refuse_only,
    schema_named,
    settle,
)
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.writeparsing import written_tree


@dataclass(frozen=True, slots=True)
class SparkWrite:
    """An INSERT, UPDATE, DELETE or TRUNCATE for Spark."""

    table: TableDef
    sql: str
    verb: str
    """The verb of the command tag."""
    needs: str = ""
    """The required privileges as letters of an ACL; with SELECT if rows of the table are read."""
    brings_keys: bool = False
    """True if the statement may create duplicate primary keys."""
    options: int = 0
    """The options of a TRUNCATE as bits: 1 CASCADE, 2 RESTART IDENTITY."""
    moves: str = ""
    """A query for the old and new ``identifying`` columns of the rows whose key an UPDATE changes.

    It is run before the UPDATE. Empty if the statement changes no keys.
    """
    by_key: bool = False
    """True if the statement finds its rows by their primary key."""
    plain: PlainWrite | PlainInsert | None = None
    """The plain change if the statement needs no Spark, or None."""


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """A range of values of a sequence."""

    first: int
    step: int
    count: int
    """The number of values."""
    exhausted: str
    """The error message for the value after the last."""


NextValues = Callable[[ColumnDef, int | None], SequenceRange]
"""Gives a number of values of a column's sequence; None: all remaining values.

None is passed if the number of the statement's rows is known only after the statement.
"""


def _no_sequences(column: ColumnDef, count: int | None) -> SequenceRange:
    raise FeatureNotSupportedError(f'column "{column.name}" has a sequence')


WriteTarget = Callable[[TableDef, bool, bool], TableDef]
"""Gives the table in the place where the statement writes.

The arguments are the table that the statement names, whether the statement adds keys, and whether
it changes columns that identify rows. After the call the resolver gives the same place.
"""


def translate_write(
    sql: str,
    resolve: Resolver,
    parameters: Sequence[BoundParameter] = (),
    zone: str = "UTC",
    target: WriteTarget = lambda table, brings_keys, moves: table,
    next_values: NextValues = _no_sequences,
) -> SparkWrite:
    """Translate an INSERT, UPDATE or DELETE; ``zone`` is the session's TimeZone."""
    tree, overriding = written_tree(sql)
    name = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(name, exp.Table):
        raise FeatureNotSupportedError("the statement names no table")
    table = resolve(schema_named(name), name.name).table
    refuse_only(name, table)
    needs = _privileges(tree, name)
    bind(tree, parameters)
    sets = _assignments(tree, table) if isinstance(tree, exp.Update) else []
    identifying_names = {column.name for column in identifying(table)}
    identifying_names |= {
        column
        for name, generation in table.generated
        if name in identifying_names
        for column in generation.columns
    }
    moves = any(column.name in identifying_names for column, _ in sets)
    brings_keys = isinstance(tree, exp.Insert) or (moves and bool(table.key))
    table = target(table, brings_keys, moves)
    if isinstance(tree, exp.Insert):
        write = _insert(tree, table, resolve, zone, next_values, overriding)
        return replace(write, needs=needs, brings_keys=brings_keys)
    resolve = _read_newest(resolve, table)
    if _joined_tables(tree) or tree.find(exp.Query):
        write = _merge(tree, table, sets, resolve, zone)
    else:
        write = _in_place(tree, table, sets, resolve, zone)
    if any(column.generated is not None for column in identifying(table)):
        # A generated column that identifies rows is computed after the statement.
        write = replace(write, moves="")
    return replace(write, needs=needs, brings_keys=brings_keys)


def _privileges(tree: exp.Expression, target: exp.Table) -> str:
    """The privileges that a statement requires.

    SELECT is among them if a condition or a new value mentions a column, or another table
    reference has the table's name.
    """
    letter = {exp.Insert: "a", exp.Update: "w"}.get(type(tree), "d")
    read_expressions: list[exp.Expression] = []
    if isinstance(tree, exp.Update):
        read_expressions += [item.expression for item in tree.expressions]
    if not isinstance(tree, exp.Insert) and tree.args.get("where") is not None:
        read_expressions.append(tree.args["where"])
    reads = any(expression.find(exp.Column) for expression in read_expressions)
    reads_again = any(
        t is not target and t.name == target.name for t in tree.find_all(exp.Table)
    )
    return letter + "r" if reads or reads_again else letter


def identifying(table: TableDef) -> list[ColumnDef]:
    """The columns that identify a row: the primary key, or all columns without one."""
    return [c for c in table.columns if not table.key or c.name in table.key]


def truncate_sql(table: TableDef, options: int) -> SparkWrite:
    """The statement that deletes all rows of a table."""
    sql = f"DELETE FROM {path_sql(table)}"
    return SparkWrite(table, sql, "TRUNCATE", options=options)


def _read_newest(resolve: Resolver, target: TableDef) -> Resolver:
    """Let subqueries on the table that is written read its newest version, as the write does."""

    def find(schema: str | None, name: str) -> TableRef:
        ref = resolve(schema, name)
        is_target = ref.table.storage == target.storage
        return TableRef(ref.table, None) if is_target else ref

    return find


# ---- INSERT --------------------------------------------------------------------------


def _insert(
    tree: exp.Insert,
    table: TableDef,
    resolve: Resolver,
    zone: str,
    next_values: NextValues,
    overriding: str,
) -> SparkWrite:
    has_list = isinstance(tree.expression, exp.Values)
    source, filled = _insert_source(tree, table, resolve, zone, next_values, overriding)
    names = [f"v{place}" for place in range(max(1, len(filled)))]
    values = dict(zip((c.name for c in filled), names, strict=False))
    if overriding == "user" and not has_list:
        for column in filled:
            if column.identity:
                del values[column.name]
    items = []
    defaults: dict[str, exp.Expression] = {}
    for column in table.columns:
        name = values.get(column.name)
        if name is not None:
            value = f"src.{name}"
        elif column.sequence is not None:
            value = _sequence_value(column, next_values(column, None))
        else:
            defaults[column.name] = _default(column, zone)
            value = generate(defaults[column.name])
        items.append(_not_null(table, column, value))
    plain = None
    if isinstance(source, exp.Values):
        rows = [row.expressions for row in source.expressions]
        places = {c.name: place for place, c in enumerate(filled)}
        plain = plain_insert(table, rows, places, defaults)
    # The rows of VALUES go to one file, in their order, instead of one file for each core.
    hint = "/*+ COALESCE(1) */ " if has_list else ""
    # Columns are named because a foreign writer may have added columns to the files.
    stored = ", ".join(identifier(column.name) for column in table.columns)
    sql = (
        f"INSERT INTO {path_sql(table)} ({stored}) SELECT {hint}{', '.join(items)}"
        f" FROM ({generate(source)}) AS src({', '.join(names)})"
    )
    return SparkWrite(table, sql, "INSERT", plain=plain)


def _insert_source(
    tree: exp.Insert,
    table: TableDef,
    resolve: Resolver,
    zone: str,
    next_values: NextValues,
    overriding: str,
) -> tuple[exp.Expression, list[ColumnDef]]:
    """The rows of an INSERT as a query for Spark, and the columns that the rows fill."""
    source = tree.expression
    listed = isinstance(tree.this, exp.Schema)
    targets = list(table.columns)
    if listed:
        targets = _columns(table, [column.name for column in tree.this.expressions])
    if source is None:
        # DEFAULT VALUES.
        return exp.Select(expressions=[exp.Null()]), []
    if isinstance(source, exp.Values):
        targets = _fill_defaults(
            source, table, targets, listed, next_values, overriding
        )
    with_ = tree.args.get("with_") or tree.args.get("with")
    if with_ is not None:
        source.set("with_", with_.copy())
    source = source.copy()
    place_tables(source, _read_newest(resolve, table))
    source, width = stored_rows(source, targets, zone, listed)
    if not isinstance(tree.expression, exp.Values):
        refuse_values(targets[:width], overriding)
    settle(source)
    return source, targets[:width]


def _columns(table: TableDef, names: Sequence[str]) -> list[ColumnDef]:
    columns: list[ColumnDef] = []
    for name in names:
        column = table.column(name)
        if column is None:
            raise UndefinedObjectError(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
        if column in columns:
            raise UsageError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
        columns.append(column)
    return columns


def _fill_defaults(
    values: exp.Values,
    table: TableDef,
    targets: list[ColumnDef],
    listed: bool,
    next_values: NextValues,
    overriding: str,
) -> list[ColumnDef]:
    """Replace DEFAULT inside VALUES by the column's default expression or a sequence's value.

    Columns with a sequence that the statement does not name are appended to the rows, because each
    row has its own value. Return all columns of the rows.
    """
    rows = values.expressions
    width = max((len(row.expressions) for row in rows), default=0)
    fits = width == len(targets) if listed else width <= len(targets)
    if fits and all(len(row.expressions) == width for row in rows):
        targets = targets[:width]
        sequence_columns = [
            c for c in table.columns if c.sequence is not None and c not in targets
        ]
        targets += sequence_columns
        for row in rows:
            for _ in sequence_columns:
                row.append("expressions", exp.Var(this="DEFAULT"))
    for place, column in enumerate(targets):
        cells = [r.expressions[place] for r in rows if place < len(r.expressions)]
        if column.identity and overriding == "user":
            for value in cells:
                value.replace(exp.Var(this="DEFAULT"))
            cells = [r.expressions[place] for r in rows if place < len(r.expressions)]
        defaults = [value for value in cells if _is_default(value)]
        if len(defaults) < len(cells):
            refuse_values([column], overriding)
        if column.sequence is None:
            for value in defaults:
                value.replace(default_tree(column))
        elif defaults:
            sequence = next_values(column, len(defaults))
            for number, value in enumerate(defaults):
                value.replace(
                    exp.Literal.number(sequence.first + number * sequence.step)
                )
    return targets


def _sequence_value(column: ColumnDef, sequence: SequenceRange) -> str:
    """Spark SQL that gives each row a value of a sequence, and fails if there are too few."""
    ddl = t.spark_name(t.of_column(column))
    exhausted = f"CAST({t.failure('2200H', sequence.exhausted)} AS {ddl})"
    if not sequence.count:
        return exhausted
    row = "CAST(row_number() OVER (ORDER BY monotonically_increasing_id()) AS BIGINT)"
    value = f"CAST({sequence.first} + {sequence.step} * ({row} - 1) AS {ddl})"
    return f"IF({row} <= {sequence.count}, {value}, {exhausted})"


def _is_default(value: exp.Expression) -> bool:
    if isinstance(value, exp.Column) and (value.table or value.this.args.get("quoted")):
        return False
    return isinstance(value, (exp.Column, exp.Var)) and value.name.lower() == "default"


def default_tree(column: ColumnDef) -> exp.Expression:
    """Parse a column's default expression; NULL if the column has none."""
    if column.default is None:
        return exp.Null()
    tree: exp.Expression = parse(f"SELECT {column.default}").expressions[0]
    return tree.unalias().copy()


def default_sql(column: ColumnDef, zone: str) -> str:
    """A column's default as Spark SQL, in the type that the column stores."""
    return generate(_default(column, zone))


def _default(column: ColumnDef, zone: str) -> exp.Expression:
    value = stored_value(default_tree(column), column, zone)
    settle(value)
    return value


def check_default(column: ColumnDef, zone: str) -> None:
    """Raise 42804 or another error of the analysis if the column cannot have its default."""
    default_sql(column, zone)


def _not_null(table: TableDef, column: ColumnDef, value: str) -> str:
    # A generated column is computed from the written row, and checked at that time.
    if not column.not_null or column.generated is not None:
        return value
    error = t.failure(
        "23502",
        f'null value in column "{column.name}" of relation "{table.name}" violates'
        " not-null constraint",
    )
    ddl = t.spark_name(t.of_column(column))
    return f"coalesce({value}, CAST({error} AS {ddl}))"


_NULL: Final = re.compile('null value in column "(.*)" of relation ', re.DOTALL)


def about_null(error: Wal2LakeError, table: TableDef) -> About | None:
    """The column to which a failed statement assigned NULL; None for any other error."""
    match = _NULL.match(error.message) if error.sqlstate == "23502" else None
    return match and About(table.namespace, table.name, column=match[1])


# ---- UPDATE, DELETE ------------------------------------------------------------------

_Assignments = list[tuple[ColumnDef, exp.Expression]]


def _joined_tables(tree: exp.Expression) -> list[exp.Expression]:
    """The tables of an UPDATE's FROM or a DELETE's USING."""
    clause = tree.args.get("from_") or tree.args.get("from")
    if clause is not None:
        return [clause.this]
    return list(tree.args.get("using") or ())


def _assignments(tree: exp.Update, table: TableDef) -> _Assignments:
    """The columns and expressions of SET, with DEFAULT replaced by the column's default."""
    sets: _Assignments = []
    for item in tree.expressions:
        targets = [item.this]
        values = [item.expression]
        if isinstance(item.this, (exp.Tuple, exp.Paren)):
            targets = list(item.this.expressions) or [item.this.this]
            values = _row(item.expression, len(targets))
        for target, value in zip(targets, values, strict=True):
            if not isinstance(target, exp.Column):
                raise FeatureNotSupportedError(
                    "to assign to an element of a column is not supported on lake tables"
                )
            name = target.table or target.name
            column = _columns(table, [name])[0]
            if target.table:
                raise FeatureNotSupportedError(
                    f'cannot assign to field "{target.name}" of column "{name}"'
                )
            if any(assigned is column for assigned, _ in sets):
                raise UsageError(
                    f'multiple assignments to same column "{name}"', sqlstate="42601"
                )
            default = _is_default(value)
            if default and column.sequence is not None:
                raise FeatureNotSupportedError(
                    f'to set column "{name}" to values of its sequence is not supported'
                    " on lake tables"
                )
            if not default:
                refuse_update(column)
            if column.generated is not None:
                # A generated column is computed whatever is set, so it keeps its old value here.
                value = exp.column(name, tree.this.alias or table.name, quoted=True)
            elif default:
                value = default_tree(column)
            sets.append((column, value))
    return sets


def _row(value: exp.Expression, width: int) -> list[exp.Expression]:
    is_row = isinstance(value, exp.Tuple) or (
        isinstance(value, exp.Anonymous) and value.name.lower() == "row"
    )
    if isinstance(value, exp.Subquery):
        raise FeatureNotSupportedError(
            "UPDATE of several columns from a subquery is not supported on lake tables",
            hint="Give each column a subquery of its own.",
        )
    if not is_row:
        raise FeatureNotSupportedError(
            "source for a multiple-column UPDATE item must be a sub-SELECT or ROW()"
            " expression"
        )
    if len(value.expressions) != width:
        raise UsageError(
            "number of columns does not match number of values", sqlstate="42601"
        )
    return list(value.expressions)


def _in_place(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    sets: _Assignments,
    resolve: Resolver,
    zone: str,
) -> SparkWrite:
    """Translate to Delta's UPDATE or DELETE."""
    alias = identifier(tree.this.alias or table.name)
    if isinstance(tree, exp.Update):
        tree.set(
            "expressions",
            [
                exp.EQ(this=_column_node(column), expression=value)
                for column, value in sets
            ],
        )
    place_tables(tree, resolve)
    values = rewrite_write(tree, table, zone)
    settle(tree)
    condition = ""
    if tree.args.get("where") is not None:
        condition = f" {generate(tree.args['where'])}"
    target = f"{path_sql(table)} AS {alias}"
    if isinstance(tree, exp.Delete):
        plain = plain_write(tree, table, alias, {})
        sql = f"DELETE FROM {target}{condition}"
        return SparkWrite(table, sql, "DELETE", plain=plain)
    stored, trees = {}, {}
    for column, value in values:
        settle(value)
        stored[column.name] = _not_null(table, column, generate(value))
        trees[column.name] = value
    texts = [f"{identifier(name)} = {value}" for name, value in stored.items()]
    sql = f"UPDATE {target} SET {', '.join(texts)}{condition}"
    old = {c.name: f"{alias}.{identifier(c.name)}" for c in identifying(table)}
    moves = _moves_query(old, stored, f"{target}{condition}")
    new = {name: (trees[name], text) for name, text in stored.items()}
    plain = plain_write(tree, table, alias, new)
    return SparkWrite(table, sql, "UPDATE", moves=moves, plain=plain)


def new_values_sql(
    plain: PlainWrite, kinds: Mapping[str, str], rows: Sequence[Sequence[str | None]]
) -> str:
    """A query for the new values of an UPDATE; the first column is the number of the row.

    ``kinds`` are the Spark types of the columns; ``rows`` are, for each row, the texts of the
    columns that the new values read.
    """
    # Spark does not distinguish names that differ only in case.
    used_names, number = {name.lower() for name in plain.reads}, "n"
    while number in used_names:
        number += "n"
    names = ", ".join(map(identifier, (number, *plain.reads)))

    def value(text: str | None, name: str) -> str:
        tree = exp.Null() if text is None else exp.Literal.string(text)
        return f"CAST({generate(tree)} AS {kinds[name]})"

    listed = [
        ", ".join([str(n), *map(value, row, plain.reads)])
        for n, row in enumerate(rows or [[None] * len(plain.reads)])
    ]
    values_list = ", ".join(f"({row})" for row in listed)
    items = ", ".join(
        f"CAST({text} AS {kinds[name]}) AS v{n}"
        for n, (name, text) in enumerate(plain.values)
    )
    # Without rows, Spark still checks the expressions, which may be invalid.
    none = "" if rows else " WHERE false"
    return (
        f"SELECT {plain.alias}.{identifier(number)} AS n, {items}"
        f" FROM VALUES {values_list} AS {plain.alias}({names}){none}"
    )


def _moves_query(old: Mapping[str, str], new: Mapping[str, str], rows: str) -> str:
    """The query of ``SparkWrite.moves``; ``old`` and ``new`` are expressions by column."""
    if not old.keys() & new.keys():
        return ""
    places = range(len(old))
    pairs = [f"{value} AS o{n}" for n, value in enumerate(old.values())]
    pairs += [f"{new.get(name, old[name])} AS n{n}" for n, name in enumerate(old)]
    unchanged = " AND ".join(f"o{n} <=> n{n}" for n in places)
    items = ", ".join([*(f"o{n}" for n in places), *(f"n{n}" for n in places)])
    return f"SELECT {items} FROM (SELECT {', '.join(pairs)} FROM {rows}) WHERE NOT ({unchanged})"


def _merge(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    sets: _Assignments,
    resolve: Resolver,
    zone: str,
) -> SparkWrite:
    """Translate to a MERGE of a SELECT that gives keys and new values."""
    verb = tree.key.upper()
    if not table.key:
        raise FeatureNotSupportedError(
            f"{verb} with a subquery or other tables needs a primary key, and"
            f' relation "{table.name}" has none',
            hint="Write the condition without a subquery.",
        )
    keys = _columns(table, table.key)
    columns = [*keys, *(column for column, _ in sets)]
    select = _merge_select(tree, table, keys, sets)
    place_tables(select, resolve)
    source, _ = stored_rows(select, columns, zone, listed=True)
    settle(source)
    names = [f"v{place}" for place in range(len(columns))]
    rows = f"({generate(source)}) AS src({', '.join(names)})"
    # The source of a MERGE may not rename columns itself.
    rows = f"(SELECT * FROM {rows}) AS src"
    if _joined_tables(tree):
        # If several rows join, PostgreSQL takes any one of them, and Delta fails.
        rows = _one_per_key(rows, names, len(keys))
    matches = " AND ".join(
        f"target.{identifier(key.name)} = src.{name}"
        for key, name in zip(keys, names, strict=False)
    )
    action, moves = "DELETE", ""
    if isinstance(tree, exp.Update):
        stored = {
            column.name: _not_null(table, column, f"src.{name}")
            for column, name in list(zip(columns, names, strict=True))[len(keys) :]
        }
        texts = [f"{identifier(name)} = {value}" for name, value in stored.items()]
        action = f"UPDATE SET {', '.join(texts)}"
        key_names = dict(zip(table.key, names, strict=False))
        old = {c.name: f"src.{key_names[c.name]}" for c in identifying(table)}
        moves = _moves_query(old, stored, rows)
    sql = (
        f"MERGE INTO {path_sql(table)} AS target USING {rows} ON {matches}"
        f" WHEN MATCHED THEN {action}"
    )
    return SparkWrite(table, sql, verb, moves=moves, by_key=True)


def _merge_select(
    tree: exp.Update | exp.Delete,
    table: TableDef,
    keys: Sequence[ColumnDef],
    sets: _Assignments,
) -> exp.Select:
    """The SELECT for the keys and the new values of the rows that a statement changes."""
    alias = tree.this.alias or table.name
    items = [
        *(exp.column(key.name, table=alias, quoted=True) for key in keys),
        *(value.copy() for _, value in sets),
    ]
    select = exp.Select(
        expressions=[
            exp.Alias(this=item, alias=exp.to_identifier(f"c{place}"))
            for place, item in enumerate(items)
        ]
    )
    select = select.from_(tree.this.copy())
    for joined in _joined_tables(tree):
        select = select.join(joined.copy(), join_type="cross")
    for name in ("where", "with_", "with"):
        if tree.args.get(name) is not None:
            select.set(name, tree.args[name].copy())
    return select


def _one_per_key(rows: str, names: Sequence[str], keys: int) -> str:
    key, values = ", ".join(names[:keys]), names[keys:]
    if not values:
        return f"(SELECT DISTINCT {key} FROM {rows}) AS src"
    first_values = f"first(struct({', '.join(values)})) AS one"
    items = ", ".join([*names[:keys], *(f"one.{name} AS {name}" for name in values)])
    grouped = f"(SELECT {key}, {first_values} FROM {rows} GROUP BY {key})"
    return f"(SELECT {items} FROM {grouped}) AS src"


def _column_node(column: ColumnDef) -> exp.Column:
    return exp.column(column.name, quoted=True)


def path_sql(table: TableDef) -> str:
    """The name of the table in Spark SQL."""
    return f"delta.{identifier(table.location)}"
