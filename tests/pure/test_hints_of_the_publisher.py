"""Hints about slots, standbys, the log and definitions, done word by word: what was refused is then
taken, and goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.backends import FakeQueries, new_backend, new_catalog, run

from wal2lake.catalog import Altered, Catalog, ColumnDef, ReplicationSlot, TableDef
from wal2lake.changelog import ChangeLog
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn, Oid
from wal2lake.publish.slots import SlotManager, check_name
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import parse_standbys
from wal2lake.sql.backend import TransactionKind
from wal2lake.wire.replication.slotoptions import validate_slot_name

pytestmark = pytest.mark.usefixtures("no_fsync")


def hint_of(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(Wal2LakeError) as caught:
        call(*arguments)
    assert caught.value.hint is not None, caught.value
    assert "constraint failed" not in caught.value.describe(), "SQLite's words"
    return caught.value.hint


@pytest.mark.parametrize("check", [check_name, validate_slot_name])
def test_names_of_slots(check: Callable[[str], None]) -> None:
    for name in ("A", "a-b", "a b", "ä", "a.b", "a\n"):
        assert hint_of(check, name) == (
            "Replication slot names may only contain lower case letters, numbers, and the"
            " underscore character."
        )
    for name in ("a", "0", "_", "a_0", "x" * 63):
        check(name)


def test_a_slot_is_copied_once_it_has_been_made(tmp_path: Path) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "boss", None)
    unused: Any = None
    most = [2]
    slots = SlotManager(catalog, unused, lambda: most[0], lambda: None, Statistics())
    catalog.create_slot(ReplicationSlot("a", "pgoutput", Lsn(0), Lsn(0)))

    def copy(name: str) -> ReplicationSlot:
        return slots.copy("a", name, session=1)

    assert hint_of(copy, "b") == (
        "Retry when the source replication slot's confirmed_flush_lsn is valid."
    )
    catalog.confirm_slot("a", Lsn(800))
    assert copy("b").confirmed_lsn == Lsn(800)
    free = 'Free one or increase "max_replication_slots".'
    assert hint_of(copy, "c") == free
    catalog.drop_slot("b")
    copy("c")
    assert hint_of(copy, "d") == free
    most[0] += 1
    copy("d")


def test_lists_of_standbys() -> None:
    hint = hint_of(parse_standbys, "FIRST (a")
    assert hint == (
        'It is a list of application names, or like: FIRST 2 (a, b), ANY 1 ("c d", e).'
    )
    for text in ("a, b", *re.findall(r"(?:FIRST|ANY) \d \(.*?\)", hint)):
        assert parse_standbys(text) is not None


def test_a_log_that_its_receiver_has_let_go(tmp_path: Path) -> None:
    log = ChangeLog.open(tmp_path / "log")
    assert hint_of(ChangeLog.open, tmp_path / "log") == (
        "Wait for the other receiver of this subscription to end."
    )
    log.close()
    ChangeLog.open(tmp_path / "log").close()


# ---- definitions -------------------------------------------------------------------------


def test_a_transaction_that_met_another_one_is_retried(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "catalog.sqlite")
    backend: LakeBackend = new_backend(catalog, FakeQueries(), tmp_path)
    columns = ColumnDef("a", Oid(23)), ColumnDef("b", Oid(23))
    catalog.create_table(
        TableDef(Oid(30001), "public", "w", Oid(10), columns, (), "/w")
    )

    def attempt(meanwhile: Callable[[], object]) -> None:
        backend.begin(TransactionKind.BLOCK)
        run(backend, "create publication p for table w (a, b)")
        meanwhile()
        backend.commit()

    def redefine(*after: ColumnDef) -> Callable[[], None]:
        return lambda: catalog.redefine([Altered(Oid(30001), after, (), None)])

    for meanwhile in (redefine(columns[0]), lambda: catalog.drop_table(Oid(30001))):
        assert hint_of(attempt, meanwhile) == (
            "The transaction might succeed if retried."
        )
        assert not catalog.publications()
        if catalog.table("public", "w") is None:
            catalog.create_table(
                TableDef(Oid(30001), "public", "w", Oid(10), columns, (), "/w")
            )
        redefine(*columns)()
    attempt(lambda: None)
    assert [one.name for one in catalog.publications()] == ["p"]
