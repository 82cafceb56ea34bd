"""Parquet files of a directory and of an object store are read alike, and in few requests."""

from __future__ import annotations

import io
import itertools
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.objectstores import Server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import (
    DAMAGED,
    RESTORE_HINT,
    CorruptLogError,
    StorageError,
)
from wal2lake.lake.parquet import OpenParquet, open_parquet, opened
from wal2lake.lake.staging.logrows import (
    LogSource,
    LsnRange,
    plan_parts,
    read_log_rows,
)
from wal2lake.lake.staging.stage import read_staged, staged_pieces
from wal2lake.lake.store import MissingFileError, store_at
from wal2lake.lake.store.reading import ObjectReader, ranges
from wal2lake.lake.upsert.runs.cutting import cut_into_runs
from wal2lake.model import Oid, Relation, ReplicaIdentity

GROUPS = 20
ROWS = 3000
"""Rows of a row group, which has about 350 KB."""


@pytest.fixture(scope="module")
def content() -> bytes:
    """20 row groups of a key and seven columns that hardly compress."""
    noise = random.Random(1)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, _part(noise, 0).schema) as writer:
        for group in range(GROUPS):
            writer.write_table(_part(noise, group))
    return sink.getvalue()


def _part(noise: random.Random, group: int) -> pa.Table:
    first = group * ROWS
    columns = {"id": pa.array(range(first, first + ROWS), pa.int64())}
    for name in "abcdefg":
        columns[name] = pa.array(noise.randbytes(8).hex() for _ in range(ROWS))
    return pa.table(columns)


def _put(server: Server, content: bytes, name: str = "part 1%.parquet") -> str:
    location = f"{server.url}/{uuid4().hex}"
    store = store_at(location, server.options())
    assert store is not None
    store.put(name, content)
    return f"{location}/{name}"


# ---- ranges --------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 60 << 20), st.integers(0, 20 << 20)), max_size=9)
)
def test_requests_have_every_byte_that_is_wanted(
    wanted: list[tuple[int, int]],
) -> None:
    asked = [(start, start + size) for start, size in wanted]
    requests = ranges.requests_for(asked)
    assert requests == sorted(requests)
    assert all(0 < end - start <= ranges.PART_BYTES for start, end in requests)
    for (_, end), (start, _) in itertools.pairwise(requests):
        assert end <= start, "no byte is asked for twice"
    covered = 0
    for start, end in asked:
        while start < end:
            one = next((r for r in requests if r[0] <= start < r[1]), None)
            assert one is not None
            start = min(one[1], end)
    covered = sum(end - start for start, end in requests)
    holes = len(asked) * ranges.HOLE_BYTES
    assert covered <= sum(end - start for start, end in asked) + holes


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), max_size=5),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 110)), max_size=20),
)
def test_every_read_has_the_bytes_of_the_object(
    fetched: list[tuple[int, int]], reads: list[tuple[int, int]]
) -> None:
    content = bytes(range(100))
    with ObjectReader(100, lambda start, end: content[start:end]) as reader:
        reader.fetch([(start, start + size) for start, size in fetched])
        for start, size in reads:
            assert reader.source.read_at(size, start) == content[start : start + size]


def test_close_ranges_are_asked_for_together_and_large_ones_in_parts() -> None:
    hole, part = ranges.HOLE_BYTES, ranges.PART_BYTES
    assert ranges.requests_for([(hole + 10, hole + 20), (0, 10)]) == [(0, hole + 20)]
    assert ranges.requests_for([(0, 10), (hole + 11, hole + 20)]) == [
        *((0, 10), (hole + 11, hole + 20)),
    ]
    assert ranges.requests_for([(5, 2 * part + 6)]) == [
        *((5, part + 5), (part + 5, 2 * part + 5), (2 * part + 5, 2 * part + 6)),
    ]
    assert ranges.requests_for([(5, 5)]) == []


def test_an_object_that_is_shorter_than_the_log_says() -> None:
    content = bytes(range(100))
    reader = ObjectReader(150, lambda start, end: content[start:end])
    assert reader.source.read_at(50, 80) == content[80:]
    reader.fetch([(90, 150)])
    assert reader.source.read_at(60, 90) == content[90:]


# ---- requests ------------------------------------------------------------------------------


