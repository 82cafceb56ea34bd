"""What a publisher's catalog says of altered tables, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.conftest import Database

from wal2lake.apply.schema.diff import (
    Added,
    Dropped,
    NullsAllowed,
    RelationMoved,
    Renamed,
    Retyped,
    SchemaDifference,
    difference,
)
from wal2lake.model import (
    INVALID_OID,
    Column,
    KnownLabels,
    Lsn,
    Oid,
    Relation,
    RemoteSchema,
    ReplicaIdentity,
    SentSchema,
)
from wal2lake.pg import Publisher, connect


@dataclass
class Source:
    """A table ``t`` and what was last seen of it."""

    database: Database
    relid: Oid = INVALID_OID
    before: RemoteSchema = field(init=False)

    def look(self) -> RemoteSchema:
        with connect(self.database.conninfo(), application_name="test") as session:
            found = Publisher(session).schemas((self.relid,))
        return found[self.relid]

    def after(self, sql: str) -> SchemaDifference:
        """Of what was seen before, when a Relation message comes that is up to date."""
        self.database.psql(sql)
        message = relation(self.published())
        now = self.look().published(message)
        found = difference(self.before, SentSchema(Lsn(1), message, now))
        self.before = found.after
        assert found.after == now
        return found

    def published(self) -> RemoteSchema:
        """What a Relation message would have of it."""
        with connect(self.database.conninfo(), application_name="test") as session:
            publisher, names = Publisher(session), ("p", "q")
            tables = publisher.tables(publisher.published_tables(names), names)
        return next(t.schema for t in tables.values() if t.oid == self.relid)


def relation(schema: RemoteSchema) -> Relation:
    return Relation(
        schema.relid,
        schema.namespace,
        schema.name,
        ReplicaIdentity.DEFAULT,
        tuple(
            Column(a.name, a.declared_oid, a.declared_typmod, False)
            for a in schema.attributes
        ),
    )


@pytest.fixture(params=[14, 18])
def source(
    request: pytest.FixtureRequest, database: Callable[[int], Database]
) -> Iterator[Source]:
    found = database(request.param)
    found.psql(
        "create table t (id int primary key, a text, b numeric(5,2));"
        " insert into t values (1, 'one', 1.5); create publication p for table t"
    )
    source = Source(found)
    source.relid = Oid(int(found.psql("select 't'::regclass::oid").strip()))
    source.before = source.look()
    yield source


def test_what_old_rows_have_in_a_new_column(source: Source) -> None:
    for definition, missing in (
        ("c int", None),
        ("d int default 5", "5"),
        ("e text not null default 'it''s'", "it's"),
        ("f int[] default '{1,NULL,3}'", "{1,NULL,3}"),
        ("g date default date '2020-02-29'", "2020-02-29"),
        ("h text[] default '{}'", "{}"),
        ("i text default ''", ""),
    ):
        found = source.after(f"alter table t add {definition}")
        assert found.unknown is None
        (step,) = found.steps
        assert isinstance(step, Added)
        assert (step.attribute.name, step.attribute.missing) == (
            definition[0],
            missing,
        )
    # Each row has its own.
    found = source.after("alter table t add r float default random()")
    assert found.unknown == 'adding column "r" has written all rows anew'
    found = source.after("alter table t add s serial")
    assert found.unknown == 'adding column "s" has written all rows anew'


def test_columns_are_known_by_their_numbers(source: Source) -> None:
    assert source.after("alter table t rename a to c").steps == (Renamed("a", "c"),)
    assert source.after("alter table t drop b").steps == (Dropped("b"),)
    (step,) = source.after("alter table t add b numeric(5,2)").steps
    assert isinstance(step, Added) and step.attribute.missing is None
    # Two change their names.
    assert source.after(
        "begin; alter table t rename c to x; alter table t rename b to c;"
        " alter table t rename x to b; commit"
    ).steps == (Renamed("c", "c_"), Renamed("b", "c"), Renamed("c_", "b"))
    # A column goes and another one has its name.
    found = source.after("alter table t drop b; alter table t rename c to b")
    assert found.steps == (Dropped("b"), Renamed("c", "b"))
    assert found.unknown is None
    found = source.after("alter table t drop b; alter table t add b numeric(5,2)")
    assert found.unknown == 'column "b" was dropped and added anew'


def test_a_type_without_new_rows_and_one_with_them(source: Source) -> None:
    found = source.after("alter table t alter b type numeric(9,2)")
    assert [type(s) for s in found.steps] == [Retyped] and found.unknown is None
    found = source.after("alter table t alter a type varchar(20)")
    # The text is checked, and so it is read and written.
    assert found.unknown == 'the new type of column "a" has written all rows anew'
    found = source.after("alter table t alter a type text")
    assert [type(s) for s in found.steps] == [Retyped] and found.unknown is None
    found = source.after("alter table t alter id type bigint using id * 2")
    assert found.unknown == 'the new type of column "id" has written all rows anew'
    found = source.after("create domain d as text; alter table t alter a type d")
    (step,) = found.steps
    assert isinstance(step, Retyped) and step.attribute.domain == "public.d"
    assert found.unknown is None


def test_rows_that_alter_table_writes_anew_are_told_from_rows_that_move(
    source: Source,
) -> None:
    anew = "ALTER TABLE has written all rows anew"
    for sql in (
        "vacuum full t",
        "cluster t using t_pkey",
        "reindex table t",
        "truncate t",
        "alter publication p drop table t; alter table t set unlogged;"
        " alter table t set logged; alter publication p add table t",
        "analyze t",
        # The rows stay where they are.
        "alter table t alter a set default 'a', alter a set statistics 7",
        "grant select (a) on t to public",
        # All of that between two looks, and columns come and go beside it.
        "alter table t add later int",
        "alter table t drop later",
    ):
        assert source.after(sql).unknown is None, sql
    source.database.psql("vacuum full t")
    assert source.after("alter table t add c int").unknown is not None
    for sql in (
        "alter table t alter a type text using upper(a)",
        "alter table t alter id type int using id + 1000",
        "begin; alter table t alter b type numeric(5,2) using b * 2;"
        " truncate t; commit; vacuum full pg_attribute",
    ):
        found = source.after(sql)
        assert (found.steps, found.unknown) == ((), anew), sql
        assert source.after("vacuum full t").unknown is None


def test_another_expression_of_a_generated_column_writes_all_rows_anew(
    database: Callable[[int], Database],
) -> None:
    found = database(18)
    found.psql(
        "create table t (id int primary key, v text, g text generated always as"
        " (lower(v)) stored) partition by range (id);"
        " create table t1 partition of t for values from (0) to (10);"
        " create table t2 partition of t for values from (10) to (20);"
        " insert into t values (1, 'One'), (11, 'Eleven'); create publication p"
        " for table t with (publish_via_partition_root, publish_generated_columns = stored)"
    )
    source = Source(found)
    source.relid = Oid(int(found.psql("select 't'::regclass::oid").strip()))
    source.before = source.look()
    assert source.before.storage == source.published().storage
    anew = "ALTER TABLE has written all rows anew"
    found.psql("vacuum full t1")
    assert source.after("truncate t2").unknown is None
    set_expression = "alter table {} alter g set expression as (upper(v))"
    assert source.after(set_expression.format("t")).unknown == anew
    # A leaf may have an expression of its own.
    assert source.after(set_expression.format("t1")).unknown == anew
    assert source.before.storage == source.published().storage


def test_nulls_names_and_nothing(source: Source) -> None:
    assert source.after("alter table t alter a set not null").steps == (
        NullsAllowed("a", False),
    )
    assert source.after("alter table t alter a drop not null").steps == (
        NullsAllowed("a", True),
    )
    assert source.after("alter table t rename to u").steps == (
        RelationMoved("public", "u"),
    )
    assert source.after(
        "create schema s; alter table u set schema s; alter table s.u rename to t"
    ).steps == (RelationMoved("s", "t"),)
    # New files alone say nothing of the columns.
    found = source.after("vacuum full s.t")
    assert (found.steps, found.unknown) == ((), None)


def test_not_null_counts_once_it_is_validated(source: Source) -> None:
    """Until then rows that are there may have null, and a copy of them, too."""
    if int(source.database.psql("show server_version_num")) < 180000:
        pytest.skip("NOT NULL ... NOT VALID came with 18")
    source.database.psql("insert into t values (2, null, null)")
    found = source.after(
        "alter table t add constraint an not null a not valid,"
        " add constraint bn not null b not valid"
    )
    assert found.steps == ()
    nullable = {a.name: not a.not_null for a in source.published().attributes}
    assert nullable == {"id": False, "a": True, "b": True}
    assert source.after(
        "update t set a = '', b = 0 where a is null; alter table t validate constraint an"
    ).steps == (NullsAllowed("a", False),)
    assert source.after("alter table t alter b drop not null").steps == ()
    # Of a partitioned table, each has its own.
    source.database.psql(
        "create table parted (v int, w int not null) partition by range (w);"
        " create table part partition of parted for values from (0) to (9);"
        " insert into parted values (null, 1); create publication q for table parted;"
        " alter table parted add constraint vn not null v not valid"
    )
    source.relid = Oid(int(source.database.psql("select 'part'::regclass::oid")))
    for look in (source.look, source.published):
        assert [a.not_null for a in look().attributes] == [False, True]


def test_a_renamed_label_is_known_by_its_oid_however_deep_it_is(source: Source) -> None:
    source.database.psql(
        "create type mood as enum ('sad', 'ok'); create domain feeling as mood;"
        " create type pair as (x int, m mood[]); create type span as range (subtype = mood);"
        " create type \"Other\" as enum ('sad');"
        " create table deep (plain mood, a mood[], d feeling, c pair, cs pair[], s span,"
        ' m span_multirange, t text, o "Other", e int);'
        " alter table deep drop e, add other_int int"
    )
    relid = Oid(int(source.database.psql("select 'deep'::regclass::oid").strip()))

    def look(known: KnownLabels) -> KnownLabels:
        with connect(source.database.conninfo(), application_name="test") as session:
            publisher = Publisher(session)
            seen = publisher.enums((source.relid, relid))
            return known.then(seen, publisher.position())

    first = look(KnownLabels({}))
    assert sorted(first.labels.values()) == ["ok", "sad", "sad"]
    assert first.renames == ()
    # One that comes is no rename, nor is a type that comes.
    source.database.psql(
        "alter type mood add value 'new' before 'sad';"
        " create type another as enum ('ok'); alter table deep add z another"
    )
    assert look(first).renames == ()
    source.database.psql(
        "begin; alter type mood rename value 'sad' to 'x'; alter type mood rename value"
        " 'ok' to 'sad'; alter type mood rename value 'x' to 'ok'; commit;"
        " alter type \"Other\" rename value 'sad' to 'blue'"
    )
    second = look(look(first))
    said = [(r.type_name, r.before, r.after) for r in second.renames]
    assert said == [
        ("public.mood", "sad", "ok"),
        ("public.mood", "ok", "sad"),
        ('public."Other"', "sad", "blue"),
    ]
    numbers = [sorted(number for _, number in r.columns) for r in second.renames]
    assert numbers == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7], [9]]
    assert {relid for r in second.renames for relid, _ in r.columns} == {relid}
    assert KnownLabels.parse(second.as_json()) == second
    assert second.since(second.renames[0].noticed_lsn) == second
    assert second.since(Lsn(second.renames[0].noticed_lsn + 1)).renames == ()


def test_a_column_that_was_not_published(source: Source) -> None:
    if int(source.database.psql("show server_version_num")) < 150000:
        pytest.skip("column lists came with 15")
    found = source.after("alter publication p set table t (id, a)")
    assert (found.steps, found.unknown) == ((), None), "b is not dropped"
    found = source.after("alter publication p set table t")
    (step,) = found.steps
    assert isinstance(step, Added)
    assert found.unknown == 'column "b" was there before it was published'


def test_partitions_come_and_go(source: Source) -> None:
    source.database.psql(
        "create table r (id int, a text) partition by range (id);"
        " create table r1 partition of r for values from (0) to (10);"
        " create publication q for table r with (publish_via_partition_root = true);"
        " insert into r values (1, 'one')"
    )
    source.relid = Oid(int(source.database.psql("select 'r'::regclass::oid").strip()))
    source.before = source.look()
    found = source.after("alter table r add c int default 7")
    (step,) = found.steps
    assert isinstance(step, Added) and step.attribute.missing == "7"
    found = source.after("create table r2 partition of r default")
    assert found.steps == () and len(found.partitions) == 1
    assert found.partitions[0].startswith("ATTACH PARTITION")
    assert (
        source.after("alter table r detach partition r1")
        .partitions[0]
        .startswith("DETACH PARTITION")
    )


def test_the_server_is_further(source: Source) -> None:
    """The message is of a moment between two looks."""
    states = [source.before]
    for sql in (
        "alter table t rename a to c",
        "alter table t add d int default 5",
        "alter table t rename d to e; alter table t rename c to d",
        "alter table t drop b",
        "alter table t add f int",
        "alter table t drop f",
        "alter table t alter id type bigint",
    ):
        source.database.psql(sql)
        states.append(source.look())
    now = states[-1]
    before = states[0]
    for state in states[1:]:
        found = difference(before, SentSchema(Lsn(1), relation(state), now))
        before = found.after
        assert [(a.number, a.name) for a in before.attributes] == [
            (a.number, a.name) for a in state.attributes
        ]
    assert before == now


def test_who_alters_a_table_is_not_waited_for(source: Source) -> None:
    """The commit of an ALTER TABLE may wait for our flush, with its lock held."""
    with connect(source.database.conninfo(), application_name="altering") as session:
        for sql in ("begin", "lock table public.t in access exclusive mode"):
            session.execute(sql)
        with connect(source.database.conninfo(), application_name="test") as asking:
            asking.execute("set lock_timeout = 1")
            found = Publisher(asking).schemas((source.relid,))
        session.execute("rollback")
    assert found[source.relid] == source.before


def test_a_message_may_be_older_than_a_later_column(source: Source) -> None:
    """What is not in the message was not there, unless a column list leaves it out."""
    first = relation(source.before)
    source.database.psql("alter table t add c int default 5")
    now = source.look()
    found = difference(source.before, SentSchema(Lsn(1), first, now.published(first)))
    assert (found.steps, found.unknown) == ((), None)
    found = difference(found.after, SentSchema(Lsn(2), relation(now), now))
    (step,) = found.steps
    assert isinstance(step, Added) and step.attribute.missing == "5"
    assert found.unknown is None


def test_a_message_may_be_newer_than_the_catalog(source: Source) -> None:
    """Nothing tells that b was dropped and another column has come in its place."""
    stale = source.look()
    source.database.psql("alter table t drop b, add z numeric(5,2)")
    message = relation(source.look())
    found = difference(
        source.before, SentSchema(Lsn(1), message, stale.published(message))
    )
    assert found.unknown is not None


def test_indexes_by_which_the_rows_of_a_snapshot_are_unique(source: Source) -> None:
    source.database.psql(
        "create table x (a int, b int, c int, d int);"
        " create unique index on x (a, b) include (c);"
        " create unique index on x (b);"
        " create unique index on x (c) where c > 0;"
        " create unique index on x ((d + 1));"
        " create index on x (c);"
        " alter table x add unique (d) deferrable;"
        " create table y (a int)"
    )
    source.database.psql("insert into x (c) values (1); insert into y values (1), (1)")
    with (
        connect(source.database.conninfo(), application_name="test") as holder,
        connect(source.database.conninfo(), application_name="test") as session,
    ):
        holder.execute("begin isolation level repeatable read read only")
        snapshot = str(holder.value("select pg_export_snapshot()"))
        # After the snapshot: of its rows this says nothing.
        source.database.psql(
            "delete from y where ctid = '(0,1)'; create unique index on y (a)"
        )
        relids = [
            Oid(int(str(holder.value(f"select 'public.{name}'::regclass::oid"))))
            for name in ("x", "y")
        ]
        publisher = Publisher(session)
        with publisher.seeing(snapshot):
            found = publisher.unique_columns(relids)
        assert relids[1] in publisher.unique_columns(relids)
    assert set(found) == {relids[0]}
    assert sorted(map(sorted, found[relids[0]])) == [["a", "b"], ["b"]]


def test_publications_have_other_marks_after_each_change(source: Source) -> None:
    """Also if it is taken back; a VACUUM, a TRUNCATE and other tables change nothing."""

    def marks() -> str | None:
        with connect(source.database.conninfo(), application_name="test") as session:
            found = Publisher(session).publication_marks((source.relid,), ("p", "q"))
        return found.get(source.relid)

    psql = source.database.psql
    before = marks()
    assert before is not None
    psql("create table other (i int); alter publication p add table other")
    psql("vacuum full t; truncate t; alter table t add z int; analyze t")
    psql("vacuum full pg_publication; vacuum freeze pg_publication_rel")
    assert marks() == before
    changes = [
        "alter publication p set (publish = 'insert')",
        "alter publication p set (publish = 'insert, update, delete, truncate')",
        "alter publication p drop table t; alter publication p add table t",
        "create publication q for table t; drop publication q",
    ]
    if int(psql("show server_version_num")) >= 150000:
        changes += [
            "alter publication p set table t where (id > 1), other",
            "alter publication p set table t, other",
            "alter publication p add tables in schema public",
            "alter publication p drop tables in schema public",
        ]
    seen = [before]
    for sql in changes:
        psql(sql)
        now = marks()
        if "q" in sql.split()[2]:
            assert now == seen[-1]
        else:
            seen.append(now or "")
    # A schema that came and went has left the table as it was published.
    assert len(set(seen)) >= len(seen) - 1
