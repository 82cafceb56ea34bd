"""Hints about a table's files and about memory, followed on a node."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.node.conftest import Subscribe, create
from tests.node.test_remedies import ERROR, stopped

from wal2lake.errors import PublisherError
from wal2lake.settings import FILE_NAME
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that applies next to nothing in memory, until its file says otherwise."""
    directory = tmp_path_factory.mktemp("small") / "data"
    settings = {**FAST_RETRY, "node.authentication": "trust"}
    with Node(directory, settings=settings) as made:
        made.init()
        remember(made, "4096")
        yield made.start()


@pytest.fixture
def subscriber(small: Node) -> Node:
    return small


def remember(node: Node, value: str) -> None:
    """Write ``upsert_bytes`` into the node's file."""
    path = node.directory / FILE_NAME
    line = re.compile(r"^(# )?upsert_bytes = .*$", re.MULTILINE)
    text, count = line.subn(f"upsert_bytes = {value}", path.read_text())
    assert count == 1
    path.write_text(text)


def refused(node: Node, sql: str) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        node.sql(sql)
    return caught.value


def test_a_table_whose_directory_is_gone(
    pg18: Database, node: Node, subscribe_to: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema le; create table le.a (id int primary key);"
        " create table le.b (id int primary key); create table le.c (id int primary key);"
        " insert into le.a values (1); insert into le.b values (1);"
        " insert into le.c values (1); create publication le for tables in schema le"
    )
    mirror = subscribe_to(pg18, "le")
    mirror.synced()
    warehouse = node.directory / "warehouse" / "le"

    def is_missing(table: str) -> None:
        pg18.psql(f"insert into le.{table} select max(id) + 1 from le.{table}")
        missing = f'there is no Delta table at "{warehouse / table}"'
        error = refused(node, f"select * from le.{table}")
        assert (error.sqlstate, error.message) == ("42P01", missing)
        assert str(error.hint) in stopped(node, "le", missing)
        assert str(error.hint).startswith(
            "Put the directory back. Or drop the table and make it anew; ALTER SUBSCRIPTION ..."
            " REFRESH PUBLICATION makes and copies one of a subscription."
        )

    away = node.directory / "away"
    (warehouse / "a").rename(away)
    is_missing("a")
    away.rename(warehouse / "a")
    mirror.caught_up()
    shutil.rmtree(warehouse / "b")
    is_missing("b")
    node.sql("drop table le.b")
    node.sql("alter subscription le refresh publication")
    mirror.synced()
    mirror.caught_up()

    # Data files that no log tells of are nobody's; each refusal says what is to be done.
    shutil.rmtree(warehouse / "c" / "_delta_log")
    is_missing("c")
    error = refused(node, "drop table le.c")
    assert error.message == f'directory "{warehouse / "c"}" is not a Delta table'
    assert error.hint == "It is left as it is; remove it by hand if it is not needed."
    error = refused(node, "alter subscription le refresh publication")
    assert error.message == f'directory "{warehouse / "c"}" exists but is not empty'
    assert error.hint == "Remove what is in it, or move it elsewhere."
    shutil.rmtree(warehouse / "c")
    node.sql("alter subscription le refresh publication")
    mirror.synced()
    pg18.psql("delete from le.c where id = 1")
    mirror.caught_up()
    mirror.assert_equal(["le.a", "le.b", "le.c"])
    assert node.sql(ERROR.format("le")) == []

    node.sql("create schema own; create table own.t (id int primary key)")
    shutil.rmtree(node.directory / "warehouse" / "own" / "t")
    assert "drop the table and make it anew" in str(
        refused(node, "insert into own.t values (1)").hint
    )
    node.sql("drop table own.t")
    node.sql("create table own.t (id int primary key)")
    node.sql("insert into own.t values (2)")
    assert node.sql("select * from own.t") == [("2",)]
    node.sql("drop schema own cascade")