def test_the_key_of_one_row_group_takes_two_requests(
    s3: Server, proxy: StoreProxy, content: bytes
) -> None:
    path = _put(s3, content)
    whole = pq.read_table(io.BytesIO(content))
    with open_parquet(path, len(content)) as parquet:
        assert parquet.groups == range(GROUPS)
        found = parquet.read_group(7, ["id"])
    assert (
        found.column("id").to_pylist()
        == whole.column("id").to_pylist()[7 * ROWS : 8 * ROWS]
    )
    assert [method for method, _, _ in proxy.seen] == ["GET"] * 2


def test_the_keys_of_all_row_groups_and_whole_groups(
    s3: Server, proxy: StoreProxy, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _put(s3, content)
    whole = pq.read_table(io.BytesIO(content))
    with open_parquet(path, len(content)) as parquet:
        keys = pa.concat_tables(parquet.each_group(parquet.groups, ["id"]))
        assert keys.equals(whole.select(["id"]))
        # The keys are too far apart to be asked for together.
        assert proxy.count("GET", "") == 1 + GROUPS
        monkeypatch.setattr(opened, "WINDOW_BYTES", 1 << 20)
        before = proxy.count("GET", "")
        rows = pa.concat_tables(parquet.each_group(range(4), parquet.names))
        assert rows.equals(whole.slice(0, 4 * ROWS))
        assert proxy.count("GET", "") - before == 2
        # Each column is larger than the window.
        monkeypatch.setattr(opened, "WINDOW_BYTES", 1)
        before = proxy.count("GET", "")
        assert parquet.read_group(12, ["id", "c"]).num_rows == ROWS
        assert proxy.count("GET", "") - before == 2
    assert proxy.count("HEAD", "") == 0


def test_a_small_file_takes_one_request(s3: Server, proxy: StoreProxy) -> None:
    sink = io.BytesIO()
    rows = pa.table({"id": [1, 2, 3], "t": ["a", "b", "c"]})
    pq.write_table(rows, sink, row_group_size=1)
    path = _put(s3, sink.getvalue())
    with open_parquet(path, len(sink.getvalue())) as parquet:
        assert pa.concat_tables(parquet.each_group(range(3), ["id", "t"])).equals(rows)
        assert parquet.read_group(2).num_rows == 1
    assert len(proxy.seen) == 1


def test_pieces_of_a_row_group(s3: Server, proxy: StoreProxy, content: bytes) -> None:
    path = _put(s3, content)
    with open_parquet(path, len(content), buffer_size=1 << 20) as parquet:
        whole = list(parquet.batches([3, 4], ["id", "g"], 1000))
        other = parquet.reopened(read_dictionary=["g"])
        (first,) = itertools.islice(other.batches([3], ["g"], 1), 1)
        assert first.num_rows == 1
    assert [batch.num_rows for batch in whole] == [1000] * 6
    assert whole[0].column("id")[0].as_py() == 3 * ROWS
    assert proxy.count("GET", "") == 4


def test_a_small_file_stays_in_memory_when_no_column_is_read(
    s3: Server, proxy: StoreProxy
) -> None:
    """Rows of a table that has but columns that the file does not are counted."""
    sink = io.BytesIO()
    rows = pa.table({"id": [1, 2, 3], "t": ["a", "b", "c"]})
    pq.write_table(rows, sink)
    path = _put(s3, sink.getvalue())
    with open_parquet(path, len(sink.getvalue())) as parquet:
        assert parquet.read_group(0, []).num_rows == 3
        assert [batch.num_rows for batch in parquet.batches([0], [], 2)] == [2, 1]
        assert [table.num_rows for table in parquet.each_group([0], [])] == [3]
        assert list(parquet.fetched([0], [])) == [0]
        assert parquet.read_group(0, ["id"]).equals(rows.select(["id"]))
    assert len(proxy.seen) == 1


# ---- row groups that are larger than a window ------------------------------------------------


class CountedRequests:
    """Answers requests for parts of a file, and counts them. A few come at once, if they can."""

    def __init__(self, content: bytes, at_once: int = 4) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []
        self.most_at_once = 0
        self._wanted = at_once
        self._now = 0
        self._changed = threading.Condition()

    def get(self, start: int, end: int) -> bytes:
        """Answer once so many requests are under way, or none has come for a moment."""
        with self._changed:
            self.asked.append((start, end))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most_at_once >= self._wanted, 0.1)
        answer = self.content[start:end]
        with self._changed:
            self._now -= 1
        return answer


