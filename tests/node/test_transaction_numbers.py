"""A local transaction has one number, wherever it is shown: txid_current(), decoded changes,
pg_prepared_xacts, conflict reports. PostgreSQL 18 says when a transaction has one."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

SETTINGS = {**FAST_RETRY, "apply.track_commit_timestamp": True}

ASSIGNED = "select txid_current_if_assigned() is not null"

SAME = (
    "select txid_current() = txid_current_if_assigned(),"
    " pg_current_xact_id()::text = txid_current()::text,"
    " pg_current_xact_id_if_assigned()::text = txid_current()::text"
)

TYPES = (
    "select pg_typeof(txid_current()), pg_typeof(txid_current_if_assigned()),"
    " pg_typeof(pg_current_xact_id()), pg_typeof(pg_current_xact_id_if_assigned())"
)

SLOT = "select lsn is not null from pg_create_logical_replication_slot('late', 'test_decoding')"

# What a session says, one after the other, and asks each time.
SCRIPT = (
    "begin",
    ASSIGNED,
    "select count(*) from numbered",
    ASSIGNED,
    "insert into numbered values (1, 'a')",
    ASSIGNED,
    SAME,
    "savepoint s",
    "insert into numbered values (2, 'b')",
    "rollback to s",
    ASSIGNED,
    "commit",
    ASSIGNED,
    "begin",
    "savepoint s",
    "update numbered set v = 'c'",
    "rollback to s",
    ASSIGNED,
    "rollback",
    ASSIGNED,
    "begin read only",
    ASSIGNED,
    SAME,
    ASSIGNED,
    "commit",
    TYPES,
    "begin",
    "select txid_current() is not null",
    SLOT,
    "rollback",
    "select (select txid_current()) = txid_current()",
    # Nothing is changed.
    "begin",
    "update numbered set v = 'd' where id = 77",
    ASSIGNED,
    "delete from numbered where id = 77",
    ASSIGNED,
    "commit",
    "begin",
    "truncate numbered",
    ASSIGNED,
    "rollback",
    # Messages.
    "begin",
    "select pg_logical_emit_message(false, 'p', 'x') is null",
    ASSIGNED,
    "select pg_logical_emit_message(true, 'p', 'x') is null",
    ASSIGNED,
    "commit",
    # A definition.
    "begin",
    "create publication numbered for table numbered",
    ASSIGNED,
    SAME,
    "rollback",
    ASSIGNED,
    # A string of statements is one transaction, which the functions do not end.
    f"insert into numbered values (3, 'e'); {ASSIGNED}; {SAME}",
    "insert into numbered values (4, 'f'); select txid_current() > 0; select 1 / 0",
    "select id from numbered order by 1",
    # A failure.
    "begin",
    "select txid_current() > 0",
    "insert into numbered values (1, 'again')",
    ASSIGNED,
    "rollback",
    ASSIGNED,
)


def answers(conninfo: str) -> list[object]:
    """What the server says to each statement."""
    found: list[object] = []
    with Client(conninfo) as client:
        for statement in SCRIPT:
            for result in client.run(statement):
                if isinstance(result, Failure):
                    found.append((statement, result.sqlstate, result.message))
                else:
                    found.append((statement, result.tag, result.rows))
    return found


def test_a_transaction_has_a_number_when_postgresqls_has(
    node: Node, pg18: Database
) -> None:
    table = "create table numbered (id int primary key, v text)"
    node.sql(table)
    pg18.psql(table)
    assert answers(node.conninfo()) == answers(pg18.conninfo())


@pytest.mark.slow
def test_one_number_in_sessions_slots_and_conflict_reports(
    pg18: Database, make_node: Callable[..., Node]
) -> None:
    pg18.psql(
        "create table t (a int primary key, b int); insert into t values (1, 1), (2, 2);"
        " create publication p for table t"
    )
    node = make_node(settings=SETTINGS).start()
    mirror = Mirror(node, pg18.conninfo(), "s")
    node.sql(
        f"create subscription s connection {quote_literal(pg18.conninfo())} publication p"
        " with (origin = any)"
    )
    mirror.synced()
    node.sql("create table other (id int primary key)")
    for name, two_phase in (("plain", "false"), ("twice", "true")):
        node.sql(
            f"select pg_create_logical_replication_slot('{name}', 'test_decoding', false,"
            f" {two_phase})"
        )

    def changes(slot: str) -> list[str]:
        ask = f"select data from pg_logical_slot_get_changes('{slot}', null, null)"
        return [str(data) for (data,) in node.sql(ask)]

    with node.connect() as session:
        session.rows("begin")
        session.rows("update t set b = 10 where a = 1")
        session.rows("insert into other values (1)")
        ((number,),) = session.rows("select txid_current()")
        session.rows("commit")
        lines = changes("plain")
        assert (lines[0], lines[-1]) == (f"BEGIN {number}", f"COMMIT {number}")
        assert len(lines) == 4

        # The row's writer, as a conflict report names it.
        pg18.psql("update t set b = 11 where a = 1")
        mirror.caught_up()
        said = "Updating the row that was modified locally in transaction (\\d+) at "
        wait_until(lambda: re.search(said, node.log_text()) is not None)
        assert re.findall(said, node.log_text()) == [number]

        changes("twice")
        session.rows("begin")
        session.rows("insert into other values (2)")
        ((later,),) = session.rows("select pg_current_xact_id()::text")
        assert int(str(later)) > int(str(number))
        session.rows("prepare transaction 'g'")
        assert node.sql("select transaction::text from pg_prepared_xacts") == [(later,)]
        assert changes("twice")[-1] == f"PREPARE TRANSACTION 'g', txid {later}"
        session.rows("commit prepared 'g'")
        assert changes("twice")[-1] == f"COMMIT PREPARED 'g', txid {later}"

        # Messages alone, and definitions of a block.
        changes("plain")
        session.rows("begin")
        session.rows("select pg_logical_emit_message(true, 'p', 'm')")
        ((number,),) = session.rows("select txid_current()")
        session.rows("commit")
        assert changes("plain")[0] == f"BEGIN {number}"
        session.rows("begin")
        session.rows("create publication own for table other")
        ((number,),) = session.rows("select txid_current()")
        session.rows("commit")
        assert changes("plain") == [f"BEGIN {number}", f"COMMIT {number}"]

    # Whoever has no session's number gets one of the same series.
    node.sql("insert into other values (3)")
    (begin, *_) = changes("plain")
    assert int(begin.removeprefix("BEGIN ")) > int(str(number))

    # A statement outside of a block, whose number nobody has asked for.
    node.sql("update t set b = 20 where a = 2")
    (begin, *_) = changes("plain")
    pg18.psql("update t set b = 21 where a = 2")
    mirror.caught_up()
    wait_until(lambda: len(re.findall(said, node.log_text())) == 2)
    assert re.findall(said, node.log_text())[1] == begin.removeprefix("BEGIN ")

    # A crash takes no number back.
    changes("plain")
    with node.connect() as session:
        ((before,),) = session.rows("select txid_current()")
    node.kill("tree")
    node.start()
    with node.connect() as session:
        session.rows("begin")
        session.rows("insert into other values (4)")
        ((after,),) = session.rows("select txid_current()")
        session.rows("commit")
    assert int(str(after)) > int(str(before))
    assert changes("plain")[0] == f"BEGIN {after}"
