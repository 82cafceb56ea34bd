"""What was published at each position of the log, against a model: the definitions of then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.publishing import PublishingNode

from wal2lake.catalog import Catalog, HistoricDefinitions
from wal2lake.model import Lsn
from wal2lake.publish.sending import ClientPublications

NAMES = st.sampled_from(["t", "u", "v"])
COLUMNS = st.sampled_from(["a", "b", "c"])
PUBLICATIONS = st.sampled_from(["p", "q"])

COMMANDS = st.one_of(
    st.builds("create table {} (id int primary key, a int)".format, NAMES),
    st.builds("create table s.{} (id int primary key, b int)".format, NAMES),
    st.builds("drop table {}".format, NAMES),
    st.builds("drop table s.{}".format, NAMES),
    st.builds("alter table {} rename to {}".format, NAMES, NAMES),
    st.builds("alter table {} set schema s".format, NAMES),
    st.builds("alter table {} rename column {} to {}".format, NAMES, COLUMNS, COLUMNS),
    st.builds("create publication {} for all tables".format, PUBLICATIONS),
    st.builds("create publication {} for tables in schema s".format, PUBLICATIONS),
    st.builds(
        "create publication {} for table {} (id, {}) where (id > 1)".format,
        *(PUBLICATIONS, NAMES, COLUMNS),
    ),
    st.builds("alter publication {} add table {}".format, PUBLICATIONS, NAMES),
    st.builds("alter publication {} drop table {}".format, PUBLICATIONS, NAMES),
    st.builds("alter publication {} set (publish = insert)".format, PUBLICATIONS),
    st.builds("alter publication {} rename to {}".format, PUBLICATIONS, PUBLICATIONS),
    st.builds("drop publication {}".format, PUBLICATIONS),
)

BEFORE = (
    "create schema s",
    "create table t (id int primary key, a int)",
    "create table s.u (id int primary key, b int)",
    "create publication p for table t",
)

STEPS = st.lists(
    st.one_of(
        st.tuples(COMMANDS, st.integers(0, 2)),
        st.tuples(st.sampled_from(["trim", "forget"]), st.integers(0, 4)),
    ),
    min_size=3,
    max_size=30,
)
"""Commands, and how much the log grows behind each."""


def now(catalog: Catalog) -> HistoricDefinitions:
    return HistoricDefinitions(
        catalog.publications(), catalog.tables(), catalog.namespaces()
    )


def equal(found: HistoricDefinitions, wanted: HistoricDefinitions) -> bool:
    return (
        sorted(found.publications, key=lambda one: one.oid) == wanted.publications
        and sorted(found.tables, key=lambda one: one.oid) == wanted.tables
        and sorted(found.namespaces, key=lambda one: one.oid) == wanted.namespaces
    )


@given(STEPS)
@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_each_position_has_what_was_there(
    no_fsync: None, monkeypatch: pytest.MonkeyPatch, steps: list[Any]
) -> None:
    with TemporaryDirectory() as directory:
        node = PublishingNode(Path(directory), monkeypatch)
        catalog = node.catalog
        for sql in BEFORE:
            node.run(sql)
        end = lowest = Lsn(1)
        then: dict[int, HistoricDefinitions] = {}
        for step, count in steps:
            if step == "trim":
                lowest = Lsn(max(lowest, end - count))
                catalog.trim_definitions(lowest)
            elif step == "forget":
                end = Lsn(max(lowest, end - count))
                catalog.forget_definitions(end)
                then = {lsn: one for lsn, one in then.items() if lsn <= end}
            else:
                node.run(step)
                end = Lsn(end + count)
                before = then[max(then)] if then else None
                changed = catalog.note_definitions(end)
                assert changed == (before is None or not equal(before, now(catalog)))
                then[end] = now(catalog)
            _check(catalog, then, lowest, end)


def _check(
    catalog: Catalog, then: Mapping[int, HistoricDefinitions], lowest: Lsn, end: Lsn
) -> None:
    for lsn in range(lowest, end + 1):
        noted = [one for one in sorted(then) if one <= lsn]
        if noted:
            found = catalog.definitions_at(Lsn(lsn))
            assert equal(found, then[noted[-1]]), lsn


def test_publications_are_asked_for_each_position(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    warned: list[tuple[str, Lsn]] = []
    publications = ClientPublications(
        node.catalog, lambda said, lsn: warned.append((said.message, lsn))
    )
    node.run("create table t (id int primary key, a int)")
    (table,) = node.catalog.tables()
    assert publications.sending(["p"], Lsn(5)) == {}, "nothing was noted yet"
    node.run("create publication p for table t where (id > 1)")
    assert set(publications.sending(["p"], Lsn(5))) == {table.oid}
    node.catalog.note_definitions(Lsn(10))
    node.run("alter publication p set table t (id)")
    node.catalog.note_definitions(Lsn(20))
    node.run("drop table t")
    node.catalog.note_definitions(Lsn(30))
    for lsn in (5, 10, 19):
        assert set(publications.sending(["p"], Lsn(lsn))[table.oid].filters) == set(
            "IUD"
        )
    for lsn in (20, 29):
        columns = publications.sending(["p"], Lsn(lsn))[table.oid].columns
        assert columns == frozenset({"id"})
    assert publications.sending(["p"], Lsn(30)) == {}
    assert publications.sending(["p", "q"], Lsn(29)).keys() == {table.oid}
    # Once, though it is missing at every position.
    assert publications.sending(["p", "q"], Lsn(30)) == {}
    skipped = "skipped loading publication"
    assert warned == [(f'{skipped} "p"', Lsn(5)), (f'{skipped} "q"', Lsn(29))]


def test_what_nobody_needs_goes(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    catalog = node.catalog
    node.run("create table t (id int primary key)")
    assert catalog.note_definitions(Lsn(10))
    assert not catalog.note_definitions(Lsn(15))
    assert not catalog.trim_definitions(Lsn(15))
    node.run("alter table t rename to u")
    node.run("create publication p for all tables")
    assert catalog.note_definitions(Lsn(20))
    node.run("drop publication p")
    node.run("drop table u")
    assert catalog.note_definitions(Lsn(30))
    assert catalog.trim_definitions(Lsn(19))
    assert catalog.definition_positions() == [10, 20, 30]
    assert catalog.trim_definitions(Lsn(29))
    assert not catalog.trim_definitions(Lsn(30))
    counter = catalog.change_counter
    assert not catalog.trim_definitions(Lsn(40))
    assert catalog.change_counter == counter, "nothing was written"
    assert [one.name for one in catalog.definitions_at(Lsn(40)).tables] == []
