"""Replication origins of clients that replay another system's transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client
from wal2lake.testing.node import Node

F = "select pg_replication_origin_"


def refusal(session: Node | Client, sql: str) -> tuple[str, str]:
    run = session.sql if isinstance(session, Node) else session.rows
    with pytest.raises(PublisherError) as refused:
        run(sql)
    return refused.value.sqlstate, refused.value.message


@pytest.mark.slow
def test_a_session_replays_from_an_origin(
    lend_node: Callable[[Path], Node], tmp_path: Path
) -> None:
    node = lend_node(tmp_path)
    node.sql("create table t (id int primary key, v text)")
    node.sql("create table u (id int)")
    node.sql("select pg_create_logical_replication_slot('all', 'wal2json')")
    node.sql("select pg_create_logical_replication_slot('own', 'test_decoding')")
    ((number,),) = node.sql(F + "create('elsewhere')")
    assert node.sql(F + "oid('elsewhere')") == [(number,)]
    assert node.sql(F + "oid('nowhere')") == [(None,)]
    assert node.sql("select * from pg_replication_origin") == [(number, "elsewhere")]
    assert node.sql(F + "progress('elsewhere', true)") == [(None,)]
    missing = ("42704", 'replication origin "nowhere" does not exist')
    for call in ("drop('nowhere')", "session_setup('nowhere')"):
        assert refusal(node, F + call) == missing
    assert refusal(node, F + "progress('nowhere', false)") == missing
    assert refusal(node, F + "create('elsewhere')")[0] == "23505"
    for name in ("pg_1", "any", "None"):
        assert refusal(node, f"{F}create('{name}')") == (
            "42939",
            f'replication origin name "{name}" is reserved',
        )
    too_long = ("54000", "replication origin name is too long")
    assert refusal(node, f"{F}create('{'x' * 513}')") == too_long
    none = ("55000", "no replication origin is configured")
    with node.connect() as session, node.connect() as other:
        assert session.rows(F + "session_is_setup()") == [("f",)]
        for call in ("session_reset()", "session_progress(true)"):
            assert refusal(session, F + call) == none
        # This one PostgreSQL takes.
        assert session.rows(F + "xact_reset()") == [("",)]
        assert refusal(session, F + "xact_setup('0/1', now())") == none
        session.rows(F + "session_setup('elsewhere')")
        assert session.rows(F + "session_is_setup()") == [("t",)]
        assert refusal(session, F + "session_setup('elsewhere')") == (
            "55000",
            "cannot setup replication origin when one is already setup",
        )
        (pid,) = session.rows("select pg_backend_pid()")[0]
        assert refusal(other, F + "session_setup('elsewhere')") == (
            "55006",
            f"replication origin with ID {number} is already active for PID {pid}",
        )
        assert refusal(other, F + "drop('elsewhere')") == (
            "55006",
            f"could not drop replication origin with ID {number}, in use by PID {pid}",
        )
        # Three transactions: of two tables, of one, and one that is rolled back.
        session.rows("begin")
        session.rows(F + "xact_setup('0/AA', '2013-01-01 00:00:00+00')")
        session.rows("insert into t values (1, 'there')")
        session.rows("insert into u values (1)")
        session.rows("commit")
        assert session.rows(F + "session_progress(true)") == [("0/AA",)]
        session.rows(F + "xact_setup('0/AB', '2013-01-02 00:00:00+00')")
        session.rows("update t set v = 'changed there'")
        session.rows("begin")
        session.rows(F + "xact_setup('0/FF'::pg_lsn, '2013-01-03 00:00:00+00')")
        session.rows("insert into t values (9, 'gone')")
        session.rows("rollback")
        assert session.rows(F + "session_progress(false)") == [("0/AB",)]
        session.rows(F + "session_reset()")
        session.rows("insert into t values (2, 'here')")
        other.rows(F + "session_setup('elsewhere')")
    assert node.sql(
        "select local_id, external_id, remote_lsn from pg_replication_origin_status"
    ) == [(number, "elsewhere", "0/AB")]
    # The position has what was committed, whatever crashes.
    node.kill("tree")
    node.start()
    assert node.sql(F + "progress('elsewhere', true)") == [("0/AB",)]
    changes = "select data from pg_logical_slot_get_changes"
    own = [
        str(row[0])
        for row in node.sql(
            f"{changes}('own', null, null, 'only-local', '1', 'include-xids', '0')"
        )
    ]
    assert own == [
        "BEGIN",
        "table public.t: INSERT: id[integer]:2 v[text]:'here'",
        "COMMIT",
    ]
    found = [
        str(row[0])
        for row in node.sql(
            f"{changes}('all', null, null, 'format-version', '2', 'include-origin', '1',"
            " 'include-timestamp', '1')"
        )
    ]
    begins = [line for line in found if '"action":"B"' in line]
    assert [f'"origin":{number}' in line for line in begins] == [True, True, False]
    assert "2013-01-01 00:00:00+00" in begins[0] and "2013-01-02" in begins[1]
    node.sql(F + "advance('elsewhere', '0/77')")
    assert node.sql(F + "progress('elsewhere', true)") == [("0/77",)]
    node.sql(F + "drop('elsewhere')")
    assert node.sql("select * from pg_replication_origin") == []
