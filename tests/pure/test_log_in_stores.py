"""A table's log in a directory and in an object store: the same versions, each made once.

delta-rs, which has a store and a reader of its own, reads what is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.fakes.objectstores import Server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import (
    DuplicateObjectError,
    StorageError,
    UndefinedObjectError,
)
from wal2lake.lake import Cursor, PhysicalField, add_action
from wal2lake.lake.delta import TableWriter, discard_added
from wal2lake.lake.delta.deletionvectors import read_vector, write_vectors
from wal2lake.lake.delta.log.checksum import NO_FILES, checksum_line
from wal2lake.lake.delta.log.commit import NextVersion, WrittenVersion, write_next
from wal2lake.lake.delta.log.firstversion import commit_lines, write_first
from wal2lake.lake.delta.log.version import (
    Version,
    is_newest,
    read_actions,
    read_newest,
    read_version,
)
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.earlier import earlier
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.delta.versions.replay import replay
from wal2lake.lake.store import Store, StoreOptions, clients, store_at
from wal2lake.lake.tablefiles import DataFile, Replaced

APP = "wal2lake:n:1:1"

SCHEMA = {
    "type": "struct",
    "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}],
}
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
}


_FEATURE_LISTS = ("readerFeatures", "writerFeatures")


@pytest.fixture(params=["local", "s3"])
def place(
    request: pytest.FixtureRequest, s3: Server, tmp_path: Path
) -> tuple[str, StoreOptions | None]:
    """A location with the options of its store."""
    if request.param == "local":
        return str(tmp_path / "t"), None
    return f"{s3.url}/{uuid4().hex}/t", s3.options()


def _store(place: tuple[str, StoreOptions | None]) -> Store:
    found = store_at(*place)
    assert found is not None
    return found


def _create(store: Store, **properties: str) -> None:
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": [],
        "configuration": {"delta.enableDeletionVectors": "true", **properties},
        "createdTime": 0,
    }
    txn_id = str(uuid.uuid4())
    protocol: dict[str, Any] = PROTOCOL
    if properties.get("delta.checkpointPolicy") == "v2":
        named = {n: [*protocol[n], "v2Checkpoint"] for n in _FEATURE_LISTS}
        protocol = {**protocol, **named}
    summed = checksum_line(metadata, protocol, txn_id, NO_FILES, files=())
    write_first(store, commit_lines(metadata, protocol, txn_id), summed)


def _add(name: str) -> dict[str, dict[str, Any]]:
    add = {
        "path": name,
        "partitionValues": {},
        "size": 100,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords":3}',
    }
    return {"add": add}


def _remove(name: str) -> dict[str, dict[str, Any]]:
    gone = {"path": name, "deletionTimestamp": 0, "dataChange": True, "size": 100}
    return {"remove": gone}


def _newest(store: Store) -> tuple[Version, dict[str, DataFile]]:
    found = read_newest(store.location, store)
    assert found is not None and found[1] is not None
    return found[0], found[1]


def _commit(
    store: Store, position: int, *changes: dict[str, dict[str, Any]]
) -> WrittenVersion | None:
    version, files = _newest(store)
    commit = NextVersion(changes, Cursor(APP, position), "append")
    return write_next(store, version, files, commit)


def _read_by_others(place: tuple[str, StoreOptions | None]) -> tuple[int, set[str]]:
    """The version and the files that delta-rs finds."""
    table = _reader(place)
    return table.version(), {uri.rsplit("/", 1)[1] for uri in table.file_uris()}


def _reader(place: tuple[str, StoreOptions | None]) -> DeltaTable:
    location, options = place
    storage = None
    if options is not None:
        storage = {f"aws_{name}": value for name, value in options.config}
        storage["aws_allow_http"] = "true"
    return DeltaTable(location, storage_options=storage)


def test_a_history(place: tuple[str, StoreOptions | None]) -> None:
    store = _store(place)
    assert read_newest(store.location, store) is None
    _create(store)
    with pytest.raises(DuplicateObjectError) as raised:
        _create(store)
    assert raised.value.sqlstate == "42P07" and store.location in raised.value.message
    expected: list[set[str]] = [set()]
    live: set[str] = set()
    for number in range(1, 13):
        name = f"f{number}.parquet"
        changes = [_add(name)]
        live.add(name)
        if number > 4:
            old = f"f{number - 4}.parquet"
            changes.append(_remove(old))
            live.remove(old)
        written = _commit(store, number * 10, *changes)
        assert written is not None and written.version is not None
        assert written.files is not None and set(written.files) == live
        assert is_newest(store, written.version)
        # What was cached of it is what the store has.
        version, files = _newest(store)
        assert version.stamp == written.version.stamp
        assert version.state == written.version.state
        assert set(files) == live
        expected.append(set(live))
    assert version.state.cursor(APP) == 120
    assert _read_by_others(place) == (12, live)
    for number in range(12):
        found = earlier(store, version.state, files.values(), number)
        assert found is not None
        assert {file.key for file in found[1]} == expected[number], number
    assert [next(iter(a)) for a in read_actions(store, 12)] == [
        *("commitInfo", "txn", "add", "remove"),
    ]
    assert read_actions(store, 13) == []


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_a_checkpoint(place: tuple[str, StoreOptions | None], policy: str) -> None:
    store = _store(place)
    _create(store, **{"delta.checkpointPolicy": policy})
    for number in range(1, 6):
        assert _commit(store, number, _add(f"f{number}.parquet")) is not None
    assert _commit(store, 6, _remove("f2.parquet")) is not None
    before, files = _newest(store)
    written = write_checkpoint(store.location, store, 6)
    assert written.version == before
    # From here on a reader has nothing else.
    for number in range(7):
        store.delete(f"_delta_log/{number:020}.crc")
        if number < 6:
            store.delete(f"_delta_log/{number:020}.json")
    assert read_newest(store.location, store) is None
    replayed = replay(store.location, store, 6)
    assert replayed.version(store.location, store, 6) == before
    assert set(replayed.files) == set(files) == {f"f{n}.parquet" for n in (1, 3, 4, 5)}
    assert _read_by_others(place) == (6, set(files))


def test_a_version_is_written_by_one_of_many(
    place: tuple[str, StoreOptions | None],
) -> None:
    store = _store(place)
    _create(store)
    version, files = _newest(store)

    def write(number: int) -> bool:
        added = [_add(f"f{number}.parquet")]
        commit = NextVersion(added, Cursor(f"app{number}", 1), "append")
        return write_next(store, version, files, commit) is not None

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(write, range(6)))
    assert sum(made) == 1
    winner = made.index(True)
    after, live = _newest(store)
    assert after.state.version == 1
    assert after.state.cursors == {f"app{winner}": 1}
    assert set(live) == {f"f{winner}.parquet"}
    assert not is_newest(store, version) and is_newest(store, after)


def test_a_checksum_of_another_commit_is_not_believed(
    place: tuple[str, StoreOptions | None],
) -> None:
    store = _store(place)
    _create(store)
    assert _commit(store, 1, _add("f1.parquet")) is not None
    summed = store.read(f"_delta_log/{0:020}.crc")
    store.put(f"_delta_log/{1:020}.crc", summed)
    assert read_version(store.location, store, 1) is None
    store.put(f"_delta_log/{1:020}.crc", summed[:50])
    assert read_version(store.location, store, 1) is None
    store.delete(f"_delta_log/{1:020}.crc")
    assert read_version(store.location, store, 1) is None
    assert read_newest(store.location, store) is None
    assert read_version(store.location, store, 0) is not None


def test_a_first_line_longer_than_one_look(
    place: tuple[str, StoreOptions | None],
) -> None:
    store = _store(place)
    _create(store)
    version, files = _newest(store)
    commit = NextVersion([_add("f1.parquet")], Cursor(APP, 1), "ü" * 50_000)
    written = write_next(store, version, files, commit)
    assert written is not None
    assert _newest(store)[0].state == written.version.state  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "fault",
    [
        Planned(Fault.LOSE_ANSWER),
        Planned(Fault.CUT_REQUEST),
        Planned(Fault.REFUSE_DONE, 500),
        Planned(Fault.REFUSE_DONE, 412, "PreconditionFailed"),
        Planned(Fault.REFUSE, 409, "ConditionalRequestConflict"),
        Planned(Fault.REFUSE, 503, "SlowDown"),
    ],
    ids=lambda planned: f"{planned.fault.name.lower()}-{planned.status}",
)
def test_each_version_is_made_once_by_a_store_that_fails(
    s3: Server, fault: Planned
) -> None:
    location = f"{s3.url}/{uuid4().hex}/t"
    with StoreProxy(s3.port) as proxy:
        store = _store((location, s3.options(proxy.port)))
        proxy.plan("PUT", f"{0:020}.json", fault)
        _create(store)
        for number in range(1, 4):
            proxy.plan("PUT", f"{number:020}.json", fault)
            if fault.status not in (409, 412):
                # Without a condition a store does not answer so.
                proxy.plan("PUT", f"{number:020}.crc", fault)
                proxy.plan("GET", "_delta_log", fault)
            written = _commit(store, number, _add(f"f{number}.parquet"))
            assert written is not None and written.version is not None
        assert proxy.plans == []
        assert len(store.list_after("_delta_log")) == 8
    place = (location, s3.options())
    assert _read_by_others(place) == (3, {f"f{n}.parquet" for n in (1, 2, 3)})
    tokens = [
        action["txn"]["version"]
        for number in range(1, 4)
        for action in read_actions(_store(place), number)
        if "txn" in action
    ]
    assert tokens == [1, 2, 3]


def test_a_store_that_is_down_is_no_table_without_a_log(s3: Server) -> None:
    location = f"{s3.url}/{uuid4().hex}/t"
    with StoreProxy(s3.port) as proxy:
        store = _store((location, s3.options(proxy.port, attempts_seconds=0.1)))
        _create(store)
        for method in ("GET", "HEAD"):
            proxy.plan(method, "", *[Planned(Fault.REFUSE, 503)] * 30)
            with pytest.raises(StorageError):
                read_newest(location, store)
            proxy.plans.clear()
        assert _newest(store)[0].state.version == 0


@pytest.fixture
def environment(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A location in S3 whose store the environment describes, as for a cloud's own programs."""
    for name, value in s3.options().config:
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    clients._bucket.cache_clear()
    yield f"{s3.url}/{uuid4().hex}/t"
    clients._bucket.cache_clear()


