"""Statements: scopes are opened, expressions handed on, columns of the result collected.

Comes in: a tree whose tables carry their definitions (``translate.place_tables``). Goes out:
the tree, rewritten in place, and its columns' names and types. Called by ``translate``.

Sources: PostgreSQL manual, SELECT, VALUES, 7.5 (what ORDER BY and GROUP BY may name), 10.5.
"""

from __future__ import annotations

import itertools
from typing import Final

from sqlglot import exp

from wal2lake.catalog import TableDef
from wal2lake.errors import UsageError
from wal2lake.frontend.query.analysis.expressions import Expressions
from wal2lake.frontend.query.analysis.names import figure_name
from wal2lake.frontend.query.analysis.scopes import Columns, Scope, Source
from wal2lake.frontend.query.values import casts
from wal2lake.frontend.query.values import types as t
from wal2lake.frontend.query.values.types import Operand, Type

TABLE_MARK: Final = "wal2lake_table"
"""In a table node's ``meta``: its TableDef."""


def analyse(tree: exp.Expression, zone: str) -> Columns | None:
    """Rewrite a query in place; the result's columns, None where they are unknown."""
    columns = Queries(zone, tree).query(tree, Scope())
    if columns is None:
        return None
    return [
        (name, t.plain(t.TEXT) if kind.oid == t.UNKNOWN else kind)
        for name, kind in columns
    ]


