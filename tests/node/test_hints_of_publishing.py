"""What hints of the publisher's half and of the change log say, followed on a whole node."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.node.conftest import Subscribe

from wal2lake.errors import PublisherError
from wal2lake.model import Lsn
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.settings import FILE_NAME
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

ERROR = "select error from wal2lake.subscription_errors where subname = '{}'"
MAKE = "select pg_create_logical_replication_slot('{}', '{}')"
DROP = "select pg_drop_replication_slot('{}')"

PLUGINS = "pgoutput, test_decoding, wal2json, own, poor"
PLUGIN = """
from wal2lake.publish.plugins.port import Base


class Own(Base):
    is_text = True

    def begin(self, context, transaction): ...

    def change(self, context, transaction, relation, change, *more):
        context.write(b"a change", change.lsn, True)

    def commit(self, context, transaction): ...


class Poor(Base):
    def begin(self, context, transaction): ...
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that reads its settings again, has an output plugin of its own installed, and whose
    files are damaged."""
    directory = tmp_path_factory.mktemp("own")
    installed = directory / "site"
    described = installed / "own-1.0.dist-info"
    described.mkdir(parents=True)
    (installed / "ownplugin.py").write_text(PLUGIN)
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: own\nVersion: 1\n"
    )
    (described / "entry_points.txt").write_text(
        "[wal2lake.output_plugins]\nown = ownplugin:Own\npoor = ownplugin:Poor\n"
    )
    (directory / "points").mkdir()
    path = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {
        "PYTHONPATH": os.pathsep.join(path),
        VARIABLE: str(directory / "points"),
    }
    settings = {
        **FAST_RETRY,
        "node.authentication": "trust",
    }
    with Node(directory / "data", settings=settings, environ=environ) as made:
        yield made.init().start()


@pytest.fixture
def subscriber(own: Node) -> Node:
    return own


def reload(node: Node, name: str, value: str, shown: str) -> None:
    """Write a setting into the file and have it read."""
    path = node.directory / FILE_NAME
    line = re.compile(rf"^(# )?{name} = .*$", re.MULTILINE)
    path.write_text(line.sub(f"{name} = {value}", path.read_text()))
    os.kill(node.pids()[0], signal.SIGHUP)
    node.wait_for(f"show {name}", lambda rows: rows == [(shown,)])


def refused(node: Node, sql: str) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        node.sql(sql)
    return caught.value


def damage(path: Path) -> bytes:
    """Change a byte in the middle; what the file was."""
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(good[:middle] + bytes([good[middle] ^ 0xFF]) + good[middle + 1 :])
    return good


def test_a_slot_is_free_and_their_number_is_increased(own: Node) -> None:
    reload(own, "max_replication_slots", "2", "2")
    for name in ("one", "two"):
        own.sql(MAKE.format(name, "test_decoding"))
    error = refused(own, MAKE.format("three", "test_decoding"))
    assert (error.message, error.hint) == (
        "all replication slots are in use",
        'Free one or increase "max_replication_slots".',
    )
    own.sql(DROP.format("one"))
    own.sql(MAKE.format("three", "test_decoding"))
    reload(own, "max_replication_slots", "8", "8")
    own.sql(MAKE.format("four", "test_decoding"))
    for name in ("two", "three", "four"):
        own.sql(DROP.format(name))


def test_a_plugin_is_added_and_the_configuration_reloaded(own: Node) -> None:
    own.sql("create schema hl")
    own.sql("create table hl.t (id int primary key)")
    error = refused(own, MAKE.format("own", "own"))
    assert (error.sqlstate, error.hint) == (
        "42501",
        "If it is safe for all REPLICATION users to use this library as an output plugin,"
        ' add it to "output_plugin_libraries" and reload the server configuration.',
    )
    reload(own, "output_plugin_libraries", '"own, poor"', PLUGINS)
    own.sql(MAKE.format("own", "own"))
    own.sql("insert into hl.t values (1)")
    changes = "select data from pg_logical_slot_get_changes('own', null, null)"
    assert own.sql(changes) == [("a change",)]
    own.sql(DROP.format("own"))
    # One that lacks callbacks makes no slot.
    error = refused(own, MAKE.format("poor", "poor"))
    assert (error.sqlstate, error.message, error.detail) == (
        "55000",
        'output plugin "poor" does not have all required callbacks',
        "Missing: change, commit.",
    )
    assert own.sql("select slot_name from pg_replication_slots") == []
    own.sql("drop schema hl cascade")


def test_a_table_without_a_replica_identity(own: Node) -> None:
    own.sql("create schema hi")
    own.sql("create table hi.t (id int)")
    own.sql("insert into hi.t values (1)")
    own.sql("create publication hi for tables in schema hi")
    for sql, verb in (("update hi.t set id = 2", "updating"), ("delete from hi.t", "")):
        error = refused(own, sql)
        assert error.hint == (
            f"To enable {verb or 'deleting from'} the table, set REPLICA IDENTITY using"
            " ALTER TABLE."
        )
    own.sql("alter table hi.t replica identity full")
    own.sql("update hi.t set id = 2")
    own.sql("delete from hi.t")
    own.sql("drop publication hi")
    own.sql("drop schema hi cascade")


@pytest.mark.slow
def test_generated_and_checked_columns(own: Node) -> None:
    own.sql("create schema hk")
    own.sql("create table hk.g (a int, b int generated always as (a + 1) stored)")
    own.sql("create table hk.c (a int, constraint positive check (a > 0))")
    own.sql("insert into hk.g (a) values (1)")
    own.sql("insert into hk.c values (1)")
    for verb, more, after in (("SET", " as (a + 2)", "3"), ("DROP", "", "3")):
        value = " 5" if verb == "SET" else ""
        error = refused(own, f"alter table hk.g alter column b {verb} default{value}")
        way = f"ALTER TABLE ... ALTER COLUMN ... {verb} EXPRESSION"
        assert error.hint == f"Use {way} instead."
        own.sql(way.replace("...", "hk.g", 1).replace("...", "b", 1) + more)
        assert own.sql("select b from hk.g") == [(after,)]
    own.sql("alter table hk.g alter column b drop default")
    retype = "alter table hk.c alter a type bigint"
    assert refused(own, retype).hint == (
        "Drop the constraint, alter the type and add the constraint again: ALTER TABLE ..."
        " DROP CONSTRAINT, ADD CONSTRAINT."
    )
    own.sql("alter table hk.c drop constraint positive")
    own.sql(retype)
    own.sql("alter table hk.c add constraint positive check (a > 0)")
    assert refused(own, "insert into hk.c values (0)").sqlstate == "23514"
    own.sql("insert into hk.c values (3000000000)")
    own.sql("drop schema hk cascade")


def test_a_damaged_record_of_what_was_confirmed(
    own: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema hf; create table hf.t (id int primary key);"
        " create publication hf for tables in schema hf"
    )
    mirror = subscribe(pg18, "hf")
    mirror.synced()
    pg18.psql("insert into hf.t values (1)")
    mirror.caught_up()
    own.sql("alter subscription hf disable")
    oid = own.value("select oid from pg_subscription where subname = 'hf'")
    path = own.directory / "log" / str(oid) / "confirmed"
    stopped = "select active from pg_replication_slots where slot_name = 'hf'"
    wait_until(lambda: pg18.psql(stopped) == "f")
    path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))
    pg18.psql("insert into hf.t values (2)")
    own.sql("alter subscription hf enable")
    (row,) = own.wait_for(
        ERROR.format("hf"), lambda rows: "invalid checksum" in str(rows)
    )
    assert (
        f'HINT:  Remove "{path}". The position of the slot is then trusted once'
        in str(row[0])
    )
    path.unlink()
    mirror.caught_up()
    mirror.assert_equal(["hf.t"])
    assert own.sql(ERROR.format("hf")) == []


@pytest.mark.slow
def test_a_damaged_log_of_a_subscription(
    own: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema hc; create table hc.t (id int primary key, v text);"
        " create table hc.u (id int primary key); create publication hc for tables in"
        " schema hc; insert into hc.t values (0, 'before')"
    )
    mirror = subscribe(pg18, "hc")
    mirror.synced()
    own.sql("select wal2lake.pause_table('hc.t')")
    pg18.psql(
        "insert into hc.t select i, md5(i::text) from generate_series(1, 500) i;"
        " insert into hc.u values (1)"
    )
    own.wait_for("select id from hc.u", lambda rows: rows == [("1",)])
    oid = own.value("select oid from pg_subscription where subname = 'hc'")
    log = own.directory / "log" / str(oid)
    largest = max(log.glob("seg-*.parquet"), key=lambda path: path.stat().st_size)
    good = damage(largest)
    own.sql("select wal2lake.resume_table('hc.t')")
    (row,) = own.wait_for(ERROR.format("hc"), lambda rows: "is corrupted" in str(rows))
    assert (
        "HINT:  Restore the file from a backup, or have the subscription's tables copied anew:"
        " ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true)."
    ) in str(row[0])
    largest.write_bytes(good)
    mirror.caught_up()
    mirror.assert_equal(["hc.t", "hc.u"])

    own.sql("select wal2lake.pause_table('hc.t')")
    pg18.psql("update hc.t set v = 'new'; insert into hc.u values (2)")
    own.wait_for("select count(*) from hc.u", lambda rows: rows == [("2",)])
    damage(max(log.glob("seg-*.parquet"), key=lambda path: path.stat().st_mtime_ns))
    for path in log.glob("seg-*.parquet"):
        if path != largest:
            damage(path)
    own.sql("select wal2lake.resume_table('hc.t')")
    own.wait_for(ERROR.format("hc"), lambda rows: "is corrupted" in str(rows))
    own.sql("alter subscription hc refresh publication with (recopy = true)")
    mirror.synced()
    pg18.psql("insert into hc.t values (1000, 'after')")
    mirror.caught_up()
    mirror.assert_equal(["hc.t", "hc.u"])
    assert own.sql(ERROR.format("hc")) == []

    # The same of its journal, which the receiver reads when it starts.
    points = own.directory.parent / "points"
    arm(points, "segment.file_written", "always error")
    pg18.psql("insert into hc.t values (1001, 'in the journal')")
    own.wait_for(ERROR.format("hc"), lambda rows: rows != [])
    pg18.psql("insert into hc.t values (1002, 'in the journal')")
    journal = max(log.glob("journal-*"), key=lambda path: path.stat().st_mtime_ns)
    content = journal.read_bytes()
    at = content.find(b"in the journal")
    assert at > 0
    journal.write_bytes(content[:at] + b"?" + content[at + 1 :])
    (points / "segment.file_written").unlink()
    # A record at the journal's end may have been torn; then what was confirmed tells of it.
    own.wait_for(ERROR.format("hc"), lambda rows: "(recopy = true)" in str(rows))
    own.sql("alter subscription hc refresh publication with (recopy = true)")
    mirror.synced()
    pg18.psql("insert into hc.t values (1003, 'after')")
    mirror.caught_up()
    mirror.assert_equal(["hc.t", "hc.u"])


def test_a_damaged_log_of_the_publisher(own: Node) -> None:
    own.sql("create schema hd")
    own.sql("create table hd.t (id int primary key)")
    own.sql(MAKE.format("hd", "test_decoding"))
    own.sql("insert into hd.t values (1)")
    get = "select data from pg_logical_slot_get_changes('hd', null, null)"
    peek = get.replace("_get_", "_peek_")
    assert "INSERT" in str(own.sql(peek))
    log = own.directory / "log" / "publish"
    files = {path: damage(path) for path in log.glob("seg-*.parquet")}
    error = refused(own, peek)
    assert error.sqlstate == "XX001"
    assert error.hint == (
        "Restore the file from a backup, or drop the replication slots that have not"
        " confirmed the segment's changes (all slots, if the file is the newest"
        " segment's manifest); their"
        " subscribers then copy the tables anew."
    )
    for path, good in files.items():
        path.write_bytes(good)
    assert "INSERT" in str(own.sql(peek))
    for path in files:
        damage(path)
    own.sql(DROP.format("hd"))
    own.sql(MAKE.format("hd", "test_decoding"))
    own.sql("insert into hd.t values (2)")
    assert "id[integer]:2" in str(own.sql(get))

    own.sql(DROP.format("hd"))
    own.sql("drop schema hd cascade")


@pytest.mark.slow
def test_a_damaged_newest_manifest_of_the_publishers_log(own: Node) -> None:
    """The node reads it when it starts, to find where the log ends."""
    own.sql("create schema hd")
    own.sql("create table hd.t (id int primary key)")
    own.sql(MAKE.format("hd", "test_decoding"))
    get = "select data from pg_logical_slot_get_changes('hd', null, null)"
    peek = get.replace("_get_", "_peek_")
    log = own.directory / "log" / "publish"
    own.sql("insert into hd.t values (3)")
    assert "id[integer]:3" in str(own.sql(peek))
    own.stop()
    newest = max(log.glob("seg-*.json"))
    good = damage(newest)
    own.start()
    for sql in (MAKE.format("new", "test_decoding"), peek):
        again = refused(own, sql)
        assert again.sqlstate == "XX001"
        assert (
            "drop the replication slots that have not confirmed the segment's changes"
            " (all slots, if the file is the newest segment's manifest)"
            in str(again.hint)
        )
        assert f'"{newest}" is corrupted' in again.message
    assert own.sql("select slot_name from pg_replication_slots") == [("hd",)]
    newest.write_bytes(good)
    assert "id[integer]:3" in str(own.sql(peek))
    position = "select pg_current_wal_lsn()"
    before = Lsn.parse(str(own.value(position)))
    own.stop()
    damage(newest)
    own.start()
    own.sql(DROP.format("hd"))
    own.sql(MAKE.format("hd", "test_decoding"))
    assert Lsn.parse(str(own.value(position))) > before
    own.sql("insert into hd.t values (4)")
    told = str(own.sql(peek))
    assert "id[integer]:4" in told
    assert "id[integer]:3" not in told
    assert not newest.exists()
    own.stop()
    own.start()
    assert str(own.sql(get)) == told
    own.sql(DROP.format("hd"))
    own.sql("drop schema hd cascade")


def copied(peer: Database, name: str) -> None:
    """All tables of the native subscription are."""
    wait_until(
        lambda: (
            peer.psql(
                "select string_agg(distinct srsubstate::text, '') from pg_subscription_rel"
            )
            == "r"
        ),
        timeout_seconds=60,
        describe=lambda: f"{name}: {peer.server.log_text()[-2000:]}",
    )


def test_rows_that_are_not_sent_are_copied_again(
    own: Node, database: Callable[[int], Database], subscribe: Subscribe
) -> None:
    """The table has its rows from a subscription, which nobody refuses an UPDATE."""
    source, peer = database(18), database(18)
    source.psql(
        "create schema hs; create table hs.t (id int, v text);"
        " alter table hs.t replica identity full; insert into hs.t values (1, 'one');"
        " create publication hs for tables in schema hs"
    )
    mirror = subscribe(source, "hs")
    mirror.synced()
    own.sql("alter table hs.t replica identity nothing")
    own.sql("create publication hs for tables in schema hs")
    peer.psql(
        "create schema hs; create table hs.t (id int, v text);"
        f" create subscription hs_peer connection {quote_literal(own.conninfo())}"
        " publication hs"
    )
    try:
        copied(peer, "hs_peer")
        source.psql("update hs.t set v = 'two'; insert into hs.t values (3, 'three')")
        mirror.caught_up()
        said = 'rows that were updated or deleted in table "hs.t" are not sent'
        wait_until(lambda: said in own.log_text(), describe="the warning")
        wait_until(lambda: "3|three" in peer.psql("select * from hs.t"))
        assert "1|one" in peer.psql("select * from hs.t")
        text = own.log_text().split(said)[1]
        assert (
            "HINT:  Set REPLICA IDENTITY using ALTER TABLE, and have subscribers copy the"
            " table again."
        ) in text
        own.sql("alter table hs.t replica identity full")
        peer.psql("alter table hs.t replica identity full")
        peer.psql("drop subscription hs_peer")
        peer.psql("truncate hs.t")
        peer.psql(
            f"create subscription hs_peer connection {quote_literal(own.conninfo())}"
            " publication hs"
        )
        copied(peer, "hs_peer")
        source.psql("update hs.t set v = v || '!'")
        mirror.caught_up()
        wait_until(
            lambda: (
                sorted(peer.psql("select * from hs.t").splitlines())
                == ["1|two!", "3|three!"]
            )
        )
    finally:
        peer.psql("drop subscription hs_peer")
        own.sql("drop publication hs")


@pytest.mark.slow
def test_a_commit_that_cannot_be_captured(own: Node, pg18: Database) -> None:
    """Its file was removed by somebody before it was read; the table goes on without it."""
    own.sql("create schema hg")
    own.sql("create table hg.t (id int primary key)")
    own.sql("insert into hg.t values (1)")
    own.sql("create publication hg for tables in schema hg")
    create = (
        f"create subscription hg_peer connection {quote_literal(own.conninfo())}"
        " publication hg"
    )
    pg18.psql(f"create schema hg; create table hg.t (id int primary key); {create}")
    copied(pg18, "hg_peer")
    table = own.directory / "warehouse" / "hg" / "t"
    before = set(table.glob("*.parquet"))
    own.kill("engine")
    own.wait_for("select 1")
    arm(own.directory.parent / "points", "capture.read", "always error")
    own.sql("insert into hg.t values (2)")
    (made,) = set(table.glob("*.parquet")) - before
    own.sql("delete from hg.t where id = 2")
    own.sql("insert into hg.t values (3)")
    made.unlink()
    (own.directory.parent / "points" / "capture.read").unlink()
    own.wait_for(
        "select invalidation_reason from pg_replication_slots",
        lambda rows: rows == [("wal_removed",)],
    )
    text = own.log_text()
    assert 'of table "hg.t" cannot be captured' in text
    assert (
        "HINT:  Drop the slots that were invalidated, and copy the tables again."
        in text
    )
    pg18.psql("drop subscription hg_peer")
    pg18.psql("truncate hg.t")
    pg18.psql(create)
    copied(pg18, "hg_peer")
    own.sql("insert into hg.t values (4)")
    wait_until(lambda: pg18.psql("select * from hg.t order by 1") == "1\n3\n4")
    pg18.psql("drop subscription hg_peer")
    own.sql("drop publication hg")
    own.sql("drop schema hg cascade")
