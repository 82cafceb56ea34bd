"""Analyses queries: opens scopes, translates expressions and collects the result's columns.

Comes in: a tree whose table nodes have their definitions (``translate.place_tables``). Goes out:
the tree, rewritten in place, and the names and types of its columns. Called by ``translate``.

Sources: PostgreSQL manual, SELECT, VALUES, 7.5 (what ORDER BY and GROUP BY may name), 10.5.
"""

from __future__ import annotations

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.sql.query.analysis import shapes
from wal2lake.sql.query.analysis.expressions import ExpressionAnalysis
from wal2lake.sql.query.analysis.names import figure_name
from wal2lake.sql.query.analysis.scopes import Columns, Scope
from wal2lake.sql.query.analysis.sources import FromAnalysis, renamed
from wal2lake.sql.query.values import casts, output
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand, Type


def analyse(tree: exp.Expression, zone: str) -> Columns | None:
    """Rewrite a query in place; return the result's columns, or None if they are not known."""
    columns = QueryAnalysis(zone, tree).query(tree, Scope())
    if columns is None:
        return None
    return [
        (name, t.plain(t.TEXT) if kind.oid == t.UNKNOWN else kind)
        for name, kind in columns
    ]


class QueryAnalysis:
    """The analysis of one statement."""

    def __init__(self, zone: str, root: exp.Expression) -> None:
        self._zone = zone
        self._root = root
        self.expressions = ExpressionAnalysis(zone, self.query)
        self.sources = FromAnalysis(self.expressions, self.query)

    # ---- statements -------------------------------------------------------------

    def query(self, node: exp.Expression, outer: Scope) -> Columns | None:
        """Analyse a query of any form."""
        if isinstance(node, exp.Subquery):
            scope = self.visible(node, outer)
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
            return self.sources.source(node, outer).columns
        raise t.refuse(f"{node.key.upper()}")

    def visible(self, node: exp.Expression, outer: Scope) -> Scope:
        """Analyse the queries of a WITH clause; return the scope that has their names."""
        clause = node.args.get("with_") or node.args.get("with")
        if clause is None:
            return outer
        scope = Scope(outer=outer)
        for cte in clause.expressions:
            if not isinstance(cte.this, exp.Query):
                raise t.refuse("a data-modifying statement in WITH")
            if clause.recursive and shapes.is_recursive(cte):
                self._recursive(cte, scope)
                continue
            columns = self.query(cte.this, scope)
            scope.ctes[cte.alias] = renamed(columns, cte.args.get("alias"))
        return scope

    def _recursive(self, cte: exp.CTE, scope: Scope) -> None:
        """Analyse a recursive query of WITH; its name has the columns of the first part."""
        union = cte.this
        if not isinstance(union, exp.Union) or union.args.get("distinct"):
            raise t.refuse("WITH RECURSIVE without UNION ALL")
        if any(union.args.get(k) for k in ("order", "limit", "offset", "with_")):
            raise t.refuse("ORDER BY, LIMIT or WITH in a recursive query")
        first = self.query(union.this, scope)
        columns = renamed(first, cte.args.get("alias"))
        scope.ctes[cte.alias] = columns
        second = self.query(union.expression, scope)
        if columns is None or second is None:
            raise t.refuse("WITH RECURSIVE with columns that are not known")
        if [k.computed() for _, k in columns] != [k.computed() for _, k in second]:
            raise t.refuse("WITH RECURSIVE whose parts have columns of different types")

    # ---- SELECT --------------------------------------------------------------------

    def _select(self, node: exp.Select, outer: Scope) -> Columns | None:
        shapes.check(node)
        visible = self.visible(node, outer)
        scope = Scope(outer=visible)
        self.sources.of_select(node, scope, visible)
        for clause, word in (("where", "WHERE"), ("having", "HAVING")):
            condition = node.args.get(clause)
            if condition is not None:
                self.expressions.condition(condition, "this", scope, word)
        for window in node.args.get("windows") or ():
            self.expressions.aggregates.window(window, scope)
        written = _written_items(node)
        columns, outputs = self.select_list(node, scope)
        shapes.check_generators(node)
        self._group(node, scope, outputs, written)
        distinct = node.args.get("distinct")
        distinct_on = distinct.args.get("on") if distinct is not None else None
        if distinct is not None and distinct_on is None:
            _check_distinct(columns, "DISTINCT")
        keys = []
        for key in distinct_on.expressions if distinct_on is not None else ():
            operand = self._output_or_input(node, key, scope, outputs)
            keys.append(casts.order_operand(operand, self._zone).copy())
        self._order(node, scope, columns, outputs if columns is not None else None)
        if distinct_on is not None or shapes.with_ties(node):
            for ordered in shapes.order_of(node):
                self._spell_out(node, ordered, outputs)
            shapes.ranked(node, keys)
        return columns

    def select_list(
        self, node: exp.Select, scope: Scope
    ) -> tuple[Columns | None, dict[str, Operand]]:
        """Analyse a select list; return the result's columns, and the computed ones by name.

        The columns are None if the columns of a ``*`` are not known.
        """
        columns: Columns | None = []
        outputs: dict[str, Operand] = {}
        # Only a name that another part of the statement can use needs to be set.
        named = node is not self._root or any(
            node.args.get(clause) is not None for clause in ("order", "group")
        )
        for item in list(node.expressions):
            star = item if isinstance(item, exp.Star) else item.this
            if isinstance(item, exp.Star) or (
                isinstance(item, exp.Column) and isinstance(star, exp.Star)
            ):
                table = item.table if isinstance(item, exp.Column) else ""
                star_columns = scope.star(table)
                if isinstance(item, exp.Column):
                    item.set("table", scope.spark_name(table))
                if star_columns is None or columns is None:
                    columns = None
                else:
                    columns += star_columns
                continue
            name = figure_name(item) or "?column?"
            operand = self._select_item(node, item, scope, name if named else None)
            outputs[name] = operand
            if columns is not None:
                columns.append((name, operand.type))
        return columns, outputs

    def _select_item(
        self, node: exp.Select, item: exp.Expression, scope: Scope, name: str | None
    ) -> Operand:
        """Analyse an expression of the select list; name it ``name`` unless it has an alias."""
        if isinstance(item, exp.Alias):
            operand = self._text_of_row(self.expressions.at(item, "this", scope))
            item.set("this", operand.node)
            return operand
        whole = self.expressions.in_list(node, item, scope)
        operand = self._text_of_row(whole)
        if operand is not whole:
            whole.node.replace(operand.node)
        if name is not None:
            _set_name(node, operand.node, name)
        return operand

    def _output_or_input(
        self,
        node: exp.Select,
        item: exp.Expression,
        scope: Scope,
        outputs: dict[str, Operand],
    ) -> Operand:
        """A key of DISTINCT ON: an output column by name or number, or an input expression."""
        if isinstance(item, exp.Literal) and not item.is_string:
            place = int(item.name) - 1
            if not 0 <= place < len(node.expressions):
                raise UsageError(
                    f"SELECT DISTINCT ON position {item.name} is not in select list",
                    sqlstate="42P10",
                )
            name = node.expressions[place].alias_or_name
            output = outputs.get(name)
            if output is None or not shapes.is_unambiguous(node, name):
                raise t.refuse("DISTINCT ON with the number of a column")
            return output
        name = item.name if isinstance(item, exp.Column) and not item.table else ""
        if name in outputs:
            shapes.check_unambiguous(node, name, "DISTINCT ON")
            return outputs[name]
        return self.expressions.visit(item.copy(), scope)

    def _spell_out(
        self, node: exp.Select, ordered: exp.Expression, outputs: dict[str, Operand]
    ) -> None:
        """Replace an output column in ORDER BY by its expression, which a window can use, too."""
        item = ordered.this
        if isinstance(item, exp.Literal) and not item.is_string:
            projected = _projection(node, int(item.name) - 1)
            if projected is None:
                raise t.refuse("ORDER BY with the number of a column of *")
            ordered.set("this", projected.copy())
        elif isinstance(item, exp.Column) and not item.table and item.name in outputs:
            shapes.check_unambiguous(node, item.name, "ORDER BY")
            ordered.set("this", outputs[item.name].node.copy())

    def _text_of_row(self, operand: Operand) -> Operand:
        """Convert a row in the select list to text; the result's type is record."""
        if operand.type.fields is None:
            return operand
        return Operand(output.output_of(operand, self._zone), t.plain(t.RECORD))

    def _group(
        self,
        node: exp.Select,
        scope: Scope,
        outputs: dict[str, Operand],
        written: list[exp.Expression],
    ) -> None:
        clause = node.args.get("group")
        if clause is None:
            return
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
            if not isinstance(item, exp.Column) and item in written:
                # Spark does not always find that two long expressions are equal.
                place = written.index(item)
                operand = outputs.get(node.expressions[place].alias_or_name)
                if operand is not None:
                    casts.group_operand(operand, "GROUP BY")
                    item.replace(exp.Literal.number(place + 1))
                    continue
            self._group_item(clause, item, scope)

    def _group_item(
        self, parent: exp.Expression, item: exp.Expression, scope: Scope
    ) -> None:
        """Analyse one expression, or those in ROLLUP, CUBE, GROUPING SETS or parentheses."""
        if isinstance(item, exp.Paren) and not isinstance(parent, exp.Group):
            casts.group_operand(self.expressions.at(item, "this", scope), "GROUP BY")
            return
        if isinstance(item, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)):
            if isinstance(parent, exp.Group) and not item.expressions:
                raise t.refuse("GROUP BY ()")
            for inner in list(item.expressions):
                if isinstance(inner, exp.Literal):
                    raise t.refuse(
                        "numbers of columns in ROLLUP, CUBE and GROUPING SETS"
                    )
                self._group_item(item, inner, scope)
            return
        operand = self.expressions.in_list(parent, item, scope)
        casts.group_operand(operand, "GROUP BY")

    def _order(
        self,
        node: exp.Expression,
        scope: Scope,
        columns: Columns | None,
        outputs: dict[str, Operand] | None,
    ) -> None:
        """Analyse ORDER BY: output columns by name or number, or input expressions."""
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
            types = dict(columns or ())
            if name and outputs is None and name in types:
                operand = Operand(_output(name), types[name])
            elif name and outputs is not None and name in outputs:
                output_operand = outputs[name]
                operand = Operand(output_operand.node.copy(), output_operand.type)
                if (
                    casts.order_operand(output_operand, self._zone)
                    is output_operand.node
                ):
                    continue
                shapes.check_unambiguous(node, name, "ORDER BY")
            else:
                operand = self.expressions.at(ordered, "this", scope)
            ordered.set("this", casts.order_operand(operand, self._zone))

    # ---- UNION, VALUES --------------------------------------------------------------

    def _set_operation(self, node: exp.SetOperation, outer: Scope) -> Columns | None:
        scope = self.visible(node, outer)
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
            for side, side_type in ((node.this, a), (node.expression, b)):
                self._retype(side, place, side_type, kind)
            columns.append((name, kind))
        if node.args.get("distinct"):
            _check_distinct(columns, word)
        self._order(node, Scope(outer=scope), columns, None)
        return columns

    def _retype(self, node: exp.Expression, place: int, old: Type, new: Type) -> None:
        """Convert a column of a query to another type."""
        if old.computed() == new.computed():
            return
        while isinstance(node, exp.Subquery):
            node = node.this
        if isinstance(node, exp.SetOperation):
            self._retype(node.this, place, old, new)
            self._retype(node.expression, place, old, new)
            return
        rows = [node] if isinstance(node, exp.Select) else list(node.expressions)
        for row in rows:
            item = row.expressions[place] if place < len(row.expressions) else None
            if item is None or any(i.is_star for i in row.expressions):
                raise t.refuse("UNION of * with columns of different types")
            value = item.this if isinstance(item, exp.Alias) else item
            operand = casts.as_common(Operand(value.copy(), old), new, self._zone)
            value.replace(operand.node)
            if isinstance(value, exp.Column) and isinstance(row, exp.Select):
                _set_name(row, row.expressions[place], value.name)

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
            converted = casts.common(operands, "VALUES", self._zone)
            for row, operand in zip(rows, converted, strict=True):
                items = list(row.expressions)
                items[place] = operand.node
                row.set("expressions", items)
            columns.append((f"column{place + 1}", converted[0].type))
        return columns


def _written_items(node: exp.Select) -> list[exp.Expression]:
    """The select list before the analysis; empty if a ``*`` changes the positions."""
    if any(item.is_star for item in node.expressions):
        return []
    return [item.unalias().copy() for item in node.expressions]


def _set_name(node: exp.Expression, item: exp.Expression, name: str) -> None:
    """Give a computed item of a select list the name that PostgreSQL gives."""
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
    projected: exp.Expression = item.this if isinstance(item, exp.Alias) else item
    return projected


def _check_distinct(columns: Columns | None, operation: str) -> None:
    for name, kind in columns or ():
        if kind.oid != t.UNKNOWN:
            casts.group_operand(Operand(_output(name), kind), operation)
