"""pg_cancel_backend and pg_terminate_backend: whom they reach, and who may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.fakes.catalog_source import FakeSession, FakeSource, session

from wal2lake.catalog import Role, RoleMember
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Oid
from wal2lake.sql.sysviews import SystemCatalog

ANN, BOB, HELPER = Oid(20001), Oid(20002), Oid(20003)
PG_SIGNAL_BACKEND = Oid(4200)


@dataclass
class Sessions(FakeSource):
    """Pid 7 is the superuser's, 8 ann's, 9 bob's."""

    signals: list[tuple[int, bool]] = field(default_factory=list)

    def sessions(self) -> list[FakeSession]:
        names = {7: "postgres", 8: "ann", 9: "bob"}
        return [FakeSession(pid=pid, user=name) for pid, name in names.items()]

    def signal(self, pid: int, *, terminate: bool) -> bool:
        found = any(one.pid == pid for one in self.sessions())
        self.signals += [(pid, terminate)] if found else []
        return found


@pytest.fixture
def source() -> Sessions:
    found = Sessions()
    for oid, name in ((ANN, "ann"), (BOB, "bob"), (HELPER, "helper")):
        found.role_list.append(Role(oid, name, False, "x"))
    found.member_list.append(
        RoleMember(Oid(1), PG_SIGNAL_BACKEND, HELPER, found.role_list[0].oid)
    )
    return found


@pytest.fixture
def catalog(source: Sessions) -> Iterator[SystemCatalog]:
    catalog = SystemCatalog(source)
    yield catalog
    catalog.close()


def ask(catalog: SystemCatalog, sql: str, user: str = "postgres") -> list[object]:
    context = session()
    context.parameters.assume("role", user)
    outcome = catalog.execute(sql, (), context)
    return [value for batch in outcome.batches for value in batch.columns[0]]


def test_each_row_is_signalled_once(catalog: SystemCatalog, source: Sessions) -> None:
    sql = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> 7"
    assert ask(catalog, sql) == [b"t", b"t"]
    assert ask(catalog, "select pg_cancel_backend(7)") == [b"t"]
    assert ask(catalog, "select pg_terminate_backend(8, 1000)") == [b"t"]
    assert source.signals == [(8, True), (9, True), (7, False), (8, True)]
    # Nobody, and null.
    assert ask(catalog, "select pg_cancel_backend(99)") == [b"f"]
    assert ask(catalog, "select pg_terminate_backend(null)") == [None]
    assert len(source.signals) == 4


@pytest.mark.parametrize(
    ("user", "sql", "detail"),
    [
        (
            "ann",
            "select pg_cancel_backend(9)",
            "Only roles with privileges of the role whose query is being canceled or with"
            ' privileges of the "pg_signal_backend" role may cancel this query.',
        ),
        (
            "ann",
            "select pg_terminate_backend(9)",
            "Only roles with privileges of the role whose process is being terminated or"
            ' with privileges of the "pg_signal_backend" role may terminate this process.',
        ),
        (
            "helper",
            "select pg_terminate_backend(7)",
            "Only roles with the SUPERUSER attribute may terminate processes of roles with"
            " the SUPERUSER attribute.",
        ),
    ],
)
def test_who_may_not(
    catalog: SystemCatalog, source: Sessions, user: str, sql: str, detail: str
) -> None:
    with pytest.raises(Wal2LakeError) as refused:
        ask(catalog, sql, user)
    assert refused.value.sqlstate == "42501"
    assert refused.value.detail == detail
    assert not source.signals


def test_who_may(catalog: SystemCatalog, source: Sessions) -> None:
    assert ask(catalog, "select pg_terminate_backend(8)", "ann") == [b"t"]
    assert ask(catalog, "select pg_cancel_backend(9)", "helper") == [b"t"]
    with pytest.raises(Wal2LakeError, match='"timeout" must not be negative'):
        ask(catalog, "select pg_terminate_backend(8, -1)")
