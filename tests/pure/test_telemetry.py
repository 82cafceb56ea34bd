"""Telemetry: numbers of a process and the file that others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from wal2lake.observe.series import SeriesNames, SeriesValues
from wal2lake.observe.telemetry import (
    BUCKETS,
    Telemetry,
    TelemetryFile,
    read_process,
    read_telemetry,
    telemetry_path,
)

_ROWS = (
    "rows_total",
    (("kind", "inserted"), ("subscription", "s"), ("table", "a.b")),
)


def _written(directory: Path, telemetry: Telemetry, process: str = "engine") -> Any:
    with TelemetryFile(directory, process, telemetry):
        pass
    (read,) = [one for one in read_telemetry(directory) if one.process == process]
    return read


def test_what_is_written_is_read(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.count("rows_total", 3, table="a.b", subscription="s", kind="inserted")
    telemetry.count("rows_total", 4, kind="inserted", subscription="s", table="a.b")
    telemetry.gauge("source_wal_lsn", 2**63 + 1, subscription="s")
    telemetry.observe("wait_seconds", 0.004, subscription="s")
    telemetry.observe("wait_seconds", 700.0, subscription="s")
    read = _written(tmp_path, telemetry)
    assert read.pid == os.getpid()
    assert read.is_running
    assert read.started_at <= read.written_at
    assert read.counters == {_ROWS: 7}
    # An LSN keeps all of its bits.
    assert read.gauges == {
        ("source_wal_lsn", (("subscription", "s"),)): 2**63 + 1,
    }
    histogram = read.histograms[("wait_seconds", (("subscription", "s"),))]
    assert histogram.count == 2
    assert histogram.total == 700.004
    assert histogram.counts[BUCKETS.index(0.005)] == 1
    assert histogram.counts[-1] == 1


@pytest.mark.parametrize("bound", BUCKETS)
def test_a_bucket_holds_its_upper_bound(tmp_path: Path, bound: float) -> None:
    telemetry = Telemetry()
    telemetry.observe("wait_seconds", bound)
    read = _written(tmp_path, telemetry)
    counts = read.histograms[("wait_seconds", ())].counts
    assert counts.index(1) == BUCKETS.index(bound)


def test_an_unknown_gauge_disappears(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.gauge("files", 3, table="a.b")
    telemetry.gauge("files", None, table="a.b")
    telemetry.gauge("files", None, table="never.known")
    assert _written(tmp_path, telemetry).gauges == {}


def test_a_state_replaces_the_state_before(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.state("wal_status", "status", "reserved", subscription="s")
    telemetry.state("wal_status", "status", "reserved", subscription="t")
    telemetry.state("wal_status", "status", "lost", subscription="s")
    read = _written(tmp_path, telemetry)
    assert set(read.gauges) == {
        ("wal_status", (("status", "lost"), ("subscription", "s"))),
        ("wal_status", (("status", "reserved"), ("subscription", "t"))),
    }
    telemetry.state("wal_status", "status", None, subscription="s")
    assert len(_written(tmp_path, telemetry).gauges) == 1


def test_series_of_a_dropped_table_disappear(tmp_path: Path) -> None:
    telemetry = Telemetry()
    for table in ("a.b", "a.c"):
        telemetry.count("rows_total", table=table, subscription="s")
        telemetry.gauge("files", 1, table=table, subscription="s")
        telemetry.observe("wait_seconds", 1, table=table, subscription="s")
    telemetry.count("errors_total", subscription="s")
    telemetry.forget(table="a.b")
    read = _written(tmp_path, telemetry)
    assert {key[1] for key in read.gauges} == {
        (("subscription", "s"), ("table", "a.c"))
    }
    assert len(read.counters) == 2
    assert len(read.histograms) == 1
    telemetry.forget("errors_total")
    assert len(_written(tmp_path, telemetry).counters) == 1


def test_only_series_of_known_tables_are_kept(tmp_path: Path) -> None:
    telemetry = Telemetry()
    for subscription in ("s", "t"):
        telemetry.count("rows_total", table="a.b", subscription=subscription)
    telemetry.count("errors_total", subscription="t")
    telemetry.keep_only(("subscription", "table"), {("s", "a.b")})
    read = _written(tmp_path, telemetry)
    assert set(read.counters) == {
        ("rows_total", (("subscription", "s"), ("table", "a.b"))),
        ("errors_total", (("subscription", "t"),)),
    }


def test_the_file_is_written_only_after_a_change(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.gauge("files", 3)
    file = TelemetryFile(tmp_path, "engine", telemetry)
    try:
        file.write()
        path = telemetry_path(tmp_path, "engine")
        first = path.stat().st_ino
        telemetry.gauge("files", 3)
        file.write()
        assert path.stat().st_ino == first
        telemetry.gauge("files", 4)
        file.write()
        (read,) = read_telemetry(tmp_path)
        assert read.gauges == {("files", ()): 4}
    finally:
        file.close()


def test_threads_lose_no_count(tmp_path: Path) -> None:
    telemetry = Telemetry()

    def work() -> None:
        for _ in range(2_000):
            telemetry.count("rows_total", kind="inserted")
            telemetry.observe("wait_seconds", 0.002)

    with TelemetryFile(tmp_path, "engine", telemetry):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (read,) = read_telemetry(tmp_path)
    assert read.counters == {("rows_total", (("kind", "inserted"),)): 8_000}
    assert read.histograms[("wait_seconds", ())].count == 8_000


def test_a_file_of_an_earlier_version_is_gone_on_with(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.count("rows_total", 7, kind="inserted", subscription="s", table="a.b")
    telemetry.gauge("source_wal_lsn", 2**63 + 1, subscription="s")
    telemetry.observe("wait_seconds", 700.0, subscription="s")
    read = _written(tmp_path, telemetry)
    path = telemetry_path(tmp_path, "engine")
    first, second = path.read_bytes().splitlines()
    names, value = json.loads(first), json.loads(second)
    for kind in ("counters", "gauges"):
        value[kind] = [
            [*key, number] for key, number in zip(names[kind], value[kind], strict=True)
        ]
    value["histograms"] = [
        [*key, *one]
        for key, one in zip(names["histograms"], value["histograms"], strict=True)
    ]
    path.write_text(json.dumps(value, separators=(",", ":")))
    earlier = read_process(tmp_path, "engine")
    assert earlier is not None and earlier.pid == os.getpid()
    assert earlier.counters == read.counters and earlier.gauges == read.gauges
    assert earlier.histograms == read.histograms
    started = Telemetry()
    started.count("rows_total", 1, kind="inserted", subscription="s", table="a.b")
    started.resume(earlier)
    assert _written(tmp_path, started).counters == {_ROWS: 8}


def test_broken_files_are_left_out(tmp_path: Path) -> None:
    assert read_telemetry(tmp_path) == ()
    telemetry = Telemetry()
    telemetry.count("rows_total")
    telemetry.observe("wait_seconds", 1)
    _written(tmp_path, telemetry)
    path = telemetry_path(tmp_path, "engine")
    whole = path.read_bytes()
    first, second = whole.splitlines()
    names, value = json.loads(first), json.loads(second)
    others: list[Any] = [None, [[1, 2]], "x", {}, [["a", 1, 2, 3]]]
    broken: list[bytes] = [
        b"",
        whole[: len(whole) // 2],
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        first,
        b"\n" + second,
        second + b"\n" + first,
        first + b"\n" + json.dumps({**value, "started_at": 1e300}).encode(),
        *(
            first + b"\n" + json.dumps({**value, name: other}).encode()
            for name in value
            if name not in ("process", "birth")
            for other in others
            if not (name == "gauges" and other == {})
        ),
        *(
            json.dumps({**names, name: other}).encode() + b"\n" + second
            for name in names
            for other in others
            if not (name == "gauges" and other == {})
        ),
    ]
    for number, data in enumerate(broken):
        (path.parent / f"broken-{number}.json").write_bytes(data)
    (path.parent / "directory.json").mkdir()
    assert [one.process for one in read_telemetry(tmp_path)] == ["engine"]


def test_a_full_disk_does_not_stop_the_process(tmp_path: Path) -> None:
    (tmp_path / "telemetry").write_text("in the way")
    telemetry = Telemetry()
    telemetry.count("rows_total")
    file = TelemetryFile(tmp_path, "engine", telemetry)
    file.write()
    (tmp_path / "telemetry").unlink()
    file.close()
    (read,) = read_telemetry(tmp_path)
    assert read.counters == {("rows_total", ()): 1}


def test_a_file_of_an_ended_process_is_recognised(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.count("rows_total")
    read = _written(tmp_path, telemetry)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    path = telemetry_path(tmp_path, "engine")
    names, numbers = path.read_text().splitlines()
    value = json.loads(numbers)
    # A pid that nobody has, and a pid that another process has got since.
    for pid, birth in ((process.pid, read.birth), (os.getpid(), "17")):
        changed = json.dumps({**value, "pid": pid, "birth": birth})
        path.write_text(f"{names}\n{changed}\n")
        (old,) = read_telemetry(tmp_path)
        assert not old.is_running
        assert old.counters == {("rows_total", ()): 1}


def test_names_that_stay_are_shared_with_the_reading_before(tmp_path: Path) -> None:
    telemetry = Telemetry()
    telemetry.count("rows_total", table="a.b")
    telemetry.gauge("files", 1, table="a.b")
    telemetry.observe("wait_seconds", 1)
    with TelemetryFile(tmp_path, "engine", telemetry) as file:
        file.write()
        first = read_process(tmp_path, "engine")
        telemetry.count("rows_total", table="a.b")
        file.write()
        second = read_process(tmp_path, "engine", first)
        telemetry.count("rows_total", 5, table="a.c")
        telemetry.forget("files", table="a.b")
        file.write()
        third = read_process(tmp_path, "engine", second)
    assert first is not None and second is not None and third is not None
    assert second.counters.names is first.counters.names
    assert second.histograms.names is first.histograms.names
    assert second.counters == {("rows_total", (("table", "a.b"),)): 2}
    assert second.gauges == first.gauges
    assert third.counters == {
        ("rows_total", (("table", "a.b"),)): 2,
        ("rows_total", (("table", "a.c"),)): 5,
    }
    assert third.gauges == {}


def test_numbers_that_do_not_fit_their_names_are_refused() -> None:
    names = SeriesNames([("files", ())])
    with pytest.raises(ValueError, match="number of values"):
        SeriesValues(names, [1, 2])
