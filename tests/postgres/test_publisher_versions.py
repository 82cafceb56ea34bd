"""What a subscriber asks and receives, on every version that may be a publisher."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Database
from tests.fakes.publisher import gulp, inserts, payloads

from wal2lake.catalog import Catalog, ProgressFile, Subscription
from wal2lake.changelog import ChangeLog, LogReader, MessageHistory
from wal2lake.changelog.files import journal_numbers
from wal2lake.errors import ProtocolViolation, PublisherError
from wal2lake.model import Lsn, Oid, ReplicaIdentity
from wal2lake.pg import CopyBothStream, Publisher, Session, connect
from wal2lake.pgtypes import numeric_typmod
from wal2lake.receive.walreceiver import WalReceiver
from wal2lake.settings import LogSettings, Settings
from wal2lake.testing.positions import END_OF_WAL
from wal2lake.testing.waits import wait_until
from wal2lake.wire.columnar import Decoder

SUBSCRIPTION = Oid(1)


def version(database: Database) -> int:
    return int(database.psql("show server_version_num")) // 10000


@contextmanager
def session(database: Database, *, replication: bool = False) -> Iterator[Session]:
    made = connect(
        database.conninfo(), application_name="test", replication=replication
    )
    try:
        yield made
    finally:
        made.close()


# ---- questions ----------------------------------------------------------------------


def test_the_server_says_who_and_where_it_is(any_pg: Database) -> None:
    with session(any_pg, replication=True) as one:
        publisher = Publisher(one)
        identity = publisher.identify()
        assert identity.system_identifier == any_pg.psql(
            "select system_identifier from pg_control_system()"
        )
        assert identity.timeline == 1
        assert 0 < identity.position <= publisher.flushed_lsn()
        assert publisher.setting("wal_level") == "logical"
        assert publisher.setting("no.such_setting") is None


def test_publications_are_asked_about(any_pg: Database) -> None:
    any_pg.psql(
        "create schema s;"
        " create table s.a (id int primary key, v text);"
        " create table s.b (id int);"
        " create table c (id int) partition by range (id);"
        " create table c1 partition of c for values from (0) to (9);"
        " create publication p for table s.a, s.b;"
        " create publication q for table s.a, c with (publish_via_partition_root);"
        " create publication ins for table s.b with (publish = 'insert')"
    )
    with session(any_pg) as one:
        publisher = Publisher(one)
        assert publisher.existing_publications(("p", "nope", "q")) == {"p", "q"}
        assert publisher.publish_everything(("p", "q"))
        assert not publisher.publish_everything(("p", "ins"))
        assert publisher.published_tables(("p", "q")) == [
            ("public", "c"),
            ("s", "a"),
            ("s", "b"),
        ]
        assert publisher.published_tables(("nope",)) == []


def test_a_table_is_described(any_pg: Database) -> None:
    any_pg.psql(
        "create type mood as enum ('sad', 'ok');"
        " create table t (id bigint, n numeric(8,2) not null default 1.5, gone int,"
        " m mood, tags text[], twice int generated always as (3) stored,"
        " primary key (n, id));"
        " create unique index t_key on t (id, n); alter table t drop gone;"
        " alter table t replica identity using index t_key;"
        " insert into t (id) select generate_series(1, 5000); analyze t;"
        " create publication p for table t"
    )
    with session(any_pg) as one:
        publisher = Publisher(one)
        found = publisher.table("public", "t", ("p",))
        assert [c.name for c in found.columns] == ["id", "n", "m", "tags"]
        assert [c.type_name for c in found.columns] == [
            "int8",
            "numeric",
            "public.mood",
            "_text",
        ]
        assert [c.type_kind for c in found.columns] == ["b", "b", "e", "b"]
        assert [c.not_null for c in found.columns] == [True, True, False, False]
        assert [c.is_identity_key for c in found.columns] == [True, True, False, False]
        assert found.columns[1].default == "1.5"
        assert found.columns[3].dimensions == 1
        assert (found.kind, found.persistence) == ("r", "p")
        assert found.identity is ReplicaIdentity.INDEX
        assert (found.key, found.identity_key) == (("n", "id"), ("id", "n"))
        assert found.row_filters == ()
        assert found.estimated_rows == 5000
        assert found.pages > 10
        assert found.file_node == publisher.file_node(found.oid)
        any_pg.psql("vacuum full t")
        assert found.file_node != publisher.file_node(found.oid)
        with pytest.raises(PublisherError, match="not found on publisher") as caught:
            publisher.table("public", "gone", ("p",))
        assert caught.value.sqlstate == "42P01"


def test_column_lists_and_row_filters_count_where_they_exist(any_pg: Database) -> None:
    if version(any_pg) < 15:
        # PostgreSQL 15 brought them; before, all is published, and nothing is asked.
        any_pg.psql("create table t (id int, a int); create publication p for table t")
        with session(any_pg) as one:
            found = Publisher(one).table("public", "t", ("p",))
        assert [c.name for c in found.columns] == ["id", "a"]
        assert found.row_filters == ()
        return
    any_pg.psql(
        "create table t (id int primary key, a int, b int);"
        " create publication p for table t (id, b) where (id > 10);"
        " create publication f for table t (id, b) where (b is null);"
        " create publication o for table t (id)"
    )
    with session(any_pg) as one:
        publisher = Publisher(one)
        found = publisher.table("public", "t", ("p",))
        assert [c.name for c in found.columns] == ["id", "b"]
        assert found.row_filters == ("(id > 10)",)
        both = publisher.table("public", "t", ("p", "f"))
        assert set(both.row_filters) == {"(id > 10)", "(b IS NULL)"}
        assert publisher.table("public", "t", ("p", "o")).row_filters == ()
        assert publisher.published_tables(("p", "f")) == [("public", "t")]
        with pytest.raises(PublisherError, match="different column lists") as caught:
            publisher.published_tables(("p", "o"))
        assert caught.value.sqlstate == "0A000"


def test_a_domain_is_the_type_below_it(any_pg: Database) -> None:
    any_pg.psql(
        "create domain amt as numeric(10,2); create domain amt2 as amt;"
        "create domain grid as int[][]; create type mood as enum ('sad');"
        "create domain kind as mood;"
        "create table t (a amt2 primary key, g grid, k kind, l amt[], n numeric(4,1));"
        "create publication p for table t"
    )
    with session(any_pg) as one:
        found = Publisher(one).table("public", "t", ("p",)).columns
        kinds = {t.name: (t.kind, t.part) for t in Publisher(one).remote_types()}
    # Also of an array: its output function is array_out, as that of an array is.
    assert kinds["public.grid"] == ("d", 1007)
    assert kinds["public._amt"][0] == "a"
    assert [(c.type_name, c.type_kind, c.dimensions, c.domain) for c in found] == [
        ("numeric", "b", 0, "public.amt2"),
        ("_int4", "b", 2, "public.grid"),
        ("public.mood", "e", 0, "public.kind"),
        ("public._amt", "b", 1, None),
        ("numeric", "b", 0, None),
    ]
    assert found[0].type_oid == 1700
    assert found[0].typmod == numeric_typmod(10, 2)
    assert found[4].typmod == numeric_typmod(4, 1)


def test_generated_columns_are_described_if_they_are_published(
    any_pg: Database,
) -> None:
    any_pg.psql(
        "create table t (id int primary key, gone int, a int,"
        " b int generated always as (a * 2) stored); alter table t drop gone;"
        "create publication p for table t"
    )
    named = ["p"]
    if version(any_pg) >= 18:
        any_pg.psql(
            "alter table t add v int generated always as (a * 3) virtual;"
            "create publication stored for table t"
            " with (publish_generated_columns = stored);"
            "create publication listed for table t (id, b)"
        )
        named += ["stored", "listed"]
    with session(any_pg) as one:
        publisher = Publisher(one)
        described = [
            [c.name for c in publisher.table("public", "t", (name,)).columns]
            for name in named
        ]
        typed = [
            [column for _, _, column, _ in publisher.published_types((name,))]
            for name in named
        ]
        defaults = [
            c.default for c in publisher.table("public", "t", (named[-1],)).columns
        ]
    assert described == [["id", "a"], ["id", "a", "b"], ["id", "b"]][: len(named)]
    assert typed == [sorted(names) for names in described]
    assert defaults == [None, None]


# ---- slots and the stream -------------------------------------------------------------


@contextmanager
def slot(database: Database, name: str) -> Iterator[Lsn]:
    """A slot of its own; answers its consistent point."""
    with session(database, replication=True) as one:
        created = Publisher(one).create_slot(name)
    assert created.snapshot is None
    try:
        yield created.consistent_point
    finally:
        with session(database, replication=True) as one:
            assert Publisher(one).drop_slot(name, missing_ok=True)
            assert not Publisher(one).drop_slot(name, missing_ok=True)


def test_an_exported_snapshot_is_spliced_with_its_slot(any_pg: Database) -> None:
    any_pg.psql(
        "create table t (id int primary key); insert into t values (1), (2);"
        " create publication p for table t"
    )
    name = f"splice_{any_pg.name}"
    with session(any_pg, replication=True) as exporter, session(any_pg) as reader:
        publisher = Publisher(exporter)
        created = publisher.create_slot(name, temporary=True, snapshot="export")
        assert created.name == name
        any_pg.psql("insert into t values (3); delete from t where id = 1")
        reader.execute("begin isolation level repeatable read read only")
        reader.execute(f"set transaction snapshot '{created.snapshot}'")
        assert reader.query("select id from public.t order by id") == [("1",), ("2",)]
        reader.execute("commit")
        state = Publisher(reader).slot(name)
        assert state is not None
        assert (state["plugin"], state["database"]) == ("pgoutput", any_pg.name)
        assert state["active_pid"] is not None, "a temporary slot is its session's"
        assert Lsn.parse(str(state["confirmed_flush_lsn"])) == created.consistent_point
        changes = received(exporter, name, created.consistent_point, 2)
        assert [(c["op"], c["c0"]) for c in changes] == [("I", b"3"), ("D", None)]
    with session(any_pg) as one:
        wait_until(lambda: Publisher(one).slot(name) is None)


def received(
    walsender: Session, name: str, start: Lsn, transactions: int
) -> list[dict[str, Any]]:
    """Stream until so many transactions have come; their rows in stream order."""
    stream = CopyBothStream(
        walsender,
        f'START_REPLICATION SLOT "{name}" LOGICAL {start}'
        " (proto_version '1', publication_names '\"p\"')",
    )
    decoder = Decoder()
    ended = 0
    rows: list[dict[str, Any]] = []
    wake_read, wake_write = os.pipe()
    try:

        def step() -> bool:
            nonlocal ended
            found = stream.read(1.0, 1 << 20, wake_read)
            assert found is not None
            ends = np.cumsum(found.sizes, dtype=np.int64).tolist()
            payloads = [
                bytes(found.data[end - size : end])
                for end, size in zip(ends, found.sizes, strict=True)
            ]
            data = [p for p in payloads if p[0] == ord("w")]
            decoded = decoder.feed(
                b"".join(data), np.array([len(d) for d in data], np.uint32)
            )
            ended += decoded.transactions.num_rows
            for block in decoded.blocks:
                for row in block.batch.to_pylist():
                    rows.append(
                        {**row, "op": chr(row["op"]), "table": block.relation.name}
                    )
            return bool(ended >= transactions)

        wait_until(step, describe=lambda: f"{transactions} transactions, got {ended}")
    finally:
        os.close(wake_read)
        os.close(wake_write)
    stream.finish()
    return sorted(rows, key=lambda r: (r["commit_lsn"], r["ordinal"]))


def test_every_kind_of_message_is_decoded(any_pg: Database) -> None:
    any_pg.psql(
        "create type mood as enum ('sad', 'ok');"
        " create table t (id int primary key, v text, m mood);"
        " alter table t alter v set storage external;"
        " create table f (a int, b text); alter table f replica identity full;"
        " create publication p for table t, f"
    )
    name = f"kinds_{any_pg.name}"
    with slot(any_pg, name) as start, session(any_pg, replication=True) as walsender:
        any_pg.psql(
            "begin; insert into t values (1, repeat('x', 9000), 'ok'), (2, null, null);"
            " insert into f values (1, 'one'); commit;"
            " update t set m = 'sad' where id = 1;"
            " update t set id = 3 where id = 2; delete from t where id = 3;"
            " update f set b = 'eins'; delete from f;"
            " begin; truncate t, f; commit"
        )
        rows = received(walsender, name, start, 7)
    shown = [
        (
            r["table"],
            r["op"],
            chr(r["old"]) if r["old"] else "",
            r.get("o0"),
            r.get("c0"),
        )
        for r in rows
    ]
    assert shown[:8] == [
        ("t", "I", "", None, b"1"),
        ("t", "I", "", None, b"2"),
        ("f", "I", "", None, b"1"),
        ("t", "U", "", None, b"1"),
        ("t", "U", "K", b"2", b"3"),
        ("t", "D", "K", b"3", None),
        ("f", "U", "O", b"1", b"1"),
        ("f", "D", "O", b"1", None),
    ]
    assert sorted(shown[8:]) == [("f", "T", "", None, None), ("t", "T", "", None, None)]
    assert rows[0]["c1"] == b"x" * 9000
    # An unchanged TOAST value is not sent.
    assert (rows[3]["c1"], rows[3]["u1"], rows[3]["c2"]) == (None, True, b"sad")


def test_a_copy_comes_in_blocks_of_whole_rows(any_pg: Database) -> None:
    any_pg.psql(
        "create table t (id int, v text); insert into t"
        " select i, repeat('x', case i when 50 then 100000 else 90 end)"
        " from generate_series(1, 100) i"
    )
    with session(any_pg) as one:
        statement = "copy (select * from public.t order by id) to stdout (format csv)"
        blocks = list(one.copy_out(statement, block_bytes=1000))
        assert one.query("select 1") == [("1",)], "the session is free again"
    assert all(len(block) >= 1000 for block in blocks[:-1])
    assert all(block.endswith(b"\n") for block in blocks)
    rows = b"".join(blocks).splitlines()
    assert [row.split(b",")[0] for row in rows] == [b"%d" % i for i in range(1, 101)]
    assert 8 <= len(blocks) <= 12, "about ten rows each, the large one among them"


# ---- a whole receiver ------------------------------------------------------------------


@dataclass
class Receiver:
    """A subscription's receiver in this process: pg, receive and changelog, no node."""

    directory: Path
    database: Database
    slot_name: str
    options: dict[str, str] = field(default_factory=dict)
    log_settings: LogSettings = field(default_factory=LogSettings)
    failure: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = Settings(directory=self.directory, log=self.log_settings)
        if not self.settings.catalog_file.exists():
            self.settings.run_directory.mkdir(parents=True)
            catalog = Catalog.create(self.settings.catalog_file, "boss", None)
            catalog.create_subscription(
                Subscription(
                    SUBSCRIPTION,
                    f"sub_{self.slot_name}",
                    Oid(10),
                    True,
                    self.database.conninfo(),
                    self.slot_name,
                    ("p",),
                    options=self.options,
                ),
                [],
            )
        self.catalog = Catalog(self.settings.catalog_file)
        self.log_directory = self.settings.log_directory / "1"

    @contextmanager
    def running(self) -> Iterator[ChangeLog]:
        subscription = self.catalog.subscription(SUBSCRIPTION)
        assert subscription is not None
        log = ChangeLog.open(self.log_directory, self.settings.log)
        with ProgressFile(self.settings.run_directory, SUBSCRIPTION) as progress:
            receiver = WalReceiver(
                self.catalog, subscription, self.settings, log, progress
            )

            def run() -> None:
                try:
                    receiver.run(threading.Event())
                except BaseException as error:
                    self.failure.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield log
            finally:
                receiver.request_stop()
                thread.join(30)
                assert not thread.is_alive()
                log.close()

    def confirmed(self, lsn: Lsn) -> bool:
        """Does the publisher know that we have all up to here?"""
        found = self.database.psql(
            f"select confirmed_flush_lsn >= '{lsn}' from pg_replication_slots"
            f" where slot_name = '{self.slot_name}'"
        )
        return found == "t"

    def rows(self) -> list[tuple[str, bytes | None]]:
        """Operation and first column of everything sealed, in order."""
        reader = LogReader(self.log_directory)
        found = []
        for segment in reader.after(0):
            for file in segment.files:
                for row in reader.read(file.file).to_pylist():
                    at = row["commit_lsn"], row["ordinal"]
                    found.append((at, chr(row["op"]), row.get("c0")))
        return [(op, value) for _, op, value in sorted(found)]


