"""Rewrites calls of set-returning functions for the embedded engine.

Comes in: a query's tree, before it is typed. Goes out: the same tree, in which

    FROM f(x) a, LATERAL f(p.x) a     is   (SELECT its columns FROM the rows of f) a
    SELECT (f(x)).* FROM t            is   SELECT its columns FROM (the rows of f, from t)
    SELECT (f(x)).c FROM t            is   the same, with one column; so is SELECT f(x) if it
                                           has one only
    SELECT f(x) FROM t            is   SELECT record_out(its columns) FROM (the same)
    FROM g(x) a                   is   (SELECT g(x) AS a) a, if g gives one value
    FROM unnest(x, y) a           is   LATERAL (SELECT unnest(x), unnest(y)) a

Drivers call _pg_expandarray beside other columns. It becomes the engine's unnest(), whose rows are
structs (``rewrite``).

The engine's copy of a VARIADIC function takes a list. A set-returning function returns a list of
structs.

Sources: the manual's sections 7.2.1.4, 8.16.3, 38.5.6 (VARIADIC).
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.sql.sysviews.functions.pg_proc import (
    EMPTY_TABLE_FUNCTIONS,
    EXPANDARRAY,
    FUNCTIONS,
    ROW_FUNCTIONS,
)
from wal2lake.sql.sysviews.query.casts import array_items
from wal2lake.sql.sysviews.query.inference import (
    INT2VECTOR,
    function_name,
    set_type,
)

_ROWS: Final = "wal2lake_rows"
_ROW: Final = "wal2lake_row"
_BOOL, _TEXT, _RECORD = 16, 25, 2249

_WHOLE: Final = "*"
"""Stands for a column's name if all columns are wanted as one record."""

_OF_ONE_VALUE: Final = (
    {name for name, _ in FUNCTIONS}
    - ROW_FUNCTIONS.keys()
    - EMPTY_TABLE_FUNCTIONS.keys()
)

_VARIADIC: Final = {
    "pg_get_publication_tables": 0,
    "pg_logical_slot_get_changes": 3,
    "pg_logical_slot_peek_changes": 3,
    "pg_logical_slot_get_binary_changes": 3,
    "pg_logical_slot_peek_binary_changes": 3,
}
"""The number of the first VARIADIC argument of each function, from 0."""


def expand(tree: exp.Expression) -> exp.Expression:
    """Change the tree, and return it or its replacement."""
    for node in list(tree.find_all(exp.Table, exp.Lateral)):
        name = function_name(node.this) or ""
        if name in ROW_FUNCTIONS:
            _in_from(node, name)
        elif name in _OF_ONE_VALUE and not node.args.get("ordinality"):
            _value_in_from(node, name)
    for unnest in list(tree.find_all(exp.Unnest)):
        if len(unnest.expressions) > 1 and not unnest.args.get("offset"):
            _side_by_side(unnest)
    for select in list(tree.find_all(exp.Select)):
        selected = _selected(select)
        if selected is None:
            continue
        new = _of_select(select, *selected)
        if select is tree:
            tree = new
        else:
            select.replace(new)
    return tree


def _side_by_side(node: exp.Unnest) -> None:
    """Rewrite unnest() of several arrays; the engine pads the shorter ones with NULL."""
    rows = exp.select(*(exp.Explode(this=array) for array in node.expressions))
    alias = node.args.get("alias")
    if alias is None or alias.this is None:
        alias = exp.TableAlias(this=exp.to_identifier("unnest"))
    node.replace(exp.Lateral(this=exp.Subquery(this=rows), alias=alias))


def _in_from(node: exp.Table | exp.Lateral, name: str) -> None:
    rows = exp.select(_unnested(node.this, name))
    query = _columns(name).from_(_named(rows))
    alias = node.args.get("alias")
    if alias is None or alias.this is None:
        alias = exp.TableAlias(this=exp.to_identifier(name))
    if isinstance(node, exp.Lateral):
        node.set("this", exp.Subquery(this=query))
        node.set("alias", alias)
    else:
        node.replace(exp.Subquery(this=query, alias=alias))


def _value_in_from(node: exp.Table | exp.Lateral, name: str) -> None:
    """Rewrite a function that returns one value to a row with a column named as the alias."""
    alias = node.args.get("alias") or exp.TableAlias()
    table = alias.this or exp.to_identifier(name)
    column = alias.columns[0] if alias.columns else table
    query = exp.select(exp.alias_(node.this, column.copy()))
    node.replace(exp.Subquery(this=query, alias=exp.TableAlias(this=table.copy())))


