"""Analyses FROM: tables, subqueries, functions, joins.

Comes in: a SELECT and the scope around it. Goes out: sources in the SELECT's scope, and the tree,
rewritten in place. Called by ``queries``.

A LATERAL item may refer to the items before it, and so may a function without the word LATERAL.
If a function does, then LATERAL is added, because Spark requires it.

Source: PostgreSQL manual 7.2.1; transformFromClauseItem in parse_clause.c.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from wal2lake.catalog import TableDef
from wal2lake.sql.query.analysis.expressions import ExpressionAnalysis
from wal2lake.sql.query.analysis.functions.calls import GENERATORS
from wal2lake.sql.query.analysis.scopes import Columns, FromItem, Scope
from wal2lake.sql.query.values import casts
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand

TABLE_MARK: Final = "wal2lake_table"
"""Key in the ``meta`` of a table node: its TableDef."""

Query = Callable[[exp.Expression, Scope], Columns | None]


class FromAnalysis:
    """Analyses the FROM items of one statement."""

    def __init__(self, expressions: ExpressionAnalysis, query: Query) -> None:
        self.expressions = expressions
        self.query = query
        self._numbers = itertools.count(1)

    def of_select(self, node: exp.Select, scope: Scope, visible: Scope) -> None:
        """Add all items of a SELECT to ``scope``; ``visible`` is the scope around the SELECT."""
        clause = node.args.get("from_") or node.args.get("from")
        if clause is not None:
            self._item(clause.this, scope, visible)
        self._joins(node, scope, visible)
        if node.args.get("laterals"):
            raise t.refuse("LATERAL VIEW")

    def _item(self, item: exp.Expression, scope: Scope, visible: Scope) -> None:
        """Add an item with the joins that belong to it, or several items in parentheses."""
        if isinstance(item, exp.Subquery) and not isinstance(item.this, exp.Query):
            if item.args.get("alias") is not None:
                raise t.refuse("a join in parentheses with an alias")
            self._item(item.this, scope, visible)
        else:
            joins = item.args.get("joins")
            scope.sources.append(self.source(item, visible, scope=scope))
            if joins:
                self._join_all(joins, scope, visible)
            return
        self._joins(item, scope, visible)

    def _joins(self, node: exp.Expression, scope: Scope, visible: Scope) -> None:
        self._join_all(node.args.get("joins") or (), scope, visible)

    def _join_all(
        self, joins: Sequence[exp.Expression], scope: Scope, visible: Scope
    ) -> None:
        for join in joins:
            if join.side:
                scope.outer_join = True
            method = join.args.get("method")
            if method and str(method).upper() != "NATURAL":
                raise t.refuse(f"{method} JOIN")
            before = [s.columns for s in scope.sources]
            count = len(scope.sources)
            self._item(join.this, scope, visible)
            if method:
                self._natural(join, before, [s.columns for s in scope.sources[count:]])
            if join.args.get("on") is not None:
                self.expressions.condition(join, "on", scope, "JOIN/ON")
            for column in join.args.get("using") or ():
                self._using(column.name, scope)

    def _natural(
        self,
        join: exp.Expression,
        left: list[Columns | None],
        right: list[Columns | None],
    ) -> None:
        """Rewrite NATURAL as USING with the columns that both sides have."""
        if any(columns is None for columns in (*left, *right)):
            raise t.refuse("NATURAL JOIN of a table that is not known")
        left_names = {name for columns in left for name, _ in columns or ()}
        shared = [n for columns in right for n, _ in columns or () if n in left_names]
        join.set("method", None)
        if shared:
            join.set("using", [exp.to_identifier(n, quoted=True) for n in shared])
        elif not join.side:
            join.set("kind", "CROSS")
        else:
            join.set("on", exp.Boolean(this=True))

    def _using(self, name: str, scope: Scope) -> None:
        kinds = [
            kind
            for source in scope.sources
            for column, kind in source.columns or ()
            if column == name
        ]
        for kind in kinds:
            casts.group_operand(Operand(exp.column(name), kind), "JOIN ... USING")
        groups = {(k.oid in t.INTEGERS, k.string, k.oid) for k in kinds}
        if len({(a, b, 0 if a or b else c) for a, b, c in groups}) > 1:
            raise t.refuse("JOIN ... USING of columns of different types")
        if len({k.oid == t.BPCHAR for k in kinds}) > 1:
            raise t.refuse("JOIN ... USING of columns of different types")
        if name not in scope.merged:
            scope.merged.append(name)

    def _named(
        self, node: exp.Expression, columns: Columns | None, rename: bool
    ) -> FromItem:
        """Build the source, with a name in Spark's statement that no column has.

        In Spark a column ``t`` would hide the table ``t``.
        """
        name = node.alias_or_name
        if columns is None or not rename:
            return FromItem(name, columns, name)
        spark_name = f"{name}@{next(self._numbers)}"
        identifier = exp.to_identifier(spark_name, quoted=True)
        alias = node.args.get("alias")
        if alias is None:
            node.set("alias", exp.TableAlias(this=identifier))
        else:
            alias.set("this", identifier)
        return FromItem(name, columns, spark_name)

    def source(
        self,
        node: exp.Expression,
        visible: Scope,
        rename: bool = True,
        scope: Scope | None = None,
    ) -> FromItem:
        """Analyse one item; ``scope`` has the items before it, for a LATERAL item."""
        alias = node.args.get("alias")
        before = scope if scope is not None else visible
        if isinstance(node, exp.Lateral):
            return self._lateral(node, before)
        if isinstance(node, exp.Unnest):
            if len(node.expressions) != 1 or node.args.get("offset"):
                raise t.refuse("unnest() of several arrays, or WITH ORDINALITY")
            call = exp.Anonymous(this="unnest", expressions=node.expressions)
            return self._function(node, call, "unnest", before)
        if isinstance(node, exp.Table):
            if node.args.get("ordinality"):
                raise t.refuse("WITH ORDINALITY")
            if isinstance(node.this, exp.ExplodingGenerateSeries):
                return self._function(node, node.this, "generate_series", before)
            if isinstance(node.this, exp.Anonymous):
                name = node.this.name.lower()
                if name in GENERATORS:
                    return self._function(node, node.this, name, before)
            if not isinstance(node.this, exp.Identifier):
                raise t.refuse("a function in FROM")
            table = node.meta.get(TABLE_MARK)
            if isinstance(table, TableDef):
                columns: Columns | None = [
                    (c.name, t.of_column(c)) for c in table.columns
                ]
            else:
                _, columns = visible.cte(node.name)
            source = self._named(node, renamed(columns, alias), rename)
            if isinstance(table, TableDef) and not (alias and alias.columns):
                # A deferrable key may have duplicates for a while, so it identifies no row.
                is_deferrable = table.key_deferral.deferrable
                source = replace(source, key=() if is_deferrable else tuple(table.key))
            return source
        if isinstance(node, (exp.Subquery, exp.Values)):
            columns = self.query(node, visible)
            return self._named(node, renamed(columns, alias), rename)
        raise t.refuse(f"{node.key.upper()} in FROM")

    def _lateral(self, node: exp.Lateral, before: Scope) -> FromItem:
        inner = node.this
        if not isinstance(inner, exp.Subquery):
            if isinstance(inner, exp.Anonymous) and inner.name.lower() in GENERATORS:
                return self._function(node, inner, inner.name.lower(), before)
            if isinstance(inner, exp.Unnest) and len(inner.expressions) == 1:
                call = exp.Anonymous(this="unnest", expressions=inner.expressions)
                return self._function(node, call, "unnest", before)
            raise t.refuse("LATERAL of this function")
        columns = self.query(inner, before)
        alias = node.args.get("alias")
        return self._named(node, renamed(columns, alias), True)

    def _function(
        self, node: exp.Expression, call: exp.Expression, name: str, before: Scope
    ) -> FromItem:
        """Rewrite a function in FROM as a subquery; its column has the table's name."""
        correlated = call.find(exp.Column) is not None
        operand = self.expressions.visit(call, before)
        alias = node.args.get("alias")
        if alias is None:
            alias = exp.TableAlias(this=exp.to_identifier(name))
        # jsonb_array_elements() and similar functions have a column named "value".
        default_name = "value" if name.startswith(("json_", "jsonb_")) else alias.name
        if name.endswith("object_keys"):
            default_name = alias.name
        column = alias.columns[0].name if alias.columns else default_name
        item = exp.Alias(
            this=operand.node, alias=exp.to_identifier(column, quoted=True)
        )
        query: exp.Expression = exp.Subquery(this=exp.Select(expressions=[item]))
        if correlated:
            query = exp.Lateral(this=query)
        query.set("alias", exp.TableAlias(this=alias.this))
        query.set("joins", node.args.get("joins"))
        node.replace(query)
        return self._named(query, [(column, operand.type)], True)


def renamed(columns: Columns | None, alias: exp.Expression | None) -> Columns | None:
    names = [c.name for c in (alias.args.get("columns") or ())] if alias else []
    if columns is None:
        return None
    return [
        (
            names[i] if i < len(names) else name,
            t.plain(t.TEXT) if kind.oid == t.UNKNOWN else kind,
        )
        for i, (name, kind) in enumerate(columns)
    ]
