"""``null``: the backlog again, through one stage of ours at a time.

    pg_recvlogical    PostgreSQL's own reader, to /dev/null
    receive           pg.CopyBothStream, bytes dropped
    decode            wire.columnar over the bytes that such a reader kept in memory: in the
                      pieces in which they came, and joined into large ones; of text, and
                      of binary format
    log               the receiver process as it is, without an engine: until all is durable
                      in the journal, and until all is sealed in segments

Each reads a copy of the same slot, so the walsender does the same work for each. Each is a
process of its own (``python -m benchmarks.changes.nullmodes MODE ...``): its CPU time and its
memory are nobody else's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.changes.backlog import PUBLICATION, TEMPLATE_SLOT, Written
from benchmarks.report import Target, rate
from benchmarks.stage import Stage, slot_is_active, wait_exactly
from benchmarks.usage import Usage, high_water
from wal2lake.catalog import Catalog, ProgressFile, Subscription
from wal2lake.model import Lsn, Oid
from wal2lake.pg import CopyBothStream, connect
from wal2lake.pg.client import Client
from wal2lake.settings import load
from wal2lake.testing.node import run_cli
from wal2lake.wire.columnar import Decoder
from wal2lake.wire.copyboth import StandbyStatus, write_payload

_NAME: Final = "null"

_GULP_BYTES: Final = 4 << 20
"""As the receiver's."""

_FEED_BYTES: Final = 1 << 20

_STATUS_SECONDS: Final = 1.0

_BINARY: Final = ", binary 'true'"

_RSS: Final = Target(at_most=500.0)
"""MB, of a receiver."""

_CPU: Final = Target(at_most=4.0)
"""Seconds per million changes: receive, decode and all else that a receiver's processes do."""

_JOURNAL: Final = Target(ratio_at_least=1.0, aim=1.3)
"""Our journal, fsynced, beside pg_recvlogical's /dev/null."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """What one mode took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    source_cpu_seconds: float | None = None
    journal_seconds: float | None = None
    """Until all was durable in the journal."""


# ---- the parent: slots, children, results -----------------------------------------


def run(stage: Stage, backlog: Written) -> None:
    """Measure all modes and add the results."""
    stages: dict[str, _Stage] = {}
    for mode, measure in (
        ("pg_recvlogical", _pg_recvlogical),
        ("receive", _receive),
        ("log", _log),
        ("decode", _decode),
        ("decode_binary", _decode_binary),
    ):
        stage.say(f"null: {mode}")
        with _slot_copy(stage, f"bench_null_{mode}") as slot:
            stages |= measure(stage, backlog, slot)
    changes = backlog.shape.changes
    for what, figures in stages.items():
        _add(stage, what, figures, changes)
        if figures.journal_seconds is not None:
            stage.add(
                _NAME,
                "until durable in the journal, beside pg_recvlogical",
                "changes/s",
                rate(changes, figures.journal_seconds),
                rate(changes, stages["pg_recvlogical"].seconds),
                _JOURNAL,
            )


def _add(stage: Stage, what: str, figures: _Stage, changes: int) -> None:
    is_receiver = figures.journal_seconds is not None

    def add(
        of: str, unit: str, value: float | None, target: Target | None = None
    ) -> None:
        stage.add(
            _NAME,
            f"{what}: {of}",
            unit,
            value,
            target=target if is_receiver else None,
        )

    per_million = 1e6 / changes
    add("speed", "changes/s", rate(changes, figures.seconds))
    add("CPU per million", "s", figures.cpu_seconds * per_million, _CPU)
    if figures.source_cpu_seconds is not None:
        add(
            "CPU of the walsender per million",
            "s",
            figures.source_cpu_seconds * per_million,
        )
    if figures.peak_bytes:
        add("peak RSS", "MB", figures.peak_bytes / 1e6, _RSS)


@contextmanager
def _slot_copy(stage: Stage, name: str) -> Iterator[str]:
    with stage.at_source() as source:
        source.rows(
            f"select pg_copy_logical_replication_slot('{TEMPLATE_SLOT}', '{name}')"
        )
        try:
            yield name
        finally:
            wait_exactly(lambda: not slot_is_active(source, name), f"{name} is free")
            source.rows(f"select pg_drop_replication_slot('{name}')")


