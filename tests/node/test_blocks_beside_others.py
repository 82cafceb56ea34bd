"""Blocks whose tables others change meanwhile: whoever has changed other rows commits, whoever has
changed the same is refused, and a slot tells each change once."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable, QueryBuilder
from psycopg.errors import SerializationFailure, UniqueViolation
from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.testing.node import Node

Session = psycopg.Connection[Any]

_numbers = itertools.count(1)

TOLD = re.compile(
    r"table public\.\w+: (?P<op>INSERT|UPDATE|DELETE): id\[integer\]:(?P<id>-?\d+)"
    r"(?: v\[integer\]:(?P<v>-?\d+))?"
)

ROWS = 20


@pytest.fixture
def table(node: Node) -> Iterator[str]:
    """A table of a test's own, of one file: (1, 0) to (20, 0)."""
    name = f"beside{next(_numbers)}"
    node.sql(f"create table {name} (id int primary key, v int)")
    node.sql(f"insert into {name} select i, 0 from generate_series(1, {ROWS}) i")
    yield name
    node.sql(f"drop table {name}")


@pytest.fixture
def slot(node: Node, table: str) -> Iterator[Callable[[], list[str]]]:
    """What a slot tells of the table, by test_decoding; from now on."""
    name = f"{table}_slot"
    node.sql(f"select pg_create_logical_replication_slot('{name}', 'test_decoding')")

    def told() -> list[str]:
        sql = (
            f"select data from pg_logical_slot_get_changes('{name}', null, null,"
            " 'include-xids', '0')"
        )
        found = (str(data) for (data,) in node.sql(sql))
        return [data for data in found if data not in ("BEGIN", "COMMIT")]

    yield told
    node.sql(f"select pg_drop_replication_slot('{name}')")


@pytest.fixture
def session(node: Node) -> Iterator[Callable[[], Session]]:
    opened = []

    def go() -> Session:
        opened.append(psycopg.connect(node.conninfo(), autocommit=True))
        return opened[-1]

    yield go
    for one in opened:
        one.close()


def run(session: Session, sql: str) -> None:
    session.execute(sql.encode())


def rows(node: Node, table: str) -> dict[int, int]:
    """As the front door has them, and those who read the files."""
    shown = node.sql(f"select id, v from {table}")
    found = {int(str(id_)): int(str(v)) for id_, v in shown}
    there = DeltaTable(node.directory / "warehouse" / "public" / table)
    query = QueryBuilder().register("t", there).execute("select id, v from t")
    outside = query.read_all()
    columns = (outside.column(i).to_pylist() for i in range(2))
    assert sorted(zip(*columns, strict=True)) == sorted(found.items())
    return found


def replay(told: list[str], table: dict[int, int]) -> list[tuple[str, int, int]]:
    """Do to the rows what was told of them: (operation, key, by how much the value has grown)."""
    done = []
    for line in told:
        match = TOLD.fullmatch(line)
        assert match is not None, line
        key, op = int(match["id"]), match["op"]
        assert (key in table) == (op != "INSERT"), line
        before = table.pop(key, 0)
        if op != "DELETE":
            table[key] = int(match["v"])
        done.append((op, key, table.get(key, 0) - before))
    return done


