"""SIGKILL at each durable step of a local transaction's commit to two tables: both have it, or
none; and decoders are told of it once, with the number that its session had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node

# Where it is killed, how, and whether the transaction is committed then.
STEPS = [
    ("local.files_carried", "kill", False),
    ("local.table_committed", "kill-tree", True),
]
MORE_STEPS = [
    ("local.recorded", "kill", True),
    ("lake.committed", "kill", True),
    ("local.tables_committed", "kill", True),
    ("local.published", "kill-tree", True),
    ("local.recorded", "kill-tree", True),
]

BOTH = (
    "select (select count(*) from a), (select count(*) from b),"
    " (select sum(v) from a), (select max(id) from b)"
)


def begun(node: Node) -> list[int]:
    """The numbers of the transactions that are decoded now."""
    return [
        int(str(xid))
        for xid, data in node.sql(
            "select xid, data from pg_logical_slot_get_changes('d', null, null)"
        )
        if str(data).startswith("BEGIN")
    ]


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_at_each_step_of_a_commit_leaves_all_or_nothing(
    lend_node: Callable[[Path], Node],
    tmp_path: Path,
    steps: list[tuple[str, str, bool]],
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    node.sql("create table a (id int primary key, v int)")
    node.sql("create table b (id int primary key)")
    node.sql("insert into a select i, 0 from generate_series(1, 10) i")
    node.sql("select pg_create_logical_replication_slot('d', 'test_decoding')")
    done, highest = 0, 0
    decoded: list[int] = []
    for number, (step, action, committed) in enumerate(steps, 1):
        before = node.sql(BOTH)
        with node.connect() as session:
            session.rows("begin")
            session.rows(f"insert into a values ({100 + number}, 1)")
            session.rows(f"update a set v = v + 1 where id = {number}")
            session.rows(f"insert into b values ({number})")
            ((xid,),) = session.rows("select txid_current()")
            # No transaction has the number of one that a kill has ended.
            assert int(xid or 0) > highest, step
            highest = int(xid or 0)
            # What is recorded is the change on what others have made of the same file.
            node.sql(f"update a set v = 0 where id = {11 - number}")
            decoded += begun(node)
            arm(points, step, action)
            with pytest.raises(PublisherError):
                session.rows("commit")
        assert not (points / step).exists(), f"{step} was not reached"
        if action == "kill-tree":
            node.wait_end()
            node.start()
        node.wait_for("select 1")
        done += committed
        found = node.sql(BOTH)
        if committed:
            assert found == [(str(10 + done), str(done), str(2 * done), str(number))], (
                step
            )
        else:
            assert found == before, step
        told = begun(node)
        assert told == ([highest] if committed else []), step
        decoded += told
        assert len(set(decoded)) == len(decoded), step
        assert list((node.directory / "warehouse").glob("_transactions/*/*")) == []
    # What could not be written at once is tried again.
    arm(points, "local.table_committed", "enospc")
    node.sql("begin; insert into a values (900, 0); insert into b values (900); commit")
    assert node.sql(
        "select (select count(*) from a where id = 900), max(id) from b"
    ) == [("1", "900")]


def test_values_of_a_sequence_are_taken_before_rows_have_them(
    lend_node: Callable[[Path], Node], tmp_path: Path
) -> None:
    """How many an INSERT ... SELECT needs is known behind it, and there is no key here that would
    notice one that is given twice."""
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    node.sql("create table a (id serial, v text)")
    arm(points, "local.table_committed", "kill")
    with pytest.raises(PublisherError):
        node.sql("insert into a (v) select 'before' from generate_series(1, 3)")
    assert not (points / "local.table_committed").exists()
    node.wait_for("select 1")
    node.sql("insert into a (v) select 'behind' from generate_series(1, 2)")
    assert node.sql("select id, v from a order by id") == [
        *((str(n), "before") for n in (1, 2, 3)),
        *((str(n), "behind") for n in (4, 5)),
    ]
