"""In which format a stream is asked for, and the publisher's types in the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Database
from tests.fakes.publisher import xlogdata

from wal2lake.catalog import Catalog, Subscription
from wal2lake.model import INVALID_LSN, Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.pg import Publisher, Session, connect, list_obstacles, published_formats
from wal2lake.pgtypes import remote_types_from_json
from wal2lake.receive.gulps import Gulp
from wal2lake.receive.remotetypes import RemoteTypesKeeper
from wal2lake.wire.pgoutput import RelationMessage

SUBSCRIPTION = Oid(20_000)
REGCLASS = 2205


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    found = Catalog.create(tmp_path / "catalog.sqlite", "admin", None)
    yield found
    found.close()


@pytest.fixture(params=[14, 18])
def publisher(
    request: pytest.FixtureRequest, database: Callable[[int], Database]
) -> Database:
    """Column lists came with 15."""
    return database(request.param)


@pytest.fixture
def session(publisher: Database) -> Iterator[Session]:
    publisher.psql(
        "create type mood as enum ('sad'); create table t (id int, m mood);"
        " create publication p for table t"
    )
    with connect(publisher.conninfo(), application_name="test") as found:
        yield found


def subscribed(catalog: Catalog, source: Database, binary: str) -> None:
    made = Subscription(
        SUBSCRIPTION,
        "s",
        Oid(10),
        True,
        source.conninfo(),
        "s",
        ("p",),
        options={"origin": "any", "binary": binary},
    )
    catalog.create_subscription(made, [])


def now(catalog: Catalog) -> Subscription:
    found = catalog.subscription(SUBSCRIPTION)
    assert found is not None
    return found


def next_run(catalog: Catalog) -> RemoteTypesKeeper:
    return RemoteTypesKeeper(catalog, now(catalog))


def learn(
    keeper: RemoteTypesKeeper, session: Session, received: int = 0, position: int = 1
) -> bool:
    return keeper.learn(
        Publisher(session), received=Lsn(received), position=Lsn(position)
    )


def names(catalog: Catalog) -> set[str]:
    assert now(catalog).options["origin"] == "any"
    return {t.name for t in remote_types_from_json(now(catalog).remote_types).values()}


def gulp(*types: int) -> Gulp:
    """A Relation message with columns of these types."""
    columns = tuple(Column(f"c{i}", Oid(t), -1, False) for i, t in enumerate(types))
    relation = Relation(Oid(1), "public", "t", ReplicaIdentity.DEFAULT, columns)
    data = xlogdata(RelationMessage(relation))
    return Gulp(data, np.array([len(data)], np.uint32), open_at_end=True)


def test_types_are_recorded_before_streaming_and_again_when_one_is_new(
    publisher: Database, session: Session, catalog: Catalog
) -> None:
    subscribed(catalog, publisher, "true")
    keeper = next_run(catalog)
    assert learn(keeper, session)
    assert names(catalog) == {"money", "public.mood", "public._mood"}
    before = catalog.change_counter
    assert learn(keeper, session)
    mood = int(str(session.value("select 'public.mood'::regtype::oid")))
    assert keeper.admit(gulp(23, 1007, mood))
    assert catalog.change_counter == before
    publisher.psql("create domain price as numeric(6,2)")
    oid = int(str(session.value("select 'public.price'::regtype::oid")))
    generation = now(catalog).generation
    assert not keeper.admit(gulp(23, oid))
    # The supervisor starts a receiver of another generation at once.
    assert now(catalog).generation == generation + 1
    keeper = next_run(catalog)
    assert learn(keeper, session)
    assert "public.price" in names(catalog)
    assert not now(catalog).undecoded_types
    assert keeper.admit(gulp(23, oid))


def test_a_type_without_decoder_makes_it_text_until_its_rows_have_been_received(
    publisher: Database, session: Session, catalog: Catalog
) -> None:
    subscribed(catalog, publisher, "true")
    keeper = next_run(catalog)
    assert learn(keeper, session)
    gone = 4_000_000
    for undecodable in (REGCLASS, gone):
        assert not keeper.admit(gulp(23, undecodable))
        # No published table has it any more; rows of before may.
        assert not learn(next_run(catalog), session, received=50, position=100)
        assert not learn(next_run(catalog), session, received=99, position=200)
        text = next_run(catalog)
        assert not learn(text, session, received=99, position=300)
        assert text.admit(gulp(23, undecodable))
        keeper = next_run(catalog)
        assert learn(keeper, session, received=100, position=400)
        assert not now(catalog).undecoded_types
        assert keeper.admit(gulp(23))


def test_without_binary_nothing_is_asked(
    publisher: Database, session: Session, catalog: Catalog
) -> None:
    publisher.psql("alter table t add price money")
    subscribed(catalog, publisher, "false")
    keeper = next_run(catalog)
    before = catalog.change_counter
    assert not learn(keeper, session)
    assert keeper.admit(gulp(20_000, REGCLASS))
    assert names(catalog) == set()
    assert catalog.change_counter == before


def test_every_column_without_decoder_is_named_and_others_are_not(
    publisher: Database, session: Session, catalog: Catalog
) -> None:
    publisher.psql(
        "alter table t add price regtype, add class regclass, add acl aclitem;"
        " create table unpublished (m regtype)"
    )
    if session.server_version >= 150000:
        publisher.psql(
            "create table listed (id int, m regtype);"
            " alter publication p add table listed (id)"
        )
    found = published_formats(Publisher(session), ("p",)).obstacles
    assert found == (
        'Column "class" of table "public.t": cannot decode the binary format of type'
        " regclass: its text is a name in the publisher's catalog.",
        'Column "price" of table "public.t": cannot decode the binary format of type'
        " regtype: its text is a name in the publisher's catalog.",
    )
    subscribed(catalog, publisher, "true")
    keeper = next_run(catalog)
    assert not learn(keeper, session)
    assert keeper.admit(gulp(REGCLASS))
    # Of the log's binary rows from before.
    assert "public.mood" in names(catalog)
    publisher.psql("alter table t drop price, drop class")
    assert learn(next_run(catalog), session, received=INVALID_LSN)


def test_a_type_of_ones_own_is_not_an_extensions_by_its_name(
    publisher: Database, session: Session
) -> None:
    """Its binary form would have been stored as if it were text."""
    publisher.psql(
        "create type citext;"
        + "".join(
            f" create function citext_{name}({argument}) returns {result}"
            f" language internal immutable strict as 'int4{name}';"
            for name, argument, result in (
                ("in", "cstring", "citext"),
                ("out", "citext", "cstring"),
                ("recv", "internal", "citext"),
                ("send", "citext", "bytea"),
            )
        )
        + " create type citext (input = citext_in, output = citext_out,"
        " receive = citext_recv, send = citext_send, like = integer);"
        " alter table t add c citext, add cs citext[]"
    )
    found = published_formats(Publisher(session), ("p",)).obstacles
    assert found == tuple(
        f'Column "{name}" of table "public.t": cannot decode the binary format of type'
        " public.citext: its format is not known."
        for name in ("c", "cs")
    )


def test_types_of_known_extensions_have_decoders(
    database: Callable[[int], Database],
) -> None:
    source = database(17)
    source.psql(
        "create schema ext; create extension hstore schema ext; create extension citext;"
        " create domain word as citext;"
        " create table t (h ext.hstore, hs ext.hstore[], c citext, cs citext[], w word);"
        " create publication p for table t"
    )
    with connect(source.conninfo(), application_name="test") as session:
        assert published_formats(Publisher(session), ("p",)).obstacles == ()


def test_many_columns_without_decoder_are_counted() -> None:
    assert list_obstacles([f"{i}." for i in range(10)]).endswith("8. 9.")
    assert list_obstacles([f"{i}." for i in range(12)]).endswith("9. There are 2 more.")
