"""``mixed``: an application's day in a minute, beside two readers.

Seventeen tables: small keyed ones, values that are TOASTed and not always sent, keys that change,
rows without a key, TRUNCATE, savepoints that are rolled back, 100,000 rows in one transaction now
and then with a part of them rolled back, prepared transactions, ALTER TABLE that is followed. First
120 and 200 such transactions a second for as long as ``--seconds`` says, while two sessions read
from the subscriber: how many seconds is it behind? Then the subscription is disabled while 200 a
second are written, and enabled: how long until it has them all? The native subscriber goes the
same way; ALTER TABLE is made there by the writer, since PostgreSQL does not follow.

Comes in: a stage. Goes out: seconds behind, seconds to catch up.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.positions import Positions, behind, looking, reached, written
from benchmarks.report import Target, percentile
from benchmarks.stage import (
    Comparison,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from benchmarks.workload import marked
from wal2lake.pg.client import Client, Failure

_PUBLICATION: Final = "bench_mixed"
_SCHEMA: Final = "mixed"
_KEYED: Final = tuple(f"keyed{i}" for i in range(8))
_TOASTED: Final = ("toasted0", "toasted1")
_KEYLESS: Final = ("keyless0", "keyless1")
_TRUNCATED: Final = ("truncated0", "truncated1")
_MOVING: Final = "moving"
_ALTERED: Final = "altered"
_BULK: Final = "bulk"
_ALL: Final = (
    *_KEYED,
    *_TOASTED,
    *_KEYLESS,
    *_TRUNCATED,
    _MOVING,
    _ALTERED,
    _BULK,
)
_COLUMNS: Final = "n int not null, amount numeric(12,2), note text"
_KEYS: Final = 2_000
"""Rows of a keyed table, more or less."""

_RATES: Final = (120, 200)
_WRITERS: Final = 4
_LOOK_SECONDS: Final = 0.05
_READ_SECONDS: Final = 0.2
"""A reader's pause between two queries."""

_BULK_SECONDS: Final = 20.0
_BULK_ROWS: Final = 100_000

_BEHIND: Final = Target(at_most=2.0)
_CATCH_UP: Final = Target(ratio_at_most=1.5)


@dataclass(frozen=True, slots=True)
class _Followed:
    """One stretch at one rate."""

    per_second: float
    """What the source did commit."""
    behind: list[float]
    """Seconds, at each advance."""
    drained: float
    """Seconds from the end until everything was there."""
    cpu_cores: float
    queries: list[float]
    """Seconds that each query of a reader took."""


@dataclass(frozen=True, slots=True)
class _Measured:
    followed: dict[int, _Followed]
    caught_up: float
    """Seconds for the backlog."""


def run(stage: Stage) -> None:
    """Measure both and add the results."""
    with stage.at_source() as source:
        _create(source)
        source.rows(f"create publication {_PUBLICATION} for tables in schema {_SCHEMA}")
    with stage.at_native() as native:
        _create(native)
    measured = {peer.name: _measure(stage, peer) for peer in stage.peers()}
    comparison = Comparison(stage, "mixed", measured)
    for rate in _RATES:
        comparison.add(
            f"{rate}/s: committed each second",
            "1/s",
            lambda m, r=rate: m.followed[r].per_second,  # type: ignore[misc]
        )
        for percent in (50, 99, 100):
            comparison.add(
                f"{rate}/s: behind, {'most' if percent == 100 else f'p{percent}'}",
                "s",
                lambda m, r=rate, p=percent: percentile(m.followed[r].behind, p),  # type: ignore[misc]
                _BEHIND if percent == 100 else None,
            )
        comparison.add(
            f"{rate}/s: CPU of the subscriber",
            "cores",
            lambda m, r=rate: m.followed[r].cpu_cores,  # type: ignore[misc]
        )
        comparison.add(
            f"{rate}/s: a reader's query, p50",
            "s",
            lambda m, r=rate: percentile(m.followed[r].queries, 50),  # type: ignore[misc]
        )
    comparison.add("backlog: time to catch up", "s", lambda m: m.caught_up, _CATCH_UP)
    with stage.at_source() as source:
        source.rows(f"drop publication {_PUBLICATION}")
        source.rows(f"drop schema {_SCHEMA} cascade")


def _create(client: Client) -> None:
    client.rows(f"create schema {_SCHEMA}")
    for name in _ALL:
        key = "id bigint" if name in _KEYLESS else "id bigint primary key"
        client.rows(f"create table {_SCHEMA}.{name} ({key}, {_COLUMNS})")
        if name in _TOASTED:
            client.rows(f"alter table {_SCHEMA}.{name} alter note set storage external")
        if name in _KEYLESS:
            client.rows(f"alter table {_SCHEMA}.{name} replica identity full")


def _fill(client: Client) -> None:
    for name in _ALL:
        rows = 200 if name in _KEYLESS else _KEYS
        note = "repeat(md5(i::text), 300)" if name in _TOASTED else "md5(i::text)"
        client.rows(
            f"insert into {_SCHEMA}.{name} select i, i % 97, i / 7.0, {note}"
            f" from generate_series(1, {rows}) i"
        )


