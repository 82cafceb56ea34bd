"""Who has written a row, beside a native subscriber that keeps it too; and what becomes of changes
that meet another row, if that is not PostgreSQL's default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.node.conftest import answers
from tests.older_postgres import installation

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

COUNTERS = (
    "select confl_update_origin_differs, confl_delete_origin_differs"
    " from pg_stat_subscription_stats where subname = '{}'"
)

TABLES = "create schema og; create table og.t (a int primary key, b int, v text);"

SETTINGS = {
    **FAST_RETRY,
    "apply.track_commit_timestamp": True,
    "log.segment_interval_ms": 100,
}


def reports(log: str) -> list[str]:
    """Each conflict that did not stop, with its DETAIL, but for numbers and times."""
    found = re.findall(
        r'LOG:  (conflict detected on relation "og\.[^\n]*?)(?:  sqlstate=\w+)?\n'
        r"[^\n]*DETAIL:  ([^\n]*\n[^\n]*)\n",
        log,
    )
    return [
        re.sub(
            r"transaction \d+ at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00",
            "transaction N at T",
            re.sub(r'origin "pg_\d+"', 'origin "pg_N"', " ".join(parts)),
        )
        for parts in found
    ]


@pytest.fixture
def native() -> Iterator[PostgresServer]:
    """A native subscriber that keeps commit timestamps."""
    with PostgresServer(
        installation(18), settings={"track_commit_timestamp": "on"}
    ) as server:
        yield server


@pytest.mark.slow
def test_rows_of_others_are_reported_as_postgresql_reports_them(
    pg18: Database,
    database: Callable[[int], Database],
    native: PostgresServer,
    make_node: Callable[..., Node],
) -> None:
    other = database(18)
    for source in (pg18, other):
        source.psql(TABLES + "create publication og for tables in schema og")
    pg18.psql("insert into og.t values (100, 1, 'copied')")
    other.psql("insert into og.t values (1, 0, 'x'), (7, 0, 'x')")
    node = make_node(settings=SETTINGS).start()
    assert node.sql("show track_commit_timestamp") == [("on",)]
    sides = (node.sql, native.psql)
    native.psql(TABLES)
    for run in sides:
        first, second = quote_literal(pg18.conninfo()), quote_literal(other.conninfo())
        name = "og" if run == node.sql else "ogn"
        run(f"create subscription {name} connection {first} publication og")
        run(
            f"create subscription {name}2 connection {second} publication og"
            " with (copy_data = false)"
        )
    mirror = Mirror(node, pg18.conninfo(), "og")
    mirror.synced()
    wait_until(
        lambda: (
            native.psql(
                "select string_agg(distinct srsubstate::text, '') from pg_subscription_rel"
            )
            == "r"
        )
    )

    mirror_of_other = Mirror(node, other.conninfo(), "og2")

    def settled(source: Database) -> None:
        """Both have all of a source."""
        ours, name = (mirror, "ogn") if source is pg18 else (mirror_of_other, "ogn2")
        mark = source.psql("select pg_current_wal_lsn()").strip()
        ours.caught_up(30)
        wait_until(
            lambda: (
                source.psql(
                    "select count(*) from pg_stat_replication where replay_lsn >="
                    f" '{mark}' and application_name = '{name}'"
                ).strip()
                == "1"
            )
        )

    pg18.psql("insert into og.t select i, i, 'r' from generate_series(1, 9) i")
    settled(pg18)
    for run in sides:
        run("update og.t set v = 'local' where a in (2, 4)")
        run("insert into og.t values (50, 1, 'mine')")
    pg18.transactions(
        [
            # The second one finds a row of its own.
            "update og.t set b = 20 where a = 2; update og.t set b = 21 where a = 2",
            "update og.t set b = 22 where a = 2",
            "delete from og.t where a = 4",
            "update og.t set b = 30 where a = 3",
        ]
    )
    settled(pg18)
    other.psql("update og.t set v = 'of the other' where a in (1, 7)")
    settled(other)
    pg18.psql("update og.t set b = 70 where a = 7; delete from og.t where a = 1")
    settled(pg18)
    rows = "select * from og.t order by 1"
    theirs = native.psql(rows).splitlines()
    assert ["|".join(v or "" for v in row) for row in node.sql(rows)] == theirs
    found = reports(node.log_text())
    assert sorted(found) == sorted(reports(native.log_text()))
    assert len(found) == 6
    for name in ("og", "og2"):
        (ours,) = node.sql(COUNTERS.format(name))
        counter = COUNTERS.format(name.replace("og", "ogn"))
        said = "|".join(str(v) for v in ours)
        # Its worker hands its counters on about once in a second.
        wait_until(partial(answers, native.psql, counter, said))
    assert node.sql(
        "select key, resolution from wal2lake.conflicts where subname = 'og'"
        " and conflict_type = 'delete_origin_differs' order by 1"
    ) == [("(a)=(1)", "apply_remote"), ("(a)=(4)", "apply_remote")]

    # Whoever wrote the row has gone.
    other.psql("update og.t set v = 'again' where a = 7")
    settled(other)
    for name, run in (("og2", node.sql), ("ogn2", native.psql)):
        run(f"drop subscription {name}")
    pg18.psql("update og.t set b = 71 where a = 7")
    settled(pg18)
    gone = "Updating the row that was modified by a non-existent origin"
    assert gone in node.log_text()
    assert gone in native.log_text()
    # A copied row is the publisher's; PostgreSQL takes it for one of an origin that has gone.
    pg18.psql("update og.t set b = 2 where a = 100")
    settled(pg18)
    assert not [one for one in reports(node.log_text()) if "(100" in one]

    # What stops says whose the row is.
    pg18.psql("insert into og.t values (50, 2, 'remote')")
    taken = (
        'Key already exists in unique index "t_pkey", modified locally in transaction '
    )
    node.wait_for(
        "select 1 from wal2lake.subscription_errors where subname = 'og'"
        f" and error like '%{taken}%'"
    )
    wait_until(lambda: taken in native.log_text())

    # Resolutions. The one that stops first.
    with pytest.raises(Exception, match='unrecognized conflict type: "insert"'):
        node.sql("alter subscription og set (conflict_resolution = 'insert = skip')")
    node.sql(
        "alter subscription og set (conflict_resolution = 'insert_exists = apply_remote,"
        " update_missing = apply_remote, update_origin_differs = last_update_wins,"
        " delete_origin_differs = keep_local, og.u.insert_exists = keep_local')"
    )
    settled_rows = "select b, v from og.t where a = 50"
    wait_until(lambda: node.sql(settled_rows) == [("2", "remote")])
    node.sql("update og.t set v = 'kept' where a in (2, 5)")
    node.sql("delete from og.t where a in (3, 6)")
    # The row's new value is younger than ours.
    pg18.transactions(
        ["update og.t set b = 99 where a in (2, 3, 6)", "delete from og.t where a = 5"]
    )
    mirror.caught_up()
    assert node.sql("select * from og.t where a in (2, 3, 5, 6) order by 1") == [
        ("2", "99", "r"),
        ("3", "99", "r"),
        ("5", "5", "kept"),
        ("6", "99", "r"),
    ]
    assert node.sql(
        "select conflict_type, resolution, count(*) from wal2lake.conflicts"
        " where subname = 'og' and noted_at > (select max(noted_at) from"
        " wal2lake.conflicts where conflict_type = 'insert_exists') group by 1, 2 order by 1"
    ) == [
        ("delete_origin_differs", "keep_local", "1"),
        ("update_missing", "apply_remote", "2"),
        ("update_origin_differs", "apply_remote", "1"),
    ]
    assert "It was resolved: keep_local." in node.log_text()
    shown = node.sql(
        "select conflict_resolution from wal2lake.subscription_options where subname = 'og'"
    )
    assert "og.u.insert_exists = keep_local" in str(shown)
    native.psql("drop subscription ogn")
    node.sql("drop subscription og")