class Queries:
    """One statement's analysis."""

    def __init__(self, zone: str, root: exp.Expression) -> None:
        self._zone = zone
        self._root = root
        self._numbers = itertools.count(1)
        self.expressions = Expressions(zone, self.query)

    # ---- statements -------------------------------------------------------------

    def query(self, node: exp.Expression, outer: Scope) -> Columns | None:
        """A query of any form."""
        if isinstance(node, exp.Subquery):
            scope = self._with(node, outer)
            columns = self.query(node.this, scope)
            self._order(node, Scope(outer=scope), columns, None)
            return columns
        if isinstance(node, exp.Select):
            return self._select(node, outer)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, outer)
        if isinstance(node, exp.Values):
            return self._values(node, outer)
        if isinstance(node, exp.Table):
            return self.source(node, outer).columns
        raise t.refuse(f"{node.key.upper()}")

    def _with(self, node: exp.Expression, outer: Scope) -> Scope:
        clause = node.args.get("with_") or node.args.get("with")
        if clause is None:
            return outer
        if clause.recursive:
            raise t.refuse("WITH RECURSIVE")
        scope = Scope(outer=outer)
        for cte in clause.expressions:
            if not isinstance(cte.this, exp.Query):
                raise t.refuse("a data-modifying statement in WITH")
            columns = self.query(cte.this, scope)
            scope.ctes[cte.alias] = _renamed(columns, cte.args.get("alias"))
        return scope

    # ---- SELECT --------------------------------------------------------------------

    def _select(self, node: exp.Select, outer: Scope) -> Columns | None:
        visible = self._with(node, outer)
        scope = Scope(outer=visible)
        self._from(node, scope, visible)
        for clause, word in (("where", "WHERE"), ("having", "HAVING")):
            found = node.args.get(clause)
            if found is not None:
                self.expressions.condition(found, "this", scope, word)
        for window in node.args.get("windows") or ():
            self.expressions.window(window, scope)
        columns: Columns | None = []
        bare: dict[str, Operand] = {}
        # Where another part of the statement can use the name.
        named = node is not self._root or any(
            node.args.get(clause) is not None for clause in ("order", "group")
        )
        for item in list(node.expressions):
            star = item if isinstance(item, exp.Star) else item.this
            if isinstance(item, exp.Star) or (
                isinstance(item, exp.Column) and isinstance(star, exp.Star)
            ):
                table = item.table if isinstance(item, exp.Column) else ""
                more = scope.star(table)
                if isinstance(item, exp.Column):
                    item.set("table", scope.spark_name(table))
                if more is None or columns is None:
                    columns = None
                else:
                    columns += more
                continue
            name = figure_name(item) or "?column?"
            if isinstance(item, exp.Alias):
                operand = self.expressions.at(item, "this", scope)
            else:
                operand = self.expressions.in_list(node, item, scope)
                if named:
                    _name(node, operand.node, name)
            bare[name] = operand
            if columns is not None:
                columns.append((name, operand.type))
        self._group(node, scope, bare)
        distinct = node.args.get("distinct")
        if distinct is not None:
            if distinct.args.get("on") is not None:
                raise t.refuse("SELECT DISTINCT ON")
            _distinct(columns, "DISTINCT")
        self._order(node, scope, columns, bare if columns is not None else None)
        return columns

    def _from(self, node: exp.Select, scope: Scope, visible: Scope) -> None:
        clause = node.args.get("from_") or node.args.get("from")
        if clause is not None:
            scope.sources.append(self.source(clause.this, visible))
            self._joins(clause.this, scope, visible)
        self._joins(node, scope, visible)
        if node.args.get("laterals"):
            raise t.refuse("LATERAL")

    def _joins(self, node: exp.Expression, scope: Scope, visible: Scope) -> None:
        for join in node.args.get("joins") or ():
            if join.args.get("method"):
                raise t.refuse(f"{join.args['method']} JOIN")
            scope.sources.append(self.source(join.this, visible))
            self._joins(join.this, scope, visible)
            if join.args.get("on") is not None:
                self.expressions.condition(join, "on", scope, "JOIN/ON")
            for column in join.args.get("using") or ():
                self._using(column.name, scope)

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
    ) -> Source:
        """Spark's name is one that no column has: a column ``t`` would hide a table."""
        name = node.alias_or_name
        if columns is None or not rename:
            return Source(name, columns, name)
        spark_name = f"{name}@{next(self._numbers)}"
        identifier = exp.to_identifier(spark_name, quoted=True)
        alias = node.args.get("alias")
        if alias is None:
            node.set("alias", exp.TableAlias(this=identifier))
        else:
            alias.set("this", identifier)
        return Source(name, columns, spark_name)

    def source(
        self, node: exp.Expression, visible: Scope, rename: bool = True
    ) -> Source:
        alias = node.args.get("alias")
        if isinstance(node, exp.Table):
            if isinstance(node.this, exp.ExplodingGenerateSeries):
                return self._series(node, visible, rename)
            if not isinstance(node.this, exp.Identifier):
                raise t.refuse("a function in FROM")
            table = node.meta.get(TABLE_MARK)
            if isinstance(table, TableDef):
                columns: Columns | None = [
                    (c.name, t.of_column(c)) for c in table.columns
                ]
            else:
                _, columns = visible.cte(node.name)
            return self._named(node, _renamed(columns, alias), rename)
        if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Query):
            # Parentheses around joins.
            raise t.refuse("a join in parentheses")
        if isinstance(node, (exp.Subquery, exp.Values)):
            columns = self.query(node, visible)
            return self._named(node, _renamed(columns, alias), rename)
        raise t.refuse(f"{node.key.upper()} in FROM")

    def _series(self, node: exp.Table, visible: Scope, rename: bool) -> Source:
        """generate_series() in FROM: a query, and a column that has the table's name."""
        operand = self.expressions.visit(node.this, visible)
        alias = node.args.get("alias")
        if alias is None:
            alias = exp.TableAlias(this=exp.to_identifier("generate_series"))
        name = alias.columns[0].name if alias.columns else alias.name
        column = exp.Alias(
            this=operand.node, alias=exp.to_identifier(name, quoted=True)
        )
        query = exp.Subquery(
            this=exp.Select(expressions=[column]),
            alias=exp.TableAlias(this=alias.this),
            joins=node.args.get("joins"),
        )
        node.replace(query)
        return self._named(query, [(name, operand.type)], rename)

    def _group(
        self, node: exp.Select, scope: Scope, outputs: dict[str, Operand]
    ) -> None:
        clause = node.args.get("group")
        if clause is None:
            return
        if any(clause.args.get(k) for k in ("cube", "rollup", "grouping_sets")):
            raise t.refuse(
                "GROUPING SETS, CUBE and ROLLUP", "Use GROUP BY and UNION ALL."
            )
        for item in list(clause.expressions):
            if isinstance(item, exp.Literal) and not item.is_string:
                place = int(item.name) - 1
                if 0 <= place < len(node.expressions):
                    operand = outputs.get(node.expressions[place].alias_or_name)
                    if operand is not None:
                        casts.group_operand(operand, "GROUP BY")
                continue
            name = item.name if isinstance(item, exp.Column) and not item.table else ""
            if name in outputs and scope._find(name, "") is None:
                casts.group_operand(outputs[name], "GROUP BY")
                continue
            operand = self.expressions.in_list(clause, item, scope)
            casts.group_operand(operand, "GROUP BY")

    def _order(
        self,
        node: exp.Expression,
        scope: Scope,
        columns: Columns | None,
        outputs: dict[str, Operand] | None,
    ) -> None:
        """ORDER BY: an output column by name or number, else an expression on the input."""
        clause = node.args.get("order")
        if clause is None:
            return
        for ordered in clause.expressions:
            item = ordered.this
            if isinstance(item, exp.Literal) and not item.is_string:
                place = int(item.name) - 1
                if columns is None or not 0 <= place < len(columns):
                    continue
                name, kind = columns[place]
                projected = _projection(node, place)
                operand = Operand(projected or _output(name), kind)
                key = casts.order_operand(operand, self._zone)
                if key is not operand.node:
                    ordered.set("this", key.copy())
                continue
            name = item.name if isinstance(item, exp.Column) and not item.table else ""
            known = dict(columns or ())
            if name and outputs is None and name in known:
                operand = Operand(_output(name), known[name])
            elif name and outputs is not None and name in outputs:
                found = outputs[name]
                operand = Operand(found.node.copy(), found.type)
                if casts.order_operand(found, self._zone) is found.node:
                    continue
            else:
                operand = self.expressions.at(ordered, "this", scope)
            ordered.set("this", casts.order_operand(operand, self._zone))

    # ---- UNION, VALUES --------------------------------------------------------------

    def _set_operation(self, node: exp.SetOperation, outer: Scope) -> Columns | None:
        scope = self._with(node, outer)
        left, right = (self.query(side, scope) for side in (node.this, node.expression))
        if left is None or right is None:
            return None
        word = node.key.upper()
        if len(left) != len(right):
            raise UsageError(
                f"each {word} query must have the same number of columns",
                sqlstate="42601",
            )
        columns: Columns = []
        for place, ((name, a), (_, b)) in enumerate(zip(left, right, strict=True)):
            kind = casts.common_type([a, b], word)
            for side, own in ((node.this, a), (node.expression, b)):
                self._retype(side, place, own, kind)
            columns.append((name, kind))
        if node.args.get("distinct"):
            _distinct(columns, word)
        self._order(node, Scope(outer=scope), columns, None)
        return columns

    def _retype(self, node: exp.Expression, place: int, own: Type, kind: Type) -> None:
        """Give a query's column another type."""
        if own.computed() == kind.computed():
            return
        while isinstance(node, exp.Subquery):
            node = node.this
        if isinstance(node, exp.SetOperation):
            self._retype(node.this, place, own, kind)
            self._retype(node.expression, place, own, kind)
            return
        rows = [node] if isinstance(node, exp.Select) else list(node.expressions)
        for row in rows:
            item = row.expressions[place] if place < len(row.expressions) else None
            if item is None or any(i.is_star for i in row.expressions):
                raise t.refuse("UNION of * with columns of different types")
            value = item.this if isinstance(item, exp.Alias) else item
            operand = casts.as_common(Operand(value.copy(), own), kind, self._zone)
            value.replace(operand.node)
            if isinstance(value, exp.Column) and isinstance(row, exp.Select):
                _name(row, row.expressions[place], value.name)

    def _values(self, node: exp.Values, outer: Scope) -> Columns | None:
        rows = node.expressions
        width = len(rows[0].expressions)
        if any(len(row.expressions) != width for row in rows):
            raise UsageError(
                "VALUES lists must all be the same length", sqlstate="42601"
            )
        columns: Columns = []
        for place in range(width):
            operands = [
                self.expressions.in_list(row, row.expressions[place], outer)
                for row in rows
            ]
            kinds = [o.type for o in operands]
            if all(k.oid == t.UNKNOWN for k in kinds):
                columns.append((f"column{place + 1}", t.LITERAL))
                continue
            same = casts.common(operands, "VALUES", self._zone)
            for row, operand in zip(rows, same, strict=True):
                items = list(row.expressions)
                items[place] = operand.node
                row.set("expressions", items)
            columns.append((f"column{place + 1}", same[0].type))
        return columns


def _renamed(columns: Columns | None, alias: exp.Expression | None) -> Columns | None:
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


def _name(node: exp.Expression, item: exp.Expression, name: str) -> None:
    """Give a computed item of a select list PostgreSQL's name."""
    if isinstance(item, exp.Column) and item.name == name:
        return
    items = [
        exp.Alias(this=e, alias=exp.to_identifier(name, quoted=True))
        if e is item
        else e
        for e in node.expressions
    ]
    node.set("expressions", items)


def _output(name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def _projection(node: exp.Expression, place: int) -> exp.Expression | None:
    if not isinstance(node, exp.Select) or any(i.is_star for i in node.expressions):
        return None
    item = node.expressions[place]
    found: exp.Expression = item.this if isinstance(item, exp.Alias) else item
    return found


def _distinct(columns: Columns | None, what: str) -> None:
    for name, kind in columns or ():
        if kind.oid != t.UNKNOWN:
            casts.group_operand(Operand(_output(name), kind), what)
