"""The supervisor's plan: unit tests of each rule, and a simulated world."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.launch.plan import (
    ENGINE,
    ENGINE_PAUSES_SECONDS,
    ENGINE_STABLE_SECONDS,
    ChildRole,
    Desired,
    Kill,
    LaunchPolicy,
    Past,
    Running,
    Start,
    Stop,
    WorkerKey,
    plan,
    remember,
)
from wal2lake.model import Oid

POLICY = LaunchPolicy(
    5.0, {ChildRole.ENGINE: 20.0, ChildRole.RECEIVER: 3.0}, max_receivers=3
)
ENGINE_WANTED = Desired(ENGINE)


def key(number: int) -> WorkerKey:
    return WorkerKey(ChildRole.RECEIVER, Oid(number))


def wanted(number: int, generation: int = 0) -> Desired:
    return Desired(key(number), f"s{number}", generation)


def runs(number: int, generation: int = 0, started_at: float = 0.0) -> Running:
    return Running(key(number), generation, started_at)


def test_everything_is_started_on_an_empty_node():
    decided = plan([ENGINE_WANTED, wanted(1)], [], {}, 0.0, POLICY)
    assert decided.actions == (Start(ENGINE_WANTED), Start(wanted(1)))
    assert decided.wake_at is None


def test_nothing_happens_when_everything_runs():
    running = [Running(ENGINE, 0, 0.0), runs(1)]
    assert plan([ENGINE_WANTED, wanted(1)], running, {}, 9.0, POLICY).actions == ()


def test_a_dropped_subscription_stops_its_receiver():
    assert plan([], [runs(1)], {}, 9.0, POLICY).actions == (Stop(key(1)),)


def test_an_altered_subscription_stops_its_receiver_and_starts_it_unthrottled():
    altered = wanted(1, generation=7)
    assert plan([altered], [runs(1)], {}, 1.0, POLICY).actions == (Stop(key(1)),)
    past = {key(1): Past(0, 0.0, 1.0, 0)}
    assert plan([altered], [], past, 1.0, POLICY).actions == (Start(altered),)


def test_a_receiver_that_fails_waits_from_its_last_start():
    past = {key(1): Past(0, started_at=10.0, ended_at=11.0, failures=1)}
    waiting = plan([wanted(1)], [], past, 14.9, POLICY)
    assert (waiting.actions, waiting.wake_at) == ((), 15.0)
    assert plan([wanted(1)], [], past, 15.0, POLICY).actions == (Start(wanted(1)),)


def test_a_receiver_that_ran_for_long_comes_back_at_once():
    past = {key(1): Past(0, started_at=10.0, ended_at=90.0, failures=1)}
    assert plan([wanted(1)], [], past, 90.0, POLICY).actions == (Start(wanted(1)),)


def test_a_worker_that_ignores_its_stop_is_killed_once():
    told = replace(runs(1), stopping_since=10.0)
    patient = plan([], [told], {}, 12.9, POLICY)
    assert (patient.actions, patient.wake_at) == ((), 13.0)
    assert plan([], [told], {}, 13.0, POLICY).actions == (Kill(key(1)),)
    assert plan([], [replace(told, killed=True)], {}, 99.0, POLICY).actions == ()


def test_a_stopping_worker_is_not_started_a_second_time():
    told = replace(runs(1), stopping_since=10.0)
    assert plan([wanted(1, 3)], [told], {}, 10.5, POLICY).actions == ()


def engine_pauses(policy: LaunchPolicy) -> list[float]:
    """The pauses before the restarts of an engine that dies half a second after each start."""
    past: Past | None = None
    now, pauses = 0.0, []
    for _ in range(7):
        past = remember(Running(ENGINE, 0, now), past, now + 0.5)
        ended = now + 0.5
        decided = plan([ENGINE_WANTED], [], {ENGINE: past}, ended, policy)
        now = ended if decided.actions else decided.wake_at or -1.0
        pauses.append(now - ended)
    return pauses


def test_the_engine_comes_back_at_once_then_after_growing_pauses():
    assert engine_pauses(POLICY) == [*ENGINE_PAUSES_SECONDS, 5.0, 5.0]
    patient = replace(POLICY, retry_interval_seconds=60.0)
    assert engine_pauses(patient) == engine_pauses(POLICY)


def test_no_pause_of_the_engine_is_longer_than_the_retry_interval():
    hasty = replace(POLICY, retry_interval_seconds=1.5)
    assert engine_pauses(hasty) == [0.0, 1.0, *[1.5] * 5]


def test_an_engine_that_lived_is_not_throttled_for_its_earlier_deaths():
    before = Past(0, 0.0, 1.0, failures=4)
    after = remember(Running(ENGINE, 0, 2.0), before, 2.0 + ENGINE_STABLE_SECONDS)
    assert after.failures == 1


def test_receivers_beyond_the_limit_are_named_and_not_started():
    decided = plan(
        [ENGINE_WANTED, *(wanted(n) for n in range(1, 6))], [runs(1)], {}, 0.0, POLICY
    )
    started = [a.worker for a in decided.actions if isinstance(a, Start)]
    assert started == [ENGINE_WANTED, wanted(2), wanted(3)]
    assert decided.out_of_slots == (wanted(4), wanted(5))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(1, 4), st.integers(0, 2)),
        st.tuples(st.just("drop"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("die"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("obey"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("time"), st.integers(1, 80), st.just(0)),
    ),
    max_size=40,
)


class World:
    """Processes that obey, die, or don't; the plan is carried out to the letter."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wanted: dict[WorkerKey, Desired] = {ENGINE: ENGINE_WANTED}
        self.running: dict[WorkerKey, Running] = {}
        self.past: dict[WorkerKey, Past] = {}
        self.starts: list[tuple[WorkerKey, int, float]] = []

    def supervise(self) -> float | None:
        decided = plan(
            list(self.wanted.values()),
            list(self.running.values()),
            self.past,
            self.now,
            POLICY,
        )
        for action in decided.actions:
            if isinstance(action, Start):
                worker = action.worker
                assert worker.key not in self.running
                assert self.wanted[worker.key] == worker
                self.running[worker.key] = Running(
                    worker.key, worker.generation, self.now
                )
                self.starts.append((worker.key, worker.generation, self.now))
            elif isinstance(action, Stop):
                found = self.running[action.key]
                assert found.stopping_since is None
                self.running[action.key] = replace(found, stopping_since=self.now)
            else:
                found = self.running[action.key]
                assert found.stopping_since is not None
                limit = POLICY.stop_timeout_seconds[action.key.role]
                assert self.now >= found.stopping_since + limit
                assert not found.killed
                self.running[action.key] = replace(found, killed=True)
        again = plan(
            list(self.wanted.values()),
            list(self.running.values()),
            self.past,
            self.now,
            POLICY,
        )
        assert again.actions == (), "carrying a plan out must leave nothing to do"
        assert again.wake_at is None or again.wake_at > self.now
        receivers = [k for k in self.running if k.role is ChildRole.RECEIVER]
        assert len(receivers) <= POLICY.max_receivers
        return again.wake_at

    def end(self, which: WorkerKey) -> None:
        if which in self.running:
            gone = self.running.pop(which)
            self.past[which] = remember(gone, self.past.get(which), self.now)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_in_any_world_the_plan_is_safe_and_converges(steps):
    world = World()
    for verb, number, generation in steps:
        which = key(number) if number else ENGINE
        if verb == "want":
            world.wanted[which] = wanted(number, generation)
        elif verb == "drop":
            world.wanted.pop(which, None)
        elif verb == "die":
            world.end(which)
        elif verb == "obey":
            if which in world.running and world.running[which].stopping_since:
                world.end(which)
        else:
            world.now += number / 10
        world.supervise()
    # Left alone, with children that obey their stop, it arrives where it should.
    for _ in range(40):
        wake_at = world.supervise()
        stopping = [k for k, r in world.running.items() if r.stopping_since is not None]
        for which in stopping:
            world.end(which)
        if not stopping:
            if wake_at is None:
                break
            world.now = wake_at
    assert all(
        world.wanted[k].generation == r.generation for k, r in world.running.items()
    )
    missing = set(world.wanted) - set(world.running)
    assert ENGINE in world.running
    assert len(world.running) - 1 == min(len(world.wanted) - 1, POLICY.max_receivers)
    assert all(k.role is ChildRole.RECEIVER for k in missing)
    # Throttling: two starts of one receiver and generation are never too close.
    last: dict[WorkerKey, tuple[int, float]] = {}
    for which, generation, at in world.starts:
        before = last.get(which)
        if before is not None and before[0] == generation and which != ENGINE:
            assert at - before[1] >= POLICY.retry_interval_seconds - 1e-9
        last[which] = (generation, at)
