"""What one transaction of the catalog does for REFRESH PUBLICATION WITH (recopy = true)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wal2lake.catalog import (
    Catalog,
    CopyRange,
    FollowedSchema,
    NewSource,
    ProgressFile,
    Recopy,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    WorkerKind,
)
from wal2lake.model import (
    Coercion,
    Lsn,
    Oid,
    Relation,
    RemoteSchema,
    ReplicaIdentity,
    SentSchema,
    SyncState,
    Xid,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

SUB = Oid(20000)
KEPT, COPIED, GONE, NEW = map(Oid, (30000, 30001, 30002, 30003))


def rel(relid: Oid, state: SyncState, lsn: int | None) -> SubscriptionRel:
    return SubscriptionRel(
        SUB,
        relid,
        "public",
        f"t{relid}",
        state,
        None if lsn is None else Lsn(lsn),
        7,
        trusted=False,
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A subscription in the middle of everything."""
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    catalog.create_subscription(
        Subscription(
            SUB,
            "s",
            Oid(10),
            True,
            "host=p",
            "s",
            ("p",),
            floor=Lsn(900),
            system_identifier="1",
            timeline=3,
            options={"two_phase": "e", "origin": "any"},
            skip_lsn=Lsn(950),
            skipping=True,
            recopying=Recopy.GIVEN_UP,
        ),
        [
            rel(KEPT, SyncState.READY, 5),
            rel(COPIED, SyncState.DATASYNC, 800),
            rel(GONE, SyncState.READY, 5),
        ],
        {int(KEPT): 11, int(COPIED): 1, int(GONE): 3},
    )
    catalog.hold_snapshot(SyncSnapshot(SUB, "a", Lsn(800), "1", (int(COPIED),)))
    catalog.record_ranges([CopyRange(SUB, COPIED, 7, "a", 0, 5, "[]")])
    lost = Coercion("v", "null", "infinity", 1, Lsn(1), Lsn(1), "x")
    catalog.expect(SUB, Lsn(990), {KEPT: Lsn(900)}, {KEPT: [lost]})
    for worker in (WorkerKind.RECEIVER, WorkerKind.APPLY, WorkerKind.RECOPY):
        catalog.note_error(SUB, worker, "stopped")
    return catalog


def anew(catalog: Catalog, source: NewSource | None) -> Subscription:
    return catalog.copy_anew(
        SUB,
        ("p", "q"),
        added=[rel(NEW, SyncState.INIT, None)],
        versions={int(NEW): 2},
        removed={GONE},
        whole={KEPT: True},
        source=source,
    )


def check_tables(catalog: Catalog) -> None:
    rels = {r.relid: r for r in catalog.rels(SUB)}
    assert rels.keys() == {KEPT, COPIED, NEW}
    assert len({r.epoch for r in rels.values()}) == 3
    for relid in (KEPT, COPIED):
        found = rels[relid]
        assert found.epoch != 7
        assert found == SubscriptionRel(
            SUB,
            relid,
            "public",
            f"t{relid}",
            SyncState.INIT,
            None,
            found.epoch,
            trusted=relid == KEPT,
            replaces=True,
        )
        assert catalog.ranges(SUB, relid) == []
    assert rels[NEW] == replace(rel(NEW, SyncState.INIT, None), epoch=rels[NEW].epoch)
    assert catalog.snapshot_held(SUB) is None
    assert catalog.errors() == []
    vector = catalog.newest_vector(SUB)
    assert vector is not None
    assert vector.versions == {int(KEPT): 11, int(COPIED): 1, int(NEW): 2}
    # What was committed and never seen is replaced, so it is not counted either.
    catalog.publish(SUB, Lsn(1000), {})
    assert catalog.coercions() == []