def _pg_recvlogical(stage: Stage, backlog: Written, slot: str) -> dict[str, _Stage]:
    command = stage.source.installation.command(
        "pg_recvlogical",
        f"--dbname={stage.source.conninfo()}",
        f"--slot={slot}",
        "--start",
        "--no-loop",
        f"--endpos={backlog.mark}",
        "--option=proto_version=1",
        f"--option=publication_names={PUBLICATION}",
        "--file=/dev/null",
    )
    launched = time.perf_counter()
    with (
        stage.at_source() as source,
        subprocess.Popen(command) as process,
        Usage({"reader": process.pid, "source": stage.source.pid}) as usage,
    ):
        started = _started(source, slot, process)
        if not _running(process):
            # So short that nobody has seen it stream.
            started = launched
        code = process.wait()
        seconds = time.perf_counter() - started
    if code != 0:
        raise RuntimeError(f"pg_recvlogical ended with exit code {code}")
    return {
        "pg_recvlogical": _Stage(
            seconds,
            usage.cpu_seconds("reader"),
            usage.peak_bytes("reader") or 0,
            usage.cpu_seconds("source", "walsender"),
        )
    }


def _receive(stage: Stage, backlog: Written, slot: str) -> dict[str, _Stage]:
    with Usage({"source": stage.source.pid}) as usage:
        (figures,) = _child(stage, backlog, slot, "receive")
    walsender = usage.cpu_seconds("source", "walsender")
    return {
        "receive only": _Stage(
            figures.seconds, figures.cpu_seconds, figures.peak_bytes, walsender
        )
    }


def _decode(stage: Stage, backlog: Written, slot: str) -> dict[str, _Stage]:
    arrived, large = _child(stage, backlog, slot, "decode")
    return {"decode only, as it arrived": arrived, "decode only, large feeds": large}


def _decode_binary(stage: Stage, backlog: Written, slot: str) -> dict[str, _Stage]:
    arrived, large = _child(stage, backlog, slot, "decode", "--binary")
    return {
        "decode only, binary, as it arrived": arrived,
        "decode only, binary, large feeds": large,
    }


def _child(
    stage: Stage, backlog: Written, slot: str, mode: str, *more: str
) -> list[_Stage]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.changes.nullmodes", mode, *more),
            *("--conninfo", stage.source.conninfo()),
            *("--slot", slot),
            *("--mark", str(backlog.mark)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [_Stage(**fields) for fields in json.loads(done.stdout)]


def _log(stage: Stage, backlog: Written, slot: str) -> dict[str, _Stage]:
    """The receiver's process, with a catalog but without supervisor and engine."""
    directory = stage.folder / "log-only"
    done = run_cli("init", "-D", directory, "-U", "postgres")
    if done.returncode != 0:
        raise RuntimeError(f"init failed: {done.stderr}")
    settings = load(directory, os.environ)
    catalog = Catalog(settings.catalog_file)
    oid = catalog.new_oid()
    owner = catalog.roles()[0].oid
    catalog.create_subscription(
        Subscription(
            oid,
            slot,
            owner,
            enabled=True,
            conninfo=stage.source.conninfo(),
            slot_name=slot,
            publications=(PUBLICATION,),
        ),
        [],
    )
    catalog.close()
    settings.run_directory.mkdir(exist_ok=True)
    with (
        ProgressFile(settings.run_directory, oid) as progress,
        stage.at_source() as source,
        _receiver(directory, oid) as process,
        Usage({"receiver": process.pid, "source": stage.source.pid}) as usage,
    ):
        started = _started(source, slot, process)

        def beyond(word: str) -> Callable[[], bool]:
            return lambda: _running(process) and progress.word(word) > backlog.mark

        wait_exactly(beyond("logged"), "all is logged")
        logged = time.perf_counter() - started
        wait_exactly(beyond("sealed"), "all is sealed")
        sealed = time.perf_counter() - started
    peak = usage.peak_bytes("receiver") or 0
    cpu = usage.cpu_seconds("receiver")
    walsender = usage.cpu_seconds("source", "walsender")
    return {"log only, until sealed": _Stage(sealed, cpu, peak, walsender, logged)}


@contextmanager
def _receiver(directory: Path, oid: Oid) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "wal2lake.receive"),
            *("-D", str(directory), "--subscription", str(int(oid))),
        ]
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _started(source: Client, slot: str, process: subprocess.Popen[bytes]) -> float:
    wait_exactly(
        lambda: slot_is_active(source, slot) or not _running(process),
        f"{slot} streams",
        pause_seconds=0.001,
    )
    return time.perf_counter()


