"""The publisher's types in the catalog: before streaming, and when one is made later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.catalog import Catalog, Subscription
from wal2lake.changelog import LogFile, Manifest, RowsFile
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.pg import Publisher, Session, connect, require_binary
from wal2lake.pgtypes import remote_types_from_json
from wal2lake.receive.remotetypes import RemoteTypesKeeper

SUBSCRIPTION = Oid(20_000)


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


def subscribed(catalog: Catalog, source: Database, binary: str) -> Subscription:
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
    return made


def names(catalog: Catalog) -> set[str]:
    found = catalog.subscription(SUBSCRIPTION)
    assert found is not None
    assert found.options["origin"] == "any"
    return {t.name for t in remote_types_from_json(found.remote_types).values()}


def sealed(*types: int) -> Manifest:
    """A segment whose only relation has columns of these types."""
    columns = tuple(Column(f"c{i}", Oid(t), -1, False) for i, t in enumerate(types))
    relation = Relation(Oid(1), "public", "t", ReplicaIdentity.DEFAULT, columns)
    file = LogFile("f", 1, 0)
    rows = RowsFile(file, relation, {}, 1, 0, 0, 0, Lsn(1), Lsn(1), False, False, False)
    return Manifest(1, Lsn(1), Lsn(1), Lsn(2), 0, 1, file, (rows,))


def test_types_are_recorded_before_streaming_and_again_when_one_is_new(
    publisher: Database, session: Session, catalog: Catalog
) -> None:
    keeper = RemoteTypesKeeper(catalog, subscribed(catalog, publisher, "true"))
    keeper.learn(Publisher(session))
    assert names(catalog) == {"money", "public.mood", "public._mood"}
    before = catalog.change_counter
    keeper.learn(Publisher(session))
    keeper.notice(sealed(23, 1007))
    assert catalog.change_counter == before
    publisher.psql("create domain price as numeric(6,2)")
    oid = int(str(session.value("select 'public.price'::regtype::oid")))
    keeper.notice(sealed(23, oid))
    assert "public.price" in names(catalog)
    # One that nobody knows is asked for once.
    publisher.psql("create domain later as text")
    keeper.notice(sealed(oid + 1000))
    assert "public.later" in names(catalog)
    publisher.psql("create domain never as text")
    keeper.notice(sealed(oid + 1000))
    assert "public.never" not in names(catalog)


def test_without_binary_nothing_is_asked(
    publisher: Database, session: Session, catalog: Catalog
) -> None:
    publisher.psql("alter table t add price money")
    keeper = RemoteTypesKeeper(catalog, subscribed(catalog, publisher, "false"))
    keeper.learn(Publisher(session))
    keeper.notice(sealed(20_000))
    assert names(catalog) == set()


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
    subscribed(catalog, publisher, "true")
    with pytest.raises(FeatureNotSupportedError) as caught:
        require_binary(Publisher(session), ("p",))
    assert caught.value.sqlstate == "0A000"
    assert (
        caught.value.message
        == 'column "class" of table "public.t" cannot be received in binary format'
    )
    detail = str(caught.value.detail)
    assert detail.count("Column ") == 2
    assert 'Column "price" of table "public.t"' in detail
    keeper = RemoteTypesKeeper(catalog, subscribed_again(catalog))
    with pytest.raises(FeatureNotSupportedError):
        keeper.learn(Publisher(session))
    assert names(catalog) == set()


def subscribed_again(catalog: Catalog) -> Subscription:
    found = catalog.subscription(SUBSCRIPTION)
    assert found is not None
    return found
