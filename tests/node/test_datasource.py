"""A Spark program of its own reads a node's log with the data source ``wal2lake``.

The program is a subprocess, as a user's is. It writes each micro-batch to a file that has the
batch's number, so a repeated batch would overwrite itself and a lost one would be missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import QUICK_JAVA, Database

from wal2lake.changelog import LogReader
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

PROGRAM = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from wal2lake.datasource import Wal2LakeDataSource

task = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", task["java"])
builder = builder.config("spark.sql.session.timeZone", "UTC")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(Wal2LakeDataSource)
folder = Path(task["folder"])

def keep(rows, number):
    content = [row.asDict(recursive=True) for row in rows.collect()]
    path = folder / f"{number:08d}.json"
    path.write_text(json.dumps(content, default=str))

for step in task["steps"]:
    if step["kind"] == "batch":
        rows = spark.read.format("wal2lake").options(**step["options"]).load()
        content = [row.asDict(recursive=True) for row in rows.collect()]
        Path(step["path"]).write_text(json.dumps(content, default=str))
        continue
    query = (
        spark.readStream.format("wal2lake").options(**step["options"]).load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="100 milliseconds").start()
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and query.isActive:
        held = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
        if sum(len(batch) for batch in held) >= step["rows"]:
            break
        time.sleep(0.1)
    if query.exception() is not None:
        raise query.exception()
    query.stop()
spark.stop()
"""


def run(folder: Path, steps: list[dict[str, Any]]) -> None:
    """Run the program; its output is the error's text."""
    folder.mkdir(exist_ok=True)
    task = {"folder": str(folder), "steps": steps, "java": QUICK_JAVA}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(task)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-6000:]


def batches(folder: Path) -> list[list[dict[str, Any]]]:
    """The micro-batches that have rows."""
    read = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    return [batch for batch in read if batch]


@pytest.fixture
def streamed(pg18: Database, subscribe: Callable[..., Mirror]) -> Mirror:
    """A subscription whose log has transactions of several tables."""
    pg18.psql(
        "create schema ds; create table ds.a (id int primary key, v numeric(8,2), j jsonb);"
        " create table ds.b (id int primary key, t text); create publication ds for"
        " tables in schema ds"
    )
    mirror = subscribe(pg18, "ds")
    mirror.synced()
    return mirror


@pytest.mark.slow
def test_a_stream_has_each_transaction_once_over_a_restart(
    pg18: Database, node: Node, streamed: Mirror, tmp_path: Path
) -> None:
    for i in range(30):
        pg18.psql(
            f"begin; insert into ds.a values ({i}, {i}.5, '{{\"k\": {i}}}');"
            f" insert into ds.b values ({i}, 'it''s {i}');"
            f" update ds.a set v = v + 1 where id = {i}; commit"
        )
    streamed.assert_equal(["ds.a", "ds.b"])
    conninfo = node.conninfo()
    options = {"conninfo": conninfo, "subscription": "ds", "maxRowsPerTrigger": "20"}
    stream = {"kind": "stream", "options": options}
    folder, typed = tmp_path / "stream", tmp_path / "typed.json"
    run(folder, [{**stream, "rows": 30}])
    first = len(batches(folder))
    pg18.psql("delete from ds.b where id < 10; truncate ds.a")
    streamed.assert_equal(["ds.a", "ds.b"])
    table = {"conninfo": conninfo, "subscription": "ds", "table": "ds.a"}
    run(
        folder,
        [
            {**stream, "rows": 101},
            {"kind": "batch", "options": table, "path": str(typed)},
        ],
    )
    read = batches(folder)
    assert 1 < first < len(read)
    rows = [row for batch in read for row in batch]
    assert len(rows) == len(
        {(r["commit_lsn"], r["ordinal"], r["table_name"]) for r in rows}
    )
    assert len(rows) == 30 * 3 + 10 + 1
    for batch in read:
        # Whole transactions: three rows each, the last ones apart.
        commits = [
            row["commit_lsn"] for row in batch if row["op"] in ("insert", "update")
        ]
        assert all(commits.count(lsn) == 3 for lsn in commits)
        assert len(batch) <= 20
    by_op = [
        row["op"] for row in sorted(rows, key=lambda r: (r["commit_lsn"], r["ordinal"]))
    ]
    assert by_op[:3] == ["insert", "insert", "update"]
    assert by_op[-11:] == ["delete"] * 10 + ["truncate"]
    news = [json.loads(r["new"]) for r in rows if r["table_name"] == "a" and r["new"]]
    assert {"id": 7, "v": 8.5, "j": {"k": 7}} in news
    values = json.loads(typed.read_text())
    assert len(values) == 61
    assert values[0]["new"] == {"id": 0, "v": "0.50", "j": '{"k": 0}'}