@pytest.fixture(scope="module")
def large() -> tuple[bytes, pa.Table]:
    """A row group of 46 MB that hardly compresses, half of it in one column, and one of 1 MB."""
    noise = random.Random(1)

    def column(width: int, rows: int) -> pa.Array:
        return pa.array([noise.randbytes(width) for _ in range(rows)], pa.binary())

    def part(rows: int) -> pa.Table:
        nested = [{"x": noise.randbytes(70), "y": i, "z": [i]} for i in range(rows)]
        columns = {"id": pa.array(range(rows), pa.int64()), "big": column(600, rows)}
        columns |= {name: column(150, rows) for name in "abc"}
        return pa.table(columns | {"s": pa.array(nested)})

    first = part(40_000)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, first.schema, compression="none") as writer:
        writer.write_table(first)
        second = part(900)
        writer.write_table(second)
    return sink.getvalue(), pa.concat_tables([first, second])


@pytest.mark.parametrize("way", ["group", "groups", "each", "batches", "fetched"])
@pytest.mark.parametrize(
    "columns",
    [
        ["id", "big", "a", "b", "c", "s"],
        ["c", "a", "id", "b", "s.x", "s.z.list.element"],
        ["big"],
    ],
    ids=["all", "some", "one"],
)
def test_a_large_row_group_is_read_in_windows_of_several_requests(
    large: tuple[bytes, pa.Table], columns: list[str], way: str
) -> None:
    content, whole = large
    requests = CountedRequests(content)
    reader = ObjectReader(len(content), requests.get)
    expected = pq.ParquetFile(io.BytesIO(content)).read(columns)
    most = count = 0
    with OpenParquet("s3://b/t.parquet", reader, buffer_size=1 << 20) as parquet:
        tracemalloc.start()
        try:
            reads = _ways(parquet, columns)[way]
            found = pa.concat_tables(reads())
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        count = len(requests.asked) - 1
        wanted = [one for g in parquet.groups for one in parquet._ranges(g, columns)]
    assert found.schema.names == expected.schema.names
    assert found.equals(expected.slice(0, found.num_rows))
    assert found.num_rows == (40_000 if way == "group" else whole.num_rows)
    assert requests.most_at_once >= 3
    window = opened.WINDOW_BYTES
    assert most < 1.3 * window, "the window, and what its requests have brought"
    size = sum(end - start for start, end in wanted)
    assert size > 1.2 * window
    # Of a window each column has a share, and is asked for when less than half of it is left.
    assert count <= 2 * len(wanted) * (1 + size // window) + size // (window // 4)
    answered = sum(end - start for start, end in requests.asked[1:])
    assert answered < 1.1 * size + len(wanted) * ranges.HOLE_BYTES


def _ways(
    parquet: OpenParquet, columns: list[str]
) -> dict[str, Callable[[], Iterable[pa.Table]]]:
    def fetched() -> Iterator[pa.Table]:
        for group in parquet.fetched(parquet.groups, columns):
            # As a look at the first rows before all are read.
            next(
                parquet.reopened(buffer_size=1 << 20).batches(
                    [group], columns, 1, are_fetched=True
                )
            )
            yield pa.Table.from_batches(
                parquet.batches([group], columns, 1000, are_fetched=True)
            )

    return {
        "group": lambda: [parquet.read_group(0, columns)],
        "groups": lambda: [parquet.read_groups(parquet.groups, columns)],
        "each": lambda: parquet.each_group(parquet.groups, columns, use_threads=False),
        "batches": lambda: [
            pa.Table.from_batches(parquet.batches(parquet.groups, columns, 1000))
        ],
        "fetched": fetched,
    }


def test_all_columns_of_a_large_row_group(large: tuple[bytes, pa.Table]) -> None:
    content, whole = large
    with OpenParquet(
        "s3://b/t.parquet", ObjectReader(len(content), CountedRequests(content, 1).get)
    ) as parquet:
        assert parquet.read_group(0).equals(whole.slice(0, 40_000))


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=6),
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(0, 15))),
)
def test_windows_have_what_is_read_and_are_bounded(
    sizes: list[int], most_bytes: int, reads: list[tuple[int, int, int]]
) -> None:
    """Ranges are read in pieces by turns; now and then one from its beginning again."""
    content = bytes(i % 251 for i in range(sum(sizes) + 10))
    bounds = [0, *itertools.accumulate(sizes)]
    spans = list(itertools.pairwise(bounds))
    at = [start for start, _ in spans]
    with ObjectReader(len(content), lambda start, end: content[start:end]) as reader:
        reader.fetch(spans, most_bytes)
        largest = 0
        for number, size, again in reads:
            number %= len(spans)
            start, end = spans[number]
            begin = start if again == 0 else at[number]
            size = min(size, end - begin)
            largest = max(largest, size)
            assert reader.source.read_at(size, begin) == content[begin : begin + size]
            at[number] = begin + size
            kept = sum(len(part) for _, part in reader._file._kept)
            if sum(sizes) > most_bytes:
                assert kept <= max(most_bytes, len(spans)) + largest


