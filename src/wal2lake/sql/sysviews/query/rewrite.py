"""Translates a catalog query of PostgreSQL's dialect for the embedded engine.

Comes in: the text of a query and its bound parameters. Goes out: ``Translated``: the engine's SQL,
the relations that it reads, PostgreSQL's names and types of the result columns.

sqlglot knows both dialects. This module changes the parts of the tree that sqlglot cannot
translate: catalog types (OID types are numbers in the engine; ``scopes`` infers them), functions of
the catalog (renamed to the engine's copies), vectors that count from 0, qualified names, functions
in FROM named by their alias, arrays given as text.

Sources: the manual's sections 4.2, 8.15, 8.19, 9.27.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from wal2lake.errors import (
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
)
from wal2lake.pgtypes.registry.pg_type import format_type, type_by_oid
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.grammar.lexer import readable_by_sqlglot
from wal2lake.sql.grammar.remembered import by_text, remember
from wal2lake.sql.query.analysis.functions.rules import NO_SUCH_FUNCTION
from wal2lake.sql.query.analysis.functions.strings import no_function
from wal2lake.sql.query.dialect import EngineDialect, PostgresDialect
from wal2lake.sql.query.translate import (
    BoundParameter,
    cut_identifiers,
    schema_named,
)
from wal2lake.sql.query.values.types import plain
from wal2lake.sql.query.values.undetermined import determine, placeholder
from wal2lake.sql.sysviews.declarations.relations import (
    SystemRelation,
    system_relation,
)
from wal2lake.sql.sysviews.functions.pg_proc import (
    CATALOG_FUNCTION,
    EMPTY_TABLE_FUNCTIONS,
    EXPANDARRAY,
    FUNCTIONS,
    SYSTEM_SCHEMA_NAMES,
)
from wal2lake.sql.sysviews.query.casts import (
    as_lsn,
    as_text,
    as_type,
    call,
    cast,
    coerce,
    coerce_list,
    concatenation,
)
from wal2lake.sql.sysviews.query.failures import DIVISION_BY_ZERO
from wal2lake.sql.sysviews.query.inference import (
    BOOL,
    BYTEA,
    INT2VECTOR,
    INT8,
    INTEGERS,
    NODE_FUNCTIONS,
    OIDVECTOR,
    PG_LSN,
    UNKNOWN,
    function_name,
    get_type,
    set_type,
)
from wal2lake.sql.sysviews.query.limits import as_count, counts
from wal2lake.sql.sysviews.query.names.namedarguments import place
from wal2lake.sql.sysviews.query.names.scopes import (
    RELATION_META,
    Output,
    analyze,
    name_calls,
)
from wal2lake.sql.sysviews.query.names.unqualified import unqualify
from wal2lake.sql.sysviews.query.patterns import is_pattern, matched
from wal2lake.sql.sysviews.query.queryerrors import check
from wal2lake.sql.sysviews.query.rowfunctions import expand
from wal2lake.sql.sysviews.query.signatures import Signatures


@dataclass(frozen=True, slots=True)
class Translated:
    """A query for the engine."""

    sql: str
    relations: tuple[SystemRelation, ...]
    calls: Mapping[str, Sequence[str]]
    """Signatures of the calls as the client wrote them, by the engine's names of functions."""
    outputs: tuple[Output, ...] | None
    """PostgreSQL's names and types of the result columns; None: ask the engine."""
    misplaced: str | None
    """The error about OVER or FILTER behind a call, if the engine knows the function."""
    counts: tuple[tuple[str, str], ...]
    """The engine's queries for the row counts of LIMIT and OFFSET, with the clause."""
    lasts: bool
    """Whether a plan of the query may be kept, as it has no answer of its moment in it."""


_RENAMED_COLUMNS: Final = {"daticulocale": "datlocale"}
"""The name of a pg_database column in PostgreSQL 15 and 16, whose psql selects it."""


