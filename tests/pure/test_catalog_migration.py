"""A catalog of an older version is brought up to date when it is opened."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from wal2lake.catalog import Catalog, schema
from wal2lake.catalog.database import Database, create_database
from wal2lake.catalog.places import RELATIVE_SINCE
from wal2lake.errors import ConfigurationError
from wal2lake.model import Lsn

VERSION_1 = """
create table meta (key text primary key, value text not null) without rowid;
create table role (
    oid integer primary key, name text not null unique,
    superuser integer not null, password text);
create table namespace (
    oid integer primary key, name text not null unique, owner integer not null);
create table relation (
    oid integer primary key,
    namespace text not null references namespace(name),
    name text not null, owner integer not null, location text not null,
    columns text not null, key text not null, key_name text,
    unique (namespace, name));
create table subscription (
    oid integer primary key, name text not null unique, owner integer not null,
    enabled integer not null, conninfo text not null, slot_name text,
    publications text not null, synchronous_commit text not null,
    create_tables integer not null, generation integer not null,
    floor integer not null, system_identifier text, timeline integer,
    last_error text, dropping integer not null, options text not null);
create table subscription_rel (
    subid integer not null references subscription(oid) on delete cascade,
    relid integer not null,
    remote_namespace text not null, remote_name text not null,
    state text not null, lsn integer, epoch integer not null,
    rows_copied integer not null default 0, rows_expected integer,
    bytes_copied integer not null default 0, error text,
    copy_plan text, trusted integer not null default 1,
    primary key (subid, relid)) without rowid;
create table copy_range (
    subid integer not null, relid integer not null, epoch integer not null,
    snapshot text not null, number integer not null, rows integer not null,
    files text not null,
    primary key (subid, relid, epoch, snapshot, number),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
create table sync_snapshot (
    subid integer primary key references subscription(oid) on delete cascade,
    snapshot text not null, lsn integer not null, holder text not null,
    relids text not null);
create table snapshot_vector (
    subid integer not null references subscription(oid) on delete cascade,
    lsn integer not null, committed_at text not null, versions text not null,
    number integer not null,
    primary key (subid, number)) without rowid;
"""

LATER_TABLES = (
    "history_pending",
    "difference",
    "verification",
    "pending_delete",
    "table_index",
)
"""Tables of the versions after 28."""


def columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every table's columns: name, type, NOT NULL, default, place in the key."""
    with sqlite3.connect(path) as connection:
        tables = connection.execute(
            "select name from sqlite_master where type = 'table'"
        ).fetchall()
        return {
            name: [row[1:] for row in connection.execute(f"pragma table_info({name})")]
            for (name,) in tables
        }


def first_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(VERSION_1)
        connection.executemany(
            "insert into meta values (?, ?)", [("version", "1"), ("counter", "7")]
        )
        connection.execute("insert into role values (10, 'me', 1, null)")
        connection.execute(
            "insert into subscription values (20000, 's', 10, 1, 'host=p', 's', '[\"p\"]',"
            " 'off', 1, 7, 99, null, null, 'an old error', 0, '{}')"
        )


def test_a_catalog_of_each_older_version_becomes_todays(tmp_path: Path) -> None:
    old, new = tmp_path / "old.sqlite", tmp_path / "new.sqlite"
    first_version(old)
    create_database(new, "me", None)
    with pytest.raises(ConfigurationError, match="version 1"):
        Database(old)
    Database(old, migrate=True).close()
    opened = Database(old)
    assert opened.meta("version") == str(schema.VERSION)
    assert columns(old) == columns(new)
    with opened.reading() as connection:
        assert connection.execute("select name from role").fetchone()[0] == "me"
    opened.close()
    catalog = Catalog(old)
    (found,) = catalog.subscriptions()
    assert (found.name, found.generation, found.floor) == ("s", 7, 99)
    assert (found.skip_lsn, found.skipping) == (0, False)
    assert catalog.errors() == [], "nobody knows whose the old one was"
    assert [s.subid for s in catalog.stats()] == [found.oid]
    catalog.close()


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.sqlite"
    first_version(path)
    before = columns(path)
    last = {schema.VERSION: schema.MIGRATIONS[schema.VERSION] + "no statement;"}
    monkeypatch.setattr(schema, "MIGRATIONS", {**schema.MIGRATIONS, **last})
    with pytest.raises(sqlite3.OperationalError):
        Database(path, migrate=True)
    assert columns(path) == before


def test_a_newer_catalog_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    create_database(path, "me", None)
    with sqlite3.connect(path) as connection:
        connection.execute("update meta set value = '99' where key = 'version'")
    with pytest.raises(ConfigurationError, match="version 99"):
        Database(path)


def test_transaction_numbers_begin_above_the_versions_of_tables(tmp_path: Path) -> None:
    """Rows of local statements were marked with those."""
    path = tmp_path / "catalog.sqlite"
    create_database(path, "me", None)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("delete from meta where key = 'next_xid'")
        connection.execute("alter table subscription_rel drop column seen_as")
        connection.execute("alter table subscription_rel drop column heals")
        for name in LATER_TABLES:
            connection.execute(f"drop table {name}")
        connection.execute("update meta set value = '28' where key = 'version'")
        connection.execute(
            "insert into subscription (oid, name, owner, enabled, conninfo, publications,"
            " synchronous_commit, create_tables, generation, floor, dropping, options)"
            " values (20000, 's', 10, 1, '', '[]', 'off', 1, 1, 0, 0, '{}')"
        )
        for number, versions in enumerate(('{"1": 7, "2": 90000}', '{"1": 8}', "{}")):
            connection.execute(
                "insert into snapshot_vector (subid, lsn, committed_at, versions, number)"
                " values (20000, 1, '', ?, ?)",
                (versions, number),
            )
    Database(path, migrate=True).close()
    with closing(Catalog(path)) as catalog:
        assert catalog.xids.take() > 90000


# ---- places ----------------------------------------------------------------------------


def absolute_places(directory: Path, locations: dict[int, str]) -> Path:
    """A catalog with tables at absolute places, in all the rows that name them."""
    path = directory / "catalog.sqlite"
    create_database(path, "me", None)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "update meta set value = ? where key = 'version'",
            (str(RELATIVE_SINCE - 1),),
        )
        # They came later.
        connection.execute("alter table relation drop column checks")
        connection.execute("alter table subscription_rel drop column seen_as")
        connection.execute("alter table subscription_rel drop column heals")
        for name in LATER_TABLES:
            connection.execute(f"drop table {name}")
        for oid, location in locations.items():
            connection.execute(
                "insert into relation (oid, namespace, name, owner, location, columns,"
                " key) values (?, 'public', ?, 10, ?, '[]', '[]')",
                (oid, f"t{oid}", location),
            )
            change = {
                "relid": oid,
                "location": location,
                "table_id": "i",
                "read_version": 3,
                "cursor": 4,
                "actions": [{"add": {"path": "a.parquet", "stats": '{"m": 1.10}'}}],
            }
            connection.execute(
                "insert into local_commit (tables) values (?)", (json.dumps([change]),)
            )
            connection.execute(
                "insert into prepared_commit (gid, owner, prepared_at, state, tables,"
                " messages) values (?, 10, 0, 'prepared', ?, '[]')",
                (f"g{oid}", json.dumps([change, change])),
            )
        connection.row_factory = sqlite3.Row
        for row in connection.execute("select * from relation").fetchall():
            connection.execute(
                "insert into definition_history values ('relation', ?, 5, ?)",
                (row["oid"], json.dumps(dict(row))),
            )
        connection.execute(
            "insert into definition_history values ('relation', 1, 6, null)"
        )
    return path