def _running(process: subprocess.Popen[bytes]) -> bool:
    code = process.poll()
    if code:
        raise RuntimeError(f"the reader ended with exit code {code}")
    return code is None


# ---- the child ------------------------------------------------------------------------

_Gulp = tuple[bytes, npt.NDArray[np.uint32]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one mode and print what it took as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.changes.nullmodes")
    parser.add_argument("mode", choices=("receive", "decode"))
    parser.add_argument("--conninfo", required=True)
    parser.add_argument("--slot", required=True)
    parser.add_argument("--mark", type=Lsn.parse, required=True)
    parser.add_argument("--binary", action="store_true")
    options = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    kept: list[_Gulp] = []
    received = _drain(
        options.conninfo,
        options.slot,
        options.mark,
        kept if options.mode == "decode" else None,
        binary=options.binary,
    )
    if options.mode == "receive":
        measured = [received]
    else:
        measured = [_decoded(kept), _decoded(list(_joined(kept)))]
    print(json.dumps([asdict(figures) for figures in measured]))
    return 0


def _drain(
    conninfo: str, slot: str, mark: Lsn, kept: list[_Gulp] | None, *, binary: bool
) -> _Stage:
    session = connect(conninfo, application_name=slot, replication=True)
    never, writer = os.pipe()
    cpu = time.process_time()
    stream = CopyBothStream(
        session,
        f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0'
        f" (proto_version '1', publication_names '\"{PUBLICATION}\"'"
        f"{_BINARY if binary else ''})",
    )
    started = time.perf_counter()
    received, last_status = Lsn(0), started
    while received <= mark:
        payloads = stream.read(0.02, _GULP_BYTES, never)
        if payloads is None:
            raise RuntimeError("the stream has ended")
        data = bytes(payloads.data)
        lengths = np.array(payloads.sizes, np.uint32)
        ends = np.cumsum(lengths, dtype=np.int64)
        is_change = np.frombuffer(data, np.uint8)[ends - lengths] == ord("w")
        if is_change.any():
            last = int((ends - lengths)[np.flatnonzero(is_change)[-1]])
            received = Lsn(int.from_bytes(data[last + 1 : last + 9], "big"))
            if kept is not None:
                kept.append(_only(data, lengths, ends, is_change))
        now = time.perf_counter()
        if now - last_status >= _STATUS_SECONDS:
            status = StandbyStatus(received, received, received, 0, False)
            stream.write(write_payload(status))
            last_status = now
    seconds = time.perf_counter() - started
    figures = _Stage(seconds, time.process_time() - cpu, high_water(os.getpid()))
    session.close()
    os.close(never)
    os.close(writer)
    return figures


def _only(
    data: bytes,
    lengths: npt.NDArray[np.uint32],
    ends: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.bool_],
) -> _Gulp:
    """Of payloads back to back, some."""
    chosen = zip((ends - lengths)[wanted].tolist(), ends[wanted].tolist(), strict=True)
    return b"".join(data[start:end] for start, end in chosen), lengths[wanted]


def _decoded(kept: list[_Gulp]) -> _Stage:
    """Process time, not wall time: nothing waits here, and others use the machine."""
    decoder = Decoder()
    started = time.process_time()
    for data, lengths in kept:
        decoder.feed(data, lengths)
    seconds = time.process_time() - started
    return _Stage(seconds, seconds, 0)


def _joined(kept: Sequence[_Gulp]) -> Iterator[_Gulp]:
    """The same bytes in feeds of ``_FEED_BYTES``: a feed has a price of its own."""
    waiting: list[_Gulp] = []
    size = 0
    for gulp in kept:
        waiting.append(gulp)
        size += len(gulp[0])
        if size >= _FEED_BYTES:
            yield _join(waiting)
            waiting, size = [], 0
    if waiting:
        yield _join(waiting)


def _join(gulps: Sequence[_Gulp]) -> _Gulp:
    return (
        b"".join(data for data, _ in gulps),
        np.concatenate([lengths for _, lengths in gulps]),
    )


if __name__ == "__main__":
    sys.exit(main())
