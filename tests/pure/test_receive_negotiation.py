"""What is asked of a publisher by its version, and when two-phase commit begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from wal2lake.catalog import Subscription, SubscriptionRel
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.receive.negotiation import negotiate
from wal2lake.receive.twophase import TwoPhaseState


def subscription(**options: str) -> Subscription:
    return Subscription(
        Oid(1), "s", Oid(10), True, "", "s", ('p"1', "p2"), options=options
    )


@pytest.mark.parametrize(
    ("version", "streaming", "asked"),
    [
        (130000, "parallel", "proto_version '1'"),
        (140000, "off", "proto_version '2'"),
        (140000, "parallel", "proto_version '2', streaming 'on'"),
        (150000, "on", "proto_version '3', streaming 'on'"),
        (150000, "parallel", "proto_version '3', streaming 'on'"),
        (160000, "off", "proto_version '4', origin 'any'"),
        (160000, "on", "proto_version '4', streaming 'on', origin 'any'"),
        (180000, "parallel", "proto_version '4', streaming 'parallel', origin 'any'"),
    ],
)
def test_each_version_is_asked_for_the_best_it_has(
    version: int, streaming: str, asked: str
) -> None:
    found = negotiate(
        subscription(streaming=streaming),
        server_version=version,
        start=Lsn(0x10),
        messages=False,
        two_phase=False,
        binary=False,
    )
    assert found.command == (
        f'START_REPLICATION SLOT "s" LOGICAL 0/10 ({asked},'
        ' publication_names \'"p""1","p2"\')'
    )
    assert found.streaming is ("streaming" in asked)
    assert found.may_prepare is (version >= 150000)


def test_options_come_in_postgresqls_order() -> None:
    found = negotiate(
        subscription(streaming="on", binary="true", origin="none"),
        server_version=180000,
        start=Lsn(0),
        messages=True,
        two_phase=True,
        binary=True,
    )
    names = [part.split()[0] for part in found.command.split("(")[1].split(", ")]
    assert names == [
        "proto_version",
        "streaming",
        "two_phase",
        "origin",
        "publication_names",
        "messages",
        "binary",
    ]
    assert found.two_phase


@dataclass
class FakeCatalog:
    """Tables in these states."""

    states: list[SyncState]
    options: dict[str, str] = field(default_factory=dict)
    generations: int = 0

    def rels(self, subid: Oid) -> list[Any]:
        return [
            SubscriptionRel(subid, Oid(i), "public", "t", state, None, 1)
            for i, state in enumerate(self.states)
        ]

    def set_options(self, subid: Oid, options: dict[str, str]) -> None:
        self.options.update(options)

    def update_subscription(self, subid: Oid, *, bump: bool) -> None:
        assert bump
        self.generations += 1


READY, COPYING = SyncState.READY, SyncState.DATASYNC


def two_phase(state: str, *states: SyncState) -> tuple[TwoPhaseState, FakeCatalog]:
    catalog: Any = FakeCatalog(list(states))
    return TwoPhaseState(catalog, subscription(two_phase=state)), catalog


@pytest.mark.parametrize(
    ("state", "states", "version", "wanted"),
    [
        ("d", (READY,), 180000, False),
        ("e", (COPYING,), 180000, True),
        ("e", (READY,), 140000, False),
        ("p", (READY, READY), 150000, True),
        ("p", (READY, COPYING), 150000, False),
        ("p", (), 180000, False),
        ("p", (READY,), 140000, False),
    ],
)
def test_two_phase_is_asked_for_once_all_tables_are_ready(
    state: str, states: tuple[SyncState, ...], version: int, wanted: bool
) -> None:
    asking, catalog = two_phase(state, *states)
    assert asking.wanted(version) is wanted
    if wanted:
        asking.accepted()
        assert catalog.options == ({"two_phase": "e"} if state == "p" else {})


def test_while_it_is_pending_the_receiver_starts_again_when_all_are_ready() -> None:
    asking, catalog = two_phase("p", READY, COPYING)
    assert not asking.wanted(180000)
    asking.check(10.0)
    assert catalog.generations == 0
    catalog.states[1] = READY
    asking.check(10.5)
    assert catalog.generations == 0, "not asked at every turn"
    for now in (11.5, 13.0, 20.0):
        asking.check(now)
        assert catalog.generations == 1
    old, catalog = two_phase("p", READY)
    assert not old.wanted(140000)
    old.check(10.0)
    assert catalog.generations == 0, "it would be asked for ever"