def _captured(log: LogReader, schema: str) -> int:
    files = [rows for segment in log.after(0) for rows in segment.files]
    return sum(rows.rows for rows in files if rows.relation.namespace == schema)


@pytest.mark.slow
def test_a_publication_is_read_as_its_subscribers_would_get_it(
    node: Node, tmp_path: Path
) -> None:
    from wal2lake.datasource.node import NodeQuestions

    node.sql("create schema dp")
    node.sql("select pg_create_logical_replication_slot('dp', 'pgoutput')")
    node.sql("create table dp.t (id int primary key, v int, secret text)")
    node.sql("alter table dp.t replica identity full")
    node.sql("create publication dp for table dp.t where (v > 0)")
    try:
        node.sql("insert into dp.t values (1, 1, 'x'), (2, -1, 'y')")
        node.sql("update dp.t set v = -1 where id = 1")
        node.sql("update dp.t set v = 5 where id = 2")
        node.sql("alter publication dp set (publish = 'insert')")
        node.sql("delete from dp.t")
        log = LogReader(node.directory / "log" / "publish")
        wait_until(
            lambda: _captured(log, "dp") == 6, timeout_seconds=120, describe="captured"
        )
        path = tmp_path / "rows.json"
        options = {"conninfo": node.conninfo(), "publication": "dp", "slot": "dp"}
        before = NodeQuestions(node.conninfo()).slot_position("dp")
        folder = tmp_path / "stream"
        steps: list[dict[str, Any]] = [
            {"kind": "batch", "options": options, "path": str(path)},
            {"kind": "stream", "options": options, "rows": 3},
        ]
        run(folder, steps)
        rows = json.loads(path.read_text())
        assert rows == [row for batch in batches(folder) for row in batch]
        # With its next micro-batch Spark tells that the first is done: the slot goes on.
        node.sql("insert into dp.t values (3, 3, 'z')")
        run(folder, [{"kind": "stream", "options": options, "rows": 4}])
        assert NodeQuestions(node.conninfo()).slot_position("dp") > before
        assert [(r["op"], r["new"] and json.loads(r["new"])) for r in rows] == [
            ("insert", {"id": 1, "v": 1, "secret": "x"}),
            ("delete", None),
            ("insert", {"id": 2, "v": 5, "secret": "y"}),
        ]
    finally:
        node.sql("select pg_drop_replication_slot('dp')")
        node.sql("drop publication dp")
        node.sql("drop table dp.t")
        node.sql("drop schema dp")


def test_names_that_do_not_exist_are_errors(node: Node) -> None:
    from wal2lake.datasource.node import NodeQuestions
    from wal2lake.errors import UsageError

    questions = NodeQuestions(node.conninfo())
    for ask, sqlstate, text in (
        (questions.subscription_log, "42704", 'subscription "no" does not exist'),
        (questions.publication_log, "42704", 'publication "no" does not exist'),
        (
            lambda name: questions.fields("public", name),
            "42P01",
            'relation "public.no"',
        ),
    ):
        with pytest.raises(UsageError) as caught:
            ask("no")
        assert caught.value.sqlstate == sqlstate
        assert text in caught.value.message


def test_directories_are_shown_to_those_who_may_read_settings(node: Node) -> None:
    from wal2lake.datasource.node import NodeQuestions
    from wal2lake.errors import UsageError

    node.sql("create role ds_reader login password 'secret'")
    try:
        questions = NodeQuestions(node.conninfo(user="ds_reader", password="secret"))
        node.sql("create publication dq for all tables")
        with pytest.raises(UsageError) as caught:
            questions.publication_log("dq")
        assert caught.value.sqlstate == "42501"
        assert caught.value.hint == (
            "Connect as a superuser or as a member of the role pg_read_all_settings."
        )
        node.sql("grant pg_monitor to ds_reader")
        with pytest.raises(UsageError) as caught:
            questions.publication_log("dq")
        assert caught.value.hint == (
            "Make one with SELECT pg_create_logical_replication_slot('spark', 'pgoutput'),"
            ' and name it in the option "slot".'
        )
        node.sql("select pg_create_logical_replication_slot('dq', 'pgoutput')")
        assert questions.publication_log("dq").directory.is_dir()
    finally:
        node.sql("drop publication if exists dq")
        node.sql(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = 'dq'"
        )
        node.sql("drop role ds_reader")
