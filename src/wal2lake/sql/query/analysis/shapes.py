"""Checks the clauses of a SELECT, and rewrites DISTINCT ON and FETCH ... WITH TIES.

Comes in: a SELECT. Goes out: an equivalent SELECT without the forms that Spark lacks. Called by
``queries``.

Source: PostgreSQL manual, SELECT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.sql.query.values import types as t


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SUPPORTED_ARGUMENTS: Final = {
    exp.Select: _names(
        "with_ with expressions distinct from_ from joins laterals where group having"
        " windows order limit offset locks operation_modifiers"
    ),
    exp.Table: _names("this db catalog alias joins version only ordinality"),
    exp.Join: _names("this on using side kind method"),
    exp.Group: _names("expressions"),
    exp.Window: _names("this partition_by order spec alias over"),
    exp.WindowSpec: _names("kind start start_side end end_side"),
}
"""The arguments of nodes that this package reads.

sqlglot also parses clauses of other dialects, and leaves out what Spark lacks when it prints. A
clause that is not read here is refused, and not left out in silence.
"""


def check(node: exp.Select) -> None:
    """Raise 0A000 for a clause without a rule."""
    parts: list[exp.Expression] = [node]
    for name in ("from_", "joins", "group", "windows", "expressions"):
        clause = node.args.get(name)
        for part in clause if isinstance(clause, list) else [clause]:
            if isinstance(part, exp.Expression):
                parts.extend(part.walk())
    for part in parts:
        supported = _SUPPORTED_ARGUMENTS.get(type(part))
        for name, value in part.args.items() if supported is not None else ():
            if value and name not in (supported or ()):
                word = name.strip("_").replace("_", " ").upper()
                raise t.refuse(f"{word} in SELECT")
    limit = node.args.get("limit")
    if isinstance(limit, exp.Fetch):
        options = limit.args.get("limit_options")
        if options is not None and options.args.get("percent"):
            raise t.refuse("FETCH with PERCENT")


def check_generators(node: exp.Select) -> None:
    """Allow one set-returning function, alone in its column: Spark would multiply several."""
    count = 0
    for item in node.expressions:
        value = item.unalias()
        for generator in value.find_all(exp.Explode):
            if generator.find_ancestor(exp.Select) is not node:
                continue
            count += 1
            if generator is not value:
                raise t.refuse("a function that returns rows inside an expression")
    if count > 1:
        raise t.refuse("several functions that return rows in a select list")


def is_unambiguous(node: exp.Expression, name: str) -> bool:
    """Whether all output columns of this name have the same expression."""
    items = [item for item in node.expressions if item.alias_or_name == name]
    return all(item.unalias() == items[0].unalias() for item in items)


def check_unambiguous(node: exp.Expression, name: str, clause: str) -> None:
    """Raise 42702 for a name of two different output columns."""
    if not is_unambiguous(node, name):
        raise UsageError(f'{clause} "{name}" is ambiguous', sqlstate="42702")


def is_recursive(cte: exp.CTE) -> bool:
    """Whether a query of WITH RECURSIVE is recursive."""
    return any(
        table.name == cte.alias and not table.db
        for table in cte.this.find_all(exp.Table)
    )


def with_ties(node: exp.Select) -> bool:
    """Whether the SELECT has FETCH FIRST n ROWS WITH TIES."""
    limit = node.args.get("limit")
    options = limit.args.get("limit_options") if isinstance(limit, exp.Fetch) else None
    return options is not None and bool(options.args.get("with_ties"))


def order_of(node: exp.Select) -> Sequence[exp.Expression]:
    """The items of ORDER BY."""
    clause = node.args.get("order")
    return clause.expressions if clause is not None else ()


def ranked(node: exp.Select, keys: Sequence[exp.Expression]) -> None:
    """Keep the first row for each value of ``keys``; without keys, the first rows with ties.

    The SELECT becomes a subquery that also gives the rank of each row and the keys of ORDER BY. The
    outer query tests the rank.
    """
    order = order_of(node)
    if keys:
        _check_distinct_on(node, keys, order)
    else:
        _check_with_ties(node, order)
    names = ["wal2lake rank", *(f"wal2lake order {i}" for i in range(len(order)))]
    hidden = [exp.to_identifier(name, quoted=True) for name in names]
    inner = _with_rank(node, keys, order, hidden)
    for place, ordered in enumerate(order):
        ordered.set("this", exp.Column(this=hidden[place + 1].copy()))
    count = exp.Literal.number(1) if keys else _count_of_ties(node)
    kept_clauses = ["with_", "with", "order", "offset", *(["limit"] if keys else [])]
    kept = {name: node.args.get(name) for name in kept_clauses}
    node.args.clear()
    for name, value in kept.items():
        if value is not None:
            node.set(name, value)
    node.set("expressions", [exp.Star(except_=[name.copy() for name in hidden])])
    whole = exp.Subquery(
        this=inner, alias=exp.TableAlias(this=exp.to_identifier("ranked", quoted=True))
    )
    node.set("from_", exp.From(this=whole))
    test = exp.LTE(this=exp.Column(this=hidden[0].copy()), expression=count.copy())
    node.set("where", exp.Where(this=test))


def _check_distinct_on(
    node: exp.Select,
    keys: Sequence[exp.Expression],
    order: Sequence[exp.Expression],
) -> None:
    if with_ties(node):
        raise t.refuse("DISTINCT ON and WITH TIES")
    if any(ordered.this not in keys for ordered in order[: len(keys)]):
        raise UsageError(
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
            sqlstate="42P10",
        )


def _check_with_ties(node: exp.Select, order: Sequence[exp.Expression]) -> None:
    if not order:
        raise UsageError(
            "WITH TIES cannot be specified without ORDER BY clause", sqlstate="42601"
        )
    if node.args.get("offset") is not None:
        raise t.refuse("OFFSET and WITH TIES")
    if node.args.get("distinct") is not None:
        raise t.refuse("DISTINCT and WITH TIES")


def _with_rank(
    node: exp.Select,
    keys: Sequence[exp.Expression],
    order: Sequence[exp.Expression],
    hidden: Sequence[exp.Identifier],
) -> exp.Select:
    """The subquery: its columns ``hidden`` are the rank and the keys of ORDER BY."""
    rank = exp.Window(
        this=exp.RowNumber() if keys else exp.Rank(),
        partition_by=[key.copy() for key in keys],
        order=exp.Order(
            expressions=[o.copy() for o in order]
            or [exp.Ordered(this=key.copy()) for key in keys]
        ),
        over="OVER",
    )
    inner = exp.Select(
        **{
            name: value
            for name, value in node.args.items()
            if name not in ("order", "limit", "offset", "distinct", "with_", "with")
        }
    )
    hidden_values = [rank, *(o.this.copy() for o in order)]
    hidden_items = [
        exp.Alias(this=value, alias=name.copy())
        for value, name in zip(hidden_values, hidden, strict=True)
    ]
    inner.set("expressions", [*inner.expressions, *hidden_items])
    return inner


def _count_of_ties(node: exp.Select) -> exp.Literal:
    """The number of FETCH FIRST n ROWS WITH TIES; raises 0A000 if it is not constant."""
    limit = node.args.get("limit")
    assert isinstance(limit, exp.Fetch)
    count = limit.args.get("count") or exp.Literal.number(1)
    if not isinstance(count, exp.Literal):
        raise t.refuse("WITH TIES with a number that is not constant")
    return count