@by_text
def parsed(sql: str) -> exp.Expression | None:
    """Return the tree of a query with folded names; None if sqlglot cannot parse it.

    The tree is cached and must not be changed."""
    try:
        trees = [
            t
            for t in sqlglot.parse(readable_by_sqlglot(sql), read=PostgresDialect)
            if t is not None
        ]
    except SqlglotError:
        return None
    if len(trees) != 1 or not isinstance(trees[0], (exp.Query, exp.Values)):
        return None
    tree: exp.Expression = normalize_identifiers(trees[0], dialect="postgres")
    cut_identifiers(tree)
    return tree


def translate(sql: str, parameters: Sequence[BoundParameter]) -> Translated:
    """Rewrite a query for which ``is_system_query`` holds."""
    return _translated(sql, tuple(parameters))


def _translate(sql: str, parameters: tuple[BoundParameter, ...]) -> Translated:
    kept = parsed(sql)
    if kept is None:
        raise SqlSyntaxError("syntax error")
    tree = kept.copy()
    _bind(tree, parameters)
    _select_something(tree)
    unqualify(tree)
    place(tree)
    tree = expand(tree)
    name_calls(tree)
    outputs = analyze(tree)
    misplaced = check(tree)
    rewriter = _Rewriter()
    relations = rewriter.rewrite(tree)
    if isinstance(tree, exp.Values):
        tree = _selected_values(tree)
    try:
        text = tree.sql(
            dialect=EngineDialect, unsupported_level=sqlglot.ErrorLevel.IGNORE
        )
    except SqlglotError:
        raise FeatureNotSupportedError("the query is not supported") from None
    shown = None if outputs is None else tuple(outputs)
    signatures = rewriter.signatures.by_engine_name()
    return Translated(
        text, relations, signatures, shown, misplaced, counts(tree), _lasts(tree)
    )


def _characters(sql: str, parameters: tuple[BoundParameter, ...]) -> int:
    return len(sql) + sum(len(value.text or "") for value in parameters)


_translated: Final = remember(_translate, _characters)


_OF_THE_MOMENT: Final = tuple(
    kind
    for name, kind in vars(exp).items()
    if isinstance(kind, type)
    and issubclass(kind, exp.Func)
    and name.startswith(("Current", "Local", "Rand", "Session", "Unix", "Utc", "Uuid"))
)
"""Calls of the engine's functions whose result the engine may compute once for a plan."""

_LASTING: Final = frozenset(
    (
        *("array_to_string", "datepart", "epoch_us", "error", "isfinite", "len"),
        *("json_group_array", "json_object", "list_concat", "list_transform"),
        *("octet_length", "record_out", "regexp_extract", "regexp_matches"),
        *("generate_subscripts", "struct_extract", "unnest"),
    )
)
"""The engine's functions that the translation uses, and that are no classes of sqlglot."""


def _lasts(tree: exp.Expression) -> bool:
    """Whether the plan of a translated query has no answer of its moment in it."""
    return not any(map(_is_of_the_moment, tree.find_all(exp.Func)))


def _is_of_the_moment(call: exp.Expression) -> bool:
    if not isinstance(call, exp.Anonymous):
        return isinstance(call, _OF_THE_MOMENT)
    if call.name.startswith(CATALOG_FUNCTION):
        # The engine evaluates a call of constants when it plans.
        return call.find(exp.Column) is None
    return call.name not in _LASTING


def _selected_values(values: exp.Values) -> exp.Select:
    """Return SELECT from VALUES, whose columns have PostgreSQL's names in ORDER BY."""
    first = values.expressions[0]
    count = len(first.expressions) if isinstance(first, exp.Tuple) else 1
    names = [exp.to_identifier(f"column{number + 1}") for number in range(count)]
    clauses = {key: values.args.get(key) for key in ("order", "limit", "offset")}
    for key in clauses:
        values.set(key, None)
    alias = exp.TableAlias(this=exp.to_identifier("v"), columns=names)
    query = exp.select("*").from_(exp.Subquery(this=values, alias=alias))
    for key, clause in clauses.items():
        query.set(key, clause)
    return query