def places_of(catalog: Catalog) -> dict[str, list[str]]:
    """Every location that it gives."""
    return {
        "tables": [t.location for t in catalog.tables()],
        "local": [t.location for c in catalog.local_commits() for t in c.tables],
        "prepared": [t.location for c in catalog.prepared_commits() for t in c.tables],
        "past": [t.location for t in catalog.definitions_at(Lsn(5)).tables],
    }


def test_places_become_relative_to_the_warehouse(tmp_path: Path) -> None:
    before = tmp_path / "warehouse/public/t%2F1"
    path = absolute_places(tmp_path, {20000: str(before)})
    with closing(Catalog(path, migrate=True)) as catalog:
        place = [str(before)]
        assert places_of(catalog) == {
            "tables": place,
            "local": place,
            "prepared": place * 2,
            "past": place,
        }
        (local,) = catalog.local_commits()
        assert local.tables[0].actions[0]["add"]["stats"] == '{"m": 1.10}'
    with sqlite3.connect(path) as connection:
        for table in (
            "relation",
            "local_commit",
            "prepared_commit",
            "definition_history",
        ):
            for row in connection.execute(f"select * from {table}"):
                assert str(tmp_path) not in str(row)
    elsewhere = tmp_path / "elsewhere"
    with closing(Catalog(path, str(elsewhere))) as catalog:
        place = [str(elsewhere / "public/t%2F1")]
        assert [*places_of(catalog).values()] == [place, place, place * 2, place]
    with closing(Catalog(path, "s3://bucket/lake")) as catalog:
        assert places_of(catalog)["tables"] == ["s3://bucket/lake/public/t%2F1"]


def test_a_table_that_was_moved_before_is_looked_for_below_the_warehouse(
    tmp_path: Path,
) -> None:
    path = absolute_places(tmp_path, {20000: "/old/place/warehouse/public/t"})
    with closing(Catalog(path, migrate=True)) as catalog:
        assert places_of(catalog)["tables"] == [str(tmp_path / "warehouse/public/t")]


def test_a_table_left_in_an_earlier_warehouse_stays_there(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    for name in ("left", "same", "copied"):
        (earlier / "public" / name / "_delta_log").mkdir(parents=True)
    warehouse = tmp_path / "warehouse"
    for name in ("same", "copied"):
        (warehouse / "public" / name / "_delta_log").mkdir(parents=True)
    path = absolute_places(
        tmp_path,
        {
            20000: str(earlier / "public/left"),
            20001: str(earlier / "public/same"),
            20002: str(warehouse / "public/same"),
            20003: str(earlier / "public/copied"),
            20004: "s3://bucket/public/t",
        },
    )
    with closing(Catalog(path, migrate=True)) as catalog:
        assert places_of(catalog)["tables"] == [
            str(earlier / "public/left"),
            str(earlier / "public/same"),
            str(warehouse / "public/same"),
            str(warehouse / "public/copied"),
            "s3://bucket/public/t",
        ]
