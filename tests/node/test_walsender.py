"""A real PostgreSQL subscribes to lake tables; pg_recvlogical reads them as text."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.conftest import Database
from tests.fakes.door import RawClient, errors
from tests.fakes.replication_clients import read_by_pgjdbc, read_by_psycopg2

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.settings import FILE_NAME
from wal2lake.sql.grammar import quote_identifier
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import find_installation
from wal2lake.testing.waits import wait_until
from wal2lake.wire.frontback import CopyData, CopyResponse, ErrorResponse, Query

TABLES = (
    "create table public.t (id int primary key, v text, n numeric(6,2), d date,"
    " at timestamptz)",
    "create table public.u (a bigint primary key, b text)",
)


class Pattern:
    """Equal to what it matches."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def __eq__(self, other: object) -> bool:
        return re.fullmatch(self._pattern, str(other)) is not None

    def __repr__(self) -> str:
        return self._pattern


@pytest.fixture(scope="module")
def open_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node which anybody may log in to, and which soon sends a transaction as a stream."""
    settings = {
        "node.authentication": "trust",
        "publish.logical_decoding_work_mem": 64 * 1024,
    }
    with Node(tmp_path_factory.mktemp("publisher") / "node", settings=settings) as node:
        yield node.init().start()


@pytest.fixture
def publisher(open_node: Node) -> Iterator[Node]:
    """A node with two tables, no slot and no publication, which anybody may log in to."""
    for table in TABLES:
        open_node.sql(table)
    yield open_node
    for (slot,) in open_node.sql("select slot_name from pg_replication_slots"):
        open_node.sql(f"select pg_drop_replication_slot({quote_literal(str(slot))})")
    for (name,) in open_node.sql("select pubname from pg_publication"):
        open_node.sql(f"drop publication {quote_identifier(str(name))}")
    open_node.sql("drop table public.t; drop table public.u")


def same(node: Node, copy: Database, table: str, rows: str = "true") -> None:
    """The subscriber has what the node has of ``rows``."""
    sql = f"select * from public.{table} where {rows} order by 1"
    wanted = ["|".join(v or "" for v in row) for row in node.sql(sql)]
    found: list[list[str]] = []

    def equal() -> bool:
        found[:] = [copy.psql(f"select * from public.{table} order by 1").splitlines()]
        return found[0] == wanted

    wait_until(
        equal,
        timeout_seconds=90,
        describe=lambda: f"{table}: {found} is {wanted}\n{node.log_text()[-4000:]}",
    )


def source(node: Node) -> str:
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)
    port = facts["port"].strip("'")
    user = facts["user"].strip("'")
    return f"host=127.0.0.1 port={port} dbname=lake user={user}"


def test_a_postgresql_subscribes_to_lake_tables(
    publisher: Node, pg18: Database
) -> None:
    node, copy = publisher, pg18
    # The server has had other tests.
    told = len(copy.server.log_text())
    for table in TABLES:
        copy.psql(table)
    node.sql(
        "insert into public.t values (1, 'one', 1.5, '2026-01-01',"
        " '2026-01-01 12:00+00'), (2, null, null, null, null),"
        " (3, E'tab\\tand \\\\', 0, null, null)"
    )
    node.sql("insert into public.u values (1, 'x'), (-1, 'not sent')")
    node.sql("create publication p for table public.t, public.u where (a > 0)")
    copy.psql(f"create subscription s connection '{source(node)}' publication p")
    wait_until(
        lambda: (
            copy.psql(
                "select string_agg(srsubstate::text, '') from pg_subscription_rel"
            )
            == "rr"
        ),
        timeout_seconds=120,
        describe=lambda: node.log_text()[-4000:],
    )
    same(node, copy, "t")
    same(node, copy, "u", "a > 0")

    # A transaction of two tables, and what a row filter makes of a key that moves.
    node.sql(
        "begin; insert into public.u values (7, 'seven'), (-7, 'no');"
        " update public.t set v = 'upd' where id = 1;"
        " delete from public.t where id = 2; commit"
    )
    node.sql("update public.u set a = -1000 - a where a = 7")
    same(node, copy, "t")
    same(node, copy, "u", "a > 0")
    assert node.sql(
        "select slot_name, plugin, active, temporary, two_phase, wal_status"
        " from pg_replication_slots"
    ) == [("s", "pgoutput", "t", "f", "f", "reserved")]
    assert node.sql("select application_name, state from pg_stat_replication") == [
        ("s", "streaming")
    ]
    lags_are_measured(node, copy)
    same(node, copy, "u", "a > 0")

    # A TRUNCATE is one, whatever the subscriber has; what comes after it stays.
    copy.psql("insert into public.u values (1000, 'of the subscriber')")
    node.sql("truncate public.u")
    same(node, copy, "u", "a > 0")
    copy.psql("insert into public.u values (1000, 'of the subscriber')")
    node.sql(
        "begin; insert into public.u values (5, 'gone'); savepoint s;"
        " truncate public.u; rollback to s; truncate public.u;"
        " insert into public.u values (6, 'six'), (-6, 'not sent'); commit"
    )
    same(node, copy, "u", "a > 0")
    assert copy.psql("select a, b from public.u") == "6|six"

    # What is large comes in blocks, whichever way the subscriber takes them.
    for number, streaming in enumerate(("parallel", "on"), 1):
        copy.psql(f"alter subscription s set (streaming = {streaming})")
        node.sql(
            f"begin; insert into public.u select {number} * 10000 + n, repeat('x', 100)"
            " from generate_series(1, 3000) as g (n);"
            f" delete from public.u where a > {number} * 10000 + 2900;"
            f" insert into public.t values (1000 + {number}, 'large', null, null, null);"
            " commit"
        )
        same(node, copy, "t")
        same(node, copy, "u", "a > 0")

    commits_wait_for(node, copy)

    # Power goes at any moment; nothing is lost, and nothing comes twice.
    node.sql("insert into public.u select 100 + id, 'before' from public.t")
    node.kill("tree")
    node.start()
    node.sql("insert into public.u select 200 + id, 'after' from public.t")
    copy.psql(f"alter subscription s connection '{source(node)}'")
    same(node, copy, "u", "a > 0")
    assert "duplicate key" not in copy.server.log_text()[told:]
    assert "conflict detected" not in copy.server.log_text()[told:]

    copy.psql("drop subscription s")
    assert node.sql("select slot_name from pg_replication_slots") == []


def lags_are_measured(node: Node, copy: Database) -> None:
    """While there is something to send; one sample a second is taken, as in PostgreSQL.

    The subscriber flushes what it commits, so that one report has all three positions. Two
    reports would have none at the same time: a subscriber that has everything, and says so
    again, makes the walsender forget the lags that this report does not measure anew.
    """
    copy.psql("alter subscription s set (synchronous_commit = local)")
    keys = itertools.count(2000)
    found: list[list[tuple[str | None, ...]]] = []

    def measured() -> bool:
        node.sql(f"insert into public.u values ({next(keys)}, 'measured')")
        lags = "write_lag, flush_lag, replay_lag"
        found.append(node.sql(f"select {lags} from pg_stat_replication"))
        return found[-1] != [] and None not in found[-1][0]

    wait_until(measured, describe=lambda: f"one of {found} has no null")
    assert node.sql(
        "select write_lag > interval '0' and write_lag < interval '1 minute'"
        " and flush_lag >= write_lag and replay_lag >= write_lag"
        " from pg_stat_replication"
    ) in ([("t",)], [(None,)]), found


def commits_wait_for(node: Node, copy: Database) -> None:
    """The subscriber as synchronous standby, there and away."""

    def standbys(names: str) -> None:
        line = re.compile(r"^(# )?synchronous_standby_names = .*$", re.MULTILINE)
        path = node.directory / FILE_NAME
        path.write_text(
            line.sub(f'synchronous_standby_names = "{names}"', path.read_text())
        )
        os.kill(node.pids()[0], signal.SIGHUP)
        node.wait_for("show synchronous_standby_names", lambda r: r == [(names,)])

    def insert(key: int) -> threading.Thread:
        sql = f"insert into public.u values ({key}, 'synchronous')"
        thread = threading.Thread(target=client.execute, args=(sql,))
        thread.start()
        node.wait_for(f"select a from public.u where a = {key}")
        return thread

    def arrived(key: int) -> bool:
        return copy.psql(f"select count(*) from public.u where a = {key}") == "1"

    standbys("s")
    node.wait_for(
        "select sync_priority, sync_state from pg_stat_replication",
        lambda rows: rows == [("1", "sync")],
    )
    said = []
    with psycopg.connect(source(node), autocommit=True) as client:
        client.add_notice_handler(
            lambda d: said.append((d.severity, d.message_primary, d.message_detail))
        )
        for key in range(500, 505):
            client.execute(f"insert into public.u values ({key}, 'synchronous')")
            assert arrived(key)
        # Nothing of this is sent, and still the subscriber says how far it is.
        client.execute("insert into public.u values (-500, 'not sent')")
        assert not said
        copy.psql("alter subscription s disable")
        node.wait_for("select 1 from pg_stat_replication", lambda rows: not rows)
        thread = insert(510)
        assert thread.is_alive() and not arrived(510)
        client.cancel_safe()
        thread.join(60)
        assert said == [
            (
                "WARNING",
                "canceling wait for synchronous replication due to user request",
                "The transaction has already committed locally, but might not have been"
                " replicated to the standby.",
            )
        ]
        client.execute("set synchronous_commit = local")
        client.execute("insert into public.u values (511, 'not waited for')")
        client.execute("set synchronous_commit = remote_apply")
        thread = insert(512)
        assert thread.is_alive()
        copy.psql("alter subscription s enable")
        thread.join(60)
        assert not thread.is_alive() and arrived(512) and arrived(510)
        copy.psql("alter subscription s disable")
        node.wait_for("select 1 from pg_stat_replication", lambda rows: not rows)
        thread = insert(513)
        standbys("")
        thread.join(60)
        assert not thread.is_alive() and len(said) == 1
    copy.psql("alter subscription s enable")


@contextlib.contextmanager
def receiving(node: Node, programs: Path, *options: str) -> Iterator[Path]:
    """pg_recvlogical of the slot "text", with its output in a file."""
    output = node.directory.parent / "received"
    process = subprocess.Popen(
        [
            programs / "pg_recvlogical",
            *("-d", node.conninfo(), "--slot=text", "--start"),
            *("-f", str(output), *options),
        ],
        stderr=subprocess.PIPE,
    )
    try:
        yield output
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def emitted_once(node: Node, get: str, peek: str) -> None:
    """Messages, in transactions and out of them; an engine that is killed keeps all."""
    node.sql(get)
    emit = "select pg_logical_emit_message"
    text = "message: transactional: {} prefix: {}, sz: {} content:{}"
    (outside,) = node.sql(f"{emit}(false, 'wal2lake', 'out of it', flush => true)")[0]
    ((at, xid, line),) = node.sql(peek + ")")
    assert (at, xid, line) == (outside, "0", text.format(0, "wal2lake", 9, "out of it"))
    node.sql(f"begin; {emit}(true, 'p', 'gone'); {emit}(false, 'q', 'stays'); rollback")
    node.sql(
        f"begin; {emit}(true, 'p', 'a'); insert into data values (50, '50'); savepoint s;"
        f" {emit}(true, 'p', 'undone'); rollback to s; {emit}(true, 'p', 'b'); commit"
    )
    node.sql(
        f"begin; insert into data values (51, '51'); insert into public.u values (51, '');"
        f" {emit}(true, 'two tables', '\\xff41'::bytea, true); commit"
    )
    node.sql(f"{emit}(true, 'alone', 'ab') from generate_series(1, 2)")
    node.sql(f"begin; {emit}(true, 'empty', ''); commit")
    node.kill("tree")
    node.start()
    lines = [str(row[2]) for row in node.sql(peek + ", 'include-xids', 'off')")]
    assert lines[:7] == [
        line,
        text.format(0, "q", 5, "stays"),
        "BEGIN",
        text.format(1, "p", 1, "a"),
        "table public.data: INSERT: id[integer]:50 data[text]:'50'",
        text.format(1, "p", 1, "b"),
        "COMMIT",
    ]
    assert lines[7:10] == [
        "BEGIN",
        "table public.data: INSERT: id[integer]:51 data[text]:'51'",
        "table public.u: INSERT: a[bigint]:51 b[text]:''",
    ]
    assert len(lines) == 19 and lines[10:] == [
        text.format(1, "two tables", 2, "\ufffdA"),
        "COMMIT",
        *("BEGIN", *(text.format(1, "alone", 2, "ab"),) * 2, "COMMIT"),
        *("BEGIN", text.format(1, "empty", 0, ""), "COMMIT"),
    ]
    node.sql(
        "select * from pg_copy_logical_replication_slot('regression_slot', 'j', false,"
        " 'wal2json')"
    )
    said = '{"action":"M","transactional":%s,"prefix":"%s","content":"%s"}'
    assert node.sql(
        "select data from pg_logical_slot_get_changes('j', null, null, 'format-version',"
        " '2', 'include-transaction', 'off', 'actions', 'delete', 'add-msg-prefixes',"
        " 'q,alone')"
    ) == [
        (said % ("false", "q", "stays"),),
        *[(said % ("true", "alone", "ab"),)] * 2,
    ]
    node.sql("select pg_drop_replication_slot('j')")
    node.sql(get)
    assert node.sql(get) == []
    # The partition is what the log has; the publication says under which name it is sent.
    node.sql("create table parted (id int primary key, v text) partition by range (id)")
    node.sql("create table parted_d partition of parted default")
    for name, root in (("leaves", "false"), ("roots", "true")):
        node.sql(
            f"create publication {name} for table parted"
            f" with (publish_via_partition_root = {root})"
        )
        node.sql(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    node.sql(get)
    node.sql("insert into parted values (1, 'one')")
    node.sql("truncate parted, data")
    assert [row[2] for row in node.sql(get)] == [
        Pattern(r"BEGIN \d+"),
        "table public.parted_d: INSERT: id[integer]:1 v[text]:'one'",
        Pattern(r"COMMIT \d+"),
        Pattern(r"BEGIN \d+"),
        Pattern(
            r"table public\.(parted_d, public\.data|data, public\.parted_d):"
            r" TRUNCATE: \(no-flags\)"
        ),
        Pattern(r"COMMIT \d+"),
    ]
    for name, table in (("leaves", "parted_d"), ("roots", "parted")):
        found = node.sql(
            f"select data from pg_logical_slot_get_binary_changes('{name}', null, null,"
            f" 'proto_version', '1', 'publication_names', '{name}')"
        )
        kinds = [bytes.fromhex(str(row[0])[2:]) for row in found]
        assert b"".join(one[:1] for one in kinds) == b"BRICBTC"
        assert f"public\0{table}\0".encode() in kinds[1]
        node.sql(f"select pg_drop_replication_slot('{name}')")


@pytest.mark.slow
def test_functions_read_what_was_committed(publisher: Node) -> None:
    node = publisher
    # As in the manual, 47.1.
    made = (
        "SELECT * FROM pg_create_logical_replication_slot('regression_slot',"
        " 'test_decoding', false, true)"
    )
    (slot,) = node.sql(made)
    assert slot[0] == "regression_slot"
    get = "SELECT * FROM pg_logical_slot_get_changes('regression_slot', NULL, NULL)"
    peek = "SELECT * FROM pg_logical_slot_peek_changes('regression_slot', NULL, NULL"
    assert node.sql(get) == []
    node.sql("CREATE TABLE data(id serial primary key, data text)")
    # Definitions are transactions without changes.
    (_, xid, begun), (_, _, ended) = node.sql(get)
    assert (begun, ended) == (f"BEGIN {xid}", f"COMMIT {xid}")
    node.sql(
        "BEGIN; INSERT INTO data(data) VALUES('1'); INSERT INTO data(data) VALUES('2');"
        " COMMIT"
    )
    found = node.sql(get)
    xid = found[0][1]
    assert [row[2] for row in found] == [
        f"BEGIN {xid}",
        "table public.data: INSERT: id[integer]:1 data[text]:'1'",
        "table public.data: INSERT: id[integer]:2 data[text]:'2'",
        f"COMMIT {xid}",
    ]
    assert node.sql(get) == []
    node.sql(
        "begin; insert into public.u values (1, 'u'); truncate data;"
        " insert into data values (2, '2'); commit"
    )
    found = node.sql(get)
    xid = found[0][1]
    assert sorted(str(row[2]) for row in found[1:-1]) == [
        "table public.data: INSERT: id[integer]:2 data[text]:'2'",
        "table public.data: TRUNCATE: (no-flags)",
        "table public.u: INSERT: a[bigint]:1 b[text]:'u'",
    ]
    assert (found[0][2], found[-1][2]) == (f"BEGIN {xid}", f"COMMIT {xid}")
    ((shown,),) = node.sql("select pg_create_logical_replication_slot('j', 'wal2json')")
    assert re.fullmatch(r"\(j,0/[0-9A-F]+\)", str(shown))
    node.sql("insert into data values (3, '3')")
    assert node.sql(
        "select data from pg_logical_slot_get_changes('j', null, null, 'format-version',"
        " '2', 'include-transaction', 'off', 'include-pk', 'on')"
    ) == [
        (
            '{"action":"I","schema":"public","table":"data","columns":[{"name":"id",'
            '"type":"integer","value":3},{"name":"data","type":"text","value":"3"}],'
            '"pk":[{"name":"id","type":"integer"}]}',
        )
    ]
    node.sql("select pg_drop_replication_slot('j')")
    first = node.sql(peek + ")")
    assert len(first) == 3 and node.sql(peek + ")") == first
    copy = "select * from pg_copy_logical_replication_slot"
    ((_, at),) = node.sql(f"{copy}('regression_slot', 'copied')")
    assert node.sql(
        "select plugin, temporary, restart_lsn, confirmed_flush_lsn"
        " from pg_replication_slots where slot_name = 'copied'"
    ) == [("test_decoding", "f", at, at)]
    assert node.sql(get.replace("regression_slot", "copied")) == first
    node.sql("select pg_drop_replication_slot('copied')")
    stamped = node.sql(peek + ", 'include-timestamp', 'on')")
    assert re.fullmatch(r"COMMIT \d+ \(at 20.*\+00\)", str(stamped[-1][2]))
    for sql, sqlstate in (
        (peek + ", 'nonsense', 'on')", "22023"),
        (peek + ", 'odd')", "0A000"),
        (made, "42710"),
        ("select * from pg_create_logical_replication_slot('x', 'nope')", "58P01"),
        (f"{copy}('none', 'x')", "42704"),
        (f"{copy}('regression_slot', 'regression_slot')", "42710"),
        (f"{copy}('regression_slot', 'x', false, 'nope')", "58P01"),
        ("select * from pg_create_logical_replication_slot('X', 'pgoutput')", "42602"),
        (
            "select * from pg_replication_slot_advance('regression_slot', '0/1')",
            "55000",
        ),
    ):
        with pytest.raises(PublisherError) as refused:
            node.sql(sql)
        assert refused.value.sqlstate == sqlstate, sql
    # What is behind is passed over, also by a later engine.
    node.sql(
        "select * from pg_replication_slot_advance('regression_slot',"
        " pg_current_wal_lsn())"
    )
    node.sql("insert into data values (4, '4')")
    node.kill("tree")
    node.start()
    assert [row[2] for row in node.sql(get)][1:-1] == [
        "table public.data: INSERT: id[integer]:4 data[text]:'4'"
    ]
    emitted_once(node, get, peek)
    # Of large transactions the functions show blocks, if they are asked to.
    assert node.sql("show logical_decoding_work_mem") == [("64kB",)]
    node.sql(get)
    node.sql(
        "insert into data select 100 + n, repeat('x', 100)"
        " from generate_series(1, 2000) as g (n)"
    )
    streamed = [str(row[2]) for row in node.sql(peek + ", 'stream-changes', '1')")]
    xid = streamed[-1].rsplit(" ", 1)[1]
    assert streamed[0] == f"opening a streamed block for transaction TXN {xid}"
    assert streamed.count(f"streaming change for TXN {xid}") == 2000
    assert streamed.count(streamed[0]) == streamed.count(streamed[-2]) > 2
    assert streamed[-2:] == [
        f"closing a streamed block for transaction TXN {xid}",
        f"committing streamed transaction TXN {xid}",
    ]
    node.sql("SELECT pg_drop_replication_slot('regression_slot')")
    with pytest.raises(PublisherError) as refused:
        node.sql("SELECT pg_drop_replication_slot('regression_slot')")
    assert refused.value.sqlstate == "42704"


@pytest.mark.slow
def test_pg_recvlogical_is_told_of_a_publication_that_is_not_there(
    publisher: Node,
) -> None:
    node, programs = publisher, find_installation(18).bin
    node.sql("select pg_create_logical_replication_slot('text', 'pgoutput')")
    node.sql("insert into public.t values (90, 'x', 1, null, null)")
    ((end,),) = node.sql("select pg_current_wal_lsn()")
    done = subprocess.run(
        [
            programs / "pg_recvlogical",
            *("-d", node.conninfo(), "--slot=text", "--start", "-f", "-"),
            *("-o", "proto_version=1", "-o", "publication_names=lost"),
            f"--endpos={end}",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        'WARNING:  skipped loading publication "lost"',
        "DETAIL:  The publication does not exist at this point in the WAL.",
        "HINT:  Create the publication if it does not exist.",
    ]
    node.sql("create publication lost for table public.t")
    node.sql("insert into public.t values (91, 'y', 1, null, null)")
    ((end,),) = node.sql("select pg_current_wal_lsn()")
    command = [*done.args[:-1], f"--endpos={end}"]
    again = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert b"91" in again.stdout and again.stderr == b""
    node.sql("drop publication lost; delete from public.t where id = 91")
    node.sql("select pg_drop_replication_slot('text')")
    node.sql("delete from public.t where id = 90")


def test_pg_recvlogical_reads_what_was_committed(publisher: Node) -> None:
    node = publisher
    programs = find_installation(18).bin
    subprocess.run(
        [
            programs / "pg_recvlogical",
            *("-d", node.conninfo(), "--slot=text", "--create-slot"),
            "--plugin=test_decoding",
        ],
        check=True,
    )
    with (
        pytest.raises(PublisherError) as refused,
        node.connect(replication="database") as client,
    ):
        client.rows('CREATE_REPLICATION_SLOT "text" LOGICAL test_decoding')
    assert refused.value.sqlstate == "42710"
    node.sql("insert into public.t values (1, 'it''s', 1.5, '2026-01-01', null)")
    node.sql("update public.t set v = null where id = 1")
    node.sql("delete from public.t where id = 1")
    wanted = [
        "BEGIN",
        "table public.t: INSERT: id[integer]:1 v[text]:'it''s' n[numeric]:1.50"
        " d[date]:'2026-01-01' at[timestamp with time zone]:null",
        "COMMIT",
        "BEGIN",
        "table public.t: UPDATE: id[integer]:1 v[text]:null n[numeric]:1.50"
        " d[date]:'2026-01-01' at[timestamp with time zone]:null",
        "COMMIT",
        "BEGIN",
        "table public.t: DELETE: id[integer]:1",
        "COMMIT",
        "message: transactional: 0 prefix: p, sz: 2 content:it",
    ]
    ((said,),) = node.sql("select pg_logical_emit_message(false, 'p', 'it')")
    confirmed = f"select confirmed_flush_lsn >= '{said}' from pg_replication_slots"
    often = ("--status-interval=1", "--fsync-interval=1")
    with receiving(node, programs, "-o", "include-xids=off", *often) as output:
        wait_until(
            lambda: output.exists() and output.read_text().endswith("it\n"),
            timeout_seconds=60,
            describe=lambda: node.log_text()[-3000:],
        )
        with (
            pytest.raises(PublisherError) as refused,
            node.connect(replication="database") as client,
        ):
            client.rows('DROP_REPLICATION_SLOT "text"')
        assert refused.value.sqlstate == "55006"
        wait_until(lambda: node.sql(confirmed) == [("t",)], describe="all is confirmed")
    assert output.read_text().splitlines() == wanted
    # What has been confirmed does not come again, a message neither.
    again = "select * from pg_logical_slot_peek_changes('text', null, null)"
    assert node.sql(again) == []
    with node.connect(replication="database") as client:
        client.rows('DROP_REPLICATION_SLOT "text" WAIT')
        with pytest.raises(PublisherError) as refused:
            client.rows("DROP_REPLICATION_SLOT nope")
        assert refused.value.sqlstate == "42704"
        assert client.rows("IDENTIFY_SYSTEM")[0][3] == "lake"
    drivers_read(node)
    assert node.sql("select * from pg_replication_slots") == []


def drivers_read(node: Node) -> None:
    """The replication clients of psycopg2 and of pgjdbc."""
    number = iter(range(100, 200))

    def write() -> None:
        first = next(number)
        node.sql(f"insert into public.u values ({first}, 'a'), ({next(number)}, 'b')")
        node.sql(f"delete from public.u where a = {first}")

    def wanted(first: int) -> list[str]:
        row = "table public.u: INSERT: a[bigint]:{} b[text]:'{}'"
        gone = f"table public.u: DELETE: a[bigint]:{first}"
        rows = [row.format(first, "a"), row.format(first + 1, "b")]
        return ["BEGIN", *rows, "COMMIT", "BEGIN", gone, "COMMIT"]

    dsn = source(node)
    assert read_by_psycopg2(dsn, "psycopg", write) == wanted(100)
    facts = dict(one.split("=", 1) for one in dsn.split())
    address = f"{facts['host']}:{facts['port']}/{facts['dbname']}"
    assert read_by_pgjdbc(address, facts["user"], "jdbc", write) == wanted(102)


def framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


STATUS = b"r" + struct.pack(">4Qb", 0, 0, 0, 0, 7)
"""Any number but 0 asks for an answer."""

GOES_ON = framed(b"d", STATUS) + framed(b"c", b"") + framed(b"Q", b"SHOW timezone\0")

MISTAKES = {
    "another kind of message": framed(b"z", b""),
    "CopyFail": framed(b"f", b"x\0"),
    "an unknown reply": framed(b"d", b"x"),
    "an empty reply": framed(b"d", b"") + GOES_ON,
    "a short status": framed(b"d", STATUS[:20]) + GOES_ON,
    "two of them": framed(b"d", STATUS[:20]) * 2 + GOES_ON,
    "a short feedback": framed(b"d", b"h" + bytes(23)) + GOES_ON,
    "a long status": framed(b"d", STATUS + b"zzz") + GOES_ON,
    "a body of CopyDone": framed(b"c", b"zz"),
    "too small a length": b"d" + struct.pack(">i", 3),
    "a length beyond the limit": b"X" + struct.pack(">i", 10_001),
    "half a message": b"d\0\0",
    "nothing": b"",
    "junk behind CopyDone": framed(b"c", b"") + framed(b"z", b""),
}
"""What a client sends to a stream, and then no more."""


def said_to(
    start: str, port: int, sent: bytes, user: str, database: str = "lake"
) -> list[object]:
    """What a server says to it, from the stream's begin to the connection's end."""
    with RawClient(port) as client:
        client.start(user=user, database=database, replication="database")
        client.send(Query(start.encode()))
        assert isinstance(client.next(), CopyResponse)
        client.socket.sendall(sent)
        with contextlib.suppress(OSError):
            # It may have gone by now.
            client.socket.shutdown(socket.SHUT_WR)
        messages = [one for one in client.rest() if not isinstance(one, CopyData)]
    found = errors(messages)
    return [found.pop(0) if isinstance(m, ErrorResponse) else m for m in messages]


@pytest.mark.slow
def test_mistakes_in_a_stream_end_as_postgresqls_do(
    publisher: Node, pg18: Database
) -> None:
    node = dict(one.split("=", 1) for one in source(publisher).split())
    theirs = pg18.server
    create = "select pg_create_logical_replication_slot('mistakes', 'pgoutput')"
    publisher.sql(create)
    pg18.psql(create)
    start = (
        "START_REPLICATION SLOT mistakes LOGICAL 0/0"
        " (proto_version '1', publication_names 'p')"
    )
    active = "select active from pg_replication_slots where slot_name = 'mistakes'"

    def ended() -> bool:
        return pg18.psql(active) == "f" and publisher.sql(active) == [("f",)]

    for what, sent in MISTAKES.items():
        wait_until(ended, describe="the streams have ended")
        ours = said_to(start, int(node["port"]), sent, user=node["user"])
        wanted = said_to(start, theirs.port, sent, user="postgres", database=pg18.name)
        assert ours == wanted, what
    for reason in (
        'unexpected message type "x"',
        "invalid message length",
        "unexpected EOF on standby connection",
    ):
        assert reason in publisher.log_text()
        assert reason in theirs.log_text()