def test_with_a_new_source_everything_begins_at_its_slot(catalog: Catalog) -> None:
    found = anew(catalog, NewSource(Lsn(100), "2", 1))
    assert found == catalog.subscription(SUB)
    assert (found.floor, found.system_identifier, found.timeline) == (100, "2", 1)
    assert (found.skip_lsn, found.skipping, found.two_phase) == (0, False, "p")
    assert (found.recopying, found.generation, found.runs) == (Recopy.NO, 1, True)
    assert found.publications == ("p", "q")
    vector = catalog.newest_vector(SUB)
    assert vector is not None
    assert vector.lsn == 100
    assert [v.lsn for v in catalog.vectors()] == [900, 100, 100]
    check_tables(catalog)


def test_without_one_positions_stay(catalog: Catalog) -> None:
    catalog.update_subscription(SUB, recopying=Recopy.BEGUN)
    begun = catalog.subscription(SUB)
    assert begun is not None
    assert not begun.runs
    found = anew(catalog, None)
    assert (found.floor, found.system_identifier, found.timeline) == (900, "1", 3)
    assert (found.skip_lsn, found.skipping, found.two_phase) == (950, True, "e")
    assert (found.recopying, found.generation) == (Recopy.NO, 1)
    vector = catalog.newest_vector(SUB)
    assert vector is not None
    assert vector.lsn == 900
    check_tables(catalog)


def test_what_the_stream_of_another_slot_has_said_is_forgotten(
    catalog: Catalog,
) -> None:
    """Its positions may be above those of the new one."""
    relation = Relation(Oid(1), "public", "t", ReplicaIdentity.DEFAULT, ())
    schema = RemoteSchema(Oid(1), "public", "t", (), (), 0, ())
    sent = SentSchema(Lsn(5000), relation, schema, Lsn(5000))
    catalog.note_sent(SUB, [sent])
    catalog.keep_prepared(SUB, Xid(7), [relation])
    for relid, settles in ((KEPT, 5000), (COPIED, 0)):
        followed = FollowedSchema(schema, Lsn(5001), settles=Lsn(settles))
        catalog.steps_made(SUB, relid, followed, (), lsn=Lsn(5000))
    anew(catalog, None)
    assert catalog.sent_schemas(SUB) == [sent]
    assert catalog.prepared_transactions(SUB) == [Xid(7)]
    catalog.copy_anew(SUB, ("p",), source=NewSource(Lsn(100), "2", 1))
    assert catalog.sent_schemas(SUB) == []
    assert catalog.prepared_transactions(SUB) == []
    assert catalog.followed_schemas(SUB) == {
        KEPT: FollowedSchema(schema, Lsn(100), settles=Lsn(100)),
        COPIED: FollowedSchema(schema, Lsn(100)),
    }


def test_a_paused_table_stays_paused(catalog: Catalog) -> None:
    catalog.pause_table(SUB, KEPT, Lsn(920), 12)
    (paused,) = (r for r in catalog.rels(SUB) if r.relid == KEPT)
    anew(catalog, None)
    (now,) = (r for r in catalog.rels(SUB) if r.relid == KEPT)
    assert now == paused
    # The log that has what it misses is given up.
    catalog.copy_anew(
        SUB, ("p",), whole={KEPT: True}, source=NewSource(Lsn(100), "2", 1)
    )
    (now,) = (r for r in catalog.rels(SUB) if r.relid == KEPT)
    assert now == replace(
        paused,
        state=SyncState.INIT,
        lsn=None,
        epoch=now.epoch,
        trusted=True,
        replaces=True,
        rejoins=False,
    )
    assert now.epoch != paused.epoch
    assert catalog.publish(SUB, Lsn(200), {}) == 200
    vector = catalog.newest_vector(SUB)
    assert vector is not None
    assert vector.apart == {int(KEPT): 920}
    catalog.copy_table_anew(SUB, KEPT)
    assert not any(r.paused for r in catalog.rels(SUB))


def test_positions_of_another_slot_are_forgotten(tmp_path: Path) -> None:
    with ProgressFile(tmp_path, SUB) as progress, ProgressFile(tmp_path, SUB) as other:
        progress.set(applied=5, logged=7, received=9, replay_lsn=5, sealed=6)
        other.reset()
        found = progress.read()
    assert (found.applied, found.logged, found.received) == (0, 0, 0)
    assert (found.replay_lsn, found.sealed) == (0, 0)
