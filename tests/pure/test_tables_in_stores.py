"""A table in an object store ends as the same table in a directory, and gives the same answers."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from tests.fakes.objectstores import Server
from tests.fakes.stored_table import StoredTable
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.engine.rows.plainanswers import plain_answer
from wal2lake.errors import StorageError
from wal2lake.lake.branch.lookup import Files, find
from wal2lake.lake.delta.datafile import DataFileWriter
from wal2lake.lake.delta.deletionvectors import read_vector, write_vectors
from wal2lake.lake.delta.durability import (
    settle_commit,
    settle_created,
    settle_files,
)
from wal2lake.lake.delta.fields import TYPE_OID
from wal2lake.lake.delta.log.version import state_of
from wal2lake.lake.delta.schema import field_json, json_of
from wal2lake.lake.plain import PlainRead
from wal2lake.lake.plain.change import PlainChange
from wal2lake.lake.plain.widen import widened
from wal2lake.lake.port import FieldSpec, NextField, TableState
from wal2lake.lake.staging.layout import ChangeShape, Seq, Uniqueness
from wal2lake.lake.store import MissingFileError, store_at
from wal2lake.lake.tablefiles import DataFile, add_action
from wal2lake.lake.upsert import TooLarge, Upsert
from wal2lake.lake.upsert import stored as stored_rows
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Oid
from wal2lake.sql.query.translate import TableRef, translate_query

pytestmark = pytest.mark.usefixtures("no_fsync")

FIELDS = (
    FieldSpec("id", "bigint"),
    FieldSpec("t", "string"),
    FieldSpec("big", "string"),
)
KINDS = (pa.int64(), pa.string(), pa.string())
SCHEMA = pa.schema(
    [(field.name, kind) for field, kind in zip(FIELDS, KINDS, strict=True)]
)
UNTRUSTED = Uniqueness(trusted=False, constraint="t_pkey", relation="public.t")

Row = tuple[int, str | None, str | None]

UNCHANGED = object()
"""A value that an UPDATE did not send."""


def _rows(count: int) -> list[Row]:
    noise = random.Random(3)
    return [
        (i, f"t{i % 7}", noise.randbytes(60).hex() if i % 5 else None)
        for i in range(count)
    ]


def _both(s3: Server, tmp_path: Path, rows: Sequence[Row], files: int) -> list[Any]:
    """The same table in a directory and in a bucket, whose name needs an encoding."""
    url = f"{s3.url}/{uuid4().hex}/t%2F1 ü"
    scratch = tmp_path / "scratch"
    return [
        StoredTable(tmp_path / "t", FIELDS, SCHEMA, rows, files),
        StoredTable(url, FIELDS, SCHEMA, rows, files, scratch),
    ]


def _only(table: TableDef) -> Callable[[str | None, str], TableRef]:
    return lambda schema, name: TableRef(table, None)


def _port(table: StoredTable) -> Any:
    return SimpleNamespace(
        plainly_read=lambda location, version: (table.state, table.files)
    )


def _events(
    noise: random.Random, count: int, *, keyed: bool, rows: Sequence[Row]
) -> tuple[pa.Table, ChangeShape]:
    """Random changes as staging writes them: with a key, or of rows by their content."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("lsn", "ord", "op", "moved", "u2")
    }
    columns |= {f"{kind}{i}": [] for kind in "no" for i in range(3)}
    fresh = 10_000
    for number in range(count):
        kind = noise.choice("IUUD")
        old = noise.choice(rows)
        fresh += 1
        new: Row = (fresh if kind == "I" else old[0], f"new{number}", None)
        unknown = keyed and kind == "U" and number % 2 == 0
        if keyed:
            moved = kind == "U" and number % 5 == 0
            new = (fresh, *new[1:]) if moved else new
        else:
            moved = kind == "U"
        named = old if kind == "D" else new
        columns["lsn"].append(number // 3)
        columns["ord"].append(number % 3)
        columns["op"].append(ord(kind))
        columns["moved"].append(moved)
        columns["u2"].append(unknown)
        for i in range(3):
            columns[f"n{i}"].append(named[i])
            columns[f"o{i}"].append(old[i] if moved else None)
    kinds = {"op": pa.int8(), "moved": pa.bool_(), "u2": pa.bool_()}
    kinds |= {f"{kind}{i}": KINDS[i] for kind in "no" for i in range(3)}
    key: tuple[int, ...] = (0,)
    if not keyed:
        key = (0, 1, 2)
        del columns["u2"]
    else:
        del columns["o1"], columns["o2"]
    table = pa.table(
        {
            name: pa.array(values, kinds.get(name, pa.int64()))
            for name, values in columns.items()
        }
    )
    unknown_columns = frozenset({2}) if keyed else frozenset()
    return table, ChangeShape(
        FIELDS, key, unknown_columns, True, None, repeats=not keyed
    )


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("runs", [1, 3])
def test_batches_leave_the_same_rows(
    s3: Server, proxy: StoreProxy, tmp_path: Path, keyed: bool, runs: int
) -> None:
    rows = _rows(1500)
    tables = _both(s3, tmp_path, rows, 3)
    noise = random.Random(4)
    for _ in range(2):
        table, shape = _events(noise, 200, keyed=keyed, rows=tables[0].read())
        for one in tables:
            trusted = Uniqueness(True, "t_pkey", "public.t")
            upsert = one.plan(shape, [table], trusted, memory=1 << 22, runs=runs)
            assert isinstance(upsert, Upsert), upsert
            one.commit(upsert)
    here, there = (Counter(one.read()) for one in tables)
    assert here == there and len(here) > 1000
    vectors = [file.vector for file in tables[1].files if file.vector is not None]
    assert vectors
    assert proxy.count("HEAD", "") == 0


def test_rows_are_found_under_faults(
    s3: Server, proxy: StoreProxy, tmp_path: Path
) -> None:
    rows = _rows(3000)
    here, there = _both(s3, tmp_path, rows, 8)
    noise = random.Random(5)
    faults = [
        Planned(Fault.CUT_ANSWER),
        Planned(Fault.REFUSE, 503, "SlowDown"),
        Planned(Fault.LOSE_ANSWER),
        Planned(Fault.REFUSE, 500),
    ]
    for _ in range(2):
        table, shape = _events(noise, 100, keyed=True, rows=rows[:2000])
        proxy.plan("GET", ".parquet", *faults, *faults)
        for one in (here, there):
            upsert = one.plan(
                shape, [table], Uniqueness(True, "k", "t"), memory=1 << 22
            )
            assert isinstance(upsert, Upsert)
            one.commit(upsert)
        assert proxy.plans == []
        proxy.plan("GET", "", *faults)
        assert Counter(here.read()) == Counter(there.read())


def test_a_file_that_is_gone_is_named(
    s3: Server, proxy: StoreProxy, tmp_path: Path
) -> None:
    for table in _both(s3, tmp_path, _rows(100), 2):
        store = store_at(table.state.location)
        assert store is not None
        store.delete(table.files[1].path)
        with pytest.raises(MissingFileError) as raised:
            table.read()
        assert raised.value.sqlstate == "58P01"
        assert table.files[1].path in raised.value.message


def test_one_key_of_many_files(s3: Server, proxy: StoreProxy, tmp_path: Path) -> None:
    """The footer and the key column of each file that may have it, then one row group."""
    _, table = _both(s3, tmp_path, _rows(20_000), 4)
    assert all(file.size > 100_000 for file in table.files)
    proxy.seen.clear()
    events = pa.table(
        {
            "lsn": [1],
            "ord": [0],
            "op": pa.array([ord("U")], pa.int8()),
            "moved": [False],
            "n0": [7777],
            "n1": ["x"],
            "n2": pa.nulls(1, pa.string()),
            "u2": [True],
        }
    )
    shape = ChangeShape(FIELDS, (0,), frozenset({2}), False, None)
    upsert = table.plan(shape, [events], UNTRUSTED, memory=1 << 24)
    assert isinstance(upsert, Upsert) and len(upsert.replaced) == 1
    # Once more than a reader has to: the row's own columns are read when its place is known.
    assert [method for method, _, _ in proxy.seen].count("GET") == 3
    assert proxy.count("HEAD", "") == 0


def test_a_file_of_many_row_groups(
    s3: Server, proxy: StoreProxy, tmp_path: Path
) -> None:
    _, table = _both(s3, tmp_path, (), 1)
    physical = table.state.physical_fields
    rows = _rows(50_000)
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), KINDS, strict=True)
    ]
    with DataFileWriter(table.state.location, physical) as writer:
        for start in range(0, len(rows), 2500):
            part = pa.table(columns, schema=SCHEMA).slice(start, 2500)
            writer._write_group()
            writer.write(part)
        added = writer.finish()
    assert added is not None
    table.files = [DataFile(add_action(added, data_change=True))]
    stored = StoredRows(table.state, table.files)
    proxy.seen.clear()
    found = pa.Table.from_batches(stored.live_batches(range(3), 1000, 1 << 20))
    assert [tuple(row.values()) for row in found.to_pylist()] == rows
    assert proxy.count("GET", "") <= 3
    assert stored.count() == len(rows)
    assert sum(part.num_rows for part in stored.picked(0, None, [0])) == len(rows)
    assert proxy.count("GET", "") <= 5