def test_a_request_of_a_window_that_fails_is_asked_again() -> None:
    content = bytes(i % 251 for i in range(1000))
    failing = [StorageError("no answer")]

    def get(start: int, end: int) -> bytes:
        if failing:
            raise failing.pop()
        return content[start:end]

    with ObjectReader(1000, get) as reader:
        reader.fetch([(0, 500), (500, 1000)], 200)
        with pytest.raises(StorageError):
            reader.source.read_at(50, 0)
        for start in (*range(0, 500, 50), *range(500, 1000, 50)):
            read = reader.source.read_at(50, start)
            assert read == content[start : start + 50]


@pytest.mark.parametrize("columns", [["id", "big", "a"], ["big"]])
def test_a_local_row_group_is_read_in_pieces(
    large: tuple[bytes, pa.Table], columns: list[str], tmp_path: Path
) -> None:
    content, _ = large
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    before = pa.total_allocated_bytes()
    with open_parquet(str(path), buffer_size=1 << 20) as parquet:
        held = 0
        for _ in parquet.batches([0], columns, 1000):
            held = max(held, pa.total_allocated_bytes() - before)
    assert held < 12 << 20


# ---- faults --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Planned(Fault.CUT_ANSWER),
        Planned(Fault.LOSE_ANSWER),
        Planned(Fault.REFUSE, 503, "SlowDown"),
        Planned(Fault.REFUSE, 500),
        Planned(Fault.REFUSE, 429, "TooManyRequests"),
    ],
    ids=lambda planned: f"{planned.fault.name.lower()}-{planned.status}",
)
def test_half_answers_and_refusals_are_asked_again(
    s3: Server, proxy: StoreProxy, content: bytes, fault: Planned
) -> None:
    path = _put(s3, content)
    whole = pq.read_table(io.BytesIO(content))
    proxy.plan("GET", "", fault, fault)
    with open_parquet(path, len(content)) as parquet:
        proxy.plan("GET", "", fault, fault)
        assert parquet.read_group(3, ["id", "c"]).equals(
            whole.select(["id", "c"]).slice(3 * ROWS, ROWS)
        )
        # Read without being fetched: inside pyarrow's threads.
        proxy.plan("GET", "", fault)
        parquet._reader.fetch(())
        assert parquet._file.read_row_group(5, ["g"]).equals(
            whole.select(["g"]).slice(5 * ROWS, ROWS)
        )
    assert proxy.plans == []


def test_an_error_of_the_store_is_its_own(
    s3: Server, proxy: StoreProxy, content: bytes
) -> None:
    path = _put(s3, content)
    denied = Planned(Fault.REFUSE, 403, "AccessDenied")
    with open_parquet(path, len(content)) as parquet:
        proxy.plan("GET", "", *[denied] * 4)
        with pytest.raises(StorageError) as raised:
            parquet.read_group(3, ["id", "c"])
        assert (raised.value.sqlstate, proxy.plans != []) == ("42501", True)
        assert path in raised.value.message
        proxy.plans.clear()
        proxy.plan("GET", "", *[denied] * 9)
        with pytest.raises(StorageError) as raised:
            parquet._file.read_row_group(3, ["id", "c"])
        assert raised.value.sqlstate == "42501"


@pytest.fixture(params=["local", "s3"])
def put(
    request: pytest.FixtureRequest, s3: Server, proxy: StoreProxy, tmp_path: Path
) -> Callable[[bytes], str]:
    """Writes a file into a directory or a bucket and returns its place."""

    def put(content: bytes) -> str:
        if request.param == "s3":
            return _put(s3, content)
        path = tmp_path / "part 1%.parquet"
        path.write_bytes(content)
        return str(path)

    return put


def _remove(path: str) -> None:
    folder, _, name = path.rpartition("/")
    store = store_at(folder)
    assert store is not None
    store.delete(name)


def test_a_missing_file(put: Callable[[bytes], str], content: bytes) -> None:
    path = put(content)
    parquet = open_parquet(path, len(content))
    _remove(path)
    with pytest.raises(MissingFileError) as raised:
        open_parquet(path, len(content))
    assert raised.value.sqlstate == "58P01" and path in raised.value.message
    if path.startswith("s3:"):
        with pytest.raises(MissingFileError):
            parquet.read_group(0, ["id"])
        with pytest.raises(MissingFileError):
            parquet._file.read_row_group(0, ["id"])


