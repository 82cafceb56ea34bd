"""``wal2lake verify --subscriber``: a subscriber is equal to its publisher at one LSN, however many
transactions commit meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.conftest import Database
from tests.verifying import verify

from wal2lake.cli.verify.pairs import ends, subscriber
from wal2lake.errors import UsageError
from wal2lake.testing.waits import wait_until

TABLES = """
create schema vs;
create table vs.t (id int primary key, n int, v text);
create table vs.filtered (id int primary key, v text);
create table vs.keyless (v text);
"""

ROWS = """
alter table vs.filtered add column hidden text;
alter table vs.keyless replica identity full;
insert into vs.t select g, 0, repeat('x', 50) from generate_series(1, 40000) g;
insert into vs.filtered select g, 'v', 'h' from generate_series(1, 100) g;
insert into vs.keyless select 'v' || g % 10 from generate_series(1, 100) g;
create publication vs for table vs.t, vs.filtered (id, v) where (id > 50), vs.keyless;
"""


@pytest.fixture(params=[16, pytest.param(18, marks=pytest.mark.slow)])
def pair(
    request: pytest.FixtureRequest, pg18: Database, database: Callable[[int], Database]
) -> Iterator[tuple[Database, Database]]:
    """A publisher and its subscriber, of another version and of the same."""
    copy = database(request.param)
    pg18.psql(TABLES + ROWS)
    copy.psql(TABLES)
    name = f"vs{request.param}"
    if copy.server is pg18.server:
        # CREATE SUBSCRIPTION would wait for its own transaction.
        pg18.psql(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    copy.psql(
        f"create subscription {name} connection '{pg18.conninfo()}' publication vs"
        f" with (create_slot = {copy.server is not pg18.server})".replace(
            pg18.conninfo(), pg18.conninfo().replace("'", "''")
        )
    )
    wait_until(
        lambda: (
            copy.psql("select count(*) from pg_subscription_rel where srsubstate = 'r'")
            .strip()
            .startswith("3")
        ),
        timeout_seconds=60,
    )
    yield pg18, copy
    copy.psql(f"drop subscription {name}")


@contextmanager
def writing(source: Database) -> Iterator[None]:
    """Transactions commit in bursts, in two sessions: a subscriber keeps up, also on a machine
    that has more to do."""
    enough = threading.Event()
    errors: list[BaseException] = []

    def write(first: int) -> None:
        number = 0
        try:
            with psycopg.connect(source.conninfo(), autocommit=True) as session:
                while not enough.wait(0.1):
                    for _ in range(10):
                        number += 2
                        key = (first + number * 7919) % 40000 + 1
                        session.execute(f"update vs.t set n = n + 1 where id = {key}")
                    session.execute(
                        f"begin; insert into vs.keyless values ('k{number}');"
                        f" delete from vs.t where id = {key}; commit"
                    )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


def subscriptions(copy: Database) -> list[subscriber.RemoteSubscription]:
    with ends.open_session(copy.conninfo(), lambda: None) as session:
        return subscriber.subscriptions_of(session)


def test_beside_writers_a_subscriber_is_equal_at_one_lsn(
    pair: tuple[Database, Database],
) -> None:
    source, copy = pair
    (subscription,) = subscriptions(copy)
    totals = "select sum(n), count(*), sum(id::bigint) from vs.t"
    seen: set[str] = set()
    with writing(source):
        for _ in range(10):
            with subscriber.meet(
                source.conninfo(), copy.conninfo(), subscription, lambda: None, 60
            ) as meeting:
                theirs = meeting.source.session.query(totals)
                assert meeting.target.session.query(totals) == theirs
                seen.add(str(meeting.lsn))
        ended = verify(
            *("--source", source.conninfo(), "--subscriber", copy.conninfo()),
            *("--format", "json"),
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(seen) == 10
    tables = ended.tables
    assert set(tables) == {"vs.t", "vs.filtered", "vs.keyless"}
    assert tables["vs.filtered"]["rows"] == 50
    assert len({each["lsn"] for each in tables.values()}) == 1

    # What somebody else has done to the copy is found.
    copy.psql(
        "update vs.filtered set v = '' where id = 60;"
        " delete from vs.filtered where id = 70;"
        " insert into vs.keyless values ('v1'), ('v1')"
    )
    with writing(source):
        ended = verify(
            *("--source", source.conninfo(), "--subscriber", copy.conninfo()),
        )
    assert ended.returncode == 1, ended.stderr
    assert "changed (id=60): v is v at the source, '' at the target" in ended.stdout
    assert "missing (id=70)" in ended.stdout
    assert "extra (v=v1)" in ended.stdout
    assert "3 tables: 1 equal, 2 different." in ended.stdout


def test_what_keeps_both_from_one_lsn_is_said(
    pair: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = pair

    def report(*options: str) -> str:
        """Compare; returns the report, with the exit code at its end."""
        ended = verify(
            *("--source", source.conninfo(), "--subscriber", copy.conninfo()),
            *options,
        )
        return f"{ended.stdout}{ended.stderr}{ended.returncode}"

    name = copy.psql(
        "select subname from pg_subscription where subname ~ '^vs'"
    ).strip()
    copy.psql(f"alter subscription {name} disable")
    assert f'subscription "{name}" is disabled' in report()
    copy.psql(f"alter subscription {name} enable")
    assert report("-s", name).endswith("0")
    assert 'subscription "nobody" does not exist' in report("-s", "nobody")
    assert "no subscribed table matches" in report("-t", "nothing")

    # A transaction that has written, at the source.
    with psycopg.connect(source.conninfo()) as session:
        session.execute("update vs.t set n = 1 where id = 1")
        found = report("--wait", "1")
        assert "It waits for the end of transactions that run there." in found
        session.commit()
    assert report().endswith("0")

    # A worker that waits for a lock.
    with psycopg.connect(copy.conninfo()) as session:
        session.execute("lock table vs.keyless in share mode")
        source.psql("insert into vs.keyless values ('waits')")
        found = report("--wait", "1")
        assert "The subscriber's log may say why. Otherwise wait longer" in found
        session.rollback()
    assert report().endswith("0")

    # A worker that stops at a row that is there already.
    copy.psql("insert into vs.t values (50000, 0, 'x')")
    source.psql("insert into vs.t values (50000, 0, 'x')")
    copy.psql(f"alter subscription {name} set (disable_on_error = false)")
    errors = "select count(*) > 0 from pg_stat_subscription where pid is null"
    wait_until(lambda: copy.psql(errors).strip() == "t", timeout_seconds=60)
    found = report("--wait", "1")
    assert "The subscriber's log says why." in found or "may say why" in found
    assert found.endswith("2")
    copy.psql("delete from vs.t where id = 50000")
    assert report().endswith("0")

    # A role that does not see positions.
    source.psql(
        "create role vs_reader login replication;"
        " grant usage on schema vs to vs_reader;"
        " grant select on all tables in schema vs to vs_reader"
    )
    reader = source.conninfo().replace("user='postgres'", "user='vs_reader'")
    found = report("--source", reader, "--wait", "1")
    assert "the role a member of pg_monitor" in found
    source.psql("grant pg_monitor to vs_reader")
    assert report("--source", reader).endswith("0")
    source.psql("drop owned by vs_reader; drop role vs_reader")

    # A subscriber that has passed each snapshot.
    (subscription,) = subscriptions(copy)
    meeting = (source.conninfo(), copy.conninfo(), subscription, lambda: None)
    with monkeypatch.context() as always:
        always.setattr(subscriber.Catch, "at", lambda catch, lsn: False)
        with pytest.raises(UsageError) as refused, subscriber.meet(*meeting, 1):
            pass
    assert refused.value.hint == (
        "Repeat the command when fewer transactions commit, or wait longer (--wait)."
    )
    with subscriber.meet(*meeting, 60) as met:
        assert met.lsn
    assert (
        source.psql(
            "select count(*) from pg_replication_slots where slot_name ~ 'wal2lake_verify'"
        ).strip()
        == "0"
    )
