"""VACUUM at the front door of a real node: what is removed, what is not, and what clients are told.

deltalake and Spark read every version that is left, from outside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database
from tests.fakes.foreign_spark import ForeignSpark

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.observe.failpoints import arm
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

SETTINGS = {
    "lake.retention_ms": 0,
    "lake.orphan_age_ms": 60_000,
    "lake.vacuum_interval_ms": 0,
}


@pytest.fixture(scope="module")
def vacuumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that keeps nothing, and whose worker does nothing. Files age by 59 s more."""
    directory = tmp_path_factory.mktemp("vacuum") / "node"
    points = directory.parent / "points"
    arm(points, "vacuum.ages", "ahead 59")
    environ = {"WAL2LAKE_FAILPOINTS": str(points)}
    with Node(directory, settings=SETTINGS, environ=environ).init() as node:
        yield node.start()


@pytest.fixture
def subscriber(vacuumed: Node) -> Node:
    return vacuumed


@pytest.fixture
def conn(vacuumed: Node) -> Iterator[Any]:
    with psycopg.connect(vacuumed.conninfo(), autocommit=True) as conn:
        yield conn


def place(node: Node, schema: str, name: str) -> Path:
    return node.directory / "warehouse" / schema / name


def data_files(node: Node, schema: str, name: str) -> set[str]:
    root = place(node, schema, name)
    return {
        str(p.relative_to(root))
        for p in root.rglob("*")
        if p.suffix in (".parquet", ".bin") and "_delta_log" not in p.parts
    }


def told(conn: Any, sql: str) -> list[tuple[str, str]]:
    """Severity and message of each notice of a statement."""
    notices: list[tuple[str, str]] = []

    def note(diagnostic: Any) -> None:
        notices.append((diagnostic.severity, diagnostic.message_primary))

    conn.add_notice_handler(note)
    try:
        conn.execute(sql)
    finally:
        conn.remove_notice_handler(note)
    return notices


def vacuum_until(conn: Any, table: str, condition: Callable[[], bool]) -> None:
    """A version that was the newest a moment ago stays for that moment."""

    def attempt() -> bool:
        conn.execute(f"vacuum {table}")
        return condition()

    wait_until(attempt, timeout_seconds=30)


def _nothing_waits(conn: Any, table: str) -> bool:
    (_, (_, finished)) = told(conn, f"vacuum (verbose) {table}")
    return ", 0 not old enough" in finished


def count_outside(root: Path, version: int) -> int:
    found = (
        QueryBuilder()
        .register("t", DeltaTable(str(root), version=version))
        .execute("select count(*) as n from t")
        .read_all()
    )
    return int(found["n"][0].as_py())


def test_a_local_table_keeps_its_newest_version(vacuumed: Node, conn: Any) -> None:
    conn.execute("create table v_local (id int primary key, n int)")
    for number in range(5):
        conn.execute("insert into v_local values (%s, 0)", [number])
    conn.execute("update v_local set n = 1")
    conn.execute("delete from v_local where id = 4")
    orphan = place(vacuumed, "public", "v_local") / "part-of-nobody.parquet"
    orphan.write_bytes(b"x" * 77)
    before = data_files(vacuumed, "public", "v_local")

    def dry() -> bool:
        found = told(conn, "vacuum (verbose, dry_run) v_local")
        assert [severity for severity, _ in found] == ["INFO", "INFO"]
        assert found[0][1] == 'vacuuming "lake.public.v_local"'
        assert found[1][1].startswith('dry run of vacuuming "lake.public.v_local": ')
        return "orphans: 1 would be removed, 0 not old enough" in found[1][1]

    wait_until(dry, timeout_seconds=30)
    assert data_files(vacuumed, "public", "v_local") == before
    vacuum_until(
        conn, "v_local", lambda: len(data_files(vacuumed, "public", "v_local")) <= 2
    )
    assert not orphan.exists()
    newest = DeltaTable(str(orphan.parent)).version()
    assert count_outside(orphan.parent, newest) == 4
    rows = conn.execute("select id, n from v_local order by id").fetchall()
    assert rows == [(i, 1) for i in range(4)]
    conn.execute("insert into v_local values (9, 9)")
    conn.execute("update v_local set n = 5 where id = 9")
    assert conn.execute("select count(*), max(n) from v_local").fetchall() == [(5, 5)]