def position(database: Database) -> Lsn:
    return Lsn.parse(database.psql(END_OF_WAL))


def test_a_small_subscription_from_the_slot_to_sealed_segments(
    any_pg: Database, tmp_path: Path
) -> None:
    any_pg.psql("create table t (id int primary key); create publication p for table t")
    name = f"whole_{any_pg.name}"
    with slot(any_pg, name):
        receiver = Receiver(tmp_path, any_pg, name)
        with receiver.running() as log:
            any_pg.psql("insert into t select generate_series(1, 3)")
            end = position(any_pg)
            wait_until(lambda: receiver.confirmed(end), describe=str(receiver.failure))
            state = any_pg.psql(
                "select application_name, state from pg_stat_replication"
                f" where application_name = 'sub_{name}'"
            )
            assert state == f"sub_{name}|streaming"
        # What came while nobody listened comes when somebody does, and nothing twice.
        any_pg.psql("delete from t where id = 2; insert into t values (4)")
        with receiver.running() as log:
            end = position(any_pg)
            wait_until(lambda: receiver.confirmed(end), describe=str(receiver.failure))
            wait_until(lambda: len(receiver.rows()) == 5)
            # A segment can be read a moment before the log says so.
            wait_until(lambda: log.logged == log.sealed)
        assert receiver.failure == []
        assert receiver.rows() == [
            ("I", b"1"),
            ("I", b"2"),
            ("I", b"3"),
            ("D", None),
            ("I", b"4"),
        ]


