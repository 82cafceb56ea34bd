"""Logins from other machines, and the pauses after failed ones."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.catalog import Catalog, Role
from wal2lake.login import Throttle, is_password
from wal2lake.login.throttle import (
    FORGET_SECONDS,
    FREE_FAILURES,
    LONGEST_PAUSE_SECONDS,
    MAX_ADDRESSES,
)
from wal2lake.model import Oid
from wal2lake.web.visitors import Visitors
from wal2lake.wire.scram import create_verifier

VERIFIER = str(create_verifier("secret", b"salt" * 4, iterations=1))


class Roles:
    """A catalog's roles: one superuser, one monitor, one nobody."""

    def __init__(self, path: Path) -> None:
        self.catalog = Catalog.create(path, "boss", VERIFIER)
        self.changed: dict[str, Role] = {}

    def role(self, name: str) -> Role | None:
        return self.changed.get(name) or self.catalog.role(name)

    def authority(self):
        return self.catalog.authority()


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Roles:
    roles = Roles(tmp_path_factory.mktemp("visitors") / "catalog.sqlite")
    boss = roles.catalog.role("boss")
    assert boss is not None
    return roles


def header(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ask(visitors: Visitors, text: str | None, address: str = "10.0.0.1") -> int:
    """Return the status of the refusal; 200 for none."""
    refusal = asyncio.run(visitors.refusal(text, address))
    return 200 if refusal is None else refusal.status_code


def test_a_superuser_with_the_right_password_is_let_in(roles):
    visitors = Visitors(roles)
    assert ask(visitors, header("boss:secret")) == 200
    assert ask(visitors, header("boss:wrong")) == 401
    assert ask(visitors, header("nobody:secret")) == 401


@pytest.mark.parametrize(
    "text",
    [None, "", "Basic", "Basic !!!", "Bearer abc", header("noseparator"), "Basic /w=="],
)
def test_no_or_malformed_credentials_are_asked_for(roles, text):
    refusal = asyncio.run(Visitors(roles).refusal(text, "10.0.0.1"))
    assert refusal is not None and refusal.status_code == 401
    assert refusal.headers["www-authenticate"].startswith("Basic realm=")


def test_a_wrong_password_looks_like_an_unknown_role_or_an_expired_one(roles):
    boss = roles.catalog.role("boss")
    roles.changed = {
        "old": Role(boss.oid, "old", True, VERIFIER, valid_until="-infinity"),
        "none": Role(boss.oid, "none", True, None),
    }
    visitors, answers = Visitors(roles), set()
    for text in ("boss:wrong", "ghost:secret", "old:secret", "none:secret"):
        refusal = asyncio.run(visitors.refusal(header(text), text))
        assert refusal is not None
        answers.add((refusal.status_code, bytes(refusal.body)))
    assert answers == {(401, b"Wrong name or password.\n")}


def test_attempts_at_once_are_counted_as_one_after_another_are(roles):
    visitors = Visitors(roles, Clock())

    async def storm() -> list[int]:
        refusals = await asyncio.gather(
            *(visitors.refusal(header(f"boss:{n}"), "10.0.0.1") for n in range(50))
        )
        return [200 if r is None else r.status_code for r in refusals]

    codes = asyncio.run(storm())
    assert codes.count(401) == FREE_FAILURES + 1
    assert codes.count(429) == 50 - FREE_FAILURES - 1
    assert ask(visitors, header("boss:secret"), "10.0.0.2") == 200


def test_a_role_that_may_not_log_in_or_is_no_monitor_is_denied(roles):
    boss = roles.catalog.role("boss")
    roles.changed = {
        "group": Role(boss.oid, "group", True, VERIFIER, login=False),
        "plain": Role(Oid(99999), "plain", False, VERIFIER),
    }
    assert ask(Visitors(roles), header("group:secret")) == 403
    assert ask(Visitors(roles), header("plain:secret")) == 403


def test_what_is_remembered_ends_with_the_role_s_password_or_its_validity(
    roles, monkeypatch
):
    boss = roles.catalog.role("boss")
    visitors = Visitors(roles)
    checks: list[str] = []

    def counted(role: Role | None, password: str) -> bool:
        checks.append(password)
        return is_password(role, password)

    monkeypatch.setattr("wal2lake.web.visitors.is_password", counted)
    roles.changed = {"x": Role(boss.oid, "x", True, VERIFIER)}
    assert [ask(visitors, header("x:secret")) for _ in range(3)] == [200] * 3
    assert len(checks) == 1
    past = "2020-01-01 00:00:00+00"
    roles.changed = {"x": Role(boss.oid, "x", True, VERIFIER, valid_until=past)}
    assert ask(visitors, header("x:secret")) == 401
    other = str(create_verifier("other", b"salt" * 4, iterations=1))
    roles.changed = {"x": Role(boss.oid, "x", True, other)}
    assert ask(visitors, header("x:secret")) == 401
    assert ask(visitors, header("x:other")) == 200


def test_failed_logins_make_an_address_wait_but_not_a_visitor_that_was_let_in(roles):
    roles.changed = {}
    clock = Clock()
    visitors = Visitors(roles, clock)
    assert ask(visitors, header("boss:secret")) == 200
    for _ in range(FREE_FAILURES + 1):
        assert ask(visitors, header("boss:wrong")) == 401
    refusal = asyncio.run(visitors.refusal(header("boss:wrong"), "10.0.0.1"))
    assert refusal is not None and refusal.status_code == 429
    assert refusal.headers["retry-after"] == "1"
    assert ask(visitors, header("boss:wrong"), "10.0.0.2") == 401
    # A scraper behind the same address goes on, and ends the pause.
    assert ask(visitors, header("boss:secret")) == 200
    assert ask(visitors, header("boss:wrong")) == 401


def test_pauses_double_up_to_a_minute_and_are_forgotten():
    throttle, now, waits = Throttle(), 0.0, []
    for _ in range(FREE_FAILURES + 9):
        throttle.failed("a", now)
        waits.append(throttle.wait_seconds("a", now))
        now += waits[-1]
        assert throttle.wait_seconds("a", now) == 0
    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert waits[FREE_FAILURES:] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    throttle.failed("a", now + FORGET_SECONDS)
    assert throttle.wait_seconds("a", now + FORGET_SECONDS) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 1000))))
def test_a_pause_is_bounded_and_ends_with_a_success(steps):
    throttle, now = Throttle(), 0.0
    for address, good, passed in steps:
        now += passed
        if good:
            throttle.succeeded(str(address))
        else:
            throttle.failed(str(address), now)
        wait = throttle.wait_seconds(str(address), now)
        assert 0 <= wait <= LONGEST_PAUSE_SECONDS
        assert not good or wait == 0


def test_many_addresses_do_not_fill_the_memory():
    throttle = Throttle()
    for number in range(MAX_ADDRESSES + 10):
        for _ in range(FREE_FAILURES + 1):
            throttle.failed(str(number), 0.0)
    assert throttle.wait_seconds("0", 0.0) == 0
    assert throttle.wait_seconds(str(MAX_ADDRESSES), 0.0) > 0