def test_statements_that_have_begun_read_on(vacuumed: Node, conn: Any) -> None:
    conn.execute("create table v_old (id int primary key, n int)")
    conn.execute("insert into v_old select i, 0 from generate_series(1, 100) i")
    total = "select count(*), sum(n) from v_old"
    with psycopg.connect(vacuumed.conninfo()) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert reader.execute(total).fetchall() == [(100, 0)]
        with psycopg.connect(vacuumed.conninfo()) as writer:
            writer.execute("update v_old set n = 7 where id = 1")
            conn.execute("delete from v_old where id > 50")
            conn.execute("insert into v_old select i, 1 from generate_series(51, 60) i")
            conn.execute("delete from v_old where id > 55")
            held = data_files(vacuumed, "public", "v_old")
            wait_until(
                lambda: "0 not old enough" in str(told(conn, "vacuum (verbose) v_old"))
            )
            assert data_files(vacuumed, "public", "v_old") == held
            assert reader.execute(total).fetchall() == [(100, 0)]
            writer.commit()
    assert conn.execute(total).fetchall() == [(55, 12)]
    vacuum_until(
        conn, "v_old", lambda: not held <= data_files(vacuumed, "public", "v_old")
    )
    assert conn.execute(total).fetchall() == [(55, 12)]


def test_every_listed_state_reads(
    pg18: Database,
    vacuumed: Node,
    subscribe: Callable[..., Mirror],
    conn: Any,
) -> None:
    pg18.psql(
        "create schema vs; create table vs.t (id int primary key, n int);"
        " create table vs.u (id int primary key);"
        " insert into vs.t select i, 0 from generate_series(1, 50) i;"
        " create publication vs for tables in schema vs"
    )
    mirror = subscribe(pg18, "vs")
    mirror.synced()
    for number in range(1, 6):
        pg18.psql(
            f"begin; update vs.t set n = {number} where id <= {10 * number};"
            f" insert into vs.u values ({number}); commit"
        )
        mirror.caught_up()

    def states() -> list[tuple[Any, ...]]:
        return list(
            conn.execute("select s.* from wal2lake.snapshots s order by lsn").fetchall()
        )

    many = len(states())
    assert many > 5
    conn.execute("vacuum vs.t, vs.u")
    newest = place(vacuumed, "vs", "t")
    vacuum_until(conn, "vs.t", lambda: len(states()) == 2)
    # Both tables have one row: the newest state, and the states before are gone with their files.
    versions = DeltaTable(str(newest)).version()
    assert count_outside(newest, versions) == 50
    pg18.psql("insert into vs.t values (1000, 1)")
    mirror.caught_up()
    mirror.assert_equal(["vs.t", "vs.u"])


