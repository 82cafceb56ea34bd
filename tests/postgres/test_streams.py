"""Streamed and prepared transactions of every version, into the log and replayed from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import Database
from tests.postgres.test_publisher_versions import Receiver, session, slot

from wal2lake.changelog import LogReader, Manifest, RowsFile, prepared_transactions
from wal2lake.pg import Publisher
from wal2lake.settings import LogSettings
from wal2lake.testing.waits import wait_until

SMALL = LogSettings(
    segment_bytes=64 * 1024, journal_file_bytes=1024 * 1024, segment_interval_ms=50
)

ROWS = "select i, repeat('x', 300) || i, '{0}' from generate_series({1}, {2}) i"

MIXED = (
    f"begin; insert into t {ROWS.format('a', 1, 900)};"
    " savepoint a; update t set v = 'short' where id % 3 = 0; release a;"
    f" savepoint b; insert into t {ROWS.format('b', 901, 1500)}; delete from t where id < 9;"
    " savepoint c; update t set id = -id where id > 880; release c; rollback to b;"
    " update t set id = id + 5000 where id between 100 and 150;"
    " savepoint d; truncate t; rollback to d; update t set n = 'z' where id % 5 = 0;"
    " delete from t where id between 300 and 400; commit;"
    f" begin; insert into t {ROWS.format('c', 20000, 20600)}; rollback;"
    f" begin; savepoint a; insert into t {ROWS.format('d', 20000, 20600)};"
    " rollback to a; insert into t values (-5); commit"
)

Table = dict[bytes, list[bytes | None]]


def replay(directory: Path) -> Table:
    """What the log makes of the empty table t."""
    reader, table = LogReader(directory), Table()
    for segment in reader.after(0):
        for _, row, columns in sorted(events(reader, segment), key=lambda e: e[0]):
            op = chr(row["op"])
            old: bytes | None = row.get("o0")
            if op == "T":
                table.clear()
                continue
            if op == "D":
                assert old is not None
                del table[old]
                continue
            key: bytes = row["c0"]
            before = table.pop(key if old is None else old, None)
            assert (before is None) == (op == "I")
            table[key] = [
                (before or [])[i] if row.get(f"u{i}") else row[f"c{i}"]
                for i in range(columns)
            ]
    return table


def events(
    reader: LogReader, segment: Manifest
) -> list[tuple[tuple[int, int], dict[str, Any], int]]:
    found = []
    for file in segment.files:
        for row in reader.read(file.file).to_pylist():
            if not counts(file, row):
                continue
            lsn = row["commit_lsn"] if file.commit_lsn is None else file.commit_lsn
            columns = len(file.relation.columns)
            found.append(((int(lsn), row["ordinal"]), row, columns))
    return found


def counts(file: RowsFile, row: dict[str, object]) -> bool:
    return not file.streamed or row["xid"] not in file.rolled_back


def source_table(database: Database) -> Table:
    with session(database) as one:
        rows = one.query("select id, v, n from public.t")
    return {
        str(row[0]).encode(): [None if v is None else v.encode() for v in row]
        for row in rows
    }


def prepare_source(database: Database) -> int:
    database.psql(
        "create table t (id int primary key, v text, n text);"
        " alter table t alter v set storage external; create publication p for table t;"
        f" alter database {database.name} set logical_decoding_work_mem = '64kB'"
    )
    version = int(database.psql("show server_version_num")) // 10000
    if version >= 16:
        setting = "debug_logical_replication_streaming"
        database.psql(f"alter database {database.name} set {setting} = 'immediate'")
    return version


def arrived(receiver: Receiver, key: bytes) -> None:
    """Wait until a row is in the log, and with it all that was committed before."""
    wait_until(
        lambda: key in replay(receiver.log_directory),
        describe=lambda: f"{key!r} is sealed; {receiver.failure}",
    )


def test_streamed_transactions_replayed_from_the_log_are_the_source(
    any_pg: Database, tmp_path: Path
) -> None:
    prepare_source(any_pg)
    name = f"streams_{any_pg.name}"
    with slot(any_pg, name), session(any_pg) as held:
        receiver = Receiver(tmp_path, any_pg, name, {"streaming": "parallel"}, SMALL)
        with receiver.running():
            any_pg.psql(MIXED)
            held.execute("begin")
            held.execute(f"insert into public.t {ROWS.format('held', 50000, 50400)}")
            any_pg.psql("insert into t values (-7)")
            arrived(receiver, b"-7")
        # It comes again, whole, with the other half of it.
        held.execute(f"insert into public.t {ROWS.format('held', 50401, 50900)}")
        held.execute("commit")
        with receiver.running():
            any_pg.psql("insert into t values (-8)")
            arrived(receiver, b"-8")
        streamed = (
            "select stream_txns > 2 from pg_stat_replication_slots"
            f" where slot_name = '{name}'"
        )
        # Before PostgreSQL 15 a collector tells it, some time later.
        wait_until(lambda: any_pg.psql(streamed) == "t", describe="some were streamed")
        files = [f for m in LogReader(receiver.log_directory).after(0) for f in m.files]
        assert any(f.streamed for f in files), "some were attached as they were"
        assert replay(receiver.log_directory) == source_table(any_pg)
        assert receiver.failure == []


def test_prepared_transactions_outlive_the_receiver(
    any_pg: Database, tmp_path: Path
) -> None:
    version = prepare_source(any_pg)
    name = f"prepared_{any_pg.name}"
    with session(any_pg, replication=True) as one:
        Publisher(one).create_slot(name, two_phase=version >= 15)
    gids = [f"{kind}_{any_pg.name}" for kind in ("large", "small", "gone")]
    receiver = Receiver(tmp_path, any_pg, name, {"streaming": "on"}, SMALL)
    with receiver.running():
        for gid, rows in zip(gids, (900, 2, 900), strict=True):
            first = 1 + 10_000 * gids.index(gid)
            any_pg.psql(
                f"begin; insert into t {ROWS.format('p', first, first + rows - 1)};"
                f" savepoint s; delete from t; rollback to s; prepare transaction '{gid}'"
            )
        any_pg.psql("insert into t values (-1)")
        arrived(receiver, b"-1")
        assert list(replay(receiver.log_directory)) == [b"-1"]
    # PostgreSQL 14 has no such slots over this protocol: it sends what is prepared when it commits.
    expected = sorted(gids) if version >= 15 else []
    for _ in range(2):
        with receiver.running():
            pass
        listed = prepared_transactions(receiver.log_directory)
        assert sorted(one.gid for one in listed) == expected
    any_pg.psql(f"commit prepared '{gids[1]}'")
    with receiver.running():
        any_pg.psql(f"commit prepared '{gids[0]}'")
        any_pg.psql(f"rollback prepared '{gids[2]}'")
        any_pg.psql("insert into t values (-2)")
        arrived(receiver, b"-2")
    assert len(source_table(any_pg)) == 904
    assert replay(receiver.log_directory) == source_table(any_pg)
    assert prepared_transactions(receiver.log_directory) == []
    assert receiver.failure == []
