"""The state of published tables, as a watching subscriber reads it, on each publisher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import Database

from wal2lake.commands.subscription.auto.look import Answers, ask
from wal2lake.pg import Session, connect
from wal2lake.pg.connection import Rows
from wal2lake.pg.publications import (
    PublishedState,
    publication_fingerprint,
    published_states,
    relations_that_exist,
)


@pytest.fixture
def session(any_pg: Database) -> Iterator[Session]:
    with connect(any_pg.conninfo(), application_name="test") as session:
        yield session


def states(session: Session, *names: str) -> dict[str, PublishedState]:
    return {s.name: s for s in published_states(session, names)}


def test_the_fingerprint_differs_once_the_published_tables_do(
    any_pg: Database, session: Session
) -> None:
    any_pg.psql(
        "create table a (id int primary key, v text); create table b (id int primary key);"
        " create publication one for table a; create publication everything for all tables"
    )
    version = session.server_version
    seen = {
        name: publication_fingerprint(session, (name,))
        for name in ("one", "everything")
    }

    def changed(sql: str) -> set[str]:
        any_pg.psql(sql)
        now = {name: publication_fingerprint(session, (name,)) for name in seen}
        found = {name for name in seen if seen[name] != now[name]}
        seen.update(now)
        return found

    assert changed("insert into a values (1); analyze a") == set()
    assert changed("create table c (id int)") == {"everything"}
    assert changed("create temp table d (id int)") == set()
    assert changed("alter publication one add table b") == {"one"}
    assert changed("alter table b rename to bb") == {"one", "everything"}
    assert changed("alter publication one set (publish = 'insert')") == {"one"}
    assert changed("drop table c") == {"everything"}
    if version >= 150000:
        assert changed("alter publication one set table a where (id > 1), bb") == {
            "one"
        }
        assert changed("alter publication one set table a where (id > 2), bb") == {
            "one"
        }
        any_pg.psql("create schema s; create publication sch for tables in schema s")
        before = publication_fingerprint(session, ("sch",))
        any_pg.psql("create table s.t (id int)")
        assert publication_fingerprint(session, ("sch",)) != before
        changed("select 1")
    assert changed("drop publication one") == {"one"}
    assert states(session, "one") == {}


def test_a_state_says_what_a_copy_depends_on(
    any_pg: Database, session: Session
) -> None:
    any_pg.psql(
        "create table a (id int primary key, v text); create table b (id int primary key);"
        " create publication one for table a, b"
    )
    first = states(session, "one")
    assert set(first) == {"a", "b"}
    assert first["a"].operations == "iudt"
    parsed = PublishedState.parse(first["a"].as_json())
    assert parsed.through == first["a"].through
    assert (parsed.oid, parsed.rows) == (first["a"].oid, first["a"].rows)
    # Left and came back: published as before, through another entry.
    any_pg.psql("alter publication one drop table a; alter publication one add table a")
    again = states(session, "one")
    assert again["b"] == first["b"]
    assert again["a"].rows == first["a"].rows
    assert not again["a"].through & first["a"].through
    any_pg.psql("alter publication one set (publish = 'insert, update')")
    assert states(session, "one")["a"].operations == "iu"
    if session.server_version >= 150000:
        any_pg.psql("alter publication one set table a (id) where (id > 5), b")
        filtered = states(session, "one")
        assert "id > 5" in filtered["a"].rows
        assert filtered["a"].rows != first["a"].rows
        assert filtered["b"].rows == first["b"].rows
    assert relations_that_exist(session, (int(first["a"].oid), 1)) == {
        int(first["a"].oid)
    }


def test_partitions_that_were_attached_are_told_from_those_that_were_created(
    any_pg: Database, session: Session
) -> None:
    if session.server_version < 130000:
        pytest.skip("publish_via_partition_root came with 13")
    any_pg.psql(
        "create table r (id int, k int) partition by list (k);"
        " create table r1 partition of r for values in (1);"
        " create table r2 (id int, k int); insert into r2 values (1, 2);"
        " alter table r attach partition r2 for values in (2);"
        " begin; create table r3 (like r); alter table r attach partition r3"
        " for values in (3); commit;"
        " create table r4 (id int, k int) partition by list (k);"
        " create table r41 partition of r4 for values in (4);"
        " alter table r attach partition r4 for values in (4);"
        " vacuum full pg_catalog.pg_attribute; vacuum full pg_catalog.pg_inherits;"
        " create publication root for table r with (publish_via_partition_root);"
        " create publication parts for table r"
    )
    oids = {
        name: int(str(session.value(f"select 'public.{name}'::regclass::oid")))
        for name in ("r1", "r2", "r3", "r41")
    }
    (root,) = published_states(session, ("root",))
    assert (root.name, root.leaves) == ("r", frozenset(oids.values()))
    assert root.attached == {oids[name] for name in ("r2", "r3", "r41")}
    any_pg.psql("create index on r (id); alter table r add column v text")
    assert oids["r1"] not in states(session, "root")["r"].attached
    parts = states(session, "parts")
    assert set(parts) == {"r1", "r2", "r3", "r41"}
    assert parts["r1"].leaves == frozenset()


def test_a_look_beside_a_publication_that_is_made_anew(
    any_pg: Database, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two questions of a look, the publication is dropped, or made anew."""
    any_pg.psql("create table a (id int); create publication p for table a")
    acts = ["drop publication p", "create publication p for table a"]
    query = session.query

    def count(step: int, found: list[int]) -> Answers:
        """Look; drop before question ``step``, and create before the next one."""
        before = publication_fingerprint(session, ("p",))

        def interrupted(sql: str, *, patient: bool = False) -> Rows:
            number = len(found) - step
            found.append(step)
            if 0 <= number < len(acts):
                any_pg.psql(acts[number])
            return query(sql, patient=patient)

        with monkeypatch.context() as patched:
            patched.setattr(session, "query", interrupted)
            return ask(session, ("p",), [], before)

    asked: list[int] = []
    count(1000, asked)
    for step in range(len(asked)):
        found = count(step, [])
        assert found.missing == []
        assert [state.name for state in found.states] == ["a"]