def determine_parameters(sql: str, parameters: Sequence[BoundParameter]) -> None:
    """Determine the types of parameters from operands beside them and from casts."""
    kept = parsed(sql)
    if kept is None:
        return
    tree = kept.copy()
    _bind(tree, parameters)
    for node in tree.find_all(exp.Cast):
        with suppress(UndefinedObjectError):
            oid, _ = parse_type_name(node.to.sql(dialect="postgres"))
            determine(node.this, int(oid))
    _select_something(tree)
    unqualify(tree)
    place(tree)
    analyze(expand(tree))
    for node in tree.find_all(exp.Null):
        operand = node.find_ancestor(exp.Any) or node
        beside = _beside(operand)
        pg_type = type_by_oid(0 if beside is None else get_type(beside) or 0)
        if pg_type is not None:
            determine(node, int(pg_type.oid if operand is node else pg_type.array_oid))
    for bound in tree.find_all(exp.Limit, exp.Offset):
        determine(bound.expression, INT8)
    for called in tree.find_all(exp.Anonymous):
        function = FUNCTIONS.get((called.name.lower(), len(called.expressions)))
        if function is not None:
            for kind, value in zip(
                function.parameters, called.expressions, strict=True
            ):
                determine(value, BOOL if kind == "BOOLEAN" else 0)


def _beside(node: exp.Expression) -> exp.Expression | None:
    """Return the expression that a constant is compared with."""
    parent = node.parent
    if isinstance(parent, exp.In) and node is not parent.this:
        return parent.this
    if isinstance(parent, exp.Between):
        return parent.args["low"] if node is parent.this else parent.this
    if not isinstance(parent, exp.Binary):
        return None
    return parent.expression if node is parent.this else parent.this


# ---- before typing ---------------------------------------------------------------------------


def _bind(tree: exp.Expression, parameters: Sequence[BoundParameter]) -> None:
    """Replace parameters by constants of their types."""
    for node in list(tree.find_all(exp.Parameter, exp.Placeholder)):
        inner: Any = node.this
        text = inner.name if isinstance(inner, exp.Expression) else str(inner)
        number = int(text) if text.isdigit() else 0
        if not 1 <= number <= len(parameters):
            raise SqlSyntaxError(f"there is no parameter ${text}", sqlstate="42P02")
        value = _constant(parameters[number - 1])
        if isinstance(value, (exp.Literal, exp.Null)) and _may_be_position(node):
            # A parameter is a constant there, and no position.
            value = exp.cast(value, "text")
        node.replace(value)


def _may_be_position(node: exp.Expression) -> bool:
    around = node.parent
    while isinstance(around, (exp.Paren, exp.Tuple)):
        around = around.parent
    return isinstance(around, (exp.Ordered, exp.Group, exp.Distinct))


def _constant(parameter: BoundParameter) -> exp.Expression:
    if parameter.undetermined is not None:
        return placeholder(parameter.undetermined)
    text = parameter.text
    value: exp.Expression = exp.Null() if text is None else exp.Literal.string(text)
    if parameter.type_oid in (0, 25, UNKNOWN):
        return value
    pg_type = type_by_oid(parameter.type_oid)
    name = format_type(parameter.type_oid)
    if pg_type is not None and pg_type.is_array:
        # The parser does not know "oid[]", but its internal name.
        name = pg_type.name
    return exp.Cast(
        this=value, to=exp.DataType.build(name, dialect="postgres", udt=True)
    )


def _select_something(tree: exp.Expression) -> None:
    """Add a column to EXISTS (SELECT FROM ...): the engine needs one."""
    for exists in tree.find_all(exp.Exists):
        query = exists.this
        if isinstance(query, exp.Select) and not query.expressions:
            query.select("1", copy=False)


# ---- after typing ------------------------------------------------------------------------------