def messages(receiver: Receiver) -> list[tuple[Lsn, bool, str, bytes]]:
    """LSN, transactional, prefix and content of all messages sealed."""
    table = MessageHistory(receiver.log_directory).read(limit_bytes=1 << 20)
    return [
        (Lsn(one["lsn"]), one["transactional"], one["prefix"], one["content"])
        for one in table.to_pylist()
    ]


def emitted(database: Database, sql: str) -> list[Lsn]:
    """Run statements; what pg_logical_emit_message answered is at the ends of lines."""
    return [Lsn.parse(line) for line in database.psql(sql).splitlines() if "/" in line]


def test_logical_messages_come_once_and_those_rolled_back_only_if_not_transactional(
    any_pg: Database, tmp_path: Path
) -> None:
    any_pg.psql("create table t (id int primary key); create publication p for table t")
    name = f"messages_{any_pg.name}"
    emit = "select pg_logical_emit_message"
    with slot(any_pg, name):
        receiver = Receiver(tmp_path, any_pg, name)
        with receiver.running():
            lsns = emitted(
                any_pg,
                f"begin; {emit}(true, 'rolled back', 'x');"
                f" {emit}(false, 'rolled back', 'stays'); rollback;"
                f" begin; insert into t values (1); {emit}(true, 'ü', '\\x00ff'::bytea);"
                f" savepoint s; {emit}(true, 'savepoint', 'x'); rollback to s;"
                f" {emit}(false, 'before its commit', ''); commit;"
                f" {emit}(true, '', 'alone'); {emit}(false, 'last', repeat('y', 9000))",
            )
            # The WAL of what belongs to no transaction is only sent once it is flushed.
            any_pg.psql("insert into t values (2)")
            end = position(any_pg)
            wait_until(lambda: receiver.confirmed(end), describe=str(receiver.failure))
            wait_until(lambda: len(receiver.rows()) == 2)
        expected = [
            (lsns[1], False, "rolled back", b"stays"),
            (lsns[4], False, "before its commit", b""),
            (lsns[2], True, "ü", b"\0\xff"),
            (lsns[5], True, "", b"alone"),
            (lsns[6], False, "last", b"y" * 9000),
        ]
        assert messages(receiver) == expected
        # Nothing comes again, and what comes while nobody listens is not lost.
        later = emitted(
            any_pg, f"{emit}(false, 'later', 'a'); {emit}(true, 'later', 'b')"
        )
        with receiver.running() as log:
            end = position(any_pg)
            wait_until(lambda: receiver.confirmed(end), describe=str(receiver.failure))
            wait_until(lambda: log.sealed > later[0])
        with receiver.running():
            any_pg.psql("insert into t values (3)")
            wait_until(lambda: len(receiver.rows()) == 3)
        assert messages(receiver) == [
            *expected,
            (later[0], False, "later", b"a"),
            (later[1], True, "later", b"b"),
        ]
        assert receiver.failure == []


