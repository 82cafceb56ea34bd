"""EXPLAIN: the formats of a plan, and the errors of options, are PostgreSQL's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.engine.session.explain.rendering import (
    PlanNode,
    PlanProperty,
    PlanValue,
    rendered,
)
from wal2lake.errors import UsageError
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.explaining import Explain, ExplainFormat, explain_options

TABLES = """
create table t (id int primary key, v text, "Odd & <Name>" int);
create table u (id int, w text);
insert into t select i, 'v' || i, i from generate_series(1, 100) i;
analyze t
"""

QUERIES = (
    "select * from t",
    'select * from t where v = \'a "quoted" <b> & c\\\' and "Odd & <Name>" > 3 order by v desc, id',
    "select count(*), v from t join u using (id) group by v having count(*) > 1 limit 3",
    "select * from t where id in (select id from u union all select 1) order by v, id offset 1",
    "insert into u select id, v from t",
    "update t set v = 'x' where id = 1",
    "values (1), (2)",
)


@pytest.fixture
def server(pg18: Database) -> Iterator[Any]:
    with psycopg.connect(pg18.conninfo(), autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def plan_of(connection: Any, query: str, form: str) -> str:
    connection.execute("set enable_hashjoin = off")
    rows = connection.execute(f"explain (format {form}, summary off) {query}")
    return "\n".join(
        row[0] if isinstance(row[0], str) else json.dumps(row[0]) for row in rows
    )


def raw_json(connection: Any, query: str) -> str:
    connection.adapters.register_loader("json", psycopg.types.string.TextLoader)
    return plan_of(connection, query, "json")


def as_node(plan: dict[str, Any]) -> PlanNode:
    children = tuple(map(as_node, plan.pop("Plans", ())))
    properties = tuple(
        PlanProperty(name, value_of(value)) for name, value in plan.items()
    )
    return PlanNode(plan["Node Type"], properties, children)


def value_of(value: Any) -> PlanValue:
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("query", QUERIES)
def test_documents(server: Any, query: str) -> None:
    theirs = raw_json(server, query)
    plan = as_node(json.loads(theirs, parse_float=Decimal)[0]["Plan"])
    assert rendered(plan, [], ExplainFormat.JSON) == [theirs]
    for form in (ExplainFormat.XML, ExplainFormat.YAML):
        assert rendered(plan, [], form) == [plan_of(server, query, form.value)]


@pytest.mark.parametrize("query", QUERIES)
def test_lines(server: Any, query: str) -> None:
    """The steps stand where PostgreSQL's stand."""
    plan = as_node(json.loads(raw_json(server, query))[0]["Plan"])
    theirs = plan_of(server, query, "text").split("\n")
    ours = rendered(plan, [], ExplainFormat.TEXT)
    arrows = [
        [line.index("->") for line in lines if "->" in line] for lines in (ours, theirs)
    ]
    assert arrows[0] == arrows[1]
    behind = [len(line) - len(line.lstrip()) for line in ours if "Node Type" in line]
    assert behind == [2, *(place + 6 for place in arrows[1])]


STATEMENTS = """
explain (foo) select 1;
explain (analyze maybe) select 1;
explain (analyze 2) select 1;
explain (format) select 1;
explain (format foo) select 1;
explain (format 'JSON') select 1;
explain (verbose, format json, format nothing) select 1;
explain (serialize foo) select 1;
explain (serialize) select 1;
explain (serialize none) select 1;
explain (timing) select 1;
explain (timing off) select 1;
explain (wal) select 1;
explain (analyze off, wal on) select 1;
explain (analyze, generic_plan) select 1;
explain (generic_plan on, buffers, memory, settings, summary, costs off) select 1;
explain (analyze, serialize binary, timing false, buffers off, wal) select 1;
explain (ANALYZE 1, "verbose" true) select 1;
explain (select 1);
explain ((select 1));
explain (with x as (select 1) select * from x);
explain (values (1));
explain analyze (select 1);
explain analyse verbose select 1;
explain verbose select 1
"""


@pytest.mark.parametrize("sql", STATEMENTS.strip().split(";\n"))
def test_options(server: Any, sql: str) -> None:
    """The options that PostgreSQL refuses are refused with its error."""
    outcomes: list[tuple[object, ...] | None] = []
    try:
        server.execute(sql)
    except psycopg.Error as error:
        diag = error.diag
        place = int(diag.statement_position or 0)
        outcomes.append((diag.sqlstate, diag.message_primary, place))
    else:
        outcomes.append(None)
    statement = parse(sql)
    assert isinstance(statement, Explain)
    assert statement.query.lstrip("(").startswith(("select 1", "values", "with"))
    assert sql[statement.query_start :] == statement.query
    try:
        explain_options(statement.options)
    except UsageError as error:
        outcomes.append((error.sqlstate, error.message, error.position or 0))
    else:
        outcomes.append(None)
    assert outcomes[0] == outcomes[1]
