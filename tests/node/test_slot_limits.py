"""Slots of a whole node: lost when they hold too much or nobody uses them, counted, cut off."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError
from wal2lake.settings import FILE_NAME
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import find_installation
from wal2lake.testing.waits import wait_until

MB = 1 << 20
ROWS = 30_000
"""Of 128 random hexadecimal digits: about 2 MB in the log."""


def setting(node: Node, name: str, value: int, shown: str) -> None:
    """Written into the file, and read again."""
    line = re.compile(rf"^(# )?{name} = .*$", re.MULTILINE)
    path = node.directory / FILE_NAME
    path.write_text(line.sub(f"{name} = {value}", path.read_text()))
    os.kill(node.pids()[0], signal.SIGHUP)
    node.wait_for(f"show {name}", lambda rows: rows == [(shown,)])


def fill(node: Node, first: int) -> None:
    node.sql(
        "insert into public.t select n, md5(n::text) || md5('a' || n::text)"
        " || md5('b' || n::text) || md5('c' || n::text)"
        f" from generate_series({first}, {first + ROWS - 1}) as g (n)"
    )


def refusal(node: Node, sql: str) -> tuple[str | None, str, str | None]:
    with pytest.raises(PublisherError) as refused:
        node.sql(sql)
    return refused.value.sqlstate, refused.value.message, refused.value.detail


def state(node: Node, slot: str) -> tuple[str | None, ...]:
    (found,) = node.sql(
        "select wal_status, invalidation_reason, active from pg_replication_slots"
        f" where slot_name = '{slot}'"
    )
    return found


def receive(node: Node, slot: str, output: Path) -> subprocess.Popen[bytes]:
    """pg_recvlogical, streaming."""
    process = subprocess.Popen(
        [
            find_installation(18).bin / "pg_recvlogical",
            *("-d", node.conninfo(), f"--slot={slot}", "--start", "--no-loop"),
            *("-f", output),
        ],
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: state(node, slot)[2] == "t", describe=f"{slot} is active")
    return process


@pytest.mark.slow
def test_slots_are_bounded_counted_and_cut_off(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = make_node(
        settings={
            "node.authentication": "trust",
            "publish.logical_decoding_work_mem": 64 * 1024,
        }
    ).start()
    node.sql("create table public.t (id int primary key, v text)")
    make = "select pg_create_logical_replication_slot('{}', 'test_decoding')"
    for name in ("behind", "held", "idle"):
        node.sql(make.format(name))

    # What is decoded is counted: by functions, streamed or not, and by walsenders.
    counted = (
        "select total_txns, total_bytes > 0, stream_txns, stream_count > 1, stream_bytes > 0,"
        " spill_txns, stats_reset is null from pg_stat_replication_slots"
        " where slot_name = '{}'"
    )
    node.sql("insert into public.t values (-1, 'a'), (-2, 'b')")
    peek = "select * from pg_logical_slot_peek_changes('idle', null, null{})"
    node.sql(peek.format(""))
    assert node.sql(counted.format("idle")) == [("1", "t", "0", "f", "f", "0", "t")]
    fill(node, 1)
    node.sql(peek.format(", 'stream-changes', '1'"))
    assert node.sql(counted.format("idle")) == [("3", "t", "1", "t", "t", "0", "t")]
    node.sql("select pg_stat_reset_replication_slot('idle')")
    assert node.sql(counted.format("idle")) == [("0", "f", "0", "f", "f", "0", "f")]
    assert refusal(node, "select pg_stat_reset_replication_slot('nope')")[:2] == (
        "22023",
        'replication slot "nope" does not exist',
    )
    process = receive(node, "held", tmp_path / "held")
    node.wait_for(counted.format("held"), lambda rows: rows[0][0] == "2")

    # The client of "held" stands still, the one of "behind" never came.
    node.wait_for(
        "select confirmed_flush_lsn = pg_current_wal_lsn() from pg_replication_slots"
        " where slot_name = 'held'",
        lambda rows: rows == [("t",)],
    )
    process.send_signal(signal.SIGSTOP)
    setting(node, "max_slot_wal_keep_size", 3, "3MB")
    assert node.sql(
        "select wal_status, safe_wal_size between 1 and 3145728 from pg_replication_slots"
        " where slot_name = 'behind'"
    ) == [("reserved", "t")]
    fill(node, 100_000)
    fill(node, 200_000)

    def is_lost(name: str) -> bool:
        return state(node, name) == ("lost", "wal_removed", "f")

    for name in ("behind", "held", "idle"):
        wait_until(
            partial(is_lost, name),
            timeout_seconds=60,
            describe=lambda: node.log_text()[-3000:],
        )
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    text = node.log_text()
    assert 'invalidating obsolete replication slot "behind"' in text
    assert 'You might need to increase "max_slot_wal_keep_size".' in text
    assert re.search(
        r'terminating process \d+ to release replication slot "held"', text
    )
    assert refusal(node, peek.format("")) == (
        "55000",
        'can no longer access replication slot "idle"',
        'This replication slot has been invalidated due to "wal_removed".',
    )

    def bytes_kept() -> int:
        files = (node.directory / "log" / "publish").iterdir()
        return sum(file.stat().st_size for file in files)

    wait_until(lambda: bytes_kept() < 3 * MB, describe=lambda: f"{bytes_kept()} bytes")
    for name in ("behind", "held", "idle"):
        node.sql(f"select pg_drop_replication_slot('{name}')")

    # Who wants prepared transactions as such has them from then on.
    node.sql("create publication p for table public.t")
    node.sql("select pg_create_logical_replication_slot('phases', 'pgoutput')")
    node.sql(
        "select count(*) from pg_logical_slot_peek_binary_changes('phases', null, null,"
        " 'proto_version', '3', 'publication_names', 'p', 'two_phase', 'on')"
    )
    assert node.sql(
        "select two_phase, two_phase_at = confirmed_flush_lsn from pg_replication_slots"
    ) == [("t", "t")]
    node.sql("select pg_drop_replication_slot('phases')")

    # Nobody uses it.
    node.sql(make.format("unused"))
    node.sql(make.format("used"))
    process = receive(node, "used", tmp_path / "used")
    setting(node, "idle_replication_slot_timeout", 1, "1s")
    wait_until(
        lambda: state(node, "unused") == ("lost", "idle_timeout", "f"),
        timeout_seconds=60,
        describe=lambda: node.log_text()[-3000:],
    )
    assert 'exceeds the configured "idle_replication_slot_timeout" duration of 1s' in (
        node.log_text()
    )
    assert state(node, "used") == ("reserved", None, "t")

    # A walsender is a backend like any other.
    assert node.sql(
        "select pg_terminate_backend(active_pid) from pg_replication_slots"
        " where slot_name = 'used'"
    ) == [("t",)]
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert node.sql("select pg_terminate_backend(1000000)") == [("f",)]
