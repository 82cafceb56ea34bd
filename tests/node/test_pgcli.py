"""What pgcli 4.7.1 asks when it connects (names for its completion), and for ``\\d``, ``\\dt`` and
``\\d of_pgcli``: ``fixtures/pgcli_queries.json``, with its parameters as it binds them. The node's
answers have PostgreSQL's columns, and its rows of the same table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
from tests.conftest import Database

from wal2lake.launch.directory.passfile import connection_parameters, conninfo
from wal2lake.testing.node import Node

_QUERIES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "fixtures" / "pgcli_queries.json").read_text()
)


def _answers(server: str) -> list[Any]:
    """Of each query its columns, and those rows that name the table or a part of it."""
    found: list[Any] = []
    with psycopg.connect(server, autocommit=True) as session:
        session.execute(
            "create table of_pgcli (of_pgcli_id int primary key, of_pgcli_text text,"
            " of_pgcli_number numeric(10,2) not null default 1.5)"
        )
        asked = session.execute("select 'of_pgcli'::regclass::oid").fetchone()
        assert asked is not None
        its_own = {session.info.user: "OWNER", asked[0]: "OID"}
        for one in _QUERIES:
            sql = one["sql"].replace("{table}", str(asked[0]))
            cursor = session.execute(sql, one.get("params"))
            rows = [
                tuple(its_own.get(v, v) if isinstance(v, str | int) else v for v in row)
                for row in cursor
                if "of_pgcli" in str(row)
            ]
            columns = [(c.name, c.type_code) for c in cursor.description or ()]
            found.append((sql.split("\n")[0], columns, sorted(map(str, rows))))
        session.execute("drop table of_pgcli")
    return found


def test_pgcli_finds_what_it_completes_and_describes(
    node: Node, pg18: Database
) -> None:
    theirs = _answers(pg18.conninfo())
    ours = _answers(conninfo(connection_parameters(node.directory)))
    assert ours == theirs
    assert sum(len(rows) for _, _, rows in ours) > 10
