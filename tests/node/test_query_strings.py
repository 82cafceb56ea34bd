"""Of a query string that does not parse nothing is executed, also not what commits before that."""

from __future__ import annotations

import psycopg
import pytest

from wal2lake.testing.node import Node


@pytest.mark.parametrize(
    "end", ["selekt", "create publication for table whole", "alter table"]
)
def test_nothing_of_it_is_executed(node: Node, end: str) -> None:
    node.sql("create table whole (id int)")
    try:
        with psycopg.connect(node.conninfo(), autocommit=True) as client:
            with pytest.raises(psycopg.errors.SyntaxError) as refused:
                client.execute(f"begin; insert into whole values (1); commit; {end}")
            assert int(refused.value.diag.statement_position or 0) > 40
            assert client.execute("select count(*) from whole").fetchall() == [(0,)]
            # What cannot be done is another matter: it is found when its turn has come.
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                client.execute(
                    "begin; insert into whole values (2); commit; vacuum full"
                )
            assert client.execute("select id from whole").fetchall() == [(2,)]
    finally:
        node.sql("drop table whole")
