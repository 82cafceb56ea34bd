"""What a role's attributes say about who is let in, in PostgreSQL's words."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.fakes.door import PASSWORD, ROLES, FakeDoor, open_door

from wal2lake.catalog import Role
from wal2lake.door import AuthMethod
from wal2lake.login.throttle import FREE_FAILURES
from wal2lake.model import Oid
from wal2lake.testing.waits import wait_until

ALICE = replace(ROLES["alice"], oid=Oid(20001), superuser=False)


def fatal(door: FakeDoor, **changes: object) -> str:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(**door.conninfo(**changes))
    return str(caught.value).rpartition("FATAL:  ")[2]


def login(door: FakeDoor, **changes: object) -> psycopg.Connection[Any]:
    return psycopg.connect(**door.conninfo(**changes))


def door_of(role: Role, method: AuthMethod = AuthMethod.SCRAM):
    return open_door(method=method, roles={"alice": role}.get)


@pytest.mark.parametrize("until", ["2020-01-01T00:00:00+00:00", "-infinity"])
def test_an_expired_password_looks_like_a_wrong_one(until: str) -> None:
    with door_of(replace(ALICE, valid_until=until)) as door:
        right, wrong = fatal(door), fatal(door, password="no")
    assert right == wrong == 'password authentication failed for user "alice"'


@pytest.mark.parametrize("until", ["2199-01-01 00:00:00+00:00", "infinity", None])
def test_a_password_holds_until_then(until: str | None) -> None:
    with door_of(replace(ALICE, valid_until=until)) as door, login(door) as client:
        assert client.info.user == "alice"
        assert client.pgconn.used_password


def test_only_the_password_expires_not_the_role() -> None:
    expired = replace(ALICE, valid_until="-infinity")
    with (
        door_of(expired, AuthMethod.TRUST) as door,
        login(door, password=None) as client,
    ):
        assert client.info.user == "alice"
        assert not client.pgconn.used_password


def test_who_may_not_log_in_is_told_so_after_the_right_password() -> None:
    with door_of(replace(ALICE, login=False)) as door:
        assert fatal(door) == 'role "alice" is not permitted to log in'
        assert "password authentication failed" in fatal(door, password="no")


def test_a_role_has_no_more_sessions_than_it_may() -> None:
    with door_of(replace(ALICE, connlimit=2)) as door:
        held = [psycopg.connect(**door.conninfo()) for _ in range(2)]
        assert fatal(door) == 'too many connections for role "alice"'
        held.pop().close()
        again = []

        def comes_in() -> bool:
            try:
                again.append(psycopg.connect(**door.conninfo()))
            except psycopg.OperationalError:
                return False
            return True

        wait_until(comes_in, describe="the place of the one that left is free")
        for connection in held + again:
            connection.close()
    with door_of(replace(ALICE, connlimit=0)) as door:
        assert fatal(door) == 'too many connections for role "alice"'
    with door_of(replace(ALICE, connlimit=0, superuser=True)) as door:
        psycopg.connect(**door.conninfo()).close()


def test_without_connect_on_the_database_nobody_comes_in() -> None:
    with open_door(roles={"alice": ALICE}.get, may_connect=lambda role: False) as door:
        assert fatal(door, password=PASSWORD).splitlines() == [
            'permission denied for database "lake"',
            "DETAIL:  User does not have CONNECT privilege.",
        ]


def test_replication_is_for_roles_that_have_the_attribute() -> None:
    with door_of(ALICE) as door:
        text = fatal(door, replication="database")
        assert text.startswith("permission denied to start WAL sender")
    with door_of(replace(ALICE, replication=True)) as door:
        text = fatal(door, replication="database")
        assert text == "replication connections are not supported"


def test_wrong_passwords_are_answered_later_and_later_but_right_ones_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wal2lake.login.throttle.FIRST_PAUSE_SECONDS", 0.3)
    times = []
    with door_of(ALICE) as door:
        for _ in range(FREE_FAILURES + 2):
            began = time.monotonic()
            fatal(door, password="no")
            times.append(time.monotonic() - began)
        began = time.monotonic()
        with login(door) as client:
            assert client.pgconn.used_password
        right = time.monotonic() - began
    assert times[-2] >= 0.3 and times[-1] >= 0.6
    assert right < times[-1] and min(times) < 0.3