@pytest.mark.slow
def test_other_rows_of_a_file_commit_and_the_same_row_is_refused(
    node: Node,
    table: str,
    slot: Callable[[], list[str]],
    session: Callable[[], Session],
) -> None:
    one, other, third = session(), session(), session()
    was = rows(node, table)
    for block in (one, other):
        run(block, "begin")
    run(one, f"update {table} set v = v + 1 where id = 1")
    run(other, f"update {table} set v = v + 2 where id in (2, 3)")
    run(other, f"delete from {table} where id = 4")
    run(other, f"insert into {table} values (50, 5)")
    # By themselves, of the same file.
    run(third, f"update {table} set v = v + 3 where id = 5")
    run(third, f"delete from {table} where id = 6")
    run(third, f"insert into {table} values (60, 6)")
    run(one, f"update {table} set v = v + 1 where id = 7")
    run(third, f"update {table} set v = v + 3 where id = 5")
    run(other, "commit")
    run(third, f"update {table} set v = v + 4 where id = 2")
    run(one, "commit")
    expected = {id_: 0 for id_ in range(1, ROWS + 1) if id_ not in (4, 6)}
    expected |= {1: 1, 2: 6, 3: 2, 5: 6, 7: 1, 50: 5, 60: 6}
    assert rows(node, table) == expected

    # The same row: who commits first wins, in each way of changing it.
    for ours, theirs in (
        ("update {} set v = v + 1 where id = 8", "update {} set v = v + 10 where id = 8"),
        ("delete from {} where id = 9", "update {} set v = v + 10 where id = 9"),
        ("update {} set v = v + 1 where id < 11", "delete from {} where id = 10"),
        ("update {} set id = 70 where id = 11", "delete from {} where id = 11"),
        ("truncate {}", "update {} set v = v + 10 where id = 12"),
    ):  # fmt: skip
        run(one, "begin isolation level repeatable read")
        run(one, f"update {table} set v = v + 100 where id = 20")
        run(one, ours.format(table))
        run(third, theirs.format(table))
        with pytest.raises(SerializationFailure) as refused:
            run(one, "commit")
        assert refused.value.diag.message_primary == (
            "could not serialize access due to concurrent update"
        )
    expected |= {8: 10, 9: 10, 12: 10}
    del expected[10], expected[11]
    assert rows(node, table) == expected

    # A key that somebody else has brought meanwhile.
    run(one, "begin")
    run(one, f"update {table} set v = 1 where id = 13")
    run(one, f"update {table} set id = 80 where id = 14")
    run(third, f"update {table} set id = 80 where id = 15")
    with pytest.raises(UniqueViolation):
        run(one, "commit")
    # And one that they have given up again.
    run(one, "begin")
    run(one, f"update {table} set v = 1 where id = 13")
    run(one, f"insert into {table} values (90, 9)")
    run(third, f"insert into {table} values (90, 0)")
    run(third, f"delete from {table} where id = 90")
    run(one, "commit")
    expected |= {13: 1, 80: 0, 90: 9}
    del expected[15]
    assert rows(node, table) == expected

    told = slot()
    moved = f"table public.{table}: UPDATE: old-key: id[integer]:15 new-tuple: id[integer]:80 v[integer]:0"  # noqa: E501
    at = told.index(moved)
    done = replay(told[:at], was)
    was[80] = was.pop(15)
    done += replay(told[at + 1 :], was)
    assert was == expected
    assert sorted(done) == sorted(
        [
            *(("UPDATE", 2, 2), ("UPDATE", 3, 2), ("DELETE", 4, 0), ("INSERT", 50, 5)),
            *(("UPDATE", 1, 1), ("UPDATE", 7, 1)),
            *(("UPDATE", 5, 3), ("UPDATE", 5, 3), ("DELETE", 6, 0), ("INSERT", 60, 6)),
            *(("UPDATE", 2, 4), ("UPDATE", 8, 10), ("UPDATE", 9, 10), ("DELETE", 10, 0)),
            *(("DELETE", 11, 0), ("UPDATE", 12, 10), ("UPDATE", 13, 1)),
            *(("INSERT", 90, 0), ("DELETE", 90, 0), ("INSERT", 90, 9)),
        ]
    )  # fmt: skip


def test_what_is_prepared_is_rebased_and_held(
    node: Node, table: str, session: Callable[[], Session]
) -> None:
    one, other = session(), session()
    run(one, "begin")
    run(one, f"update {table} set v = 1 where id = 1")
    run(other, f"update {table} set v = 2 where id = 2")
    run(one, f"prepare transaction '{table}'")
    run(one, f"commit prepared '{table}'")
    found = rows(node, table)
    assert (found[1], found[2], found[3], len(found)) == (1, 2, 0, ROWS)