def test_files_are_opened_ahead(
    s3: Server, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table = _both(s3, tmp_path, _rows(40), 20)
    proxy.seen.clear()
    rows = StoredRows(table.state, table.files)
    found = rows.scan([0])
    next(found)
    found.close()  # type: ignore[attr-defined]
    # A reader of the first row does not read all files.
    assert proxy.count("GET", "") <= 1 + stored_rows._AHEAD
    assert sum(part.num_rows for part in rows.live([0, 1])) == 40
    assert sum(part.num_rows for part in rows.live([2])) == 40
    assert proxy.count("GET", "") == 20
    proxy.plan("GET", table.files[11].path, Planned(Fault.REFUSE, 403, "AccessDenied"))
    with pytest.raises(StorageError) as raised:
        list(StoredRows(table.state, table.files).live([0]))
    assert raised.value.sqlstate == "42501"


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("select * from t where id = 1234", 1),
        ("select id, t from t where t = 't3' and id < 500 order by id desc", 71),
        ("select id from t order by t, id limit 5 offset 3", 5),
        ("select count(*) from t", 1),
        ("select count(big), min(t), max(id), sum(id) from t where id > 17", 1),
        ("select id from t where id > 1000000", 0),
    ],
)
def test_plain_answers(
    s3: Server, proxy: StoreProxy, tmp_path: Path, sql: str, count: int
) -> None:
    answers = []
    for table in _both(s3, tmp_path, _rows(3000), 3):
        (vector,) = write_vectors(table.state.location, [pa.array([5, 9]).to_numpy()])
        first = table.files[0]
        table.files[0] = DataFile({**first.action, "deletionVector": vector})
        columns = tuple(
            ColumnDef(name, Oid(oid))
            for name, oid in (("id", 20), ("t", 25), ("big", 25))
        )
        definition = TableDef(
            Oid(30000), "public", "t", Oid(10), columns, ("id",), table.state.location
        )
        query = translate_query(sql, _only(definition))
        assert query.plain is not None
        answer = plain_answer(_port(table), query, query.plain, lambda: None)
        assert answer is not None
        found = [row for batch in answer[1] for row in batch.to_pylist()]
        answers.append(found if "order by" in sql else sorted(map(str, found)))
    assert answers[0] == answers[1] and len(answers[0]) == count


