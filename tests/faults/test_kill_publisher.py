"""SIGKILL of all at each durable step of capture: what tables committed is sent once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node

EMIT = "select pg_logical_emit_message"
GET = "select data from pg_logical_slot_get_changes('s', null, null, 'include-xids', 'off')"


def test_sigkill_at_each_step_of_capture_sends_every_commit_once(
    lend_node: Callable[[Path], Node], tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    node.sql("create table public.t (id int primary key)")
    node.sql("insert into public.t values (0)")
    node.sql("select * from pg_create_logical_replication_slot('s', 'test_decoding')")
    node.sql("create table public.u (id int primary key)")
    number = 0
    alone: list[str] = []

    def write(also: str = "") -> None:
        """A row and a message together, if that id is not there yet."""
        with contextlib.suppress(PublisherError):
            node.sql(
                f"begin; insert into public.t values ({number}); {also}"
                f" {EMIT}(true, 'row', '{number}'); commit"
            )

    for step in (
        *("capture.read", "segment.manifest_written", "capture.sealed"),
        "local.recorded",
    ):
        arm(points, step, "kill-tree")
        for _ in range(2):
            number += 1
            two_tables = f"insert into public.u values ({number});"
            write(two_tables if step == "local.recorded" else "")
            with contextlib.suppress(PublisherError):
                node.sql(f"{EMIT}(false, 'alone', '{number}')")
                alone.append(str(number))
        node.wait_end()
        (points / step).unlink(missing_ok=True)
        node.start()
        # What had no time is written again: a client cannot know.
        write()
        if step == "capture.read":
            # A table that is made and written while nobody looks, then all goes.
            node.sql("create table public.later (id int primary key)")
            node.sql("insert into public.later values (7)")
            node.kill("tree")
            node.start()
    rows = [str(row[0]) for row in node.sql(GET)]
    inserted = [r for r in rows if r.startswith("table public.t:")]
    present = node.sql("select id from public.t where id > 0 order by id")
    assert sorted(inserted) == sorted(
        f"table public.t: INSERT: id[integer]:{id_}" for (id_,) in present
    )
    assert rows.count("table public.later: INSERT: id[integer]:7") == 1
    # The row of the later table, and two CREATE TABLEs, which have ended.
    assert rows.count("BEGIN") == rows.count("COMMIT") == len(present) + 3
    for (id_,) in present:
        # In the transaction of its row.
        said = (
            f"message: transactional: 1 prefix: row, sz: {len(str(id_))} content:{id_}"
        )
        assert rows.count(said) == 1
        at = rows.index(said)
        begin = at - rows[at::-1].index("BEGIN")
        inside = rows[begin : rows.index("COMMIT", at)]
        assert f"table public.t: INSERT: id[integer]:{id_}" in inside
    assert sum("transactional: 1" in row for row in rows) == len(present)
    outside = [r.rsplit(":", 1)[1] for r in rows if "transactional: 0" in r]
    assert len(set(outside)) == len(outside) and set(outside) >= set(alone)
    assert node.sql(GET) == []