def _selected(select: exp.Select) -> tuple[exp.Expression, str, str | None] | None:
    """Return the call, its name, and the column; None: all columns, ``_WHOLE``: the record."""
    for item in select.expressions:
        dot = item.unalias()
        whole = not isinstance(dot, exp.Dot)
        call = dot if whole else dot.this.unnest()
        name = function_name(call) or ""
        if name not in ROW_FUNCTIONS or name == EXPANDARRAY:
            continue
        if len(select.expressions) > 1:
            raise FeatureNotSupportedError(
                f"columns of {name}() beside others are not supported",
                hint="Call it in FROM.",
            )
        if whole:
            has_one = len(ROW_FUNCTIONS[name]) == 1
            return call, name, ROW_FUNCTIONS[name][0][0] if has_one else _WHOLE
        star = isinstance(dot.expression, exp.Star)
        return call, name, None if star else dot.expression.name
    return None


def _of_select(
    select: exp.Select, call: exp.Expression, name: str, column: str | None
) -> exp.Select:
    rows = select.copy()
    rows.set("expressions", [_unnested(call.copy(), name)])
    distinct = rows.args.get("distinct")
    rows.set("distinct", None)
    columns = _whole(name) if column == _WHOLE else _columns(name, column)
    order = rows.args.get("order")
    moved: dict[str, exp.Expression | None] = {}
    if order is not None and all(
        _of_output(item.this, name) for item in order.expressions
    ):
        # It names columns of the rows, and LIMIT counts what is ordered.
        for key in ("order", "limit", "offset"):
            moved[key] = rows.args.get(key)
            rows.set(key, None)
    query = columns.from_(_named(rows))
    for key, clause in moved.items():
        query.set(key, clause)
    if distinct is not None:
        query.set("distinct", distinct)
    return query


def _of_output(item: exp.Expression, name: str) -> bool:
    """Whether ORDER BY means a column of the result, by its number or its name."""
    bare = item.unnest()
    if isinstance(bare, exp.Column) and not bare.table:
        return bare.name in dict(ROW_FUNCTIONS[name])
    literal = bare.this if isinstance(bare, exp.Neg) else bare
    return isinstance(literal, exp.Literal) and literal.is_int


def _named(rows: exp.Select) -> exp.Subquery:
    alias = exp.TableAlias(this=exp.to_identifier(_ROWS))
    return exp.Subquery(this=rows, alias=alias)


def _unnested(call: exp.Expression, name: str) -> exp.Alias:
    arguments = list(call.expressions)
    if name in _VARIADIC:
        last = arguments[-1] if arguments else None
        first = _VARIADIC[name]
        if isinstance(last, exp.Variadic):
            arguments = [*arguments[:-1], _listed(last.this)]
        else:
            arguments[first:] = [exp.Array(expressions=arguments[first:])]
    rows = exp.Anonymous(this=name, expressions=arguments)
    return exp.alias_(exp.Anonymous(this="unnest", expressions=[rows]), _ROW)


def _listed(array: exp.Expression) -> exp.Expression:
    """Return an array, which may be given as text; raises 0A000 for nested arrays."""
    if isinstance(array, exp.Literal) and array.is_string:
        items = [
            exp.Literal.string(i) if i is not None else exp.Null()
            for i in array_items(array.name)
        ]
        return exp.Array(expressions=items)
    if any(isinstance(item, exp.Array) for item in array.expressions):
        raise FeatureNotSupportedError("array must be one-dimensional")
    return array


def _columns(name: str, only: str | None = None) -> exp.Select:
    items = []
    for column, oid in ROW_FUNCTIONS[name]:
        if only not in (None, column):
            continue
        item = exp.alias_(_value(column, oid), column)
        set_type(item, oid)
        items.append(item)
    return exp.select(*items)


def _whole(name: str) -> exp.Select:
    texts = [_text(_value(column, oid), oid) for column, oid in ROW_FUNCTIONS[name]]
    record = exp.Anonymous(
        this="record_out", expressions=[exp.Array(expressions=texts)]
    )
    set_type(record, _RECORD)
    # A null row has no record.
    missing = exp.Is(this=exp.column(_ROW, table=_ROWS), expression=exp.Null())
    value = exp.Case().when(missing, exp.Null()).else_(record)
    set_type(value, _RECORD)
    item = exp.alias_(value, name)
    set_type(item, _RECORD)
    return exp.select(item)


def _text(value: exp.Expression, oid: int) -> exp.Expression:
    """Convert a value by its type's output function."""
    text: exp.Expression
    if oid == _BOOL:
        text = exp.Case().when(value, "'t'").when(exp.not_(value.copy()), "'f'")
    elif oid == INT2VECTOR:
        text = exp.Anonymous(
            this="array_to_string", expressions=[value, exp.Literal.string(" ")]
        )
    else:
        text = exp.cast(value, "text")
    set_type(text, _TEXT)
    return text


def _value(column: str, oid: int) -> exp.Expression:
    row = exp.column(_ROW, table=_ROWS)
    value = exp.Anonymous(
        this="struct_extract", expressions=[row, exp.Literal.string(column)]
    )
    set_type(value, oid)
    return value