def test_a_plain_change(s3: Server, proxy: StoreProxy, tmp_path: Path) -> None:
    for table in _both(s3, tmp_path, _rows(500), 2):
        port = _port(table)
        change = PlainChange.of(port, table.state.location, {"id": (3, 4)})
        assert change is not None
        found = change.find(
            ["id"],
            lambda rows: pa.array([one.as_py() == 3 for one in rows.column(0)]),
            lambda: None,
        )
        assert found.row.tolist() == [3]
        rows = change.rows(found)
        assert rows is not None and rows.to_pylist()[0]["t"] == "t3"
        read = PlainRead.of(port, table.state.location, None, ["id"])
        assert read is not None and read.files == 2
    elsewhere: Any = SimpleNamespace(plainly_read=None)
    assert PlainRead.of(elsewhere, "hdfs://host/t", None, ["id"]) is None


def test_a_branch_names_files_by_url(
    s3: Server, proxy: StoreProxy, tmp_path: Path
) -> None:
    _, table = _both(s3, tmp_path, _rows(200), 2)
    location = table.state.location
    (vector,) = write_vectors(location, [pa.array([0, 1]).to_numpy()])
    path = read_vector(location, vector).tolist()
    by_url = []
    for file in table.files:
        url = quote(f"{location}/{file.path}", safe=":/")
        assert url != f"{location}/{file.path}"
        by_url.append(DataFile({**file.action, "path": url}))
    name = next(
        name
        for name in store_at(location).list_after("")  # type: ignore[union-attr]
        if name.endswith(".bin")
    )
    absolute = {
        **vector,
        "storageType": "p",
        "pathOrInlineDv": quote(f"{location}/{name}", safe=":/"),
    }
    assert read_vector("s3://lake/elsewhere", absolute).tolist() == path == [0, 1]
    by_url[0] = DataFile({**by_url[0].action, "deletionVector": absolute})
    state = SimpleNamespace(
        **{
            name: getattr(table.state, name)
            for name in ("fields", "physical_fields", "properties")
        },
        location="s3://lake/elsewhere",
    )
    kept = StoredRows(state, by_url)  # type: ignore[arg-type]
    assert sorted(
        value for part in kept.live([0]) for value in part.column(0).to_pylist()
    ) == list(range(2, 200))
    coming = StoredTable(
        f"{location}-branch", FIELDS, SCHEMA, [(7, "x", None)], 1, tmp_path / "b"
    )
    stored = Files(table.state, table.files)
    taken = find(Files(coming.state, coming.files), stored, ["id"], more_than=0)
    assert taken is not None and taken.to_pylist() == [{"k0": 7}]
    free = StoredTable(
        f"{location}-other", FIELDS, SCHEMA, [(777, "x", None)], 1, tmp_path / "c"
    )
    assert find(Files(free.state, free.files), stored, ["id"], more_than=0) is None
    there = Files(
        coming.state, [DataFile({**coming.files[0].action, "path": "hdfs://h/x"})]
    )
    with pytest.raises(TooLarge):
        find(there, stored, ["id"], more_than=0)


