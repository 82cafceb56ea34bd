"""Resolves the names in a query to columns of relations.

Comes in: a query's tree. Goes out: the types of all columns in the nodes' ``meta``, and the output
columns of the query with names and types. The walk follows SQL's scoping: WITH, then FROM from left
to right; LATERAL and subqueries see the enclosing scopes.

A name that cannot be resolved stays untyped; the engine reports it if it does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from wal2lake.sql.sysviews.declarations.relations import (
    SystemRelation,
    system_relation,
)
from wal2lake.sql.sysviews.functions.pg_proc import EXPANDARRAY
from wal2lake.sql.sysviews.query.inference import (
    INT8,
    OID,
    UNKNOWN,
    XID,
    element_type,
    figure_name,
    function_name,
    get_type,
    set_type,
    type_of,
)

SYSTEM_COLUMNS: Final = {"tableoid": OID, "xmin": XID}
"""Hidden columns of every relation that clients select."""

COLUMNS_META: Final = "column_count"
"""On a query: how many columns it returns, if that is known."""

RELATION_META: Final = "system_relation"
"""On a hidden column: its relation."""


_SETS: Final = frozenset(
    ("unnest", "generate_series", "generate_subscripts", EXPANDARRAY)
)
"""Set-returning functions, for which the engine has rules of its own."""


@dataclass(frozen=True, slots=True)
class Output:
    """One column of a query's result."""

    name: str
    type_oid: int | None
    relation: SystemRelation | None = None
    """The relation whose column this is, unchanged."""


@dataclass(slots=True)
class CatalogFromItem:
    """One item of FROM. If its columns are unknown, ``columns`` is None."""

    columns: list[Output] | None
    relation: SystemRelation | None = None

    def column(self, name: str) -> Output | None:
        """Return the column of that name."""
        for output in self.columns or ():
            if output.name == name:
                return output
        return None


@dataclass(slots=True)
class CatalogScope:
    """The names that an expression can use."""

    parent: CatalogScope | None = None
    sources: dict[str, CatalogFromItem] = field(default_factory=dict)
    ctes: dict[str, list[Output] | None] = field(default_factory=dict)

    def cte(self, name: str) -> tuple[bool, list[Output] | None]:
        """Return whether a WITH item is visible, and its columns."""
        scope: CatalogScope | None = self
        while scope is not None:
            if name in scope.ctes:
                return True, scope.ctes[name]
            scope = scope.parent
        return False, None

    def resolve(
        self, column: exp.Column
    ) -> tuple[Output | None, CatalogFromItem | None]:
        """Return the column that a name means, and its FROM item."""
        table, name = column.table, column.name
        scope: CatalogScope | None = self
        while scope is not None:
            if table:
                source = scope.sources.get(table)
                if source is not None:
                    return source.column(name), source
            else:
                for source in scope.sources.values():
                    output = source.column(name)
                    if output is not None:
                        return output, source
            scope = scope.parent
        return None, None


_NAMED_AS_CALLED: Final = tuple(
    getattr(exp, name)
    for name in ("CurrentDate", "CurrentTime", "Localtime", "Localtimestamp")
    if hasattr(exp, name)
)
"""Calls for which the engine uses PostgreSQL's name."""


def name_calls(tree: exp.Expression) -> None:
    """Name calls in select lists of subqueries in FROM and of CTEs as PostgreSQL, in place.

    The enclosing query uses these names. Columns of other subqueries get no name: the engine would
    confuse it with an outer column of that name."""
    for query in tree.find_all(exp.Select):
        if not _is_known_by_names(query):
            continue
        for projection in query.expressions:
            windowed = isinstance(projection, exp.Window)
            call = projection.this if windowed else projection
            if (
                isinstance(call, exp.Func)
                and not isinstance(call, (exp.Cast, exp.Connector, *_NAMED_AS_CALLED))
                and function_name(call) not in _SETS
            ):
                named = figure_name(call)
                projection.replace(exp.alias_(projection.copy(), named, quoted=True))


def _is_known_by_names(query: exp.Select) -> bool:
    around = query.parent
    while isinstance(around, exp.SetOperation):
        around = around.parent
    return isinstance(around, exp.CTE) or (
        isinstance(around, exp.Subquery)
        and isinstance(around.parent, (exp.From, exp.Join, exp.Lateral))
    )


