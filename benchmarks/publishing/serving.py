"""``serve``: a PostgreSQL 18 subscribes to the node, and to a PostgreSQL 18 with the same rows.

    source ──backlog──▶ node                 the same changes, in both logs
       │                  │
       └─▶ pg_recvlogical ◀┘                 each walsender alone, to /dev/null
       └─▶  subscriber    ◀┘                 one after the other, the table emptied between
       └─▶ initial copy   ◀┘

The column *native* is PostgreSQL's figure as publisher. The node has the changes from its own
subscription, and each of the source's transactions is one of its own. Time of a stream counts
from the moment at which its slot is active; of the copy, from CREATE SUBSCRIPTION to state r.
``commit to visible`` is what one-row transactions at the node's front door take beyond their own
COMMIT until the subscriber shows them.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks import workload
from benchmarks.changes import shapes
from benchmarks.report import Target, rate
from benchmarks.stage import (
    Stage,
    drop_subscription,
    slot_is_active,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from wal2lake.model import Lsn
from wal2lake.pg.client import Client
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.postgres import find_installation

PUBLICATION: Final = "bench_serve"
_FEED: Final = "bench_serve_feed"
_TABLE: Final = f"{workload.SCHEMA}.changed"
_COPIED: Final = "copied"
_COPY_ROWS: Final = 2_000_000
_COMMITS: Final = 30


@dataclass(frozen=True, slots=True)
class _Publisher:
    name: str
    conninfo: str
    pid: int
    stage: Stage

    @property
    def slot(self) -> str:
        return f"bench_serve_{self.name}"

    @contextmanager
    def connected(self) -> Iterator[Client]:
        with Client(self.conninfo) as client:
            yield client

    def end(self) -> Lsn:
        """Of its log."""
        with self.connected() as client:
            ((text,),) = client.rows("select pg_current_wal_lsn()")
        return Lsn.parse(str(text))


def run(stage: Stage) -> None:
    """Fill both, then measure stream, copy and commits."""
    shape = shapes.backlog(stage.options)
    with stage.at_node() as node:
        node.rows("create role bench superuser login replication password 'bench'")
    facts = dict(part.split("=", 1) for part in stage.node.conninfo().split())
    both = [
        _Publisher("native", stage.source.conninfo(), stage.source.pid, stage),
        _Publisher(
            "node",
            f"host=127.0.0.1 port={facts['port']} dbname=lake user=bench password=bench",
            stage.node.pids()[0],
            stage,
        ),
    ]
    with stage.at_source() as source, stage.quick_slots():
        shape.create(source)
        source.rows(f"create publication {PUBLICATION} for table {_TABLE}")
        with stage.at_node() as node, stage.at_native() as native:
            shape.create(native)
            stage.subscribe(node, _FEED, PUBLICATION)
            wait_ready(node, _FEED)
            node.rows(f"create publication {PUBLICATION} for table {_TABLE}")
            for publisher in both:
                with publisher.connected() as client:
                    client.rows(
                        f"select pg_create_logical_replication_slot('{publisher.slot}', 'pgoutput')"
                    )
                    client.rows(
                        f"select pg_create_logical_replication_slot('{publisher.slot}_null',"
                        " 'pgoutput')"
                    )
        stage.say(f"serve: writing {shape.changes:,} changes")
        mark = shape.write(source)
    with stage.at_node() as node:
        wait_exactly(lambda: _has_applied(node, mark), "the node has the changes")
    # The log of the node ends where its last transaction does.
    marks = {"native": mark, "node": Lsn(both[1].end() - 1)}
    _stream(stage, both, shape.changes)
    _subscribers(stage, both, marks, shape.changes, shape.checks)
    _commits(stage, both[1])
    with stage.at_node() as node:
        drop_subscription(node, _FEED)
    _copies(stage, both)
    for publisher in both:
        with publisher.connected() as client:
            client.rows(f"drop publication {PUBLICATION}")
            client.rows(f"drop table {_TABLE}")
    with stage.at_native() as native:
        native.rows(f"drop table {_TABLE}")


def _has_applied(node: Client, mark: Lsn) -> bool:
    rows = node.rows("select remote_lsn from pg_replication_origin_status")
    return bool(rows) and Lsn.parse(str(rows[0][0])) > mark


def _stream(stage: Stage, both: list[_Publisher], changes: int) -> None:
    """Each walsender alone."""
    seconds = {}
    program = find_installation(18).bin / "pg_recvlogical"
    for publisher in both:
        end = publisher.end()
        stage.say(f"serve: pg_recvlogical from {publisher.name}")
        with Usage({publisher.name: publisher.pid}) as usage:
            started = time.perf_counter()
            subprocess.run(
                [
                    program,
                    *(
                        "-d",
                        publisher.conninfo,
                        "--slot",
                        f"{publisher.slot}_null",
                        "--start",
                    ),
                    *("-f", "/dev/null", "--no-loop", "--endpos", str(end)),
                    *(
                        "-o",
                        "proto_version=4",
                        "-o",
                        f"publication_names={PUBLICATION}",
                    ),
                ],
                check=True,
                timeout=1800,
            )
            seconds[publisher.name] = time.perf_counter() - started
            cpu = usage.cpu_seconds(publisher.name, "walsender")
        with publisher.connected() as client:
            client.rows(f"select pg_drop_replication_slot('{publisher.slot}_null')")
        stage.say(
            f"serve: {publisher.name} took {seconds[publisher.name]:.1f} s, {cpu:.1f} s of CPU"
        )
    stage.add(
        "serve",
        "walsender to pg_recvlogical",
        "changes/s",
        rate(changes, seconds["node"]),
        rate(changes, seconds["native"]),
        Target(ratio_at_least=0.7),
    )


def _subscribers(
    stage: Stage,
    both: list[_Publisher],
    marks: Mapping[str, Lsn],
    changes: int,
    checks: tuple[str, ...],
) -> None:
    seconds = {}
    for publisher in both:
        mark = marks[publisher.name]
        stage.say(f"serve: a subscriber of {publisher.name}")
        with stage.at_native() as native, publisher.connected() as client:
            native.rows(
                f"create subscription {publisher.slot}"
                f" connection {quote_literal(publisher.conninfo)}"
                f" publication {PUBLICATION} with (create_slot = false,"
                f" slot_name = '{publisher.slot}', copy_data = false)"
            )
            wait_exactly(
                partial(slot_is_active, client, publisher.slot),
                "it streams",
                pause_seconds=0.002,
            )
            started = time.perf_counter()
            wait_exactly(
                partial(_has_reached, native, mark),
                "it has caught up",
                pause_seconds=0.02,
            )
            seconds[publisher.name] = time.perf_counter() - started
            stage.say(f"serve: {publisher.name} took {seconds[publisher.name]:.1f} s")
            with stage.at_source() as source:
                for check in checks:
                    if native.rows(check) != source.rows(check):
                        raise AssertionError(
                            f"the subscriber of {publisher.name} differs"
                        )
            if publisher is both[0]:
                drop_subscription(native, publisher.slot)
                native.rows(f"truncate {_TABLE}")
    stage.add(
        "serve",
        "start of streaming to all visible",
        "changes/s",
        rate(changes, seconds["node"]),
        rate(changes, seconds["native"]),
        Target(ratio_at_least=1.0),
    )


def _has_reached(native: Client, mark: Lsn) -> bool:
    rows = native.rows("select max(remote_lsn) from pg_replication_origin_status")
    return bool(rows) and rows[0][0] is not None and Lsn.parse(str(rows[0][0])) > mark


def _commits(stage: Stage, node: _Publisher) -> None:
    """The subscription to the node still runs."""
    took = []
    with node.connected() as client, stage.at_native() as native:
        for number in range(1, _COMMITS + 1):
            key = -number
            client.rows(workload.insert_rows("changed", key, key))
            committed = time.perf_counter()
            look = f"select 1 from {_TABLE} where id = {key}"
            wait_exactly(partial(native.rows, look), "it is there", pause_seconds=0.01)
            took.append(time.perf_counter() - committed)
        drop_subscription(native, node.slot)
    stage.add(
        "serve",
        "commit at the front door to visible, p50",
        "s",
        statistics.median(took),
        target=Target(at_most=1.0),
    )
    stage.add("serve", "the same, largest", "s", max(took))


def _copies(stage: Stage, both: list[_Publisher]) -> None:
    rows = stage.options.scaled(_COPY_ROWS)
    with stage.at_source() as source:
        source.rows(workload.create_table(_COPIED))
        source.rows(workload.insert_rows(_COPIED, 1, rows))
        source.rows("vacuum (analyze)")
        source.rows(
            f"alter publication {PUBLICATION} set table {workload.SCHEMA}.{_COPIED}"
        )
        with stage.at_node() as node, stage.quick_slots():
            stage.subscribe(node, _FEED, PUBLICATION)
            wait_ready(node, _FEED)
            drop_subscription(node, _FEED)
            node.rows(
                f"alter publication {PUBLICATION} set table {workload.SCHEMA}.{_COPIED}"
            )
    seconds = {}
    for publisher in both:
        stage.say(f"serve: copying from {publisher.name}")
        with stage.at_native() as native, stage.quick_slots():
            native.rows(workload.create_table(_COPIED))
            started = time.perf_counter()
            native.rows(
                f"create subscription {publisher.slot}"
                f" connection {quote_literal(publisher.conninfo)}"
                f" publication {PUBLICATION}"
            )
            wait_ready(native, publisher.slot)
            seconds[publisher.name] = time.perf_counter() - started
            stage.say(f"serve: {publisher.name} took {seconds[publisher.name]:.1f} s")
            with stage.at_source() as source:
                check = workload.fingerprint(_COPIED)
                if native.rows(check) != source.rows(check):
                    raise AssertionError(f"the copy from {publisher.name} differs")
            drop_subscription(native, publisher.slot)
            native.rows(f"drop table {workload.SCHEMA}.{_COPIED}")
    stage.add(
        "serve",
        f"copy of {rows:,} rows, CREATE SUBSCRIPTION to state r",
        "rows/s",
        rate(rows, seconds["node"]),
        rate(rows, seconds["native"]),
        Target(ratio_at_least=0.8),
    )
    for publisher in both:
        with publisher.connected() as client:
            client.rows(f"drop table {workload.SCHEMA}.{_COPIED}")