def test_a_truncate_in_a_store(s3: Server, proxy: StoreProxy, tmp_path: Path) -> None:
    for table in _both(s3, tmp_path, _rows(50), 2):
        events, shape = _events(random.Random(6), 9, keyed=True, rows=_rows(50))
        shape = ChangeShape(FIELDS, shape.key, shape.unchanged, True, Seq(1000, 0))
        upsert = table.plan(shape, [events], UNTRUSTED, memory=1 << 22)
        assert isinstance(upsert, Upsert) and upsert.truncates
        table.commit(upsert)
        assert table.read() == []


def test_rows_with_other_columns(s3: Server, proxy: StoreProxy, tmp_path: Path) -> None:
    fields = [
        NextField(FIELDS[0], "id"),
        NextField(FieldSpec("n", "int", pg_type_oid=Oid(23)), None),
        NextField(FIELDS[2], "big"),
    ]
    schema = [
        field_json(field.field.name, json_of(field.field.spark_ddl), {})
        for field in fields
    ]
    schema[1]["metadata"] = {TYPE_OID: 23}
    metadata = {
        "id": "id",
        "schemaString": json.dumps({"type": "struct", "fields": schema}),
        "partitionColumns": [],
        "configuration": {},
    }
    for table in _both(s3, tmp_path, _rows(300), 2):
        before = table.read()
        adds = widened(_port(table), table.state, metadata, fields, {"n": "17"})
        assert adds
        table.files = [DataFile(add["add"]) for add in adds]
        table.state = state_of(table.state.location, metadata, 1, {})
        assert table.read() == [(row[0], 17, row[2]) for row in before]


def test_objects_need_no_fsync(
    s3: Server, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = _both(s3, tmp_path, _rows(10), 1)
    synced: list[str] = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: synced.append(str(Path(f"/dev/fd/{handle}").readlink())),
    )
    proxy.seen.clear()
    for table, suffixes in ((here, {".parquet", ".bin", ""}), (there, set())):
        (vector,) = write_vectors(table.state.location, [pa.array([0]).to_numpy()])
        proxy.seen.clear()
        synced.clear()
        store = store_at(table.state.location)
        settle_files(store, [table.files[0].path], [None, vector])
        assert {Path(one).suffix for one in synced} == suffixes
        assert (str(tmp_path / "t") in synced) == bool(suffixes)
        settle_commit(store, 3)
        settle_created(store)
        assert proxy.seen == []
    settle_files(store_at("hdfs://host/t"), ["x"])


def test_vectors_of_two_versions_of_a_file_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compaction compares them, and once took the kept one for both."""
    state = TableState("s3://lake/t", "t", 1, {}, (), (), False, {})
    monkeypatch.setattr(
        stored_rows,
        "read_vector",
        lambda location, vector: np.array(vector["rows"], np.uint64),
    )
    versions = [
        DataFile({"path": "f.parquet", "deletionVector": {"rows": rows}})
        for rows in ([1, 2, 3], [1])
    ]
    rows = StoredRows(state, versions[:1])
    assert [rows.deleted(file).tolist() for file in versions] == [[1, 2, 3], [1]]
    assert rows.deleted(versions[0]).tolist() == [1, 2, 3]