class _Rewriter:
    """Rewrites a typed tree in one pass, children first."""

    def __init__(self) -> None:
        self._relations: dict[str, SystemRelation] = {}
        self.signatures = Signatures()

    def rewrite(self, tree: exp.Expression) -> tuple[SystemRelation, ...]:
        """Change the tree in place, and return the relations that it reads."""
        nodes = list(tree.walk(bfs=False))
        ctes = {n.alias for n in nodes if isinstance(n, exp.CTE)}
        for name in ctes:
            if name.partition(".")[0] in SYSTEM_SCHEMA_NAMES:
                # The engine's relations have such names, and not every role may read them.
                raise FeatureNotSupportedError(
                    f'the name "{name}" is not supported for a common table expression'
                )
        for node in reversed(nodes):
            if isinstance(node, exp.Table):
                self._table(node, ctes)
            elif isinstance(node, exp.Lateral):
                _lateral(node)
            else:
                new = _expression(node)
                self.signatures.add(node, new)
                if new is not node:
                    set_type(new, get_type(node))
                    node.replace(new)
        return tuple(self._relations.values())

    def _table(self, node: exp.Table, ctes: set[str]) -> None:
        if not isinstance(node.this, exp.Identifier):
            _function_in_from(node)
            return
        if not node.db and node.name in ctes:
            return
        relation = system_relation(schema_named(node), node.name)
        if relation is None:
            shown = f"{node.db}.{node.name}" if node.db else node.name
            raise UndefinedObjectError(
                f'relation "{shown}" does not exist', sqlstate="42P01"
            )
        name = internal_relation(relation)
        self._relations[name] = relation
        if not node.alias:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name)))
        node.set("this", exp.to_identifier(name, quoted=True))
        node.set("db", None)
        node.set("catalog", None)


def internal_relation(relation: SystemRelation) -> str:
    """Return the engine's name for a relation: the engine has a pg_catalog of its own."""
    return f"{relation.schema}.{relation.name}"


_SERIES: Final = (exp.GenerateSeries, exp.ExplodingGenerateSeries, exp.Unnest)

_IN_FROM: Final = frozenset(
    {
        "generate_series",
        "generate_subscripts",
        "unnest",
        *(name for name, _ in FUNCTIONS),
    }
)
"""Functions that may stand in FROM."""


def _function_in_from(node: exp.Table) -> None:
    """Rewrite a function in FROM, whose column has the name of its alias."""
    node.set("db", None)
    name = function_name(node.this) or ""
    if name in EMPTY_TABLE_FUNCTIONS:
        node.replace(_empty(name, node.args.get("alias")))
        return
    _check_known(node.this)
    alias = node.args.get("alias")
    if alias is not None and alias.this is not None and not alias.args.get("columns"):
        alias.set("columns", [alias.this.copy()])


def _lateral(node: exp.Lateral) -> None:
    name = function_name(node.this) or ""
    if name in EMPTY_TABLE_FUNCTIONS:
        node.replace(_empty(name, node.args.get("alias")))
    elif isinstance(node.this, exp.Func):
        _check_known(node.this)


def _check_known(call: exp.Expression) -> None:
    """Raise 42883 unless the function is PostgreSQL's.

    The engine's own functions read files and any relation that is registered."""
    if isinstance(call, _SERIES) or function_name(call) in _IN_FROM:
        return
    name = function_name(call) or call.sql_name().lower()
    raise UndefinedObjectError(f"function {name} does not exist", sqlstate="42883")


def _empty(name: str, alias: exp.TableAlias | None) -> exp.Subquery:
    columns = [
        exp.alias_(exp.cast(exp.Null(), kind, dialect="duckdb"), column)
        for column, kind in EMPTY_TABLE_FUNCTIONS[name]
    ]
    query = exp.select(*columns).where(exp.false())
    default = exp.TableAlias(this=exp.to_identifier(name))
    return exp.Subquery(this=query, alias=alias or default)


_COMPARISONS: Final = (
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.NullSafeEQ,
    exp.NullSafeNEQ,
)