def test_as_postgresql_says_it(vacuumed: Node, conn: Any) -> None:
    conn.execute("create table v_said (id int)")
    conn.execute("create role v_bob login")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("vacuum (nothing) v_said")
    assert caught.value.diag.message_primary == 'unrecognized VACUUM option "nothing"'
    assert (caught.value.sqlstate, caught.value.diag.statement_position) == (
        "42601",
        "9",
    )
    conn.execute("begin")
    with pytest.raises(psycopg.errors.ActiveSqlTransaction) as caught:
        conn.execute("vacuum v_said")
    assert str(caught.value) == "VACUUM cannot run inside a transaction block"
    conn.execute("rollback")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        conn.execute("vacuum full v_said")
    hint = "Use VACUUM without FULL to remove files that no version needs."
    assert caught.value.diag.message_hint == hint
    assert told(conn, "vacuum (analyze, freeze) v_said") == [
        ("NOTICE", "VACUUM options ANALYZE, FREEZE without effect on tables of a lake")
    ]
    assert told(conn, "vacuum pg_views") == [
        (
            "WARNING",
            'skipping "pg_views" --- cannot vacuum non-tables or special system tables',
        )
    ]
    conn.execute("set role v_bob")
    denied = [("WARNING", 'permission denied to vacuum "v_said", skipping it')]
    assert told(conn, "vacuum v_said") == denied
    assert denied[0] in told(conn, "vacuum")
    conn.execute("reset role")
    conn.execute("grant maintain on v_said to v_bob")
    conn.execute("set role v_bob")
    conn.execute("set default_transaction_read_only = on")
    assert told(conn, "vacuum v_said") == []
    assert conn.execute("vacuum v_said").statusmessage == "VACUUM"
    conn.execute("reset role")
    conn.execute("reset default_transaction_read_only")
    conn.execute("drop table v_said")
    conn.execute("drop role v_bob")


def outside(root: Path, version: int) -> tuple[int, int]:
    """Rows, and the sum of n, of a version, read by deltalake."""
    found = (
        QueryBuilder()
        .register("t", DeltaTable(str(root), version=version))
        .execute("select count(*) as n, coalesce(sum(n), 0) as s from t")
        .read_all()
    )
    return int(found["n"][0].as_py()), int(found["s"][0].as_py())


def versions_kept(conn: Any, table: str) -> tuple[int, int]:
    (_, (_, finished)) = told(conn, f"vacuum (verbose) {table}")
    found = re.search(r"versions: (\d+) to (\d+) are readable", finished)
    assert found is not None, finished
    return int(found[1]), int(found[2])


@pytest.mark.slow
@pytest.mark.parametrize("with_spark", [False, True])
def test_every_kept_version_reads_outside_while_a_reader_holds_the_oldest(
    vacuumed: Node, conn: Any, tmp_path: Path, with_spark: bool
) -> None:
    name = f"v_out_{with_spark}".lower()
    root = place(vacuumed, "public", name)
    total = f"select count(*), coalesce(sum(n), 0) from {name}"
    conn.execute(f"create table {name} (id int primary key, n int)")
    expected: dict[int, tuple[int, int]] = {}

    def change(step: int) -> None:
        for sql in (
            f"insert into {name} select i, {step} from generate_series({step}0, {step}9) i",
            f"update {name} set n = n + 1 where id % 3 = 0",
            f"delete from {name} where id = {step}5",
        ):
            conn.execute(sql)
            ((rows, sum_of_n),) = conn.execute(total).fetchall()
            version = DeltaTable(str(root)).version()
            expected[version] = int(rows), int(sum_of_n)

    change(1)
    held = max(expected)
    with psycopg.connect(vacuumed.conninfo()) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert reader.execute(total).fetchall() == [expected[held]]
        change(2)
        change(3)
        before = len(data_files(vacuumed, "public", name))
        vacuum_until(conn, name, lambda: versions_kept(conn, name)[0] == held)
        oldest, newest = versions_kept(conn, name)
        assert (oldest, newest) == (held, max(expected))
        assert len(data_files(vacuumed, "public", name)) <= before
        for version in range(oldest, newest + 1):
            assert outside(root, version) == expected[version], version
        if with_spark:
            jars = locate_jars(JarSource.from_environment(os.environ), os.environ)
            with ForeignSpark(tmp_path / "foreign", jars) as spark:
                for version in range(oldest, newest + 1):
                    rows, sum_of_n = expected[version]
                    spark.sql(
                        f"select assert_true(count(*) = {rows} and sum(n) = {sum_of_n})"
                        f" from delta.`{root}` version as of {version}"
                    )
        assert reader.execute(total).fetchall() == [expected[held]]
    vacuum_until(conn, name, lambda: versions_kept(conn, name)[0] == newest)
    assert outside(root, newest) == expected[newest]
