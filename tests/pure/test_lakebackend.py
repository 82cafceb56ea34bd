"""A query's result ends below however it ends above; what a block refuses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.backends import (
    FakeQueries,
    Running,
    define,
    new_backend,
    new_catalog,
    run,
)
from tests.fakes.catalog_source import session

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.commands.subscription import targets
from wal2lake.commands.tables.table import NewTable
from wal2lake.engine.rows import answers
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn, Oid, PartitionKey, PartitionStrategy, SyncState
from wal2lake.sql.backend import Outcome, TransactionKind
from wal2lake.wire.frontback import Format


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return new_catalog(tmp_path / "catalog.sqlite")


@pytest.fixture
def queries() -> FakeQueries:
    return FakeQueries()


@pytest.fixture
def backend(catalog: Catalog, queries: FakeQueries, tmp_path: Path) -> LakeBackend:
    return new_backend(catalog, queries, tmp_path)


def query(backend: LakeBackend) -> Outcome:
    prepared = backend.prepare("select a from t", ())
    return backend.execute(prepared, (), (Format.TEXT,))


# ---- results ------------------------------------------------------------------------------


def test_a_result_that_is_read_to_its_end_is_closed_below(
    backend: LakeBackend, queries: FakeQueries
) -> None:
    outcome = query(backend)
    assert [batch.columns for batch in outcome.batches] == [([b"1"],), ([b"2"],)]
    assert queries.running.closed == 1
    outcome.close()
    assert queries.running.closed == 1


@pytest.mark.parametrize("taken", [0, 1])
def test_a_result_that_is_closed_early_is_closed_below(
    backend: LakeBackend, queries: FakeQueries, taken: int
) -> None:
    outcome = query(backend)
    for _ in range(taken):
        next(outcome.batches)
    outcome.close()
    assert queries.running.closed == 1
    backend.cancel()
    assert queries.cancelled == [], "nothing runs any more"


def test_a_result_that_fails_is_closed_below(
    backend: LakeBackend, queries: FakeQueries
) -> None:
    queries.running = Running(Wal2LakeError("broken"))
    outcome = query(backend)
    with pytest.raises(Wal2LakeError, match="broken"):
        next(outcome.batches)
    assert queries.running.closed == 1


def test_a_result_whose_columns_cannot_be_told_is_closed_below(
    backend: LakeBackend, queries: FakeQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Wal2LakeError("no columns")

    monkeypatch.setattr(answers, "fields_of", fails)
    with pytest.raises(Wal2LakeError, match="no columns"):
        query(backend)
    assert queries.running.closed == 1
    backend.cancel()
    assert queries.cancelled == []


@pytest.mark.parametrize("subscribed", [40000, 40001])
@pytest.mark.parametrize("name", ["root", "rest"])
def test_a_partitioned_table_and_its_partition_are_read_at_one_published_version(
    backend: LakeBackend,
    catalog: Catalog,
    queries: FakeQueries,
    subscribed: int,
    name: str,
) -> None:
    key = PartitionKey(PartitionStrategy.RANGE, ("a",))
    columns = (ColumnDef("a", Oid(23)),)
    root = TableDef(
        Oid(40000), "public", "root", Oid(10), columns, (), "/r", partition_key=key
    )
    rest = replace(
        root, oid=Oid(40001), name="rest", partition_key=None, partition_of=root.oid
    )
    for table in (root, rest):
        catalog.create_table(table)
    assert catalog.table("public", "root") == root
    assert catalog.table("public", "rest") == rest
    assert catalog.sharing(root) == catalog.sharing(rest) == (root.oid, rest.oid)
    relid = Oid(subscribed)
    ready = SyncState.READY
    catalog.add_rels([SubscriptionRel(Oid(20000), relid, "p", "x", ready, None, 1)])
    catalog.publish(Oid(20000), Lsn(200), {subscribed: 7})
    backend.execute(backend.prepare(f"select a from {name}", ()), (), (Format.TEXT,))
    assert "delta.`/r` VERSION AS OF 7" in queries.last


# ---- blocks -------------------------------------------------------------------------------

REFUSED = [
    (
        "create subscription x connection 'host=p' publication p",
        "25001",
        "CREATE SUBSCRIPTION ... WITH (create_slot = true) cannot run inside a"
        " transaction block",
    ),
    (
        "drop subscription s",
        "25001",
        "DROP SUBSCRIPTION cannot run inside a transaction block",
    ),
    (
        "alter subscription s refresh publication",
        "25001",
        "ALTER SUBSCRIPTION ... REFRESH cannot run inside a transaction block",
    ),
    *(
        (
            f"alter subscription s {change}",
            "25001",
            "ALTER SUBSCRIPTION with refresh cannot run inside a transaction block",
        )
        for change in (
            "set publication r",
            "add publication r",
            "drop publication p with (copy_data = false)",
        )
    ),
    (
        "alter subscription off set (two_phase = false)",
        "25001",
        "ALTER SUBSCRIPTION ... SET (two_phase) cannot run inside a transaction block",
    ),
    (
        "alter subscription off set (failover = true)",
        "25001",
        "ALTER SUBSCRIPTION ... SET (failover) cannot run inside a transaction block",
    ),
    # What PostgreSQL finds first.
    (
        "drop subscription nope",
        "42704",
        'subscription "nope" does not exist',
    ),
    (
        "alter subscription off refresh publication with (nope = 1)",
        "55000",
        "ALTER SUBSCRIPTION ... REFRESH is not allowed for disabled subscriptions",
    ),
]


@pytest.mark.parametrize(("sql", "sqlstate", "message"), REFUSED)
def test_a_block_refuses_what_cannot_be_rolled_back_and_nothing_happens(
    backend: LakeBackend, catalog: Catalog, sql: str, sqlstate: str, message: str
) -> None:
    for oid, name, slot in ((20001, "off", "off"), (20002, "without", None)):
        catalog.create_subscription(
            Subscription(Oid(oid), name, Oid(10), False, "host=p", slot, ("p",)), []
        )
    before = catalog.change_counter
    backend.begin(TransactionKind.BLOCK)
    with pytest.raises(Wal2LakeError) as caught:
        backend.execute(backend.prepare(sql, ()), (), ())
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)
    assert catalog.change_counter == before


ROLLED_BACK = [
    "create subscription x connection 'host=p' publication p with (connect = false)",
    "drop subscription without",
    "drop subscription without; create subscription without connection 'host=p'"
    " publication p with (connect = false)",
    "alter subscription off enable; alter subscription off disable",
    "alter subscription off connection 'host=other'",
    "alter subscription off add publication r with (refresh = false)",
    "alter subscription off set (slot_name = none); drop subscription off",
    "alter subscription off set (binary = true)",
    "alter subscription off set (two_phase = true)",
    "alter subscription off skip (lsn = '0/12345678')",
    "alter subscription off rename to t; alter subscription t rename to u",
    "comment on subscription off is 'x'",
    "create publication p for table t; alter publication p set table t (a);"
    " alter publication p drop table t",
    "create publication p; alter publication p add table t where (a > 1);"
    " alter publication p set (publish = insert); comment on publication p is 'x'",
    "alter publication known rename to other; drop publication other",
    "drop publication known; create publication known for all tables",
]


def definitions(catalog: Catalog) -> dict[str, Any]:
    """What commands define, without the numbers that say which of two was first."""
    return {
        "subscriptions": [replace(one, oid=Oid(0)) for one in catalog.subscriptions()],
        "publications": [
            replace(
                one,
                oid=Oid(0),
                tables=tuple(replace(t, oid=Oid(0)) for t in one.tables),
            )
            for one in catalog.publications()
        ],
        "comments": [one.description for one in catalog.comments()],
    }


@pytest.mark.parametrize("script", ROLLED_BACK)
def test_a_blocks_definitions_wait_for_commit_and_go_with_rollback(
    backend: LakeBackend, catalog: Catalog, tmp_path: Path, script: str
) -> None:
    statements = script.split("; ")
    define(backend, catalog)
    before = definitions(catalog)

    def block() -> None:
        backend.begin(TransactionKind.BLOCK)
        for sql in statements:
            run(backend, sql)

    block()
    assert definitions(catalog) == before
    backend.rollback()
    assert definitions(catalog) == before
    block()
    assert definitions(catalog) == before
    backend.commit()
    # The same, one by one, at another node.
    other = new_catalog(tmp_path / "other.sqlite")
    node = replace(backend._node, catalog=other)
    alone = LakeBackend(node, backend._system, session())
    define(alone, other)
    for sql in statements:
        run(alone, sql)
    assert definitions(catalog) == definitions(other)


def test_blocks_beside_others(backend: LakeBackend, catalog: Catalog) -> None:
    """Savepoints, numbers that others take meanwhile, objects that go, names that are taken."""
    define(backend, catalog)
    context = replace(session(), pid=8)
    other = LakeBackend(backend._node, backend._system, context)
    backend.begin(TransactionKind.BLOCK)
    run(backend, "create publication p")
    backend.savepoint(1)
    run(backend, "create publication lost")
    backend.rollback_to(1)
    run(backend, "alter publication p add table t")
    run(other, "create publication beside for table t")
    run(backend, "alter publication p drop table t")
    run(backend, "alter publication p add table t (a)")
    run(backend, "alter subscription off rename to renamed")
    # What a worker does meanwhile is kept.
    catalog.set_options(Oid(20001), {"two_phase": "e"})
    backend.commit()
    names = [one.name for one in catalog.publications()]
    assert sorted(names) == ["beside", "known", "p"]
    found = catalog.publication_named("p")
    assert found is not None and len(found.tables) == 1
    renamed = catalog.subscription(Oid(20001))
    assert renamed is not None
    assert (renamed.name, renamed.options["two_phase"]) == ("renamed", "e")

    # Others wait for a subscription, and for a publication, of an open block.
    class Waiting(Exception):
        """It does not end by itself."""

    def check() -> None:
        raise Waiting

    backend.begin(TransactionKind.BLOCK)
    run(backend, "alter publication p set (publish = insert)")
    run(backend, "alter subscription renamed set (binary = true)")
    for sql in ("drop publication p", "drop subscription renamed"):
        other._check_cancelled = check  # type: ignore[method-assign]
        with pytest.raises(Waiting):
            run(other, sql)
        del other._check_cancelled
    backend.rollback()
    run(other, "alter publication p set (publish = insert)")

    # At COMMIT: a name that is taken, a table that has gone.
    for mine, theirs in (
        ("create publication q", "create publication q"),
        ("create publication r for table t", None),
    ):
        backend.begin(TransactionKind.BLOCK)
        run(backend, mine)
        if theirs is None:
            catalog.drop_table(Oid(30000))
        else:
            run(other, theirs)
        with pytest.raises(Wal2LakeError) as caught:
            backend.commit()
        assert caught.value.sqlstate == "40001"
    assert catalog.publication_named("r") is None
    run(backend, "create publication r")


def test_a_block_that_defines_writes_no_table(
    backend: LakeBackend, catalog: Catalog
) -> None:
    define(backend, catalog)
    backend.begin(TransactionKind.BLOCK)
    run(backend, "alter publication known rename to other")
    for sql in ("insert into t values (1)", "truncate t", "delete from t"):
        with pytest.raises(Wal2LakeError) as caught:
            run(backend, sql)
        assert caught.value.sqlstate == "0A000"
        assert "cannot both write tables and define" in caught.value.message
        assert caught.value.hint == "Use two transactions."
    backend.rollback()
    assert catalog.publication_named("known") is not None


def test_nothing_is_defined_in_a_read_only_transaction(
    backend: LakeBackend, catalog: Catalog
) -> None:
    define(backend, catalog)
    backend._context.parameters.set("transaction_read_only", "on")
    for kind in TransactionKind.BLOCK, TransactionKind.STATEMENT:
        backend.begin(kind)
        for sql, name in (
            ("/* x */ create  publication ro for table t", "CREATE PUBLICATION"),
            ("alter subscription off set (binary = true)", "ALTER SUBSCRIPTION"),
            ("comment on publication known is 'x'", "COMMENT"),
            ("drop publication known", "DROP PUBLICATION"),
        ):
            with pytest.raises(Wal2LakeError) as caught:
                run(backend, sql)
            assert caught.value.sqlstate == "25006"
            assert (
                caught.value.message
                == f"cannot execute {name} in a read-only transaction"
            )
        backend.rollback()
    assert catalog.publication_named("known") is not None


class _Stored:
    """Tables as directories with an owner."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}

    def exists(self, location: str) -> bool:
        return location in self.owners

    def state(self, location: str) -> Any:
        return SimpleNamespace(properties={"wal2lake.table": self.owners[location]})

    def create(self, location: str, fields: Any, properties: Any, *others: Any) -> None:
        assert location not in self.owners
        self.owners[location] = properties["wal2lake.table"]

    def drop(self, location: str) -> None:
        del self.owners[location]

    def writing(self, location: str) -> Any:
        return nullcontext()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_files_of_an_open_block_are_nobody_elses(
    backend: LakeBackend, catalog: Catalog, end: str
) -> None:
    """Another session took them for what a crash had left, made its own in their place, and lost
    those when the block ended."""
    node, stored = backend._node, _Stored()
    node.tables = stored  # type: ignore[assignment]
    other = LakeBackend(node, backend._system, session())

    def create_with_tables(view: Any, caller: Any, statement: Any) -> str:
        remote = SimpleNamespace(
            qualified="public.x",
            row_filters=(),
            schema=None,
        )
        wanted = SimpleNamespace(
            tables={("public", "x"): remote}, all_sent=True, history=""
        )
        with (
            pytest.MonkeyPatch.context() as patched,
            view.ddl_lock,
        ):
            new = NewTable("public", "x", (ColumnDef("a", Oid(23)),), ())
            patched.setattr(targets, "_plan", lambda *_: [new])
            patched.setattr(targets, "_is_whole", lambda _: True)
            with targets.made_targets(view, caller, wanted):  # type: ignore[arg-type]
                return "CREATE SUBSCRIPTION"

    backend.begin(TransactionKind.BLOCK)
    backend._definitions.run(
        backend._caller(), create_with_tables, None, publishes=False, replicates=True
    )
    assert len(stored.owners) == 1
    run(other, "create table x (a int)")
    theirs = catalog.table("public", "x")
    assert theirs is not None
    assert len(stored.owners) == 2
    if end == "rollback":
        backend.rollback()
    else:
        with pytest.raises(Wal2LakeError) as caught:
            backend.commit()
        assert caught.value.sqlstate == "40001"
    assert set(stored.owners) == {theirs.location}
    assert not node.unfinished