def _expression(node: exp.Expression) -> exp.Expression:
    if isinstance(node, exp.Cast):
        return cast(node)
    if isinstance(node, exp.Column):
        return _column(node)
    if isinstance(node, exp.Bracket):
        return _subscript(node)
    if isinstance(node, _COMPARISONS):
        coerce(node)
        return _among(node)
    if isinstance(node, (exp.In, exp.Between)):
        coerce_list(node)
    elif isinstance(node, exp.DPipe):
        return concatenation(node)
    elif isinstance(node, exp.ArraySize):
        return _array_size(node.this)
    elif isinstance(node, exp.Unnest):
        _unnest(node)
    elif isinstance(node, (exp.Limit, exp.Offset)):
        as_count(node)
    elif isinstance(node, exp.Anonymous) or type(node) in NODE_FUNCTIONS:
        return _function(node)
    elif isinstance(node, (exp.Div, exp.IntDiv, exp.Mod)):
        return _division(node)
    elif isinstance(node, exp.Length | exp.Substring) and get_type(node.this) == BYTEA:
        return _of_bytes(node)
    elif isinstance(node, exp.Substring) and is_pattern(node):
        return matched(as_text(node.this), node.args["start"])
    elif isinstance(node, (exp.Add, exp.Sub)):
        return _lsn_arithmetic(node)
    return node


def _among(node: exp.Expression) -> exp.Expression:
    """Make ``= ANY (array)`` null for a null array; for the engine it is false."""
    right = node.args["expression"]
    array = right.this.unnest() if isinstance(right, exp.Any) else None
    if array is None or isinstance(array, (exp.Query, exp.Array)):
        return node
    missing = exp.Is(this=array.copy(), expression=exp.Null())
    null = as_type(exp.Null(), "BOOLEAN")
    compared = node.copy()
    return exp.Paren(
        this=exp.Case(ifs=[exp.If(this=missing, true=null)], default=compared)
    )


# ---- columns, subscripts, functions ----------------------------------------------------


def _column(node: exp.Column) -> exp.Expression:
    relation = node.meta.get(RELATION_META)
    if isinstance(relation, SystemRelation):
        value = int(relation.oid) if node.name == "tableoid" else 1
        return as_type(exp.Literal.number(value), "UINTEGER")
    renamed = _RENAMED_COLUMNS.get(node.name)
    if renamed is not None:
        node.set("this", exp.to_identifier(renamed))
    return node


def _subscript(node: exp.Bracket) -> exp.Expression:
    """Shift subscripts: int2vector and oidvector count from 0, arrays from 1, the tree from 0."""
    if get_type(node.this) in (INT2VECTOR, OIDVECTOR):
        index = node.expressions[0]
        if isinstance(index, exp.Literal):
            new: exp.Expression = exp.Literal.number(int(index.name) + 1)
        else:
            new = exp.Paren(this=exp.Add(this=index, expression=exp.Literal.number(1)))
        node.set("expressions", [new])
    return node


def _unnest(node: exp.Unnest) -> None:
    alias = node.args.get("alias")
    if alias is not None and alias.this is not None and not alias.args.get("columns"):
        alias.set("columns", [alias.this.copy()])


def _array_size(array: exp.Expression) -> exp.Expression:
    size = exp.Anonymous(this="len", expressions=[array])
    whole = exp.Nullif(this=size, expression=exp.Literal.number(0))
    return as_type(whole, "INTEGER")


def _division(node: exp.Div | exp.IntDiv | exp.Mod) -> exp.Expression:
    """Translate division: integers give an integer, and division by zero is an error."""
    whole = {get_type(node.this), get_type(node.expression)} <= INTEGERS
    divisor = _divisor(node.expression)
    if isinstance(node, exp.Div) and whole:
        return exp.IntDiv(this=node.this, expression=divisor)
    node.set("expression", divisor)
    return node


def _divisor(value: exp.Expression) -> exp.Expression:
    """Make a divisor fail if it is zero: the engine would return null.

    ``failures`` knows the error by its text."""
    if isinstance(value, exp.Literal) and value.name.strip("0.") != "":
        return value
    failure = exp.Anonymous(
        this="error", expressions=[exp.Literal.string(DIVISION_BY_ZERO)]
    )
    is_zero = exp.EQ(this=value.copy(), expression=exp.Literal.number(0))
    return exp.Case(ifs=[exp.If(this=is_zero, true=failure)], default=value)


