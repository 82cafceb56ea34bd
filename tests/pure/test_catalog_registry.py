"""What is registered in a catalog of others follows the tables, whatever the catalog does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    EntryState,
    TableDef,
    read_registered,
    write_registered,
)
from wal2lake.catalog.registered import RegisteredTables
from wal2lake.errors import StorageError, UndefinedObjectError
from wal2lake.lake import FieldSpec
from wal2lake.lake.catalogs import (
    NODE,
    TABLE,
    CatalogEntry,
    CatalogUnavailable,
    EntryChanged,
    EntryName,
    EntryRefused,
    FoundEntry,
    entry_of,
    hive_type,
)
from wal2lake.local.catalogs import CatalogWorker, WantedEntries
from wal2lake.model import Oid
from wal2lake.settings import CatalogSettings


@dataclass
class MemoryCatalog:
    """A catalog in memory."""

    entries: dict[EntryName, FoundEntry] = field(default_factory=dict)
    down: bool = False
    refused: set[str] = field(default_factory=set)
    requests_left: int | None = None
    """Requests that are answered before the catalog throttles; None: all."""
    changing: bool = False
    """Others change each entry while it is being changed."""
    asked: int = 0
    lost: bool = False
    """The next change is made, and its answer is lost."""

    def find(self, name: EntryName) -> FoundEntry | None:
        self._ask(name)
        return self.entries.get(name)

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        return existing == _found(entry)

    def create(self, entry: CatalogEntry) -> None:
        assert entry.name not in self.entries
        self._set(entry)

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        assert self.entries[entry.name].properties[NODE] == entry.properties[NODE]
        self._set(entry)

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        self._ask(name)
        del self.entries[name]

    def close(self) -> None:
        return

    def _set(self, entry: CatalogEntry) -> None:
        self._ask(entry.name)
        self.entries[entry.name] = _found(entry)
        if self.lost:
            self.lost = False
            raise CatalogUnavailable("the answer is lost")

    def _ask(self, name: EntryName) -> None:
        self.asked += 1
        if self.down:
            raise CatalogUnavailable("connection refused", hint="Start it.")
        if self.requests_left is not None:
            if self.requests_left == 0:
                raise CatalogUnavailable("slow down")
            self.requests_left -= 1
        if name.table in self.refused:
            raise EntryRefused("no such name, please")
        if self.changing:
            raise EntryChanged("it has changed")


def _found(entry: CatalogEntry) -> FoundEntry:
    columns = tuple((c.name, c.spark_ddl) for c in entry.columns)
    return FoundEntry(entry.location, columns, dict(entry.properties))


class World:
    """A node's catalog with tables, a catalog of others, and the worker between them."""

    def __init__(self, directory: Path) -> None:
        self.catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
        self.catalog.create_namespace("Sales Dept", Oid(10))
        self.others = MemoryCatalog()
        self.settings: Any = SimpleNamespace(
            catalog=CatalogSettings(type="glue"),
            registered_file=directory / "registered.json",
        )
        self.columns: dict[str, tuple[str, ...]] = {}
        self.tables = self
        self.now = 1000.0
        self.oid = 20000
        self.logs_read = 0
        self.start()

    def start(self) -> None:
        """Begin with a new worker, as after a restart."""
        self.worker = CatalogWorker(
            WantedEntries(self),  # type: ignore[arg-type]
            lambda settings: self.others,
            lambda: self.now,
        )

    def state(self, location: str) -> Any:
        self.logs_read += 1
        if location not in self.columns:
            raise UndefinedObjectError("no table", sqlstate="42P01")
        fields = tuple(FieldSpec(name, "int") for name in self.columns[location])
        return SimpleNamespace(fields=fields)

    def table(self, name: str, *columns: str, schema: str = "public") -> TableDef:
        self.oid += 1
        location = f"/lake/{schema}/{name}-{self.oid}"
        self.columns[location] = columns or ("id",)
        table = TableDef(
            Oid(self.oid),
            schema,
            name,
            Oid(10),
            tuple(ColumnDef(c, Oid(23), -1) for c in self.columns[location]),
            (),
            location,
        )
        self.catalog.create_table(table)
        return table

    def drop(self, table: TableDef) -> None:
        self.catalog.drop_table(table.oid)

    def round(self, seconds: float = 5.0) -> None:
        self.now += seconds
        self.worker.round()

    def state_of(self, name: str) -> EntryState:
        return read_registered(self.settings.registered_file).tables[name].state

    def shown(self) -> dict[str, str]:
        """Locations by name."""
        return {str(n): e.location for n, e in sorted(self.others.entries.items())}