def test_a_damaged_file(put: Callable[[bytes], str], content: bytes) -> None:
    start = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(2).column(0)
    at = start.dictionary_page_offset or start.data_page_offset
    for damaged in (
        content[:-8] + b"x" * 8,
        content[: len(content) // 2],
        content[:at] + b"\xff" * 64 + content[at + 64 :],
    ):
        path = put(damaged)
        with pytest.raises(StorageError) as raised:
            open_parquet(path, len(content)).read_group(2, ["id"])
        assert (raised.value.sqlstate, raised.value.detail) == ("XX001", DAMAGED)
        assert raised.value.message == f'could not read "{path}"'


# ---- the change log, and staged changes ------------------------------------------------------


def _log(rows: int, group: int) -> bytes:
    sink = io.BytesIO()
    noise = random.Random(2)
    table = pa.table(
        {
            "commit_lsn": pa.array(range(rows), pa.int64()),
            "ordinal": pa.array([0] * rows, pa.int64()),
            "op": pa.array([ord("I")] * rows, pa.int8()),
            "old": pa.array([0] * rows, pa.int8()),
            "c0": pa.array([noise.randbytes(20) for _ in range(rows)], pa.binary()),
        }
    )
    pq.write_table(table, sink, row_group_size=group, write_page_checksum=True)
    return sink.getvalue()


@pytest.mark.parametrize("rows", [100, 100_000])
def test_rows_of_the_log(
    put: Callable[[bytes], str], proxy: StoreProxy, rows: int
) -> None:
    content = _log(rows, rows // 10)
    relation = Relation(Oid(1), "s", "t", ReplicaIdentity.FULL, ())
    path = put(content)
    source = LogSource(path, relation, rows, len(content))
    span = LsnRange(rows // 2 + 1, rows - 3)
    proxy.seen.clear()
    found = pa.Table.from_batches(read_log_rows(source, span))
    expected = pq.read_table(io.BytesIO(content)).slice(span.cursor, rows // 2 - 4)
    assert found.column("commit_lsn").equals(expected.column("commit_lsn"))
    assert found.column("c0").equals(expected.column("c0"))
    # The footer, and the second half of the row groups.
    assert len(proxy.seen) <= 3
    parts = plan_parts([source], 4)
    assert sum(len(part) for part in parts) == 10
    _remove(path)
    with pytest.raises(CorruptLogError) as missing:
        list(read_log_rows(source, span))
    assert missing.value.detail == "The file is missing."
    put_again = put(b"x" * len(content))
    with pytest.raises(CorruptLogError) as damaged:
        list(read_log_rows(LogSource(put_again, relation, 1, len(content)), span))
    assert (damaged.value.detail, damaged.value.hint) == (DAMAGED, RESTORE_HINT)


def test_a_log_in_a_store_that_is_down_is_not_damaged(
    s3: Server, proxy: StoreProxy
) -> None:
    content = _log(100, 10)
    relation = Relation(Oid(1), "s", "t", ReplicaIdentity.FULL, ())
    source = LogSource(_put(s3, content), relation, 100, len(content))
    proxy.plan("GET", "", Planned(Fault.REFUSE, 403, "AccessDenied"))
    with pytest.raises(StorageError) as raised:
        list(read_log_rows(source, LsnRange(0)))
    assert raised.value.sqlstate == "42501"


def test_staged_changes(put: Callable[[bytes], str]) -> None:
    sink = io.BytesIO()
    staged = pa.table({"lsn": range(100), "ord": [1] * 100, "n0": range(100)})
    pq.write_table(staged, sink, row_group_size=10)
    path = put(sink.getvalue())
    assert read_staged(path).equals(staged)
    assert pa.concat_tables(staged_pieces(path)).equals(staged)
    runs = [pa.concat_tables(run) for run in cut_into_runs((), [path], 500)]
    assert len(runs) > 2
    assert pa.concat_tables(runs).equals(staged)


def test_files_are_named(tmp_path: Path) -> None:
    def refuse(path: str, error: Any) -> StorageError:
        return StorageError(f"{path}: {type(error).__name__}")

    (tmp_path / "x").write_bytes(b"x" * 100)
    reader = store_at(str(tmp_path)).open_ranges("x")  # type: ignore[union-attr]
    with pytest.raises(StorageError, match="x: ArrowInvalid"):
        OpenParquet(str(tmp_path / "x"), reader, failed=refuse)