# ---- SKIP ---------------------------------------------------------------------------------


def test_skip_takes_an_lsn_that_is_not_below_the_origins(
    backend: LakeBackend, catalog: Catalog
) -> None:
    def skip() -> tuple[int, bool, int]:
        found = catalog.subscription(Oid(20000))
        assert found is not None
        return int(found.skip_lsn), found.skipping, found.generation

    catalog.publish(Oid(20000), Lsn(0x70), {}, applied=Lsn(0x64))
    with pytest.raises(Wal2LakeError) as caught:
        run(backend, "alter subscription s skip (lsn = '0/63')")
    assert (caught.value.sqlstate, caught.value.message) == (
        "22023",
        "skip WAL location (LSN 0/63) must be greater than origin LSN 0/64",
    )
    assert run(backend, "alter subscription s skip (lsn = '0/64')") == (
        "ALTER SUBSCRIPTION"
    )
    assert skip() == (100, False, 0), "the receiver has no part in it"
    run(backend, "alter subscription s skip (lsn = none)")
    assert skip() == (0, False, 0)
    run(backend, "alter subscription s skip (lsn = '0/64')")
    assert catalog.begin_skip(Oid(20000), Lsn(100))
    with pytest.raises(Wal2LakeError) as caught:
        run(backend, "alter subscription s skip (lsn = none)")
    assert caught.value.sqlstate == "55006", "some tables may be beyond it"
    assert skip() == (100, True, 0)
