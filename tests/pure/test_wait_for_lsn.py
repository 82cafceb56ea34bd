"""WAIT FOR LSN: its grammar, what it waits for, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.altering import never_alter
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.apply.step.visiblepositions import VisiblePositions
from wal2lake.catalog import Role
from wal2lake.commands.maintenance.waiting import visible_lsn, wait_for_lsn
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.local.concurrency.blocks import OpenBlock
from wal2lake.local.node import Caller
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.maintenance import WaitForLsn, WaitMode
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

S, T = Oid(1), Oid(101)


# ---- grammar ---------------------------------------------------------------------------


def test_the_statement_of_postgresql_19_is_parsed() -> None:
    assert parse("WAIT FOR LSN '0/1A'") == WaitForLsn(Lsn(26))
    assert parse(
        "wait for lsn '1/0' with (mode 'Standby_Flush', TIMEOUT '1min', no_throw);"
    ) == WaitForLsn(Lsn(1 << 32), WaitMode.FLUSH, "1min", 47, False)
    assert parse(
        "wait for lsn '0/1' with (timeout 100, no_throw false, subscription 'S b')"
    ) == WaitForLsn(Lsn(1), timeout="100", timeout_at=25, subscription="S b")


@pytest.mark.parametrize(
    ("text", "sqlstate", "message", "position"),
    [
        ("wait", "42601", "syntax error at end of input", 5),
        ("wait for", "42601", "syntax error at end of input", 9),
        ("wait for lsn 5", "42601", 'syntax error at or near "5"', 14),
        ("wait for lsn '0/1' timeout 5", "42601", 'at or near "timeout"', 20),
        ("wait for lsn '0/1' with ()", "42601", 'at or near ")"', 26),
        ("wait for lsn 'x'", "22P02", 'for type pg_lsn: "x"', 0),
        (
            "wait for lsn '0/1' with (often)",
            "42601",
            'option "often" not recognized',
            26,
        ),
        (
            "wait for lsn '0/1' with (no_throw, no_throw)",
            "42601",
            "conflicting or redundant options",
            36,
        ),
        (
            "wait for lsn '0/1' with (mode 'flush')",
            "22023",
            'unrecognized value for WAIT option "mode": "flush"',
            26,
        ),
        (
            "wait for lsn '0/1' with (timeout)",
            "42601",
            "timeout requires a parameter",
            0,
        ),
        (
            "wait for lsn '0/1' with (no_throw 'x')",
            "42601",
            "no_throw requires a Boolean value",
            0,
        ),
    ],
)
def test_errors_of_the_grammar_are_postgresqls(
    text: str, sqlstate: str, message: str, position: int
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        parse(text)
    assert caught.value.sqlstate == sqlstate
    assert message in caught.value.message
    assert caught.value.position == position


# ---- the wait --------------------------------------------------------------------------


@dataclass
class Scene:
    """A node with one subscription, whose worker is played by the test."""

    world: World
    positions: VisiblePositions = field(default_factory=VisiblePositions)
    notices: list[Notice] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def node(self) -> Any:
        return SimpleNamespace(
            catalog=self.world.catalog,
            settings=self.world.settings,
            apply=SimpleNamespace(positions=self.positions),
        )

    def check(self) -> None:
        if self.cancelled.is_set():
            raise UsageError("canceling statement", sqlstate="57014")

    def caller(self, **more: Any) -> Caller:
        role = Role(Oid(10), "me", True, None)
        return Caller(role, self.notices.append, check=self.check, **more)

    def wait(self, options: str = "", lsn: str = "0/64", **more: Any) -> str:
        """The status of a statement."""
        statement = parse(f"wait for lsn '{lsn}' {options and f'with ({options})'}")
        outcome = wait_for_lsn(
            self.node, self.caller(**more), cast(WaitForLsn, statement)
        )
        assert outcome.tag == "WAIT"
        assert [f.name for f in outcome.fields or ()] == ["status"]
        (batch,) = outcome.batches
        ((value,),) = batch.columns
        assert value is not None
        return value.decode()

    def begin(self, options: str = "") -> Waiting:
        waiting = Waiting(self, options)
        waiting.thread.start()
        return waiting

    def publish(self, lsn: int) -> None:
        """As the worker does: the state, then the word."""
        self.world.catalog.publish(S, Lsn(lsn), {int(T): 0}, participants=[int(T)])
        self.positions.announce()


class Waiting:
    """A session that waits."""

    def __init__(self, scene: Scene, options: str) -> None:
        self.result: str | Wal2LakeError | None = None

        def run() -> None:
            try:
                self.result = scene.wait(options)
            except Wal2LakeError as error:
                self.result = error

        self.thread = threading.Thread(target=run, daemon=True)

    def waits(self) -> bool:
        """Whether it still waits, some moments later."""
        self.thread.join(0.15)
        return self.thread.is_alive()

    def ends(self) -> str | Wal2LakeError | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.result

    def fails(self) -> Wal2LakeError:
        result = self.ends()
        assert isinstance(result, Wal2LakeError), result
        return result


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with World(tmp_path) as world:
        yield Scene(world)


def test_a_position_that_readers_see_is_no_wait(scene: Scene) -> None:
    scene.publish(100)
    assert scene.wait() == "success"
    assert scene.wait("subscription 's1', timeout 0") == "success"
    assert scene.wait(lsn="0/65", options="timeout '10ms', no_throw") == "timeout"


def test_a_publication_wakes_the_wait(scene: Scene) -> None:
    waiting = scene.begin()
    assert waiting.waits()
    scene.publish(99)
    assert waiting.waits()
    scene.publish(100)
    assert waiting.ends() == "success"


def test_an_idle_worker_that_has_passed_the_position_ends_the_wait(
    scene: Scene,
) -> None:
    """The source has written something that concerns no table: no state is published."""
    waiting = scene.begin()
    scene.positions.set_reached(S, 7, Lsn(500))
    assert waiting.waits(), "of another generation: positions of another source"
    subscription = scene.world.catalog.subscription(S)
    assert subscription is not None
    scene.positions.set_reached(S, subscription.generation, Lsn(100))
    assert waiting.ends() == "success"
    assert visible_lsn(scene.node, scene.caller()) == Lsn(100)
    assert visible_lsn(scene.node, scene.caller(), "s1") == Lsn(100)


def test_every_table_is_waited_for(scene: Scene) -> None:
    catalog = scene.world.catalog
    catalog.update_rel(S, T, state=SyncState.DATASYNC)
    scene.publish(100)
    waiting = scene.begin()
    assert waiting.waits()
    with pytest.raises(UsageError) as caught:
        scene.wait("timeout '10ms'")
    assert caught.value.detail == 'Table "public.t1" is being copied.'
    catalog.update_rel(S, T, state=SyncState.READY)
    scene.positions.announce()
    assert waiting.ends() == "success"
    catalog.update_rel(S, T, paused_at="2026-01-01T00:00:00")
    with pytest.raises(UsageError) as caught:
        scene.wait("timeout '10ms'")
    assert caught.value.detail == 'Table "public.t1" is paused.'
    (notice,) = scene.notices
    assert notice.message == 'table "public.t1" of subscription "s1" is paused'
    assert notice.hint == (
        "The wait goes on until SELECT wal2lake.resume_table('public.t1')."
    )


def test_a_time_out_has_postgresqls_words(scene: Scene) -> None:
    scene.publish(10)
    with pytest.raises(UsageError) as caught:
        scene.wait("timeout 20")
    error = caught.value
    assert error.sqlstate == "57014"
    assert error.message == (
        "timed out while waiting for target LSN 0/64 to be replayed;"
        " current standby_replay LSN 0/A"
    )
    assert error.detail is None
    assert error.hint == (
        "SELECT * FROM wal2lake.problems says what holds a subscription up."
    )


def test_a_cancel_ends_the_wait(scene: Scene) -> None:
    waiting = scene.begin("timeout '1h', no_throw")
    assert waiting.waits()
    scene.cancelled.set()
    assert waiting.fails().sqlstate == "57014"


def test_a_disabled_subscription_ends_the_wait(scene: Scene) -> None:
    waiting, quiet = scene.begin(), scene.begin("no_throw")
    assert waiting.waits()
    scene.world.catalog.update_subscription(S, enabled=False)
    scene.positions.announce()
    error = waiting.fails()
    assert (error.sqlstate, error.message) == (
        "55000",
        'subscription "s1" is disabled',
    )
    assert error.detail == (
        "It ended before target LSN 0/64 was replayed; last standby_replay LSN 0/0."
    )
    assert quiet.ends() == "not in recovery"
    scene.publish(100)
    assert scene.wait() == "success", "what readers see is no wait"


def test_a_dropped_subscription_ends_the_wait(scene: Scene) -> None:
    waiting = scene.begin()
    assert waiting.waits()
    scene.world.catalog.drop_subscription(S)
    scene.positions.announce()
    assert waiting.fails().message == 'subscription "s1" was dropped'
    with pytest.raises(UsageError, match="there is no subscription to wait for"):
        scene.wait()
    with pytest.raises(Wal2LakeError, match='subscription "s1" does not exist'):
        scene.wait("subscription 's1'")


@pytest.mark.parametrize("mode", ["standby_replay", "standby_flush"])
@pytest.mark.parametrize(
    ("change", "message"),
    [("disable", 'subscription "s1" is disabled'), ("drop", "was dropped")],
)
def test_a_wait_ends_with_its_subscription_without_a_word_of_the_launcher(
    scene: Scene, mode: str, change: str, message: str
) -> None:
    """The launcher may be unable to follow the catalog, or busy."""
    waiting = scene.begin(f"mode '{mode}'")
    assert waiting.waits()
    if change == "drop":
        scene.world.catalog.drop_subscription(S)
    else:
        scene.world.catalog.update_subscription(S, enabled=False)
    error = waiting.fails()
    assert error.sqlstate == "55000"
    assert message in error.message


def test_a_source_must_be_named_if_there_are_several(scene: Scene) -> None:
    scene.publish(100)
    scene.world.subscribe(2, [9])
    with pytest.raises(UsageError) as caught:
        scene.wait()
    assert caught.value.sqlstate == "55000"
    assert caught.value.hint == (
        "WAIT FOR LSN '...' WITH (subscription 'name') waits for one of them."
    )
    assert scene.wait("subscription s1") == "success"
    # Two subscriptions of one source: all of their tables are waited for.
    for subid in (1, 2):
        scene.world.catalog.update_subscription(Oid(subid), system_identifier="7")
    assert scene.wait("timeout '10ms', no_throw") == "timeout"
    scene.world.catalog.publish(Oid(2), Lsn(100), {109: 0}, participants=[109])
    assert scene.wait() == "success"


def test_positions_of_the_receiver_can_be_waited_for(scene: Scene) -> None:
    waiting = scene.begin("mode 'standby_write'")
    durable = scene.begin("mode 'standby_flush'")
    assert waiting.waits()
    scene.world.side.progress.set(received=100)
    assert waiting.ends() == "success"
    assert durable.waits()
    scene.world.side.progress.set(logged=100)
    assert durable.ends() == "success"
    with pytest.raises(UsageError) as caught:
        scene.wait("mode 'primary_flush'")
    assert (caught.value.sqlstate, caught.value.message) == (
        "55000",
        "recovery is in progress",
    )
    assert caught.value.hint == (
        "Waiting for primary_flush can only be done on a primary server. Use"
        " standby_flush mode on a standby server."
    )


def test_a_transaction_with_a_snapshot_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageError) as caught:
        scene.wait(holds_snapshot=lambda: True)
    assert (caught.value.sqlstate, caught.value.message) == (
        "55000",
        "WAIT cannot be executed while the current transaction holds a snapshot",
    )
    with pytest.raises(UsageError) as caught:
        scene.wait(block=cast(OpenBlock, object()))
    assert caught.value.message == "cannot wait for a standby LSN while holding locks"
    assert caught.value.hint == (
        "Commit first, or execute WAIT FOR before these statements."
    )


@pytest.mark.parametrize(
    ("option", "message", "hint"),
    [
        ("timeout -1", "timeout cannot be negative", None),
        ("timeout 'soon'", 'invalid timeout value: "soon"', None),
        ("timeout '5 weeks'", 'invalid timeout value: "5 weeks"', "Valid units"),
        ("timeout '30d'", 'invalid timeout value: "30d"', "exceeds integer range"),
    ],
)
def test_a_wrong_time_out_is_refused(
    scene: Scene, option: str, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        scene.wait(option)
    assert (caught.value.sqlstate, caught.value.message) == ("22023", message)
    assert caught.value.position == 27
    assert (
        (caught.value.hint or "") == ""
        if hint is None
        else hint in str(caught.value.hint)
    )


# ---- with the worker -------------------------------------------------------------------


def test_the_worker_says_what_it_has_reached(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        launcher = ApplyLauncher(
            world.catalog,
            world.settings,
            world.lake,  # type: ignore[arg-type]
            world.lake,
            lambda subid: world.side.lock,
            never_alter,
        )
        launcher.start()
        try:
            scene = Scene(world, launcher.positions)
            waiting = scene.begin()
            assert waiting.waits()
            world.side.send(Transaction(96, (Change(1, "I", (b"1", b"v")),)))
            assert waiting.ends() == "success"
            assert world.side.visible(1)
            # Only the sealed position moves on, as with the source's keepalives.
            assert scene.wait(lsn="0/190", options="timeout 50, no_throw") == "timeout"
            world.side.progress.set(sealed=400)
            assert scene.wait(lsn="0/190") == "success"
            world.catalog.update_subscription(S, enabled=False)
            with pytest.raises(UsageError, match='subscription "s1" is disabled'):
                scene.wait(lsn="0/191")
            assert launcher.halt(S, 30)
            world.catalog.update_subscription(S, enabled=True)
            wait_until(lambda: visible_lsn(scene.node, scene.caller()) == Lsn(400))
        finally:
            launcher.stop(30)
