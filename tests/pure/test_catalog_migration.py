"""A catalog of an older version is brought up to date when it is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from wal2lake.catalog import Catalog, schema
from wal2lake.catalog.database import Database, create_database
from wal2lake.errors import ConfigurationError

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
