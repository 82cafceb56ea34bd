"""``slots``: one commit of 10 M rows, and many slots that read it.

    INSERT ... SELECT ──▶ capture (engine) ──▶ the log ──▶ a walsender alone
                                                  │  └───▶ ten at once
                                                  └──────▶ one beside nine whose clients do not read

Comes in: a stage. Goes out: peak memory of engine and walsender, what ten slots cost together in
CPU time beside what one does, and what nine clients that stand still cost the tenth in time. The
clients are pg_recvlogical with pgoutput, to /dev/null.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import workload
from benchmarks.report import Target, megabytes
from benchmarks.stage import Stage, slot_is_active, wait_exactly
from benchmarks.usage import Usage
from wal2lake.pg.client import Client
from wal2lake.testing.postgres import find_installation

_NAME: Final = "bench_slots"
_TABLE: Final = f"{workload.SCHEMA}.wide_commit"
_ROWS: Final = 10_000_000
_SLOTS: Final = 10
_WAIT_SECONDS: Final = 1800


def run(stage: Stage) -> None:
    """Measure and add the results."""
    rows = stage.options.scaled(_ROWS)
    # Whoever has read all leaves its slot at the end; ``kept`` is what the others are made from.
    kept, *others = slots = [f"{_NAME}_{number}" for number in range(_SLOTS)]
    with stage.at_node() as node:
        node.rows(f"create schema if not exists {workload.SCHEMA}")
        node.rows(f"create table {_TABLE} (id bigint primary key, n int, t text)")
        node.rows(f"create publication {_NAME} for table {_TABLE}")
        node.rows(f"select pg_create_logical_replication_slot('{kept}', 'pgoutput')")
        stage.say(f"slots: one commit of {rows:,} rows")
        with Usage({"node": stage.node.pids()[0]}) as usage:
            node.rows(
                f"insert into {_TABLE} select g, g % 1000, 'row ' || g"
                f" from generate_series(1, {rows}) g"
            )
            # Behind this nothing is to be captured.
            node.rows("select pg_logical_emit_message(false, 'bench', 'captured')")
        engine = usage.peak_bytes(role="engine")
        ((end,),) = node.rows("select pg_current_wal_lsn()")
        for slot in others:
            _copy(node, kept, slot)
        reader = others[0]
        alone, cpu, walsender = _together(stage, [reader], str(end))
        stage.say(f"slots: one took {alone:.1f} s")
        _again(node, kept, reader)
        still = [slot for slot in slots if slot != reader]
        with _standing_still(stage, node, still):
            beside, *_ = _together(stage, [reader], str(end))
        for slot in still:
            _wait_free(node, slot)
        _again(node, kept, reader)
        _, all_cpu, _ = _together(stage, slots, str(end))
        stage.say(f"slots: {_SLOTS} took {all_cpu:.1f} s of CPU")
        for slot in slots:
            _wait_free(node, slot)
            node.rows(f"select pg_drop_replication_slot('{slot}')")
        node.rows(f"drop publication {_NAME}")
        node.rows(f"drop table {_TABLE}")
    what = f"one commit of {rows:,} rows"
    stage.add("slots", f"{what}: engine's peak RSS", "MB", megabytes(engine))
    stage.add(
        "slots",
        f"{what}: walsender's peak RSS",
        "MB",
        megabytes(walsender),
        target=Target(at_most=512.0),
    )
    stage.add("slots", f"{what}: one pg_recvlogical", "s", alone)
    stage.add("slots", "CPU of its walsender", "s", cpu)
    stage.add(
        "slots",
        f"CPU of {_SLOTS} at once, times as much",
        "times",
        all_cpu / cpu,
        target=Target(at_most=_SLOTS * 1.1),
    )
    stage.add(
        "slots",
        "one beside nine that stand still, to one alone",
        "times",
        beside / alone,
        target=Target(at_most=1.25),
    )


def _copy(node: Client, kept: str, slot: str) -> None:
    node.rows(f"select pg_copy_logical_replication_slot('{kept}', '{slot}')")


def _wait_free(node: Client, slot: str) -> None:
    wait_exactly(lambda: not slot_is_active(node, slot), "it is free")


def _again(node: Client, kept: str, slot: str) -> None:
    _wait_free(node, slot)
    node.rows(f"select pg_drop_replication_slot('{slot}')")
    _copy(node, kept, slot)


def _together(
    stage: Stage, slots: list[str], end: str
) -> tuple[float, float, int | None]:
    """All of them at once: seconds until the last has read all, CPU seconds and the largest memory
    of their walsenders."""
    with Usage({"node": stage.node.pids()[0]}) as usage:
        started = time.perf_counter()
        clients = [_client(stage, slot, end) for slot in slots]
        try:
            for client in clients:
                if client.wait(_WAIT_SECONDS):
                    raise AssertionError("pg_recvlogical has failed")
            took = time.perf_counter() - started
            usage.sample()
        finally:
            for client in clients:
                client.kill()
                client.wait()
    cpu = usage.cpu_seconds(role="walsender")
    return took, cpu, usage.peak_bytes(role="walsender")


def _client(stage: Stage, slot: str, end: str | None) -> subprocess.Popen[bytes]:
    until = () if end is None else ("--endpos", end)
    return subprocess.Popen(
        [
            find_installation(18).bin / "pg_recvlogical",
            *("-d", stage.node.conninfo(), "--slot", slot, "--start"),
            *("-f", "/dev/null", "--no-loop", *until),
            *("-o", "proto_version=1", "-o", f"publication_names={_NAME}"),
        ]
    )


@contextmanager
def _standing_still(stage: Stage, node: Client, slots: list[str]) -> Iterator[None]:
    clients = [_client(stage, slot, None) for slot in slots]
    try:
        for slot, client in zip(slots, clients, strict=True):
            wait_exactly(
                partial(slot_is_active, node, slot), "it streams", pause_seconds=0.002
            )
            client.send_signal(signal.SIGSTOP)
        yield
    finally:
        for client in clients:
            client.kill()
            client.wait()
