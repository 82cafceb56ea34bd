"""A walsender's process and the SQL functions decode a log from its first message to its last."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.publishing import PublishingNode
from tests.fakes.xids import Numbers

from wal2lake.catalog import ReplicationSlot
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity
from wal2lake.publish.capture.positions import FIRST
from wal2lake.publish.capture.writer import PublisherLogWriter
from wal2lake.publish.reading import read_changes
from wal2lake.publish.sending import ClientPublications
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.walsender import __main__ as walsender
from wal2lake.publish.walsender.starting import WalsenderTask

RELATION = Relation(
    Oid(16384),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", Oid(23), -1, True),),
)

COPY_DONE = b"c\0\0\0\4"


def a_row(key: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array([ord("I")], pa.uint8()),
            "old": pa.array([0], pa.uint8()),
            "c0": pa.array([b"%d" % key], pa.binary()),
        }
    )


def written(directory: Path) -> None:
    """A log of two transactions."""
    writer = PublisherLogWriter(directory, 1 << 20, Numbers())
    for key in (1, 2):
        writer.transaction(1, None, iter([(RELATION, a_row(key))]), 1, {})
    assert writer.seal(note=False) is not None


@pytest.fixture
def node(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> PublishingNode:
    node = PublishingNode(tmp_path, monkeypatch)
    slot = ReplicationSlot("s", "test_decoding", FIRST, FIRST, 0)
    node.catalog.create_slot(slot)
    written(tmp_path / "log")
    return node


@pytest.fixture
def signals() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_walsender_sends_a_log_and_says_how_it_ended(
    node: PublishingNode, tmp_path: Path, signals: None
) -> None:
    task = WalsenderTask(
        slot="s",
        plugin="test_decoding",
        start=int(FIRST),
        options=(("include-xids", "0"),),
        allowed=(),
        catalog=str(node.catalog.path),
        warehouse=node.catalog.warehouse,
        log=str(tmp_path / "log"),
        page=str(tmp_path / "page"),
        timeout_ms=0,
        work_mem=64 << 20,
    )
    ours, theirs = socket.socketpair()
    grown_read, grown_write = os.pipe()
    outcome_read, outcome_write = os.pipe()
    received = bytearray()

    def client() -> None:
        # Says that it is done once both transactions have come.
        while received.count(b"COMMIT") < 2:
            received.extend(ours.recv(65536))
        ours.sendall(COPY_DONE)

    thread = threading.Thread(target=client)
    thread.start()
    walsender.run(task.to_json(), (theirs.detach(), grown_read, outcome_write))
    thread.join(20)
    ours.close()
    os.close(grown_write)
    os.close(grown_read)
    with os.fdopen(outcome_read, "rb") as pipe:
        outcome = json.loads(pipe.read())
    assert outcome == {"end": "DONE", "left": ""}
    for key in (b"1", b"2"):
        assert b"table public.t: INSERT: id[integer]:" + key in received


def test_a_walsender_reports_an_option_that_its_plugin_does_not_have(
    node: PublishingNode, tmp_path: Path, signals: None
) -> None:
    task = WalsenderTask(
        "s",
        "test_decoding",
        int(FIRST),
        (("nonsense", None),),
        (),
        str(node.catalog.path),
        node.catalog.warehouse,
        str(tmp_path / "log"),
        str(tmp_path / "page"),
        0,
        64 << 20,
    )
    ours, theirs = socket.socketpair()
    outcome_read, outcome_write = os.pipe()
    grown_read, grown_write = os.pipe()
    walsender.run(task.to_json(), (theirs.detach(), grown_read, outcome_write))
    with os.fdopen(outcome_read, "rb") as pipe:
        outcome = json.loads(pipe.read())
    for end in (grown_read, grown_write):
        os.close(end)
    ours.close()
    assert (outcome["end"], outcome["sqlstate"]) == ("ERROR", "22023")
    assert "in the startup callback" in outcome["context"]


def publishing(node: PublishingNode, log: Path) -> Any:
    """What the SQL functions use of the engine."""

    @contextmanager
    def using(name: str, session: int) -> Iterator[ReplicationSlot]:
        slot = node.catalog.slot(name)
        assert slot is not None
        yield slot

    slots = SimpleNamespace(
        using=using,
        need=node.catalog.slot,
        confirm=node.catalog.confirm_slot,
        begin_two_phase=node.catalog.begin_two_phase,
    )
    return SimpleNamespace(
        slots=slots,
        capture=SimpleNamespace(catch_up_for_long=lambda: None),
        allowed=lambda: (),
        publications=lambda warn: ClientPublications(node.catalog, warn),
        log_directory=str(log),
        statistics=Statistics(),
    )


def changes(node: PublishingNode, log: Path, **changed: Any) -> Any:
    arguments: dict[str, Any] = {
        "up_to": None,
        "at_most": None,
        "options": [("include-xids", "0")],
        "binary": False,
        "consume": True,
        "function": "pg_logical_slot_get_changes",
        "work_mem": 64 << 20,
        "warn": lambda warning: None,
    }
    return read_changes(publishing(node, log), "s", 1, **(arguments | changed))


def test_functions_read_whole_transactions_up_to_a_limit(
    node: PublishingNode, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    first = changes(node, log, at_most=1)
    assert [row[2] for row in first.rows] == [
        b"BEGIN",
        b"table public.t: INSERT: id[integer]:1",
        b"COMMIT",
    ]
    slot = node.catalog.slot("s")
    assert slot is not None and slot.confirmed_lsn == first.reached > FIRST
    second = changes(node, log, consume=False)
    assert [row[2] for row in second.rows][1].endswith(b":2")
    assert changes(node, log).rows == second.rows
    assert changes(node, log).rows == []


def test_functions_for_text_refuse_a_plugin_without_text(
    node: PublishingNode, tmp_path: Path
) -> None:
    with pytest.raises(FeatureNotSupportedError, match="produces binary output"):
        changes(node, tmp_path / "log", options=[("force-binary", "1")])
    assert node.catalog.slot("s") == ReplicationSlot(
        "s", "test_decoding", FIRST, FIRST, 0
    )
