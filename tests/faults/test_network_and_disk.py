"""The source restarts, the connection is cut or stalls, the disk is full, a file rots."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.outside import assert_equal_outside

from wal2lake.errors import RESTORE_HINT
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.positions import END_OF_WAL
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import WaitTimeout, wait_until
from wal2lake.testing.workload import SCHEMA, TABLES, Workload


@pytest.fixture
def small_filesystem() -> Iterator[Callable[..., Path]]:
    """``small_filesystem(path, size_bytes=...)`` mounts one in memory there."""
    mounted: list[Path] = []

    def mount(path: Path, *, size_bytes: int) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={size_bytes},mode=700,uid={os.getuid()}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            pytest.skip(
                "NOT TESTED: a file system that is really full; mounting a small one"
                f" needs root with CAP_SYS_ADMIN: {said}"
            )
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        # The node is still running.
        subprocess.run(["umount", "--lazy", path], check=True)


def told(node: Node, part: str, sqlstate: str, hint: str) -> None:
    """Wait for an error as its user sees it: its HINT in SQL, its SQLSTATE in the log."""
    errors = node.wait_for(
        f"select error from wal2lake.subscription_errors where error like '%{part}%'"
    )
    assert f"HINT:  {hint}" in str(errors[0][0]).splitlines()
    log = node.log_text().splitlines()
    at = max(i for i, line in enumerate(log) if part in line)
    # The message's own line may come before that of its reason.
    assert f"  sqlstate={sqlstate}" in "\n".join(log[at - 1 : at + 1])
    assert any(line.endswith(f"HINT:  {hint}") for line in log[at : at + 4])


FREE_SPACE = (
    "Free space on the file system of the log directory; the node then continues by"
    " itself."
)


def test_connection_cut_and_stalled_while_streaming(
    make_node: Callable[..., Node], pg18: Database
) -> None:
    workload = Workload(11)
    pg18.psql(SCHEMA)
    pg18.transactions(list(workload.initial(200)))
    pg18.psql("create publication n for all tables")
    node = make_node(
        settings={**FAST_RETRY, "subscription.wal_receiver_timeout_ms": 3000}
    ).start()
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        through = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        node.sql(
            f"create subscription n connection {quote_literal(through)} publication n"
        )
        mirror = Mirror(node, pg18.conninfo(), "n")
        mirror.synced()
        pg18.transactions([workload.transaction() for _ in range(20)])
        proxy.cut()
        pg18.transactions([workload.transaction() for _ in range(20)])
        mirror.assert_equal(TABLES)
        proxy.stall()
        pg18.transactions([workload.transaction() for _ in range(20)])
        wait_until(
            lambda: "due to timeout" in node.log_text(),
            timeout_seconds=30,
            describe="the stalled connection is given up",
        )
        proxy.cut()
        proxy.resume()
        mirror.assert_equal(TABLES)
        assert_equal_outside(node, pg18.conninfo(), TABLES)


def test_source_is_stopped_and_restarted(
    lend_node: Callable[[Path], Node], tmp_path: Path
) -> None:
    workload = Workload(13)
    node = lend_node(tmp_path)
    with PostgresServer(18) as server:
        source = Database(server, "postgres")
        source.psql(SCHEMA)
        source.transactions(list(workload.initial(200)))
        source.psql("create publication r for all tables")
        node.sql(
            f"create subscription r connection {quote_literal(server.conninfo())} publication r"
        )
        mirror = Mirror(node, server.conninfo(), "r")
        mirror.synced()
        source.transactions([workload.transaction() for _ in range(20)])
        server.restart()
        source.transactions([workload.transaction() for _ in range(20)])
        server.kill()
        server.start()
        source.transactions([workload.transaction() for _ in range(20)])
        mirror.assert_equal(TABLES)
        assert_equal_outside(node, server.conninfo(), TABLES)
        node.sql("drop subscription r")


def test_full_disk_under_the_log_stops_feedback_and_passes(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table public.t (id int primary key); create publication f for all tables"
    )
    node = lend_node(points)
    node.sql(
        f"create subscription f connection {quote_literal(pg18.conninfo())} publication f"
    )
    mirror = Mirror(node, pg18.conninfo(), "f")
    mirror.synced()
    mirror.caught_up()
    arm(points, "journal.appended", "always enospc")
    before = pg18.psql("select pg_current_wal_lsn()").strip()
    pg18.psql("insert into public.t select generate_series(1, 100)")
    told(node, "No space left on device", "53100", FREE_SPACE)
    confirmed = pg18.psql(
        "select confirmed_flush_lsn <= "
        f"(select pg_current_wal_lsn()) and confirmed_flush_lsn - '{before}'::pg_lsn < 300"
        " from pg_replication_slots where slot_name = 'f'"
    ).strip()
    assert confirmed == "t"
    (points / "journal.appended").unlink()
    mirror.assert_equal(["public.t"])


@pytest.mark.slow
def test_a_filesystem_that_is_really_full_stops_feedback_and_passes(
    make_node: Callable[..., Node],
    pg18: Database,
    small_filesystem: Callable[..., Path],
) -> None:
    """Not one write that fails, but all that a node does while there is no space."""
    pg18.psql(
        "create table public.t (id int primary key, v text);"
        " create publication w for all tables"
    )
    node = make_node(settings=FAST_RETRY)
    log = small_filesystem(node.directory / "log", size_bytes=24 << 20)
    node.start()
    node.sql(
        f"create subscription w connection {quote_literal(pg18.conninfo())} publication w"
    )
    mirror = Mirror(node, pg18.conninfo(), "w")
    mirror.synced()
    pg18.psql(
        "insert into public.t select i, md5(i::text) from generate_series(1, 500) i"
    )
    mirror.caught_up()
    left = shutil.disk_usage(log).free
    (log / "hog").write_bytes(bytes(left - (256 << 10)))
    last = pg18.psql(
        "insert into public.t select i, repeat(md5(i::text), 8) from generate_series(501, 9000) i;"
        " select pg_current_wal_insert_lsn()"
    ).splitlines()[-1]
    told(node, "No space left on device", "53100", FREE_SPACE)
    confirmed = pg18.psql(
        f"select confirmed_flush_lsn < '{last}' from pg_replication_slots where slot_name = 'w'"
    )
    assert confirmed.strip() == "t", "what is not durable is not confirmed"
    assert node.value("select count(*) from public.t") == "500"
    pg18.psql("delete from public.t where id % 3 = 0")
    (log / "hog").unlink()
    mirror.assert_equal(["public.t"])


def test_a_full_filesystem_under_the_warehouse_stops_apply_and_passes(
    make_node: Callable[..., Node],
    pg18: Database,
    small_filesystem: Callable[..., Path],
) -> None:
    pg18.psql(
        "create table public.t (id int primary key, v text);"
        " create publication w for all tables"
    )
    node = make_node(settings=FAST_RETRY)
    warehouse = small_filesystem(node.directory / "warehouse", size_bytes=24 << 20)
    node.start()
    node.sql(
        f"create subscription w connection {quote_literal(pg18.conninfo())} publication w"
    )
    mirror = Mirror(node, pg18.conninfo(), "w")
    mirror.synced()
    left = shutil.disk_usage(warehouse).free
    (warehouse / "hog").write_bytes(bytes(left - (64 << 10)))
    pg18.psql(
        "insert into public.t select i, md5(i::text) || md5((i + 1)::text)"
        " from generate_series(1, 20000) i"
    )
    told(
        node,
        "No space left on device",
        "53100",
        "Free space on the file system of the warehouse.",
    )
    assert node.value("select count(*) from public.t") == "0"
    (warehouse / "hog").unlink()
    mirror.caught_up()
    mirror.assert_equal(["public.t"])


def middle_of_values(segment: Path) -> int:
    """Return the position of a byte within the largest pages of a segment. A byte elsewhere may
    belong to a statistic of a page's header, which a reader does not look at."""
    group = pq.ParquetFile(segment).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    largest = max(columns, key=lambda column: column.total_compressed_size)
    begin = largest.data_page_offset
    if largest.dictionary_page_offset is not None:
        begin = largest.dictionary_page_offset
    return int(begin + largest.total_compressed_size // 2)


def test_a_rotten_segment_is_named_and_nothing_is_skipped(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table public.t (id int primary key, v text);"
        " create publication c for all tables"
    )
    node = lend_node(points)
    node.sql(
        f"create subscription c connection {quote_literal(pg18.conninfo())} publication c"
    )
    mirror = Mirror(node, pg18.conninfo(), "c")
    mirror.synced()
    arm(points, "apply.staged", "always error")
    pg18.psql(
        "insert into public.t select i, md5(i::text) from generate_series(1, 500) i"
    )
    # The node may be another test's, whose log is removed later.
    oid = node.value("select oid from pg_subscription where subname = 'c'")
    log = node.directory / "log" / str(oid)
    rotten = wait_until(
        lambda: next(
            (p for p in log.glob("seg-*.parquet") if "transactions" not in p.name), None
        ),
        describe="a segment is sealed",
    )
    assert rotten is not None
    good = rotten.read_bytes()
    middle = middle_of_values(rotten)
    rotten.write_bytes(
        good[:middle] + bytes([good[middle] ^ 0xFF]) + good[middle + 1 :]
    )
    # Until then no attempt can commit what it read before.
    told(node, "is corrupted", "XX001", RESTORE_HINT)
    (points / "apply.staged").unlink()
    assert node.sql("select count(*) from public.t") == [("0",)]
    rotten.write_bytes(good)
    mirror.assert_equal(["public.t"])


HISTORY = 6 << 20
"""Of a log that grows beyond it."""


@pytest.mark.slow
def test_a_log_near_its_limit_is_reported_long_before_receiving_pauses(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table public.t (id int primary key, v text);"
        " create publication l for all tables"
    )
    limit = 24 << 20
    node = make_node(
        settings={
            **FAST_RETRY,
            "log.size_limit_bytes": limit,
            "log.size_warning_percent": 30,
            "log.history_bytes": HISTORY,
        },
        environ={VARIABLE: str(points)},
    ).start()
    node.sql(
        f"create subscription l connection {quote_literal(pg18.conninfo())} publication l"
    )
    mirror = Mirror(node, pg18.conninfo(), "l")
    mirror.synced()
    mirror.caught_up()
    # Apply stands still from now on.
    arm(points, "apply.staged", "always error")
    written = 0

    def write() -> str:
        nonlocal written
        first, written = written + 1, written + 8000
        return pg18.psql(
            f"insert into public.t select i, (select string_agg(md5((i * j)::text), '')"
            f" from generate_series(1, 8) j) from generate_series({first}, {written}) i;"
            + END_OF_WAL
        ).splitlines()[-1]

    def flushed(lsn: str) -> bool:
        sql = "select flush_lsn >= '{}' from pg_stat_replication where application_name = 'l'"
        return pg18.psql(sql.format(lsn)) == "t"

    def state() -> str | None:
        return node.value("select state from wal2lake.log where subname = 'l'")

    warning = 'the change log of subscription "l" is near its size limit'
    for _ in range(20):
        lsn = write()
        wait_until(
            partial(flushed, lsn),
            describe="apply holds nothing up at the publisher",
        )
        if warning in node.log_text():
            break
    # Reported while receiving goes on as ever. (How far below the limit depends on how much
    # is written between two looks at the sizes.)
    assert warning in node.log_text()
    assert (
        node.value(
            "select total_bytes < size_limit_bytes and needed_bytes > 0"
            " from wal2lake.log where subname = 'l'"
        )
        == "t"
    )
    lsn = write()
    wait_until(lambda: flushed(lsn), describe="the publisher is not held up")
    assert (
        pg18.psql(
            "select replay_lsn < flush_lsn from pg_stat_replication"
            " where application_name = 'l'"
        )
        == "t"
    )
    assert node.value("select pid from pg_stat_subscription where subname = 'l'")
    readers = node.sql(
        "select reader, bytes > 0 from wal2lake.log_readers where subname = 'l'"
    )
    assert ("apply", "t") in readers
    # And on, until it bites for good: a sealed segment lets the journal go, and receiving goes
    # on.
    for _ in range(60):
        lsn = write()
        try:
            wait_until(partial(flushed, lsn), timeout_seconds=6)
        except WaitTimeout:
            break
    wait_until(lambda: state() == "reached", describe="the limit is reached")
    assert "receiving is paused" in node.log_text()
    lsn = write()
    assert node.value("select pid from pg_stat_subscription where subname = 'l'")
    assert not flushed(lsn), "the publisher keeps what the log cannot take"
    assert node.log_text().count(warning) == 1, "said once"
    assert (
        "HINT:  At the limit receiving is paused, and the publisher keeps its WAL. See"
        " wal2lake.log_readers for who needs the log, and wal2lake.subscription_errors"
        " for why."
    ) in node.log_text()
    assert node.sql(
        "select reader from wal2lake.log_readers where subname = 'l' and segments > 0"
        " and reader <> 'history'"
    ) == [("apply",)]
    assert "apply.staged" in str(
        node.sql("select error from wal2lake.subscription_errors")
    )
    # Everything shown is what is there, once the last segment is sealed.
    directory = next((node.directory / "log").iterdir())

    def on_disk() -> list[tuple[str, ...]]:
        # Less the page that says what is confirmed: it never grows.
        found = (p for p in directory.iterdir() if p.name != "confirmed")
        sizes = {p.name: p.stat().st_size for p in found}
        journal = sum(s for name, s in sizes.items() if name.startswith("journal-"))
        manifests = sum(name.endswith(".json") for name in sizes)
        return [(str(sum(sizes.values())), str(journal), str(manifests))]

    node.wait_for(
        "select total_bytes, journal_bytes, segments from wal2lake.log"
        " where subname = 'l'",
        lambda rows: rows == on_disk(),
    )
    # What is applied stays for comfort, the newest of it, and goes beyond history_bytes. How large
    # each segment is depends on when it was sealed: each that was ever seen is remembered.
    sizes = (
        "select number, bytes, applied from wal2lake.log_segments where subname = 'l'"
        " order by number"
    )
    seen: dict[int, int] = {}

    def segments() -> list[tuple[int, int, str]]:
        found = [(int(str(n)), int(str(b)), str(a)) for n, b, a in node.sql(sizes)]
        seen.update({number: size for number, size, _ in found})
        return found

    segments()
    (points / "apply.staged").unlink()
    mirror.assert_equal(["public.t"])
    node.wait_for(
        "select 1 from wal2lake.log where subname = 'l' and state = 'below'"
        " or needed_segments = 0"
    )
    shown = node.wait_for(
        "select h.segments, h.bytes, l.history_limit_bytes, a.segments"
        " from wal2lake.log l join wal2lake.log_readers h on h.subid = l.subid"
        " join wal2lake.log_readers a on a.subid = l.subid"
        " where l.subname = 'l' and h.reader = 'history' and a.reader = 'apply'",
        lambda rows: (
            bool(segments())
            and bool(rows)
            and rows[0][2:] == (str(HISTORY), "0")
            and int(str(rows[0][1])) <= HISTORY
        ),
    )
    kept = segments()
    total = sum(size for _, size, _ in kept)
    assert shown == [(str(len(kept)), str(total), str(HISTORY), "0")]
    assert {applied for _, _, applied in kept} == {"t"}
    oldest = kept[0][0]
    assert oldest > 1, "the oldest have gone"
    assert total + seen[oldest - 1] > HISTORY, "no more than must go goes"
    assert sorted(path.name for path in directory.glob("seg-*.json")) == [
        f"seg-{number:020d}.json" for number, _, _ in kept
    ]
