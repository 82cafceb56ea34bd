"""What a conflict has left of a row need not be what the publisher's old row says, when it comes
whole: subscribers of the node were told that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes import publisher
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.model import Oid, Relation, ReplicaIdentity

relation = publisher.relation


def whole(relid: int, columns: int = 2) -> Relation:
    return replace(relation(relid, columns), identity=ReplicaIdentity.FULL)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_the_tables_rows_are_not_the_publishers_any_more(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch, identity: str
) -> None:
    if identity == "full":
        monkeypatch.setattr(publisher, "relation", whole)
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.start()
        asked = []
        for n, change in enumerate(
            (
                Change(1, "I", (b"1", b"v")),
                Change(1, "D", key=b"2"),
                Change(1, "I", (b"3", b"v")),
            ),
            1,
        ):
            side.send(Transaction(100 * n, (change,)))
            side.reaches(100 * n + 8)
            asked.append(world.lake.requests[-1].has_their_rows)
        # Old rows that are keys only are the table's in any case.
        assert asked == [True, True, identity == "default"]
        assert world.catalog.rels(Oid(1))[0].trusted is (identity == "default")