def analyze(
    query: exp.Expression, parent: CatalogScope | None = None
) -> list[Output] | None:
    """Type a query, and return its output columns; None if a ``*`` cannot be expanded."""
    scope = CatalogScope(parent)
    _with_items(query, scope)
    if isinstance(query, exp.Subquery):
        outputs = analyze(query.this, scope)
        _count_columns(query, outputs)
        return outputs
    if isinstance(query, exp.SetOperation):
        left = analyze(query.left, scope)
        right = analyze(query.right, scope)
        outputs = _union(left, right)
        scope.sources[""] = CatalogFromItem(outputs)
        for name in ("order", "limit", "offset"):
            _type_tree(query.args.get(name), scope)
    elif isinstance(query, exp.Values):
        outputs = _values(query, scope)
    elif isinstance(query, exp.Select):
        outputs = _select(query, scope)
    else:
        return None
    if outputs and len(outputs) == 1:
        set_type(query, outputs[0].type_oid)
    _count_columns(query, outputs)
    return outputs


def _count_columns(query: exp.Expression, outputs: list[Output] | None) -> None:
    if outputs is not None:
        query.meta[COLUMNS_META] = len(outputs)


def _with_items(query: exp.Expression, scope: CatalogScope) -> None:
    with_ = query.args.get("with_") or query.args.get("with")
    if with_ is None:
        return
    for cte in with_.expressions:
        aliases = [c.name for c in cte.args["alias"].args.get("columns") or ()]
        if with_.args.get("recursive"):
            first = (
                cte.this.left if isinstance(cte.this, exp.SetOperation) else cte.this
            )
            scope.ctes[cte.alias] = _renamed(analyze(first, scope), aliases)
        scope.ctes[cte.alias] = _renamed(analyze(cte.this, scope), aliases)


def _select(query: exp.Select, scope: CatalogScope) -> list[Output] | None:
    from_ = query.args.get("from_") or query.args.get("from")
    if from_ is not None:
        _add_source(from_.this, scope)
    for join in query.args.get("joins") or ():
        _add_source(join.this, scope)
        _type_tree(join.args.get("on"), scope)
    for lateral in query.args.get("laterals") or ():
        _add_source(lateral, scope)
    for projection in query.expressions:
        _type_tree(projection, scope)
    for name, argument in query.args.items():
        if name in (
            "expressions",
            "from_",
            "from",
            "joins",
            "laterals",
            "with_",
            "with",
        ):
            continue
        for node in argument if isinstance(argument, list) else [argument]:
            _type_tree(node, scope)
    return _outputs(query, scope)


def _outputs(query: exp.Select, scope: CatalogScope) -> list[Output] | None:
    outputs: list[Output] = []
    for projection in query.expressions:
        expanded = _star(projection, scope, query.args.get("joins") or [])
        if expanded is not None:
            for source in expanded:
                if source.columns is None:
                    return None
                outputs.extend(source.columns)
            continue
        inner = projection.this if isinstance(projection, exp.Alias) else projection
        relation = None
        if isinstance(inner, exp.Column):
            output, _ = scope.resolve(inner)
            relation = None if output is None else output.relation
        outputs.append(Output(figure_name(projection), get_type(projection), relation))
    return outputs


def _star(
    projection: exp.Expression, scope: CatalogScope, joins: list[exp.Join]
) -> list[CatalogFromItem] | None:
    if isinstance(projection, exp.Star):
        items = list(scope.sources.values())
        if any(join.args.get("using") or join.method for join in joins):
            return [_joined(items, joins)]
        return items
    if isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star):
        source = scope.sources.get(projection.table)
        return [CatalogFromItem(None) if source is None else source]
    return None


def _joined(items: list[CatalogFromItem], joins: list[exp.Join]) -> CatalogFromItem:
    """The columns of ``*`` with JOIN ... USING: those of each USING come once, and first."""
    if len(items) != len(joins) + 1 or any(join.method for join in joins):
        return CatalogFromItem(None)
    columns = items[0].columns
    for item, join in zip(items[1:], joins, strict=True):
        if columns is None or item.columns is None:
            return CatalogFromItem(None)
        names = [name.name for name in join.args.get("using") or ()]
        merged = [output for name in names for output in columns if output.name == name]
        rest = [
            output for output in [*columns, *item.columns] if output.name not in names
        ]
        columns = merged + rest
    return CatalogFromItem(columns)