@pytest.fixture
def subscribe_to(node: Node) -> Iterator[Callable[..., Mirror]]:
    """``subscribe`` on the shared node."""
    made: list[str] = []

    def go(source: Database, name: str) -> Mirror:
        made.append(name)
        create(node, source, name)
        return Mirror(node, source.conninfo(), name)

    yield go
    for name in made:
        node.sql(f"drop subscription if exists {name}")
        node.sql(f"drop schema if exists {name} cascade")


MORE = "update {0}.t set v = v || 'x'"


@pytest.mark.slow
def test_a_transaction_that_does_not_fit_into_upsert_bytes(
    small: Node, database: Callable[[int], Database], subscribe: Subscribe
) -> None:
    """It is applied in runs, with resolutions and checks, with a deferred key, which is judged when
    the transaction ends, and with a TRUNCATE that marks rows."""
    source = database(18)
    for name in ("lr", "lc", "ld", "ls"):
        deferrable = " deferrable initially deferred" if name == "ld" else ""
        source.psql(
            f"create schema {name};"
            f" create table {name}.t (id int primary key{deferrable}, v text);"
            f" alter table {name}.t replica identity full;"
            f" insert into {name}.t select i, md5(i::text) from generate_series(1, 20000) i;"
            f" create publication {name} for tables in schema {name}"
        )
    small.sql("create schema lc")
    small.sql("create table lc.t (id int primary key, v text check (v <> ''))")
    mirrors = {
        "lr": subscribe(
            source, "lr", "with (conflict_resolution = 'update_missing = error')"
        ),
        "lc": subscribe(source, "lc"),
        "ld": subscribe(source, "ld"),
        "ls": subscribe(source, "ls", "with (delete_mode = soft)"),
    }
    for mirror in mirrors.values():
        mirror.synced()
    source.psql(MORE.format("lr"))
    source.psql(MORE.format("lc"))
    source.psql("update ld.t set id = id + 1")
    source.psql(
        "begin; update ls.t set v = v || 'x'; truncate ls.t;"
        " insert into ls.t select i, 'new' from generate_series(1, 15000) i; commit"
    )
    for name, mirror in mirrors.items():
        mirror.caught_up()
        if name != "ls":
            mirror.assert_equal([f"{name}.t"])
        assert small.sql(ERROR.format(name)) == []
    assert small.sql(
        "select _deleted_at is null, v = 'new', count(*), min(id), max(id) from ls.t"
        " group by 1, 2 order by 1"
    ) == [("f", "f", "5000", "15001", "20000"), ("t", "t", "15000", "1", "15000")]


def with_a_constraint(table: Path) -> None:
    """Commit what another program's ALTER TABLE ... ADD CONSTRAINT does."""
    log = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for one in log for line in one.read_text().splitlines()]
    (*_, metadata) = (one["metaData"] for one in actions if "metaData" in one)
    (*_, protocol) = (one["protocol"] for one in actions if "protocol" in one)
    metadata["configuration"]["delta.constraints.positive"] = "id > 0"
    features = {*protocol["writerFeatures"], "checkConstraints"}
    protocol["writerFeatures"] = sorted(features)
    path = log[-1].with_name(f"{int(log[-1].stem) + 1:020d}.json")
    lines = (json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata}))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_a_constraint_of_deltas_own_stops_the_row_that_violates_it(
    small: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema lp; create table lp.t (id int primary key, v text);"
        " insert into lp.t values (1, 'a'), (2, 'b');"
        " create publication lp for tables in schema lp"
    )
    small.sql("create schema lp")
    small.sql(
        "create table lp.t (id int primary key, v text, constraint filled check (v <> ''))"
    )
    options = "with (conflict_resolution = 'update_missing = error')"
    mirror = subscribe(pg18, "lp", options)
    mirror.synced()
    with_a_constraint(small.directory / "warehouse" / "lp" / "t")
    pg18.psql("update lp.t set v = 'c' where id = 2")
    mirror.caught_up()
    mirror.assert_equal(["lp.t"])
    pg18.psql("update lp.t set id = -2 where id = 2")
    violated = 'new row for relation "t" violates check constraint "positive"'
    assert violated in stopped(small, "lp", violated)
