"""An Iceberg mirror against a model: whatever happens to a table, each snapshot shows its version.

pyiceberg reads the snapshots; deltalake reads the same versions of the table.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable
from structlog.testing import capture_logs
from tests.examples import examples
from tests.fakes.mirrored_table import COLUMNS, MirroredTable, Rows, now_ms
from tests.fakes.objectstores import Server
from tests.fakes.storeproxy import StoreProxy

from wal2lake.errors import FeatureNotSupportedError, StorageError
from wal2lake.lake import CommitConflict
from wal2lake.lake.iceberg import IcebergMirror, MirrorOptions, manifests
from wal2lake.lake.iceberg.place import MirrorPlace
from wal2lake.lake.store import LocalStore
from wal2lake.lake.tablefiles import Replaced, add_action

pytestmark = pytest.mark.usefixtures("no_fsync")

FORMATS = (2, 3)


def mirror_of(table: MirroredTable) -> IcebergMirror:
    return IcebergMirror(table, now_ms)  # type: ignore[arg-type]


def iceberg(table: MirroredTable) -> StaticTable:
    return StaticTable.from_metadata(f"{table.location}/_iceberg")


def counted(rows: pa.Table) -> Rows:
    columns = rows.select(sorted(rows.column_names))
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def shown(table: MirroredTable, snapshot: int | None = None, **scan: Any) -> Rows:
    return counted(iceberg(table).scan(snapshot_id=snapshot, **scan).to_arrow())


def stored(table: MirroredTable, version: int | None = None) -> Rows:
    delta = DeltaTable(table.location, version=version)
    answer = QueryBuilder().register("t", delta).execute("select * from t")
    return counted(pa.table(answer.read_all()))


def versions(table: MirroredTable) -> dict[int, int]:
    """Return the snapshots by the version that each shows."""
    found = {}
    for one in iceberg(table).metadata.snapshots:
        assert one.summary is not None
        found[int(one.summary["wal2lake.delta_version"] or 0)] = one.snapshot_id
    return found


def rows(ids: list[int]) -> dict[str, list[Any]]:
    return {"id": ids, "name": [f"n{i}" for i in ids]}


def file_of(table: MirroredTable, number: int = 0) -> str:
    return list(table.files)[number]


@pytest.fixture
def table(tmp_path: Path) -> MirroredTable:
    return MirroredTable(tmp_path / "t")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("delete"), st.integers(0, 1000)),
        st.tuples(st.just("remove"), st.integers(0, 1000)),
        st.tuples(st.just("restore"), st.integers(0, 1000)),
        st.tuples(st.just("mirror"), st.booleans()),
    ),
    max_size=15,
)


@settings(max_examples=examples(20), deadline=None)
@given(STEPS, st.sampled_from(FORMATS))
def test_every_snapshot_shows_its_version(
    steps: list[tuple[str, int]], format_version: int
) -> None:
    with TemporaryDirectory() as directory:
        table = MirroredTable(Path(directory) / "t")
        mirror = mirror_of(table)
        options = MirrorOptions(format_version)
        asked = set()
        next_id = 0
        for step, number in [*steps, ("mirror", False)]:
            if step == "append":
                table.append(rows(list(range(next_id, next_id + number))))
                next_id += number
            elif step == "mirror":
                if number:
                    # Another process: it knows nothing of what the first one had in memory.
                    mirror = mirror_of(table)
                mirror.mirror(table.location, table.version, None, options)
                asked.add(table.version)
            elif step == "restore":
                restored(table, number % (table.version + 1))
            elif table.files:
                key = file_of(table, number % len(table.files))
                left = sorted(
                    set(range(table.files[key].rows or 0)) - table.deleted(key)
                )
                gone = {left[number % len(left)]} if left else set()
                wanted = sorted(gone | table.deleted(key))
                table.delete({key: wanted if step == "delete" else []})
        found = versions(table)
        assert set(found) == asked
        for version, snapshot in found.items():
            assert shown(table, snapshot) == stored(table, version)


def restored(table: MirroredTable, version: int) -> None:
    """Commit what an earlier version had, as RESTORE does."""
    before, now = table.history[version], table.files
    removed = [
        {"remove": Replaced(file, None).remove(0, data_change=True)}
        for key, file in now.items()
        if before.get(key) != file
    ]
    added = [
        {"add": dict(file.action)}
        for key, file in before.items()
        if now.get(key) != file
    ]
    table.commit(*removed, *added)


def test_a_missing_commit_is_no_missing_change(table: MirroredTable) -> None:
    mirror = mirror_of(table)
    table.append(rows([1, 2, 3]))
    table.append(rows([4, 5]))
    mirror.mirror(table.location, table.version, None)
    table.delete({file_of(table): [1]})
    table.delete({file_of(table): []})
    gone = table.root / "_delta_log" / f"{table.version - 1:020}.json"
    content = gone.read_bytes()
    gone.unlink()
    mirror.mirror(table.location, table.version, None)
    gone.write_bytes(content)
    assert shown(table) == stored(table)


def test_an_earlier_version_is_shown_as_it_was(table: MirroredTable) -> None:
    table.append(rows([1, 2]))
    table.append(rows([3]))
    done = mirror_of(table).mirror(table.location, 1, "0/16B3748")
    assert shown(table) == Counter({(1, "n1"): 1, (2, "n2"): 1})
    assert (done.cursor.version, done.cursor.lsn) == (1, "0/16B3748")
    summary = iceberg(table).metadata.snapshots[-1].summary
    assert summary is not None and summary["wal2lake.lsn"] == "0/16B3748"


def test_a_version_is_mirrored_once(table: MirroredTable) -> None:
    table.append(rows([1]))
    first = mirror_of(table).mirror(table.location, table.version, None)
    again = mirror_of(table).mirror(table.location, table.version, None)
    older = mirror_of(table).mirror(table.location, 0, None)
    assert not first.already_done and again.already_done and older.already_done
    assert len(iceberg(table).metadata.snapshots) == 1


class Crash(Exception):
    """The process ends here."""


def crashes(monkeypatch: pytest.MonkeyPatch, place: int, late: bool) -> None:
    """Let the process end before, or right after, a change of the store."""
    count = iter(range(1000))

    def dying(name: str) -> None:
        real: Callable[..., Any] = getattr(LocalStore, name)

        def step(self: LocalStore, *given: Any, **named: Any) -> Any:
            if next(count) != place:
                return real(self, *given, **named)
            if late:
                real(self, *given, **named)
            raise Crash

        monkeypatch.setattr(LocalStore, name, step)

    for name in ("put", "put_if_absent", "settle", "make_folder", "delete"):
        dying(name)


@pytest.mark.parametrize("format_version", FORMATS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    tmp_path: Path, format_version: int, late: bool, first: bool
) -> None:
    options = MirrorOptions(format_version)
    for place in range(20):
        table = MirroredTable(tmp_path / f"t{place}")
        table.append(rows([1, 2, 3, 4]))
        if not first:
            mirror_of(table).mirror(table.location, table.version, "0/1", options)
        table.delete({file_of(table): [0]})
        table.append(rows([5]))
        before = shown(table) if not first else None
        with pytest.MonkeyPatch.context() as patch:
            crashes(patch, place, late)
            try:
                mirror_of(table).mirror(table.location, table.version, "0/2", options)
            except Crash:
                ended = True
            else:
                ended = False
        if before is not None:
            assert shown(table) in (before, stored(table))
        done = mirror_of(table).mirror(table.location, table.version, "0/2", options)
        assert done.cursor.lsn == "0/2"
        assert shown(table) == stored(table)
        assert len(versions(table)) == len(iceberg(table).metadata.snapshots)
        assert len(versions(table)) == (1 if first else 2)
        if not ended:
            break
    assert not ended and place > 4


def test_one_of_two_writers_gives_way(
    table: MirroredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(rows([1]))
    mirror, other = mirror_of(table), mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    table.append(rows([2]))
    real = MirrorPlace.commit

    def late(self: MirrorPlace, number: int, metadata: Any) -> Any:
        monkeypatch.setattr(MirrorPlace, "commit", real)
        other.mirror(table.location, table.version, None)
        return real(self, number, metadata)

    monkeypatch.setattr(MirrorPlace, "commit", late)
    with pytest.raises(CommitConflict) as raised:
        mirror.mirror(table.location, table.version, None)
    assert raised.value.sqlstate == "40001"
    assert mirror.mirror(table.location, table.version, None).already_done
    assert len(iceberg(table).metadata.snapshots) == 2


def test_a_table_made_anew_has_a_new_mirror(table: MirroredTable) -> None:
    table.append(rows([1]))
    mirror = mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    before = iceberg(table).metadata.table_uuid
    table.delete({file_of(table): []})
    table.define(COLUMNS, id="another")
    table.append(rows([2]))
    assert mirror.mirror(table.location, table.version, None).anew
    assert iceberg(table).metadata.table_uuid != before
    assert shown(table) == Counter({(2, "n2"): 1})


def test_a_table_that_was_moved_has_a_new_mirror(
    table: MirroredTable, tmp_path: Path
) -> None:
    table.append(rows([1, 2]))
    mirror_of(table).mirror(table.location, table.version, None)
    table.root = table.root.rename(tmp_path / "moved")
    table.location = str(table.root)
    assert mirror_of(table).mirror(table.location, table.version, None).anew
    assert shown(table) == Counter({(1, "n1"): 1, (2, "n2"): 1})


def test_another_format_version_begins_anew(table: MirroredTable) -> None:
    table.append(rows([1, 2]))
    table.delete({file_of(table): [0]})
    mirror = mirror_of(table)
    for format_version in (3, 2, 3):
        options = MirrorOptions(format_version)
        mirror.mirror(table.location, table.version, None, options)
        assert iceberg(table).metadata.format_version == format_version
        assert shown(table) == Counter({(2, "n2"): 1})


def test_ids_stay_when_columns_come_go_and_change_names(table: MirroredTable) -> None:
    mirror = mirror_of(table)
    identity = table.metadata[-1]["id"]
    table.append(rows([1]))
    mirror.mirror(table.location, table.version, None)
    table.define((*COLUMNS, ("extra", "int")), id=identity)
    table.append({"id": [2], "name": ["b"], "extra": [20]})
    assert not mirror.mirror(table.location, table.version, None).anew
    old = {"id": ("id", 1), "title": ("name", 2), "extra": ("extra", 3)}
    columns = (("id", "bigint"), ("title", "string"), ("extra", "int"))
    table.define(columns, old, id=identity)
    table.append({"id": [3], "title": ["c"], "extra": [30]})
    assert not mirror.mirror(table.location, table.version, None).anew
    # The column goes, and another one gets its old name.
    new = {"id": ("id", 1), "extra": ("extra", 3), "name": ("col-4", 4)}
    table.define(
        (("id", "bigint"), ("extra", "int"), ("name", "int")), new, id=identity
    )
    table.append({"id": [4], "extra": [40], "name": [400]})
    assert not mirror.mirror(table.location, table.version, None).anew
    assert shown(table) == Counter(
        [(None, 1, None), (20, 2, None), (30, 3, None), (40, 4, 400)]
    )
    first = versions(table)[1]
    assert shown(table, first) == Counter({(1, "n1"): 1})


def test_an_id_is_not_used_again(table: MirroredTable) -> None:
    """Another engine has replaced the columns, without column mapping."""
    mirror = mirror_of(table)
    identity = table.metadata[-1]["id"]
    wider = (*COLUMNS, ("extra", "bigint"))
    table.define(wider, id=identity)
    table.append({"id": [1], "name": ["a"], "extra": [10]})
    mirror.mirror(table.location, table.version, None)
    first = table.version
    table.define(COLUMNS, id=identity)
    mirror.mirror(table.location, table.version, None)
    table.define((*COLUMNS, ("other", "bigint")), id=identity)
    table.append({"id": [2], "name": ["b"], "other": [20]})
    assert not mirror.mirror(table.location, table.version, None).anew
    ids = [field.field_id for field in iceberg(table).schema().fields]
    assert ids == [1, 2, 4]
    assert shown(table) == Counter([(1, "a", None), (2, "b", 20)])
    assert shown(table, versions(table)[first]) == Counter([(10, 1, "a")])
    # Delta's numbers, which it gives by place, are not those that the mirror has given.
    mapped = {"id": ("id", 1), "name": ("name", 2), "more": ("more", 3)}
    table.define((*COLUMNS, ("more", "bigint")), mapped, id=identity)
    assert mirror.mirror(table.location, table.version, None).anew


def test_ids_of_mapped_columns_that_differ_begin_anew(table: MirroredTable) -> None:
    mirror = mirror_of(table)
    table.append(rows([1]))
    mirror.mirror(table.location, table.version, None)
    swapped = {"id": ("id", 2), "name": ("name", 1)}
    table.define(COLUMNS, swapped, id=table.metadata[-1]["id"])
    table.append(rows([2]))
    assert mirror.mirror(table.location, table.version, None).anew
    assert shown(table) == Counter({(1, "n1"): 1, (2, "n2"): 1})


def test_wider_types_keep_their_column(table: MirroredTable) -> None:
    columns = (("a", "int"), ("b", "float"), ("c", "decimal(5,2)"))
    wider = (("a", "bigint"), ("b", "double"), ("c", "decimal(9,2)"))
    table.define(columns)
    identity = table.metadata[-1]["id"]
    table.append({"a": [1], "b": [0.5], "c": [Decimal("1.25")]})
    mirror = mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    table.define(wider, id=identity)
    table.append({"a": [2], "b": [0.25], "c": [Decimal("12345.25")]})
    assert not mirror.mirror(table.location, table.version, None).anew
    assert shown(table) == Counter(
        [(1, 0.5, Decimal("1.25")), (2, 0.25, Decimal("12345.25"))]
    )
    table.define((("a", "string"), *wider[1:]), id=identity)
    assert mirror.mirror(table.location, table.version, None).anew


@pytest.mark.parametrize(("ddl", "mapped"), [("variant", False), ("array<int>", True)])
def test_a_table_without_a_form_in_iceberg_is_refused(
    table: MirroredTable, ddl: str, mapped: bool
) -> None:
    names = {"a": ("a", 1)} if mapped else None
    table.define((("a", ddl),), names)
    with pytest.raises(FeatureNotSupportedError, match='column "a"') as raised:
        mirror_of(table).mirror(table.location, table.version, None)
    assert raised.value.sqlstate == "0A000"
    assert "set iceberg = false for the table." in str(raised.value.hint)
    assert ("column mapping" in str(raised.value)) is mapped
    assert not (table.root / "_iceberg").exists()


def test_a_storage_without_a_store_is_refused(table: MirroredTable) -> None:
    with pytest.raises(FeatureNotSupportedError) as raised:
        mirror_of(table).mirror("hdfs://host/t", 0, None)
    assert raised.value.hint == "Mirrors are in directories and in object stores."
    assert mirror_of(table).oldest_version("hdfs://host/t") is None


def test_a_mirror_is_removed(table: MirroredTable) -> None:
    mirror = mirror_of(table)
    assert not mirror.remove(table.location)
    mirror.mirror(table.location, table.version, None)
    assert mirror.remove(table.location)
    assert mirror.oldest_version(table.location) is None
    assert mirror.mirror(table.location, table.version, None).number == 1


def test_a_compaction_is_a_replacement(table: MirroredTable) -> None:
    table.append(rows([1]))
    table.append(rows([2]))
    mirror = mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    keys = list(table.files)
    removes = [{"remove": {"path": key, "dataChange": False}} for key in keys]
    adds = [
        {"add": add_action(one, data_change=False)} for one in table.write(rows([1, 2]))
    ]
    table.commit(*removes, *adds)
    mirror.mirror(table.location, table.version, None)
    summary = iceberg(table).metadata.snapshots[-1].summary
    assert summary is not None and summary.operation.value == "replace"
    assert shown(table) == stored(table)


def test_old_snapshots_go_with_their_files(table: MirroredTable) -> None:
    clock = [1_800_000_000_000]
    mirror = IcebergMirror(table, lambda: clock[0])  # type: ignore[arg-type]
    options = MirrorOptions(history_ms=10_000)
    for number in range(12):
        table.append(rows([number]))
        table.delete({file_of(table, -1): [0]} if number % 3 == 0 else {})
        mirror.mirror(table.location, table.version, None, options)
        clock[0] += 4_000
    assert len(iceberg(table).metadata.snapshots) == 4
    assert mirror.oldest_version(table.location) == min(versions(table))
    clock[0] += 4_000_000
    before = {path.name for path in (table.root / "_iceberg/metadata").iterdir()}
    assert (mirror.trim(table.location, clock[0]) or 0) > 5
    left = {path.name for path in (table.root / "_iceberg/metadata").iterdir()}
    assert len(left - before) == 1 and len(left) < len(before)
    assert len(iceberg(table).metadata.snapshots) == 1
    assert shown(table) == stored(table)
    assert mirror.trim(table.location, clock[0]) == 0


def test_a_snapshot_stays_for_the_history_after_it_was_replaced(
    table: MirroredTable,
) -> None:
    clock = [1_800_000_000_000]
    mirror = IcebergMirror(table, lambda: clock[0])  # type: ignore[arg-type]
    options = MirrorOptions(history_ms=10_000)
    table.append(rows([1]))
    mirror.mirror(table.location, table.version, None, options)
    clock[0] += 7_200_000
    reader = iceberg(table)
    table.append(rows([2]))
    mirror.mirror(table.location, table.version, None, options)
    for late, expected in ((10_000, [1, 2]), (1, [2])):
        clock[0] += late
        mirror.trim(table.location, clock[0] - options.history_ms)
        assert sorted(versions(table)) == expected
        assert mirror.oldest_version(table.location) == expected[0]
        if 1 in expected:
            assert counted(reader.scan().to_arrow()) == Counter([(1, "n1")])


def test_the_number_of_manifests_is_bounded(
    table: MirroredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MANIFEST_ENTRIES", 10)
    mirror = mirror_of(table)
    for number in range(40):
        table.append(rows([number]))
        if number % 2:
            table.delete({file_of(table, number // 3): [0]})
        mirror.mirror(table.location, table.version, None)
    assert shown(table) == stored(table)
    snapshot = iceberg(table).metadata.snapshots[-1]
    listed = snapshot.manifests(iceberg(table).io)
    assert len(listed) <= 2 * (manifests.SMALL_MANIFESTS + 40 // 5)
    numbers = [file for one in mirror._known[table.location].data for file in one.files]
    taken = sorted((file.first_row_id, file.rows) for file in numbers)
    assert all(
        first is not None and following is not None and first + count <= following
        for (first, count), (following, _) in pairwise(taken)
    )


@pytest.mark.parametrize("format_version", FORMATS)
def test_all_types_and_their_bounds(tmp_path: Path, format_version: int) -> None:
    columns = (
        ("id", "bigint"),
        ("yes", "boolean"),
        ("small", "smallint"),
        ("real", "float"),
        ("exact", "decimal(38,4)"),
        ("day", "date"),
        ("instant", "timestamp"),
        ("clock", "timestamp_ntz"),
        ("words", "string"),
        ("bytes", "binary"),
        ("list", "array<int>"),
        ("pairs", "map<string,string>"),
    )
    table = MirroredTable(tmp_path / "t", columns)
    moment = dt.datetime(2026, 5, 17, 12, 0, 0, 123456)
    for first in (1, 11):
        ids = list(range(first, first + 5))
        table.append(
            {
                "id": ids,
                "yes": [i % 2 == 0 for i in ids],
                "small": [-i for i in ids],
                "real": [i / 2 for i in ids],
                "exact": [Decimal(i).scaleb(20) for i in ids],
                "day": [dt.date(2026, 1, i) for i in ids],
                "instant": [moment.replace(day=i, tzinfo=dt.UTC) for i in ids],
                "clock": [moment.replace(day=i) for i in ids],
                "words": [f"{i:02}" * 40 for i in ids],
                "bytes": [bytes([i]) for i in ids],
                "list": [[i, None] for i in ids],
                "pairs": [[("a", str(i))] for i in ids],
            }
        )
    mirror_of(table).mirror(
        table.location, table.version, None, MirrorOptions(format_version)
    )
    read = iceberg(table).scan().to_arrow().sort_by("id")
    assert read["small"].to_pylist() == [-i for i in read["id"].to_pylist()]
    assert read["list"][0].as_py() == [1, None]
    assert read["pairs"][0].as_py() == [("a", "1")]
    for condition in (
        "id = 12",
        "small = -12",
        f"exact = {Decimal(12).scaleb(20):f}",
        "day = '2026-01-12'",
        "instant = '2026-05-12T12:00:00.123456+00:00'",
        "clock = '2026-05-12T12:00:00.123456'",
        f"words = '{'12' * 40}'",
    ):
        scan = iceberg(table).scan(row_filter=condition)
        assert len(list(scan.plan_files())) == 1, condition
        assert scan.to_arrow()["id"].to_pylist() == [12], condition


@pytest.mark.parametrize("format_version", FORMATS)
def test_partitions(tmp_path: Path, format_version: int) -> None:
    kinds = ("date", "int", "decimal(9,2)", "timestamp", "boolean", "bigint")
    columns = (("id", "bigint"), *((f"p{i}", kind) for i, kind in enumerate(kinds)))
    table = MirroredTable(tmp_path / "t", columns, [name for name, _ in columns[1:]])
    values: list[tuple[Any, ...]] = [
        (
            dt.date(2026, 1, 1),
            -1,
            Decimal("-1.25"),
            dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            True,
            1,
        ),
        (
            dt.date(1900, 1, 1),
            7,
            Decimal("0.00"),
            dt.datetime(1900, 1, 1, tzinfo=dt.UTC),
            False,
            2,
        ),
        (None, None, None, None, None, None),
    ]
    table.append(
        {
            "id": [1, 2, 3],
            **{f"p{i}": [row[i] for row in values] for i in range(len(kinds))},
        }
    )
    mirror = mirror_of(table)
    options = MirrorOptions(format_version)
    mirror.mirror(table.location, table.version, None, options)
    mirror = mirror_of(table)
    table.delete({file_of(table): [0]})
    mirror.mirror(table.location, table.version, None, options)
    assert shown(table) == stored(table)
    assert sum(shown(table).values()) == 2
    for condition, expected in (
        ("p1 = -1", 1),
        ("p0 = '1900-01-01'", 1),
        ("p4 is null", 1),
    ):
        scan = iceberg(table).scan(row_filter=condition, snapshot_id=versions(table)[1])
        assert len(list(scan.plan_files())) == expected, condition


def test_the_hint_is_repaired(table: MirroredTable) -> None:
    table.append(rows([1]))
    mirror = mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    hint = table.root / "_iceberg/metadata/version-hint.text"
    hint.unlink()
    mirror.mirror(table.location, table.version, None)
    assert hint.read_text() == "1"


def test_damaged_metadata_is_told(table: MirroredTable) -> None:
    table.append(rows([1]))
    mirror_of(table).mirror(table.location, table.version, None)
    (table.root / "_iceberg/metadata/v1.metadata.json").write_text("{")
    with pytest.raises(StorageError, match="could not read Iceberg metadata") as raised:
        mirror_of(table).mirror(table.location, table.version, None)
    assert "Remove the table's folder _iceberg; the mirror begins anew." in str(
        raised.value.hint
    )


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format-version": 2, "properties": {}, "snapshots": [{}]}', "ours"],
)
def test_unreadable_metadata_holds_nothing_and_is_told(
    table: MirroredTable, content: str
) -> None:
    table.append(rows([1]))
    mirror = mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    folder = table.root / "_iceberg/metadata"
    if content == "ours":
        content = (folder / "v1.metadata.json").read_text()
        content = content.replace('"wal2lake.delta_version"', '"delta_version"')
    (folder / "v2.metadata.json").write_text(content)
    with capture_logs() as lines:
        assert mirror.oldest_version(table.location) is None
    (line,) = lines
    assert 'v2.metadata.json"' in str(line["error"])
    with pytest.raises(StorageError, match="could not read Iceberg metadata"):
        mirror.mirror(table.location, table.version, None)


def test_only_files_of_the_mirror_are_removed(table: MirroredTable) -> None:
    mirror = mirror_of(table)
    mirror.mirror(table.location, table.version, None)
    folder = table.root / "_iceberg/metadata"
    (folder / "notes.txt").write_text("x")
    (folder / f".v2.metadata.json.{'0' * 32}.tmp").write_text("x")
    assert mirror.remove(table.location)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert not mirror.remove(table.location)


def test_metadata_of_another_writer_is_left(table: MirroredTable) -> None:
    folder = table.root / "_iceberg/metadata"
    folder.mkdir(parents=True)
    foreign = folder / "v1.metadata.json"
    foreign.write_text('{"format-version": 2, "properties": {}, "snapshots": []}')
    with capture_logs() as lines:
        assert not mirror_of(table).remove(table.location)
    assert foreign.exists()
    (line,) = lines
    assert "another writer" in line["event"]


def test_a_place_without_a_mirror_is_listed_once(
    table: MirroredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []
    listing = LocalStore.list_after

    def counted_listing(store: LocalStore, folder: str, name: str = "") -> list[str]:
        listed.append(folder)
        return listing(store, folder, name)

    monkeypatch.setattr(LocalStore, "list_after", counted_listing)
    mirror = mirror_of(table)
    for _ in range(3):
        assert not mirror.remove(table.location)
        assert mirror.oldest_version(table.location) is None
    assert len(listed) == 1
    mirror.mirror(table.location, table.version, None)
    assert mirror.oldest_version(table.location) == 0
    assert mirror.remove(table.location)
    assert mirror.oldest_version(table.location) is None


@pytest.mark.parametrize("format_version", FORMATS)
def test_a_mirror_in_an_object_store(
    s3: Server, proxy: StoreProxy, format_version: int
) -> None:
    table = MirroredTable(f"{s3.url}/{uuid4().hex}/t ü")
    options = MirrorOptions(format_version)
    for number in (1, 2):
        table.append(rows([10 * number, 10 * number + 1]))
        table.delete({file_of(table, -1): [0]})
        mirror_of(table).mirror(table.location, table.version, None, options)
    properties = {
        "s3.endpoint": f"http://127.0.0.1:{s3.port}",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.region": "us-east-1",
    }
    read = StaticTable.from_metadata(f"{table.location}/_iceberg", properties)
    assert counted(read.scan().to_arrow()) == Counter({(11, "n11"): 1, (21, "n21"): 1})
    assert mirror_of(table).trim(table.location, now_ms() + 1) == 0