@pytest.mark.slow
def test_sums_stay_and_each_change_is_told_once_while_many_write(
    node: Node,
    table: str,
    slot: Callable[[], list[str]],
    session: Callable[[], Session],
) -> None:
    """Blocks that move amounts between rows, beside statements that do the same by themselves, and
    compactions behind them."""
    last = 10 * ROWS
    node.sql(
        f"insert into {table} select i, 0 from generate_series({ROWS + 1}, {last}) i"
    )
    slot()
    was = rows(node, table)
    with_own: dict[int, int] = {}
    refused = [0]
    failed: list[BaseException] = []
    lock = threading.Lock()

    def counted(amounts: dict[int, int]) -> None:
        with lock:
            for id_, amount in amounts.items():
                with_own[id_] = with_own.get(id_, 0) + amount

    def blocks(seed: int) -> None:
        own, chance = session(), random.Random(seed)
        for _ in range(8):
            source, target = chance.sample(range(1, last + 1), 2)
            amount = chance.randrange(1, 100)
            try:
                with own.transaction():
                    run(own, f"update {table} set v = v - {amount} where id = {source}")
                    run(own, f"update {table} set v = v + {amount} where id = {target}")
            except SerializationFailure:
                refused[0] += 1
            else:
                counted({source: -amount, target: amount})

    def alone(seed: int) -> None:
        own, chance = session(), random.Random(seed)
        for _ in range(12):
            id_, amount = chance.randrange(1, last + 1), chance.randrange(1, 100)
            run(own, f"update {table} set v = v + {amount} where id = {id_}")
            counted({id_: amount})

    def guarded(work: Callable[[int], None], seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=guarded, args=(work, seed))
        for seed, work in enumerate([blocks, blocks, blocks, alone, alone])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failed
    found = rows(node, table)
    assert found == {id_: with_own.get(id_, 0) for id_ in range(1, last + 1)}
    done = replay(slot(), was)
    assert was == found
    told: dict[int, int] = {}
    for _, id_, grown in done:
        told[id_] = told.get(id_, 0) + grown
    assert told == with_own
    commits = 24 - refused[0]
    # Few of them meet: two rows each out of two hundred.
    assert refused[0] * 3 < commits, f"{refused[0]} of 24 were refused"


@pytest.mark.slow
def test_a_block_beside_what_a_subscription_brings(
    node: Node, pg18: Database, subscribe: Subscribe, session: Callable[[], Session]
) -> None:
    """Batches take rows of the same files, and are somebody else's commits, too."""
    pg18.psql(
        "create schema besides; create table besides.t (id int primary key, v int);"
        " insert into besides.t select i, 0 from generate_series(1, 9) i;"
        " create publication besides for table besides.t"
    )
    mirror = subscribe(pg18, "besides")
    mirror.synced()
    one = session()
    run(one, "begin")
    run(one, "update besides.t set v = 1 where id = 1")
    run(one, "insert into besides.t values (20, 20)")
    pg18.psql(
        "update besides.t set v = 2 where id = 2; delete from besides.t where id = 3"
    )
    mirror.caught_up()
    run(one, "commit")
    found = node.sql("select id, v from besides.t where v > 0 or id < 5 order by id")
    assert found == [("1", "1"), ("2", "2"), ("4", "0"), ("20", "20")]
    run(one, "begin")
    run(one, "update besides.t set v = v + 1 where id in (4, 5)")
    pg18.psql("update besides.t set v = 50 where id = 5")
    mirror.caught_up()
    with pytest.raises(SerializationFailure):
        run(one, "commit")
    found = node.sql("select id, v from besides.t where id in (4, 5) order by id")
    assert found == [("4", "0"), ("5", "50")]