def test_a_message_alone_is_confirmed_and_sealed_without_a_transaction(
    any_pg: Database, tmp_path: Path
) -> None:
    any_pg.psql("create publication p")
    name = f"alone_{any_pg.name}"
    with slot(any_pg, name):
        receiver = Receiver(tmp_path, any_pg, name)
        with receiver.running():
            (lsn,) = emitted(any_pg, "select pg_logical_emit_message(false, 'p', 'c')")
            wait_until(lambda: receiver.confirmed(lsn), describe=str(receiver.failure))
            wait_until(lambda: messages(receiver) == [(lsn, False, "p", b"c")])
            # It leaves no transaction open: an idle slot goes on letting WAL go.
            any_pg.psql("create table unpublished (a int)")
            end = position(any_pg)
            wait_until(lambda: receiver.confirmed(end), describe=str(receiver.failure))
        assert LogReader(receiver.log_directory).after(0)[0].transactions == 0
        assert receiver.failure == []


def test_messages_that_are_not_wanted_are_not_asked_for(
    pg18: Database, tmp_path: Path
) -> None:
    pg18.psql("create table t (id int primary key); create publication p for table t")
    name = f"unwanted_{pg18.name}"
    with slot(pg18, name):
        unwanted = LogSettings(messages=False)
        receiver = Receiver(tmp_path, pg18, name, log_settings=unwanted)
        with receiver.running():
            emitted(pg18, "select pg_logical_emit_message(false, 'p', 'c')")
            pg18.psql("insert into t values (1)")
            wait_until(lambda: receiver.rows() == [("I", b"1")])
        assert messages(receiver) == []
        assert receiver.failure == []