def test_known_versions_of_a_table_in_a_store(environment: str) -> None:
    location = environment
    store = _store((location, None))
    known = KnownVersions()
    with pytest.raises(UndefinedObjectError):
        known.newest(location)
    _create(store)
    for number in range(1, 4):
        newest = known.newest(location)
        assert newest is not None and newest.state.version == number - 1
        assert known.files(newest.state) is not None
        written = _commit(store, number, _add(f"f{number}.parquet"))
        assert written is not None
        if number != 2:
            known.written(newest.state, written)
    size = known.size(location)
    assert size is not None and (size.version, size.files) == (3, 3)


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_rows_and_deleted_rows(
    kind: str, environment: str, s3: Server, tmp_path: Path
) -> None:
    """Data files and deletion vectors beside the log; delta-rs reads the rows."""
    location = str(tmp_path / "t") if kind == "local" else environment
    place = (location, None if kind == "local" else s3.options())
    store = _store((location, None))
    _create(store)
    version, files = _newest(store)
    with TableWriter(location, version.state.physical_fields) as writer:
        for start in range(0, 40_000, 10_000):
            writer.write(pa.table({"a": pa.array(range(start, start + 10_000))}))
        (added,) = writer.finish()
    with TableWriter(location, version.state.physical_fields) as dropped:
        dropped.write(pa.table({"a": [1]}))
        (gone,) = dropped.finish()
    discard_added(location, [gone])
    assert store.stamp(gone.path) is None and store.stamp(added.path) is not None
    assert _commit(store, 1, {"add": add_action(added, data_change=True)}) is not None
    assert _rows(place) == list(range(40_000))
    version, files = _newest(store)
    rows = [
        np.array([0, 5, 39_999], np.uint64),
        np.arange(9, 30_000, 3).astype(np.uint64),
    ]
    descriptors = write_vectors(location, rows)
    for descriptor, expected in zip(descriptors, rows, strict=True):
        assert read_vector(location, descriptor).tolist() == expected.tolist()
    replaced = Replaced(files[added.path], descriptors[0])
    changes = [
        {"remove": replaced.remove(1, data_change=True)},
        {"add": replaced.add(data_change=True)},
    ]
    assert _commit(store, 2, *changes) is not None  # type: ignore[arg-type]
    assert _rows(place) == [*range(1, 5), *range(6, 39_999)]


def _rows(place: tuple[str, StoreOptions | None]) -> list[int]:
    """The rows that delta-rs finds."""
    query = QueryBuilder().register("t", _reader(place))
    found = pa.table(query.execute("select a from t order by a").read_all())
    values: list[int] = found.column("a").to_pylist()
    return values


def test_a_data_file_that_cannot_be_written_leaves_nothing(
    s3: Server, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreProxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        clients._bucket.cache_clear()
        physical = [PhysicalField("a", "a", None, "bigint")]
        refused = Planned(Fault.REFUSE, 403, "AccessDenied")
        proxy.plan("PUT", ".parquet", *[refused] * 3)
        with (
            pytest.raises(StorageError) as raised,
            TableWriter(environment, physical) as writer,
        ):
            writer.write(pa.table({"a": [1, 2, 3]}))
            writer.finish()
        assert raised.value.sqlstate == "42501"
        assert _store((environment, None)).list_after("") == []
