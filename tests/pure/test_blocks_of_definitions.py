"""Blocks that define something wait for others, not for ever, and find what others have changed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.backends import FakeQueries, define, new_backend, new_catalog, run
from tests.fakes.catalog_source import session

from wal2lake.catalog import (
    Altered,
    Catalog,
    ColumnDef,
    TableDef,
)
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn, Oid
from wal2lake.sql.backend import TransactionKind
from wal2lake.sql.sysviews import FunctionRequest
from wal2lake.testing.waits import wait_until


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return new_catalog(tmp_path / "catalog.sqlite")


@pytest.fixture
def backend(catalog: Catalog, tmp_path: Path) -> LakeBackend:
    return new_backend(catalog, FakeQueries(), tmp_path)


W = (ColumnDef("a", Oid(23)), ColumnDef("b", Oid(23)))


@pytest.mark.parametrize(
    ("columns", "renamed"),
    [
        (W[:1], ()),
        ((W[0], replace(W[1], name="c")), (("b", "c"),)),
        ((W[0], replace(W[1], type_oid=Oid(25))), ()),
    ],
    ids=["drop", "rename", "type"],
)
@pytest.mark.parametrize(
    ("clauses", "commits"),
    [("(a, b)", False), ("where (b > 1)", False), ("", True)],
    ids=["list", "filter", "whole"],
)
def test_a_block_publishes_columns_that_are_there_at_its_commit(
    backend: LakeBackend,
    catalog: Catalog,
    columns: tuple[ColumnDef, ...],
    renamed: tuple[tuple[str, str], ...],
    clauses: str,
    commits: bool,
) -> None:
    """Others alter the table meanwhile. PostgreSQL has them wait for the block."""
    catalog.create_table(TableDef(Oid(30001), "public", "w", Oid(10), W, (), "/w"))
    run(backend, "create publication old")
    for sql in (
        "create publication new for table w",
        "alter publication old set table w",
    ):
        backend.begin(TransactionKind.BLOCK)
        run(backend, "create publication beside")
        backend.savepoint(1)
        run(backend, f"{sql} {clauses}")
        catalog.redefine([Altered(Oid(30001), columns, (), None, renamed)])
        if commits:
            backend.commit()
        else:
            with pytest.raises(Wal2LakeError) as caught:
                backend.commit()
            assert (caught.value.sqlstate, caught.value.message) == (
                "40001",
                "could not serialize access due to concurrent update",
            )
            assert catalog.publication_named("beside") is None
        published = [one.relid for p in catalog.publications() for one in p.tables]
        assert bool(published) is commits
        # What a savepoint has taken back asks for nothing.
        catalog.redefine([Altered(Oid(30001), W, (), None)])
        run(backend, "drop publication if exists beside")
        backend.begin(TransactionKind.BLOCK)
        run(backend, "create publication beside")
        backend.savepoint(1)
        run(backend, f"{sql.replace('new', 'other')} {clauses}")
        backend.rollback_to(1)
        catalog.redefine([Altered(Oid(30001), columns, (), None)])
        backend.commit()
        catalog.redefine([Altered(Oid(30001), W, (), None)])
        run(backend, "drop publication beside")


def test_two_blocks_do_not_wait_for_each_other(
    backend: LakeBackend, catalog: Catalog
) -> None:
    """A session that waits for an open block does so for lock_timeout; the one that closes a
    circle has 40P01, and the other one goes on."""
    define(backend, catalog)
    run(backend, "create publication beside")
    context = replace(session(), pid=8)
    other = LakeBackend(backend._node, backend._system, context)
    for one, name in ((backend, "known"), (other, "beside")):
        one.begin(TransactionKind.BLOCK)
        run(one, f"comment on publication {name} is 'x'")
    context.parameters.set("lock_timeout", "1ms")
    with pytest.raises(Wal2LakeError) as caught:
        run(other, "comment on publication known is 'y'")
    assert (caught.value.sqlstate, caught.value.message) == (
        "55P03",
        "canceling statement due to lock timeout",
    )
    context.parameters.set("lock_timeout", "0")

    beside = catalog.publication_named("beside")
    assert beside is not None
    waits = threading.Thread(
        target=run, args=(backend, "comment on publication beside is 'x'"), daemon=True
    )
    waits.start()
    altering = backend._node.turns.altering
    wait_until(lambda: altering.wanted(beside.oid), describe="the first block waits")
    with pytest.raises(Wal2LakeError) as caught:
        run(other, "comment on publication known is 'y'")
    assert (caught.value.sqlstate, caught.value.message) == (
        "40P01",
        "deadlock detected",
    )
    other.rollback()
    waits.join(10)
    backend.commit()
    assert [one.description for one in catalog.comments()] == ["x", "x"]


@pytest.mark.parametrize(
    ("function", "arguments", "sqlstate"),
    [
        ("pg_replication_origin_advance", ("pg_20001", Lsn(1)), None),
        ("wal2lake.pause_table", (30000, "off"), "25001"),
        ("wal2lake.resume_table", (30000, "off"), "25001"),
        ("wal2lake.recopy_table", (30000, "off"), "25001"),
    ],
)
def test_a_block_does_not_wait_for_itself(
    backend: LakeBackend,
    catalog: Catalog,
    function: str,
    arguments: tuple[object, ...],
    sqlstate: str | None,
) -> None:
    """A function changes the subscription that the block has altered."""
    define(backend, catalog)
    backend.begin(TransactionKind.BLOCK)
    run(backend, "alter subscription off set (binary = true)")
    refused = None
    try:
        backend._perform(backend._caller(), FunctionRequest(function, arguments))
    except Wal2LakeError as error:
        refused = error.sqlstate
    assert refused == sqlstate
    backend.commit()
    found = catalog.subscription(Oid(20001))
    assert found is not None
    assert found.options["binary"] == "true"