@contextmanager
def origin_of_changes(database: Database, name: str) -> Iterator[str]:
    """A replication origin; answers SQL that makes a session's transactions its own."""
    database.psql(f"select pg_replication_origin_create('{name}')")
    try:
        yield (
            f"select pg_replication_origin_session_setup('{name}');"
            " begin; select pg_replication_origin_xact_setup('0/ABCD', '2020-01-01 00:00+00');"
        )
    finally:
        # The session that used it may take a moment to end.
        drop = f"select pg_replication_origin_drop('{name}')"
        wait_until(lambda: database.psql(drop) is not None)


def transactions(receiver: Receiver) -> list[tuple[str | None, int | None, int]]:
    """Origin, its LSN and number of changes of all transactions sealed that have any."""
    reader = LogReader(receiver.log_directory)
    return [
        (one["origin"], one["origin_lsn"], one["changes"])
        for segment in reader.after(0)
        for one in reader.read(segment.transactions_file).to_pylist()
        if one["changes"]
    ]


def test_origins_are_kept_in_the_log_and_left_out_if_none_are_wanted(
    any_pg: Database, tmp_path: Path
) -> None:
    any_pg.psql("create table t (id int primary key); create publication p for table t")
    with origin_of_changes(any_pg, f"knoten_{any_pg.name}") as as_origin:
        name = f"any_{any_pg.name}"
        with slot(any_pg, name):
            receiver = Receiver(tmp_path / "any", any_pg, name)
            with receiver.running():
                any_pg.psql(
                    f"{as_origin} insert into t values (1), (2); commit;"
                    " select pg_replication_origin_session_reset(); insert into t values (3)"
                )
                wait_until(lambda: len(transactions(receiver)) == 2)
            assert transactions(receiver) == [
                (f"knoten_{any_pg.name}", 0xABCD, 2),
                (None, None, 1),
            ]
            assert receiver.failure == []
        name = f"none_{any_pg.name}"
        with slot(any_pg, name):
            receiver = Receiver(tmp_path / "none", any_pg, name, {"origin": "none"})
            with receiver.running():
                any_pg.psql(
                    f"{as_origin} insert into t values (4), (5); commit;"
                    " select pg_replication_origin_session_reset(); insert into t values (6)"
                )
                wait_until(lambda: receiver.failure or receiver.rows())
            if version(any_pg) >= 16:
                assert receiver.rows() == [("I", b"6")]
                assert receiver.failure == []
            else:
                (error,) = receiver.failure
                assert isinstance(error, PublisherError)
                assert error.message == "unrecognized pgoutput option: origin"