def _add_source(node: exp.Expression, scope: CatalogScope) -> None:
    alias = node.args.get("alias")
    name = node.alias if alias is not None else ""
    renames = [c.name for c in alias.args.get("columns") or ()] if alias else []
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        is_cte, columns = (False, None) if node.db else scope.cte(node.name)
        relation = None if is_cte else system_relation(node.db or None, node.name)
        if relation is not None:
            columns = relation_outputs(relation)
        source = CatalogFromItem(_renamed(columns, renames), relation)
        scope.sources[name or node.name] = source
        for join in node.args.get("joins") or ():
            _add_source(join.this, scope)
            _type_tree(join.args.get("on"), scope)
        return
    if isinstance(node, (exp.Subquery, exp.Lateral)) and isinstance(
        node.this, (exp.Query, exp.Table)
    ):
        if isinstance(node.this, exp.Table):
            # The tables of a join in parentheses are visible outside of it.
            _add_source(node.this, scope)
            return
        columns = _renamed(analyze(node.this, scope), renames)
        scope.sources[name or f"?{len(scope.sources)}"] = CatalogFromItem(columns)
        return
    if isinstance(node, exp.Values):
        columns = _renamed(_values(node, scope), renames)
        scope.sources[name or f"?{len(scope.sources)}"] = CatalogFromItem(columns)
        return
    for part in (node.this, *node.expressions):
        if isinstance(part, exp.Expression):
            _type_tree(part, scope)
    scope.sources[name or _function_alias(node)] = CatalogFromItem(
        _table_function(node, renames)
    )


def relation_outputs(relation: SystemRelation) -> list[Output]:
    """Return the columns of a system relation."""
    return [Output(c.name, int(c.type_oid), relation) for c in relation.columns]


def _function_alias(node: exp.Expression) -> str:
    call = node.this if isinstance(node, (exp.Table, exp.Lateral)) else node
    return figure_name(call) if isinstance(call, exp.Expression) else "?"


def _table_function(node: exp.Expression, renames: list[str]) -> list[Output] | None:
    """Return the columns of a function in FROM; its alias names a single column."""
    call = node if isinstance(node, exp.Unnest) else node.this
    oid: int | None = None
    if isinstance(call, exp.Unnest):
        oid = element_type(get_type(call.expressions[0]))
    elif isinstance(call, exp.Explode):
        oid = element_type(get_type(call.this))
    elif isinstance(call, exp.ExplodingGenerateSeries):
        oid = get_type(call.args.get("start"))
    else:
        return None
    names = renames or [node.alias or figure_name(call)]
    outputs = [Output(names[0], oid)]
    offset = node.args.get("offset")
    if offset not in (None, False):
        ordinal = offset.name if isinstance(offset, exp.Identifier) else "ordinality"
        outputs.append(Output(ordinal, INT8))
    return outputs


def _values(node: exp.Values, scope: CatalogScope) -> list[Output]:
    _type_children(node, scope)
    rows = [row.expressions for row in node.expressions if isinstance(row, exp.Tuple)]
    outputs = []
    for i, cell in enumerate(rows[0] if rows else ()):
        types = [get_type(row[i]) for row in rows if i < len(row)]
        settled = [t for t in types if t not in (None, UNKNOWN)]
        outputs.append(
            Output(f"column{i + 1}", settled[0] if settled else get_type(cell))
        )
    return outputs


def _renamed(outputs: list[Output] | None, names: list[str]) -> list[Output] | None:
    if outputs is None or not names:
        return outputs
    return [
        Output(names[i] if i < len(names) else o.name, o.type_oid, o.relation)
        for i, o in enumerate(outputs)
    ]


def _union(
    left: list[Output] | None, right: list[Output] | None
) -> list[Output] | None:
    if left is None or right is None or len(left) != len(right):
        return left
    return [
        Output(a.name, a.type_oid if a.type_oid not in (None, UNKNOWN) else b.type_oid)
        for a, b in zip(left, right, strict=True)
    ]


# ---- expressions -----------------------------------------------------------------------------


def _type_tree(node: object, scope: CatalogScope) -> None:
    """Type an expression, children first. A subquery gets a scope of its own."""
    if not isinstance(node, exp.Expression):
        return
    if isinstance(node, (exp.Query, exp.Subquery)) and not isinstance(node, exp.Table):
        outputs = analyze(node, scope)
        if outputs and len(outputs) == 1:
            set_type(node, outputs[0].type_oid)
        return
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        _type_column(node, scope)
        return
    _type_children(node, scope)
    set_type(node, type_of(node))


def _type_children(node: exp.Expression, scope: CatalogScope) -> None:
    for child in _children(node):
        _type_tree(child, scope)


def _children(node: exp.Expression) -> Iterator[exp.Expression]:
    for argument in node.args.values():
        if isinstance(argument, exp.Expression):
            yield argument
        elif isinstance(argument, list):
            for item in argument:
                if isinstance(item, exp.Expression):
                    yield item


def _type_column(column: exp.Column, scope: CatalogScope) -> None:
    output, source = scope.resolve(column)
    if output is not None:
        set_type(column, output.type_oid)
        return
    hidden = SYSTEM_COLUMNS.get(column.name)
    if hidden is None:
        return
    if source is None and not column.table:
        owners = [s for s in scope.sources.values() if s.relation is not None]
        source = owners[0] if len(owners) == 1 else None
    if source is not None and source.relation is not None:
        set_type(column, hidden)
        column.meta[RELATION_META] = source.relation