def _measure(stage: Stage, peer: Peer) -> _Measured:
    name = f"{_PUBLICATION}_{peer.name}"
    with stage.at_source() as source:
        source.rows("truncate " + ", ".join(f"{_SCHEMA}.{t}" for t in _ALL))
        _fill(source)
    with peer.connected() as client, stage.quick_slots():
        follow = "with (schema_changes = follow)" if peer.name == "node" else ""
        stage.subscribe(client, name, _PUBLICATION, follow)
        wait_ready(client, name)
    followed = {rate: _follow(stage, peer, name, rate) for rate in _RATES}
    caught_up = _catch_up(stage, peer, name)
    assert_same(stage, peer, [_check(table) for table in _ALL])
    with peer.connected() as client:
        drop_subscription(client, name)
        client.rows(f"drop table {', '.join(f'{_SCHEMA}.{t}' for t in _ALL)}")
    return _Measured(followed, caught_up)


def _check(table: str) -> str:
    return (
        f"select count(*), sum(id), sum(n), sum(amount), min(note), max(note),"
        f" sum(length(note)) from {_SCHEMA}.{table}"
    )


def _follow(stage: Stage, peer: Peer, name: str, rate: int) -> _Followed:
    seconds = stage.options.seconds
    stage.say(f"mixed: {peer.name}, {rate}/s for {seconds} s")
    with (
        looking(stage.at_source, written, pause_seconds=_LOOK_SECONDS) as gone,
        looking(
            peer.connected, lambda c: reached(c, name), pause_seconds=_LOOK_SECONDS
        ) as seen,
        Usage({peer.name: peer.pid}, interval_seconds=1.0) as usage,
    ):
        started = time.perf_counter()
        with _reading(peer) as queries:
            count = _write(stage, peer, rate, seconds)
            ended = time.perf_counter()
        usage.sample()
        cores = usage.cpu_seconds(peer.name) / (ended - started)
        roles = {p.role for p in usage.processes}
        spent = ", ".join(
            f"{role} {usage.cpu_seconds(peer.name, role) / (ended - started):.2f}"
            for role in sorted(roles)
        )
        drained = _drained(stage, seen, ended)
    late = list(behind(gone, seen, started, ended))
    stage.say(
        f"mixed: {peer.name}, {count / (ended - started):,.0f}/s, behind p50"
        f" {percentile(late, 50) or 0:.2f} s, most {max(late, default=0.0):.2f} s, drained in"
        f" {drained:.1f} s, {cores:.2f} cores ({spent}), query p50"
        f" {percentile(queries, 50) or 0:.2f} s of {len(queries)}"
    )
    return _Followed(count / (ended - started), late, drained, cores, queries)


def _catch_up(stage: Stage, peer: Peer, name: str) -> float:
    seconds = stage.options.seconds
    stage.say(f"mixed: {peer.name}, a backlog of {seconds} s")
    with peer.connected() as client:
        client.rows(f"alter subscription {name} disable")
        _write(stage, peer, _RATES[-1], seconds)
        with looking(
            peer.connected, lambda c: reached(c, name), pause_seconds=_LOOK_SECONDS
        ) as seen:
            with stage.at_source() as source:
                mark = marked(source, f"update {_SCHEMA}.{_MOVING} set n = n")
            began = time.perf_counter()
            client.rows(f"alter subscription {name} enable")
            wait_exactly(lambda: seen.beyond(int(mark)), f"{name} has everything")
    took = time.perf_counter() - began
    stage.say(f"mixed: {peer.name}, caught up in {took:.1f} s")
    return took


def _drained(stage: Stage, seen: Positions, ended: float) -> float:
    with stage.at_source() as source:
        mark = marked(source, f"update {_SCHEMA}.{_MOVING} set n = n")
    wait_exactly(lambda: seen.beyond(int(mark)), "the subscription has everything")
    return time.perf_counter() - ended


@contextmanager
def _reading(peer: Peer) -> Iterator[list[float]]:
    """Two sessions that ask for what a dashboard would, and what each answer took."""
    stop = threading.Event()
    took: list[float] = []

    def run(number: int) -> None:
        tables = itertools.cycle(_ALL[number::2])
        with peer.connected() as client:
            while not stop.wait(_READ_SECONDS):
                began = time.perf_counter()
                client.rows(
                    f"select count(*), sum(n) from {_SCHEMA}.{next(tables)} where n > 10"
                )
                took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# ---- the writers ------------------------------------------------------------------------


def _write(stage: Stage, peer: Peer, rate: int, seconds: int) -> int:
    """Transactions committed by several sessions, evenly in time."""
    started = time.perf_counter()
    counts = [0] * _WRITERS
    errors: list[BaseException] = []

    def run(number: int) -> None:
        writer = _Writer(number, random.Random(number))
        interval = _WRITERS / rate
        with ExitStack() as stack:
            source = stack.enter_context(stage.at_source())
            native = (
                stack.enter_context(stage.at_native())
                if peer.name == "native"
                else None
            )
            while (due := counts[number] * interval) < seconds:
                pause = started + due - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                elif pause < -seconds:
                    break
                for sql in writer.transaction(native):
                    _done(source, sql)
                counts[number] += 1

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts)