def spoil(receiver: Receiver, commit_lsn: int) -> None:
    """A journal of an earlier run: a good transaction, then one that cannot be decoded."""
    known: dict[int, Any] = {}
    good = payloads(inserts(commit_lsn - 100, 1, relid=99), known)
    bad = payloads(inserts(commit_lsn, 2, relid=99), known)
    bad[1] += b"?"
    log = ChangeLog.open(receiver.log_directory, receiver.settings.log)
    log.connected(Lsn(0))
    log.append(*gulp([*good, *bad]))
    log.sync()
    log.close()


def test_an_undecodable_message_is_dropped_if_the_slot_sends_its_transaction_again(
    any_pg: Database, tmp_path: Path
) -> None:
    any_pg.psql("create table t (id int primary key); create publication p for table t")
    name = f"again_{any_pg.name}"
    with slot(any_pg, name) as start:
        receiver = Receiver(tmp_path, any_pg, name)
        spoil(receiver, start)
        with receiver.running():
            any_pg.psql("insert into t values (1)")
            wait_until(lambda: ("I", b"1") in receiver.rows() or receiver.failure)
        assert receiver.failure == []
        assert receiver.rows() == [("I", b"0"), ("I", b"1")]


def test_an_undecodable_message_stays_if_its_transaction_is_confirmed(
    any_pg: Database, tmp_path: Path
) -> None:
    any_pg.psql("create table t (id int primary key); create publication p for table t")
    name = f"kept_{any_pg.name}"
    with slot(any_pg, name) as start:
        receiver = Receiver(tmp_path, any_pg, name)
        spoil(receiver, start - 1)
        before = journal_numbers(receiver.log_directory)
        for _ in range(2):
            receiver.failure.clear()
            with receiver.running():
                any_pg.psql("insert into t select coalesce(max(id), 0) + 1 from t")
                wait_until(lambda: receiver.failure)
            (error,) = receiver.failure
            assert isinstance(error, ProtocolViolation)
            assert f"has confirmed {start}" in str(error.detail)
            assert str(receiver.log_directory) in str(error.detail)
        assert journal_numbers(receiver.log_directory) == before
        # Nothing was confirmed of what it may not have.
        assert receiver.confirmed(start)
        assert not receiver.confirmed(Lsn(start + 1))