def url(table: TableDef) -> str:
    return f"file://{table.location}"


def foreign(location: str = "s3://theirs/x") -> FoundEntry:
    return FoundEntry(location, (("a", "int"),), {"made by": "them"})


def test_tables_come_change_and_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    towns = world.table("towns")
    world.round()
    assert world.shown() == {"public.towns": url(towns)}
    assert world.state_of("public.towns") is EntryState.REGISTERED
    asked = world.others.asked
    world.round()
    assert world.others.asked == asked
    world.drop(towns)
    world.round()
    assert world.shown() == {}
    assert not read_registered(world.settings.registered_file).tables


def test_a_table_that_was_made_anew_has_its_new_place(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.drop(world.table("towns"))
    world.round()
    first = world.table("towns")
    world.round()
    world.drop(first)
    again = world.table("towns", "id", "name")
    world.round()
    assert world.shown() == {"public.towns": url(again)}
    (entry,) = world.others.entries.values()
    assert entry.columns == (("id", "int"), ("name", "int"))


def test_a_column_that_the_log_does_not_have_yet_is_looked_for_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    towns = world.table("towns", "id", "name")
    world.columns[towns.location] = ("id",)
    world.round()
    world.columns[towns.location] = ("id", "name")
    world.round()
    (entry,) = world.others.entries.values()
    assert entry.columns == (("id", "int"), ("name", "int"))


def test_a_catalog_that_is_down_is_brought_up_to_date_after_a_restart(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    towns = world.table("towns")
    world.round()
    world.others.down = True
    world.drop(towns)
    lakes = world.table("lakes")
    world.round()
    found = read_registered(world.settings.registered_file).tables
    assert found["public.towns"].state is EntryState.LEAVING
    assert found["public.lakes"].state is EntryState.PENDING
    assert found["public.lakes"].error == "connection refused"
    world.start()
    world.round()
    world.others.down = False
    world.start()
    world.round()
    assert world.shown() == {"public.lakes": url(lakes)}
    lake = read_registered(world.settings.registered_file).tables["public.lakes"]
    assert (lake.state, lake.error) == (EntryState.REGISTERED, None)


def test_attempts_at_a_catalog_that_is_down_become_rare(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.others.down = True
    world.table("towns")
    for _ in range(200):
        world.round(5)
    assert 8 < world.others.asked < 25
    world.others.down = False
    world.worker.reload(world.settings)
    world.round()
    assert world.state_of("public.towns") is EntryState.REGISTERED


def test_no_log_is_read_in_vain_while_the_catalog_is_down(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("towns", "lakes", "roads"):
        world.table(name)
    world.others.down = True
    for _ in range(100):
        world.round(5)
    assert world.logs_read == 3
    for _ in range(30):
        world.round(5)
    assert world.logs_read == 6, "once for each interval of sweeps"


def test_a_sweep_of_a_catalog_that_throttles_comes_to_its_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    tables = {f"public.t{number}" for number in range(10)}
    for name in tables:
        world.table(name.removeprefix("public."))
    for _ in range(10):
        world.others.requests_left = 4
        world.round(400)
    assert world.shown().keys() == tables
    for name in tables:
        del world.others.entries[EntryName("public", name.removeprefix("public."))]
    late = world.table("a_new_one")
    world.others.requests_left = 4
    world.round(700)
    assert world.shown()["public.a_new_one"] == url(late), "what is due comes first"
    for _ in range(10):
        world.others.requests_left = 4
        world.round(400)
    assert world.shown().keys() == tables | {"public.a_new_one"}


def test_an_entry_that_cannot_be_removed_waits_for_the_sweep(tmp_path: Path) -> None:
    world = World(tmp_path)
    towns = world.table("towns")
    world.round()
    world.drop(towns)
    world.others.refused = {"towns"}
    world.round()
    assert world.state_of("public.towns") is EntryState.LEAVING
    asked = world.others.asked
    for _ in range(20):
        world.round()
    assert world.others.asked == asked
    world.others.refused = set()
    world.round(600)
    assert world.shown() == {}


def test_an_entry_that_others_keep_changing_is_not_tried_for_ever(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.table("towns")
    world.others.changing = True
    for _ in range(50):
        world.round()
    assert world.others.asked == 3
    assert world.state_of("public.towns") is EntryState.PENDING
    world.others.changing = False
    world.round(600)
    assert world.state_of("public.towns") is EntryState.REGISTERED


def test_a_reload_tries_what_was_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("towns")
    world.others.refused = {"towns"}
    world.round()
    assert world.state_of("public.towns") is EntryState.REFUSED
    world.others.refused = set()
    world.round()
    assert world.state_of("public.towns") is EntryState.REFUSED
    world.worker.reload(world.settings)
    world.round()
    assert world.state_of("public.towns") is EntryState.REGISTERED


def test_an_answer_that_is_lost_makes_no_second_entry(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.others.lost = True
    towns = world.table("towns")
    world.round()
    world.round(60)
    assert world.shown() == {"public.towns": url(towns)}
    assert world.state_of("public.towns") is EntryState.REGISTERED


def test_what_others_drop_or_change_is_made_again_by_a_sweep(tmp_path: Path) -> None:
    world = World(tmp_path)
    towns, lakes = world.table("towns"), world.table("lakes")
    world.round()
    whole = world.shown()
    entries = world.others.entries
    del entries[EntryName("public", "towns")]
    name = EntryName("public", "lakes")
    entries[name] = replace(entries[name], location="s3://wrong")
    world.round()
    assert world.shown() != whole
    world.round(600)
    assert (
        world.shown()
        == whole
        == {
            "public.lakes": url(lakes),
            "public.towns": url(towns),
        }
    )


def test_an_entry_of_others_is_neither_changed_nor_dropped(tmp_path: Path) -> None:
    world = World(tmp_path)
    name = EntryName("public", "towns")
    world.others.entries[name] = foreign()
    towns = world.table("towns")
    lakes = world.table("lakes")
    world.round()
    assert world.others.entries[name] == foreign()
    assert world.state_of("public.lakes") is EntryState.REGISTERED
    found = read_registered(world.settings.registered_file).tables["public.towns"]
    assert (found.state, found.sqlstate) == (EntryState.CONFLICT, "42710")
    assert found.error == (
        'the name "public.towns" of the catalog is in use by another program'
    )
    assert found.hint == (
        "The entry is not touched. Rename the table, drop the entry in the catalog, or set"
        " catalog.prefix: then the next look registers the table."
    )
    # It is not asked about again before the sweep.
    asked = world.others.asked
    world.round()
    assert world.others.asked == asked
    world.drop(towns)
    world.round()
    assert world.others.entries[name] == foreign()
    del world.others.entries[name]
    again = world.table("towns")
    world.round()
    assert world.shown() == {"public.lakes": url(lakes), "public.towns": url(again)}


def test_a_name_that_is_free_again_is_taken_by_the_sweep(tmp_path: Path) -> None:
    world = World(tmp_path)
    name = EntryName("public", "towns")
    world.others.entries[name] = foreign()
    towns = world.table("towns")
    world.round()
    del world.others.entries[name]
    world.round(600)
    assert world.shown() == {"public.towns": url(towns)}


def test_two_tables_with_one_name_are_a_conflict_until_one_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.table("Towns")
    world.round()
    second = world.table("towns")
    world.round()
    assert world.shown() == {"public.towns": url(first)}
    found = read_registered(world.settings.registered_file).tables["public.towns"]
    assert found.error == (
        'the name "public.towns" of the catalog is in use by table "public.Towns" of this'
        " node"
    )
    world.drop(first)
    world.round(600)
    assert world.shown() == {"public.towns": url(second)}


def test_one_entry_that_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.others.refused = {"lakes"}
    for name in ("lakes", "towns"):
        world.table(name)
    world.round()
    assert list(world.shown()) == ["public.towns"]
    assert world.state_of("public.lakes") is EntryState.REFUSED
    world.others.refused = set()
    world.round(600)
    assert list(world.shown()) == ["public.lakes", "public.towns"]


def test_a_lost_file_is_made_again_from_the_marks(tmp_path: Path) -> None:
    world = World(tmp_path)
    towns = world.table("towns")
    world.round()
    world.settings.registered_file.write_text("{")
    world.start()
    world.round()
    assert world.shown() == {"public.towns": url(towns)}
    assert world.state_of("public.towns") is EntryState.REGISTERED


def test_another_catalog_is_filled_and_the_first_one_left(tmp_path: Path) -> None:
    world = World(tmp_path)
    towns = world.table("towns")
    world.round()
    first, world.others = world.others, MemoryCatalog()
    world.settings.catalog = CatalogSettings(type="glue", prefix="lake_")
    world.round()
    assert list(first.entries) == [EntryName("public", "towns")]
    assert world.shown() == {"lake_public.towns": url(towns)}
    world.settings.catalog = CatalogSettings()
    world.round()
    assert not read_registered(world.settings.registered_file).tables
    assert world.shown() == {"lake_public.towns": url(towns)}


def test_names_have_what_every_catalog_takes() -> None:
    entry = entry_of(7, "Sales Dept", 'Größe "x"', "s3://lake/x", (), prefix="l_")
    assert str(entry.name) == "l_sales_dept.gr__e__x_"
    assert entry.location == "s3://lake/x"
    assert entry.properties == {NODE: "7", TABLE: 'Sales Dept.Größe "x"'}


@pytest.mark.parametrize(
    ("ddl", "hive"),
    [
        ("int", "int"),
        ("bigint", "bigint"),
        ("smallint", "smallint"),
        ("float", "float"),
        ("double", "double"),
        ("boolean", "boolean"),
        ("decimal(10,2)", "decimal(10,2)"),
        ("date", "date"),
        ("timestamp", "timestamp"),
        ("timestamp_ntz", "timestamp"),
        ("string", "string"),
        ("binary", "binary"),
        ("array<array<int>>", "array<array<int>>"),
        ("map<string,decimal(3,1)>", "map<string,decimal(3,1)>"),
        ("struct<a:int,b:array<string>>", "struct<a:int,b:array<string>>"),
        ("variant", "string"),
        ("array<variant>", "string"),
        ("interval day to second", "string"),
        ("string collate UTF8_LCASE", "string"),
    ],
)
def test_types_in_hives_words(ddl: str, hive: str) -> None:
    assert hive_type(ddl) == hive


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not write file"):
        write_registered(tmp_path / "gone" / "registered.json", RegisteredTables())


NAMES = ("towns", "Towns", "lakes")


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ("make", "drop", "alter", "down", "up", "restart", "lose", "spoil")
            ),
            st.sampled_from(NAMES),
        ),
        max_size=25,
    )
)
def test_at_the_end_the_catalog_shows_exactly_the_tables(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, str]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    mine = EntryName("public", "theirs")
    world.others.entries[mine] = foreign()
    present: dict[str, TableDef] = {}

    def make(name: str) -> None:
        if name not in present:
            present[name] = world.table(name)

    def drop(name: str) -> None:
        if name in present:
            world.drop(present.pop(name))

    def alter(name: str) -> None:
        if name in present:
            world.columns[present[name].location] += (f"c{world.now:.0f}",)

    def spoil(name: str) -> None:
        world.others.entries.pop(EntryName("public", name.lower()), None)

    actions: dict[str, Callable[[str], None]] = {
        "make": make,
        "drop": drop,
        "alter": alter,
        "spoil": spoil,
        "down": lambda name: setattr(world.others, "down", True),
        "up": lambda name: setattr(world.others, "down", False),
        "restart": lambda name: world.start(),
        "lose": lambda name: setattr(world.others, "lost", True),
    }
    for action, name in steps:
        actions[action](name)
        world.round()
    world.others.down = world.others.lost = False
    for _ in range(3):
        world.round(700)
    shown = {n: e for n, e in world.others.entries.items() if n != mine}
    assert world.others.entries[mine] == foreign()
    assert {entry.table for entry in shown} == {name.lower() for name in present}
    for entry, found in shown.items():
        table = found.properties[TABLE].removeprefix("public.")
        assert table.lower() == entry.table
        assert found.location == url(present[table])
        columns = world.columns[present[table].location]
        assert found.columns == tuple((column, "int") for column in columns)