def _done(client: Client, sql: str) -> None:
    for outcome in client.run(sql):
        if isinstance(outcome, Failure):
            raise RuntimeError(f"{sql[:200]}: {outcome.message}")


class _Writer:
    """One session's transactions, the same for both peers.

    Sessions take keys of their own (modulo ``_WRITERS``), so none waits for another. The first one
    writes what is rare: TRUNCATE, ALTER TABLE, the large transaction.
    """

    def __init__(self, number: int, chance: random.Random) -> None:
        self._number = number
        self._chance = chance
        self._bulk_at = time.perf_counter() + _BULK_SECONDS / 2
        self._new = itertools.count(
            time.time_ns() // 1_000_000 * 1_000 + number, _WRITERS
        )

    def transaction(self, native: Client | None) -> list[str]:
        """Its statements, each string one round trip."""
        roll = self._chance.random()
        if self._number == 0:
            if time.perf_counter() > self._bulk_at:
                self._bulk_at += _BULK_SECONDS
                return [self._bulk()]
            if roll < 0.01:
                return [f"truncate {_SCHEMA}.{self._chance.choice(_TRUNCATED)}"]
            if roll < 0.014:
                return self._altered(native)
        if roll < 0.03:
            name = f"mixed_{next(self._new)}"
            return [
                f"begin; {self._some()}; prepare transaction '{name}'",
                f"commit prepared '{name}'",
            ]
        if roll < 0.10:
            return [
                f"begin; {self._some()}; savepoint s; {self._some()};"
                " rollback to s; release s; " + self._some() + "; commit"
            ]
        count = self._chance.choice((1, 1, 2, 3, 5))
        return ["begin; " + "; ".join(self._some() for _ in range(count)) + "; commit"]

    def _some(self) -> str:
        """A statement about rows of this session."""
        kind = self._chance.random()
        if kind < 0.45:
            return self._keyed(self._chance.choice(_KEYED))
        if kind < 0.60:
            table, key = self._chance.choice(_TOASTED), self._key()
            if self._chance.random() < 0.3:
                seed = self._chance.random()
                return (
                    f"update {_SCHEMA}.{table} set note = repeat(md5('{seed}'), 300)"
                    f" where id = {key}"
                )
            return f"update {_SCHEMA}.{table} set n = n + 1 where id = {key}"
        if kind < 0.72:
            return self._without_key(self._chance.choice(_KEYLESS))
        if kind < 0.84:
            return self._keyed(self._chance.choice(_TRUNCATED))
        if kind < 0.92:
            return (
                f"update {_SCHEMA}.{_MOVING} set id = {next(self._new)}"
                f" where id = {self._key()};"
                f" insert into {_SCHEMA}.{_MOVING} values ({next(self._new)}, 1, 2, 'x')"
            )
        return self._keyed(_ALTERED)

    def _key(self) -> int:
        return self._chance.randrange(_KEYS // _WRITERS) * _WRITERS + self._number

    def _keyed(self, table: str) -> str:
        kind = self._chance.random()
        if kind < 0.35:
            amount = self._chance.randrange(10_000)
            return (
                f"insert into {_SCHEMA}.{table} (id, n, amount, note)"
                f" values ({next(self._new)}, {amount % 97}, {amount}.25, md5('{amount}'))"
            )
        if kind < 0.9:
            return (
                f"update {_SCHEMA}.{table} set n = n + 1, amount = amount + 0.5"
                f" where id = {self._key()}"
            )
        return f"delete from {_SCHEMA}.{table} where id = {self._key()}"

    def _without_key(self, table: str) -> str:
        value = self._chance.randrange(50) * _WRITERS + self._number
        kind = self._chance.random()
        if kind < 0.4:
            return f"insert into {_SCHEMA}.{table} values ({value}, 1, 2.5, 'keyless')"
        if kind < 0.8:
            return f"update {_SCHEMA}.{table} set n = n + 1 where id = {value}"
        return f"delete from {_SCHEMA}.{table} where id = {value}"

    def _altered(self, native: Client | None) -> list[str]:
        name = f"more{next(self._new)}"
        if native is not None:
            # PostgreSQL does not follow: what comes is there before it is sent.
            _done(native, f"alter table {_SCHEMA}.{_ALTERED} add {name} int default 7")
        return [f"alter table {_SCHEMA}.{_ALTERED} add {name} int default 7"]

    def _bulk(self) -> str:
        first = next(self._new)
        table = f"{_SCHEMA}.{_BULK}"
        rows = "select {0} + i, i % 97, i / 7.0, md5(i::text) from generate_series(1, {1}) i"
        part = _BULK_ROWS // 4
        return (
            f"begin; delete from {table} where id > {_KEYS};"
            f" insert into {table} "
            + rows.format(first, _BULK_ROWS - part)
            + f"; savepoint s; insert into {table} "
            + rows.format(first + _BULK_ROWS, part)
            + "; rollback to s; commit"
        )
