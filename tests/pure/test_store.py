"""The store port: the same behaviour in a directory, S3, Google Cloud Storage and Azure.

Then what an object store and the way to it do wrong, by a proxy: each operation is carried out
once, or says that it was not.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fakes.objectstores import Server, azure_server, gcs_server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.lake.store import (
    MissingFileError,
    NoPutIfAbsent,
    Store,
    StoreOptions,
    UnknownOutcome,
    is_object_store,
    local_path,
    objects,
    store_at,
)

SERVERS = {"gs": gcs_server, "az": azure_server}

LOG = "_delta_log"


@pytest.fixture(
    scope="module",
    params=["local", "s3", "gs", pytest.param("az", marks=pytest.mark.slow)],
)
def kind(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """A server, or None for a directory."""
    if request.param == "local":
        yield None
    elif request.param == "s3":
        yield request.getfixturevalue("s3")
    else:
        with SERVERS[request.param]() as server:
            yield server


@pytest.fixture
def store(kind: Server | None, tmp_path: Path) -> Store:
    """An empty store whose root needs an encoding in URLs."""
    if kind is None:
        return _at(str(tmp_path / "t%2F1 ü"))
    return _at(f"{kind.url}/{uuid4().hex}/t%2F1 ü", kind.options())


def _at(location: str, options: StoreOptions | None = None) -> Store:
    found = store_at(location, options)
    assert found is not None
    found.make_folder(LOG)
    return found


# ---- the same everywhere -----------------------------------------------------------------


def test_a_file_is_made_once(store: Store) -> None:
    key = f"{LOG}/{0:020}.json"
    assert store.stamp(key) is None
    made = store.put_if_absent(key, b"first\n")
    assert made is not None and store.stamp(key) == made
    assert store.put_if_absent(key, b"second\n") is None
    assert store.read(key) == b"first\n"
    store.settle(LOG)
    assert store.list_after(LOG) == [f"{0:020}.json"]


def test_of_many_writers_at_once_one_makes_the_file(store: Store) -> None:
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait(10)
        return store.put_if_absent(f"{LOG}/1.json", b"%d" % number) is not None

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(write, range(8)))
    assert sum(made) == 1
    assert store.read(f"{LOG}/1.json") == b"%d" % made.index(True)


def test_a_replaced_file_has_the_new_content_and_another_stamp(store: Store) -> None:
    key = f"{LOG}/1.crc"
    first = store.put(key, b"first")
    assert store.stamp(key) == first
    second = store.put(key, b"second, durable later", durable=False)
    assert first != second == store.stamp(key)
    assert store.read(key) == b"second, durable later"


def test_parts_of_a_file(store: Store) -> None:
    content = bytes(range(256)) * 100
    store.put("part 1.bin", content)
    for offset, size in ((0, 10), (300, 1), (25_590, 100), (25_600, 5), (99_999, 5)):
        expected = content[offset : offset + size]
        assert store.read_range("part 1.bin", offset, size) == expected, offset


def test_a_reader_has_any_part_of_a_file(store: Store) -> None:
    content = bytes(range(256)) * 100
    store.put("part 1.bin", content)
    for known in (None, len(content)):
        with store.open_ranges("part 1.bin", known) as reader:
            assert reader.size == len(content)
            for fetched in ([], [(0, 10), (20_000, 25_600)], [(5, 5), (300, 99_999)]):
                reader.fetch(fetched)
                for offset, size in ((0, 10), (300, 1), (19_990, 5000), (25_590, 99)):
                    expected = content[offset : offset + size]
                    assert reader.source.read_at(size, offset) == expected, offset
            reader.source.seek(25_599)
            assert reader.source.read() == content[-1:]
    with pytest.raises(MissingFileError) as raised:
        store.open_ranges("absent")
    assert raised.value.sqlstate == "58P01" and "absent" in raised.value.message
    with pytest.raises(MissingFileError), store.open_ranges("absent", 5) as reader:
        reader.fetch([(0, 5)])


def test_an_empty_file(store: Store) -> None:
    store.put("empty", b"")
    assert store.read("empty") == b""
    assert store.stamp("empty") is not None
    assert store.read_range("empty", 0, 5) == b""


def test_files_that_are_not_there(store: Store) -> None:
    for read in (
        lambda: store.read("absent"),
        lambda: store.read_range("absent", 0, 5),
    ):
        with pytest.raises(MissingFileError) as raised:
            read()
        assert raised.value.sqlstate == "58P01" and "absent" in raised.value.message
    store.delete("absent")
    assert store.stamp("absent") is None
    assert store.list_after("nowhere") == []


def test_a_deleted_name_is_free(store: Store) -> None:
    key = f"{LOG}/7.json"
    store.put_if_absent(key, b"first")
    store.delete(key)
    store.settle(LOG)
    assert store.stamp(key) is None
    assert store.put_if_absent(key, b"second") is not None


def test_lists_are_in_order_and_begin_after_a_name(store: Store) -> None:
    names = [f"{n:020}.{end}" for n in (0, 1, 2, 9, 10, 11) for end in ("crc", "json")]
    store.make_folder(f"{LOG}/_sidecars")
    for name in reversed(names):
        store.put(f"{LOG}/{name}", b"x", durable=False)
    store.put(f"{LOG}/_sidecars/inner", b"x", durable=False)
    store.put(f"{LOG}_beside", b"x", durable=False)
    assert store.list_after(LOG) == names
    assert store.list_after(LOG, f"{9:020}") == names[6:]
    assert store.list_after(LOG, names[6]) == names[7:]
    assert store.list_after(LOG, names[-1]) == []


def test_a_writer_makes_one_file_of_any_size(store: Store) -> None:
    for number, size in enumerate((0, 1, 100_000, 21 << 20)):
        name = f"part-{number}.parquet"
        content = _noise(size)
        writer = store.open_writer(name)
        for start in range(0, size, 300_001):
            writer.sink.write(content[start : start + 300_001])
        written = writer.finish(durable=number % 2 == 0)
        assert written.size == size and written.modified_ms > 10**12
        assert store.read(name) == content


def test_what_a_writer_discards_is_not_there(store: Store) -> None:
    for number, size in enumerate((10, 21 << 20)):
        for finished in (False, True):
            name = f"part-{number}{finished}.parquet"
            writer = store.open_writer(name)
            writer.sink.write(_noise(size))
            if finished:
                writer.finish()
            writer.discard()
            assert store.stamp(name) is None


def test_files_below_a_folder_have_sizes_and_times(store: Store) -> None:
    began = time.time() + store.seconds_ahead()
    names = ["a.parquet", "p=1/b.parquet", "p=1/q=ü/c.bin", "_hidden/d", "p=10/e"]
    for name in [*names, f"{LOG}/0.json", f"{LOG}/_sidecars/s"]:
        store.make_folder(name.rpartition("/")[0])
        store.put(name, name.encode(), durable=False)
    asked: list[str] = []

    def enters(folder: str) -> bool:
        asked.append(folder)
        return not folder.rpartition("/")[2].startswith("_")

    listed = store.list_below("", enters)
    assert set(listed) == {"a.parquet", "p=1/b.parquet", "p=1/q=ü/c.bin", "p=10/e"}
    assert sorted(asked) == ["_delta_log", "_hidden", "p=1", "p=1/q=ü", "p=10"]
    for name, entry in listed.items():
        assert entry.size == len(name.encode())
        assert entry.stamp == store.stamp(name)
        assert began - 2 <= entry.written <= entry.changed <= began + 60
    below = store.list_below(LOG, lambda folder: False)
    assert set(below) == {f"{LOG}/0.json"}
    assert set(store.list_below("p=1", lambda folder: True)) == set(names[1:3])
    assert store.list_below("nowhere", lambda folder: True) == {}
    assert abs(store.seconds_ahead()) < 5
    for some in (names, [f"{n}" for n in range(50)] + names[:3], names[:1], []):
        found = store.entries(some)
        assert {key: entry.stamp for key, entry in found.items()} == {
            name: store.stamp(name) for name in some if name in names
        }


def test_a_long_list_can_be_ended(store: Store) -> None:
    store.put("a", b"x", durable=False)

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.list_below("", lambda folder: True, check)


def test_many_files_are_removed_together(store: Store) -> None:
    for number in range(30):
        store.put(f"part-{number}", b"x", durable=False)
    gone = [f"part-{number}" for number in range(25)]
    store.delete(gone[3])
    store.delete_all(gone)
    assert set(store.list_below("", lambda folder: False)) == {
        f"part-{number}" for number in range(25, 30)
    }
    store.delete_all([])


def test_a_file_gets_another_name(
    kind: Server | None, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = store_at(
        f"{store.location}-branch", None if kind is None else kind.options()
    )
    assert branch is not None
    branch.make_folder("p=1")
    for size in (10, 9 << 20):
        for most in (1 << 40, 1):
            monkeypatch.setattr(objects, "_MOST_COPIED", most)
            name = f"p=1/part-{size}-{most}.parquet"
            branch.put(name, _noise(size))
            for _ in range(2):
                store.copy(name, branch, name)
                assert store.read(name) == branch.read(name) == _noise(size)
    with pytest.raises(StorageError) as raised:
        store.copy("p=1/absent", branch, "p=1/absent")
    assert "absent" in raised.value.message


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# ---- a directory -------------------------------------------------------------------------


def test_locations() -> None:
    assert local_path("/a/b%2F1") == Path("/a/b%2F1")
    assert local_path("file:///a/b%20c") == Path("/a/b c")
    assert local_path("s3://bucket/t") is None
    assert [is_object_store(one) for one in ("s3://b/t", "/s3", "hdfs://b/t")] == [
        *(True, False, False),
    ]
    assert store_at("hdfs://namenode/t") is None
    assert _at_root("file:///tmp/x") == "/tmp/x"


def _at_root(location: str) -> str:
    found = store_at(location)
    assert found is not None
    return found.location


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = _at(str(tmp_path))

    def link(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    stamp = store.put_if_absent(f"{LOG}/0.json", b"first")
    assert stamp is not None and stamp == store.stamp(f"{LOG}/0.json")
    assert store.put_if_absent(f"{LOG}/0.json", b"second") is None
    assert store.read(f"{LOG}/0.json") == b"first"
    assert store.list_after(LOG) == ["0.json"]


def test_a_link_whose_answer_was_lost_is_known_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _at(str(tmp_path))
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        # NFS repeats a request that was not answered.
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert store.put_if_absent(f"{LOG}/0.json", b"first") is not None
    assert store.put_if_absent(f"{LOG}/0.json", b"first") is None
    assert store.list_after(LOG) == ["0.json"]


def test_a_full_disk_leaves_nothing_and_has_its_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _at(str(tmp_path))

    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StorageError) as raised:
            store.put_if_absent(f"{LOG}/0.json", b"first")
    assert raised.value.sqlstate == "53100"
    assert raised.value.hint == "Free space on the file system of the warehouse."
    assert store.list_after(LOG) == []
    assert store.put_if_absent(f"{LOG}/0.json", b"first") is not None


# ---- what goes wrong on the way to an object store ----------------------------------------


@contextmanager
def _through(
    server: Server, *ignored: str, **times: float
) -> Iterator[tuple[StoreProxy, Store]]:
    with StoreProxy(server.port, ignored) as proxy:
        url = f"{server.url}/{uuid4().hex}"
        yield proxy, _at(url, server.options(proxy.port, **times))


DONE_WITHOUT_AN_ANSWER = [
    Planned(Fault.LOSE_ANSWER),
    Planned(Fault.CUT_ANSWER),
    Planned(Fault.NO_ANSWER, seconds=1),
    Planned(Fault.REFUSE_DONE, 500),
    Planned(Fault.REFUSE_DONE, 503, "SlowDown"),
    Planned(Fault.REFUSE_DONE, 409, "ConditionalRequestConflict"),
    Planned(Fault.REFUSE_DONE, 412, "PreconditionFailed"),
]

NOT_DONE = [
    Planned(Fault.CUT_REQUEST),
    Planned(Fault.REFUSE, 500),
    Planned(Fault.REFUSE, 503, "SlowDown"),
    Planned(Fault.REFUSE, 429, "TooManyRequests"),
    Planned(Fault.REFUSE, 409, "ConditionalRequestConflict"),
    Planned(Fault.REFUSE, 412, "PreconditionFailed"),
]


def _times(planned: Planned) -> dict[str, float]:
    """Be patient with a busy machine, unless waiting for the answer is the point."""
    return {"request_seconds": 0.7} if planned.fault is Fault.NO_ANSWER else {}


def _named(planned: Planned) -> str:
    return f"{planned.fault.name.lower()}-{planned.status or ''}".rstrip("-")


@pytest.mark.parametrize("fault", DONE_WITHOUT_AN_ANSWER + NOT_DONE, ids=_named)
def test_a_commit_is_made_once_whatever_becomes_of_its_answer(
    s3: Server, fault: Planned
) -> None:
    with _through(s3, **_times(fault)) as (proxy, store):
        assert store.put_if_absent("0.json", b"before") is not None
        proxy.plan("PUT", "/1.json", fault, fault)
        made = store.put_if_absent("1.json", b"mine")
        assert made is not None and made == store.stamp("1.json")
        assert proxy.plans == [] or fault in DONE_WITHOUT_AN_ANSWER
        assert store.read("1.json") == b"mine"
        # Nobody else's: it is not taken for ours.
        proxy.plan("PUT", "/1.json", fault)
        assert store.put_if_absent("1.json", b"theirs") is None
        assert store.read("1.json") == b"mine"
        assert store.list_after("", "0.json") == ["1.json"]


def test_a_writer_that_comes_between_two_attempts_is_found(s3: Server) -> None:
    with _through(s3) as (proxy, store):
        store.put_if_absent("0.json", b"before")
        other = _at(store.location, s3.options())
        proxy.plan("PUT", "/1.json", Planned(Fault.REFUSE, 503, "SlowDown"))
        taken = proxy.take

        def take(method: str, path: str) -> Planned | None:
            planned = taken(method, path)
            if planned is not None:
                assert other.put_if_absent("1.json", b"theirs") is not None
            return planned

        proxy.take = take  # type: ignore[method-assign]
        assert store.put_if_absent("1.json", b"mine") is None
        assert store.read("1.json") == b"theirs"


@pytest.mark.parametrize(
    "fault",
    [*DONE_WITHOUT_AN_ANSWER[:5], *NOT_DONE[:4]],
    ids=_named,
)
def test_whole_answers_only(s3: Server, fault: Planned) -> None:
    content = bytes(range(256)) * 4000
    with _through(s3, **_times(fault)) as (proxy, store):
        store.make_folder(LOG)
        if fault.fault is not Fault.CUT_ANSWER:
            # An answer to PUT or HEAD has no body to cut.
            proxy.plan("PUT", "/1.bin", fault, fault)
            proxy.plan("HEAD", "/1.bin", fault)
        store.put(f"{LOG}/1.bin", content)
        proxy.plan("GET", "/1.bin", fault)
        assert store.read(f"{LOG}/1.bin") == content
        proxy.plan("GET", "/1.bin", fault)
        assert store.read_range(f"{LOG}/1.bin", 1000, 5000) == content[1000:6000]
        proxy.plan("GET", "list-type", fault)
        assert store.list_after(LOG) == ["1.bin"]
        assert store.stamp(f"{LOG}/1.bin") is not None
        proxy.plan("POST", "delete", fault)
        store.delete(f"{LOG}/1.bin")
        assert proxy.plans == []
        assert store.stamp(f"{LOG}/1.bin") is None


@pytest.mark.parametrize(
    "fault",
    [*DONE_WITHOUT_AN_ANSWER[:1], *DONE_WITHOUT_AN_ANSWER[3:5], *NOT_DONE[:3]],
    ids=_named,
)
@pytest.mark.parametrize("size", [100_000, 21 << 20])
def test_a_large_file_is_whole_whatever_happens_to_its_parts(
    s3: Server, fault: Planned, size: int
) -> None:
    content = _noise(size)
    with _through(s3) as (proxy, store):
        proxy.plan("PUT", "/part.parquet", fault, fault)
        writer = store.open_writer("part.parquet")
        for start in range(0, size, 1 << 20):
            writer.sink.write(content[start : start + (1 << 20)])
        assert writer.finish().size == size
        assert proxy.plans == []
        assert store.read("part.parquet") == content


def test_a_large_file_that_cannot_be_sent(s3: Server) -> None:
    with _through(s3, attempts_seconds=0.3) as (proxy, store):
        for size in (100_000, 21 << 20):
            refused = Planned(Fault.REFUSE, 403, "AccessDenied")
            proxy.plan("PUT", "/part.parquet", *[refused] * 9)
            writer = store.open_writer("part.parquet")
            with pytest.raises(StorageError) as raised:
                for _ in range(0, size, 100_000):
                    writer.sink.write(_noise(100_000))
                writer.finish()
            assert raised.value.sqlstate == "42501"
            assert "/part.parquet" in raised.value.message
            writer.discard()
            proxy.plans.clear()
            assert store.stamp("part.parquet") is None


def test_a_store_that_is_down_is_given_up_and_named(s3: Server) -> None:
    with _through(s3, attempts_seconds=0.3) as (proxy, store):
        store.put_if_absent("0.json", b"before")
        down = [Planned(Fault.REFUSE, 503, "SlowDown")] * 100
        proxy.plan("GET", "/0.json", *down)
        with pytest.raises(StorageError) as raised:
            store.read("0.json")
        assert raised.value.sqlstate == "58030"
        assert "answered with status 503 (SlowDown)" in raised.value.message
        assert store.location in raised.value.message
        assert 3 < proxy.count("GET", "/0.json") < 100
        proxy.plan("PUT", "/1.json", *down)
        with pytest.raises(UnknownOutcome) as unknown:
            store.put_if_absent("1.json", b"mine")
        assert "may have written" in str(unknown.value.detail)
        proxy.plans.clear()
        assert store.put_if_absent("1.json", b"mine") is not None


def test_a_commit_whose_fate_cannot_be_read_is_in_doubt(s3: Server) -> None:
    with _through(s3, attempts_seconds=0.2) as (proxy, store):
        store.put_if_absent("0.json", b"before")
        proxy.plan("PUT", "/1.json", Planned(Fault.LOSE_ANSWER))
        proxy.plan("GET", "/1.json", *[Planned(Fault.REFUSE, 500)] * 100)
        with pytest.raises(UnknownOutcome):
            store.put_if_absent("1.json", b"mine")
        proxy.plans.clear()
        assert store.put_if_absent("1.json", b"mine") is not None


def test_a_commit_that_is_refused_after_a_lost_answer_is_in_doubt(s3: Server) -> None:
    with _through(s3) as (proxy, store):
        store.put_if_absent("0.json", b"before")
        expired = Planned(Fault.REFUSE, 403, "ExpiredToken")
        proxy.plan("PUT", "/1.json", Planned(Fault.LOSE_ANSWER), expired)
        with pytest.raises(UnknownOutcome):
            store.put_if_absent("1.json", b"mine")
        proxy.plan("PUT", "/2.json", expired)
        with pytest.raises(StorageError) as raised:
            store.put_if_absent("2.json", b"mine")
        assert not isinstance(raised.value, UnknownOutcome)


def test_a_store_that_cannot_be_reached(s3: Server) -> None:
    options = s3.options(1, attempts_seconds=0.2)
    with pytest.raises(StorageError) as raised:
        _at(f"{s3.url}/t", options).read("0.json")
    assert raised.value.sqlstate == "58030"
    assert "no whole answer within 30 seconds" in raised.value.message


def test_a_store_that_ignores_conditions_is_refused(s3: Server) -> None:
    with _through(s3, "If-None-Match") as (proxy, store):
        for _ in range(2):
            with pytest.raises(NoPutIfAbsent) as raised:
                store.put_if_absent("0.json", b"mine")
            assert raised.value.sqlstate == "0A000"
            assert "ignores conditional writes" in raised.value.message
            assert raised.value.hint == (
                "Use a store, or a version of it, that supports conditional writes."
            )
        assert proxy.count("PUT", "/0.json") == 0
        assert store.list_after("") == []


def test_the_condition_is_proven_once_for_a_bucket(s3: Server) -> None:
    with _through(s3) as (proxy, store):
        for number in range(3):
            assert store.put_if_absent(f"{number}.json", b"mine") is not None
        assert proxy.count("PUT", "wal2lake_probe") == 2
        assert proxy.count("PUT", ".json") == 3
        assert store.list_after("") == ["0.json", "1.json", "2.json"]


@pytest.mark.parametrize(
    ("status", "code", "sqlstate", "words"),
    [
        (403, "AccessDenied", "42501", "permission denied"),
        (403, "SignatureDoesNotMatch", "28000", "no valid credentials"),
        (400, "ExpiredToken", "28000", "no valid credentials"),
        (400, "InvalidRequest", "58030", "status 400 (InvalidRequest)"),
        (404, "NoSuchBucket", "58P01", "the bucket does not exist"),
    ],
)
def test_answers_that_more_attempts_do_not_change(
    s3: Server, status: int, code: str, sqlstate: str, words: str
) -> None:
    with _through(s3) as (proxy, store):
        store.put_if_absent("0.json", b"before")
        answer = Planned(Fault.REFUSE, status, code)
        for method, call in (
            ("PUT", lambda: store.put_if_absent("1.json", b"mine")),
            ("GET", lambda: store.read("1.json")),
        ):
            proxy.plan(method, "/1.json", answer)
            with pytest.raises(StorageError) as raised:
                call()
            assert not isinstance(raised.value, MissingFileError | UnknownOutcome)
            assert raised.value.sqlstate == sqlstate
            assert words in raised.value.message
            assert proxy.count(method, "/1.json") == 1
            if sqlstate == "42501":
                assert raised.value.hint == (
                    "Allow the node's identity to list the bucket, and to read, write and"
                    " delete its objects."
                )


def test_a_bucket_that_is_missing_is_no_empty_one(s3: Server) -> None:
    store = store_at("s3://nowhere/t", s3.options())
    assert store is not None
    for call in (
        lambda: store.read("0.json"),
        lambda: store.list_after(LOG),
        lambda: store.put_if_absent("0.json", b"mine"),
    ):
        with pytest.raises(StorageError) as raised:
            call()
        assert not isinstance(raised.value, MissingFileError)
        assert raised.value.sqlstate == "58P01"
        assert raised.value.hint == (
            "Create the bucket, or correct its name in the URL."
        )


def test_options_that_do_not_fit() -> None:
    for location, option in (
        ("gs://lake/t", (("credentials_file", "/no/such/file"),)),
        ("abfss://lake/t", ()),
    ):
        with pytest.raises(ConfigurationError, match="could not use the object store"):
            store_at(location, StoreOptions(option))


def test_signatures_are_not_logged(s3: Server) -> None:
    with _through(s3) as (proxy, store):
        proxy.plan("GET", "list-type", Planned(Fault.REFUSE, 400, "InvalidRequest"))
        with pytest.raises(StorageError) as raised:
            store.list_after(LOG)
        assert raised.value.original is not None
        assert "list-type" not in raised.value.original
        assert "127.0.0.1" in raised.value.original