def _of_bytes(node: exp.Length | exp.Substring) -> exp.Expression:
    if isinstance(node, exp.Length):
        length = exp.Anonymous(this="octet_length", expressions=[node.this])
        return as_type(length, "INTEGER")
    places = [node.args.get(name) for name in ("start", "length")]
    return call("bytea_substr", node.this, *(place for place in places if place))


def _lsn_arithmetic(node: exp.Add | exp.Sub) -> exp.Expression:
    left, right = node.this, node.expression
    if get_type(left) == PG_LSN and isinstance(node, exp.Sub):
        if get_type(node) == PG_LSN:
            return call("pg_lsn_mii", left, right)
        return _lsn_difference(left, right)
    if get_type(left) == PG_LSN:
        return call("pg_lsn_pli", left, right)
    return call("pg_lsn_pli", right, left) if get_type(right) == PG_LSN else node


def _lsn_difference(left: exp.Expression, right: exp.Expression) -> exp.Expression:
    return exp.Sub(
        this=as_type(as_lsn(left), "HUGEINT"),
        expression=as_type(as_lsn(right), "HUGEINT"),
    )


def _function(node: exp.Expression) -> exp.Expression:
    name = function_name(node) or ""
    arguments = list(node.expressions) if isinstance(node, exp.Anonymous) else []
    if node.meta.get(NO_SUCH_FUNCTION):
        raise no_function(
            name, *(plain(get_type(argument) or UNKNOWN) for argument in arguments)
        )
    if isinstance(node.parent, (exp.Table, exp.Lateral)):
        return node
    if (name, len(arguments)) in FUNCTIONS:
        if name == "array_to_string":
            arguments[0] = as_type(arguments[0], "VARCHAR[]")
        kinds = FUNCTIONS[name, len(arguments)].parameters
        typed_arguments = zip(kinds, arguments, strict=True)
        result = call(
            name,
            *(_argument(name, kind, argument) for kind, argument in typed_arguments),
        )
        if name == EXPANDARRAY and not isinstance(node.parent, exp.Anonymous):
            return exp.Anonymous(this="unnest", expressions=[result])
        return result
    match name, len(arguments):
        case ("array_upper" | "array_length", 2):
            return _array_size(arguments[0])
        case ("cardinality", 1):
            size = exp.Anonymous(this="len", expressions=arguments)
            return as_type(size, "INTEGER")
        case ("array_lower", 2):
            size = _array_size(arguments[0])
            return exp.func("least", size, exp.Literal.number(1), dialect="duckdb")
        case ("generate_subscripts", _):
            return (
                as_type(node, "INTEGER")
                if isinstance(node.parent, exp.Select)
                else node
            )
        case ("json_build_object", _):
            return exp.Anonymous(this="json_object", expressions=arguments)
        case ("every", 1):
            return exp.LogicalAnd(this=arguments[0])
        case ("json_agg", 1):
            return exp.Anonymous(this="json_group_array", expressions=arguments)
        case _ if name in EMPTY_TABLE_FUNCTIONS:
            kind = EMPTY_TABLE_FUNCTIONS[name][0][1]
            return exp.Anonymous(
                this="unnest",
                expressions=[as_type(exp.Array(expressions=[]), kind + "[]")],
            )
        case ("pg_typeof", 1):
            result = get_type(arguments[0])
            shown = result if result is not None else 25
            return as_type(exp.Literal.number(shown), "UINTEGER")
        case ("pg_wal_lsn_diff", 2):
            return _lsn_difference(*arguments)
        case _:
            return node


def _argument(name: str, kind: str, argument: exp.Expression) -> exp.Expression:
    """Convert an argument: OID types are numbers, or names for functions that format text, and a
    constant for bytes is read by PostgreSQL's rules."""
    if kind == "BLOB" and isinstance(argument, exp.Literal) and argument.is_string:
        return call("bytea_in", argument)
    return as_text(argument) if name in ("format", "quote_literal") else argument
