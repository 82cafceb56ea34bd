"""What is said about a publisher, and what a client is told of it: judgements over facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.preflight.finding import Finding, Level, merge_findings, notices
from wal2lake.commands.preflight.pooler import Pooler
from wal2lake.commands.preflight.server import (
    Needs,
    Server,
    SourcePublication,
    judge_extents,
    judge_publications,
    judge_server,
)
from wal2lake.commands.preflight.stored import judge_stored
from wal2lake.commands.preflight.tablefindings import (
    Table,
    UnpublishedTable,
    judge_tables,
    judge_unpublished,
)
from wal2lake.model import Deferral, Oid, ReplicaIdentity
from wal2lake.pg import RemoteColumn, RemoteTable

SERVER = Server(
    version=180004,
    version_text="18.4",
    database="d",
    settings={
        "wal_level": "logical",
        "effective_wal_level": "replica",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
        "max_slot_wal_keep_size": "-1",
        "idle_replication_slot_timeout": "0",
        "hot_standby_feedback": "off",
        "server_encoding": "UTF8",
    },
    slots=1,
    senders=1,
    prepared=0,
    role="r",
    superuser=False,
    replication=True,
    in_recovery=False,
    refusal=None,
    pooler=None,
)


def server(**changes: Any) -> Server:
    """A good one but for these; names of settings are settings."""
    settings = {k: v for k, v in changes.items() if k in SERVER.settings}
    others = {k: v for k, v in changes.items() if k not in SERVER.settings}
    return replace(SERVER, settings={**SERVER.settings, **settings}, **others)


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(n.severity, n.message) for n in notices(findings)]


LOST = "its slot is invalidated, and all tables must be copied again"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"version": 130009, "version_text": "13.9"}, ["WARNING PostgreSQL 13.9 is too old"]),
        ({"slots": 9}, ["WARNING 1 of 10 replication slots are free, the copy of existing"]),
        ({"senders": 9}, ["WARNING 1 of 10 WAL senders are free, the copy of existing rows"]),
        ({"senders": 10}, ["WARNING 0 of 10 WAL senders are free, a subscription needs"]),
        ({"max_slot_wal_keep_size": "64"},
         [f"NOTICE max_slot_wal_keep_size is 64 MB: if the node is behind by more, {LOST}"]),
        ({"max_slot_wal_keep_size": "8192"}, []),
        ({"idle_replication_slot_timeout": "3600"},
         [f"NOTICE idle_replication_slot_timeout is 3600 s: if the node is away for longer,"
          f" {LOST}"]),
        ({"idle_replication_slot_timeout": "604800"}, []),
        ({"server_encoding": "SQL_ASCII"}, ['NOTICE database "d" has encoding SQL_ASCII']),
        ({"prepared": 2}, ["NOTICE 2 prepared transactions: creating a subscription and"]),
        ({"in_recovery": True},
         ["NOTICE publisher is a standby server", "NOTICE hot_standby_feedback is off"]),
        ({"in_recovery": True, "hot_standby_feedback": "on"},
         ["NOTICE publisher is a standby server"]),
        ({"version": 190000, "wal_level": "replica"}, []),
        ({"version": 190000, "wal_level": "replica", "in_recovery": True,
          "hot_standby_feedback": "on", "effective_wal_level": "logical"},
         ["NOTICE publisher is a standby server"]),
        ({"refusal": "no"}, ["WARNING no replication connection is possible: no"]),
        ({"pooler": Pooler()}, ["NOTICE a connection pooler is in between: its limits"]),
        ({"pooler": Pooler(refusal="go away")},
         ["WARNING a connection pooler is in between, and refuses ordinary connections"]),
        ({"pooler": Pooler(alone="no answer")},
         ["WARNING a connection pooler is in between, and does not serve two connections at"
          " once, which the copy needs: no answer"]),
        ({"pooler": Pooler(None, None, ("datestyle", "timezone"), True)},
         ["WARNING a connection pooler is in between that ignores what a connection sets at"
          " its start (datestyle, timezone)",
          "WARNING a connection pooler is in between that gives each transaction another"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_client_is_told_what_would_misbehave_and_nothing_of_a_good_server(
    changes: dict[str, object], expected: list[str]
) -> None:
    found = [" ".join(one) for one in told(judge_server(server(**changes)))]
    assert len(found) == len(expected), found
    for text, wanted in zip(found, expected, strict=True):
        assert text.startswith(wanted)


@pytest.mark.parametrize(
    ("changes", "text", "sqlstate"),
    [
        ({"wal_level": "replica"}, 'logical decoding requires "wal_level" >= "logical"',
         "55000"),
        ({"wal_level": "replica", "version": 160000},
         "logical decoding requires wal_level >= logical", "55000"),
        ({"wal_level": "replica", "version": 160000, "in_recovery": True},
         "logical decoding on standby requires wal_level >= logical on the primary",
         "55000"),
        ({"wal_level": "minimal", "version": 190000},
         'replication slots can only be used if "wal_level" >= "replica"', "55000"),
        ({"wal_level": "replica", "version": 190000, "in_recovery": True},
         'logical decoding on standby requires "effective_wal_level" >= "logical" on the'
         " primary", "55000"),
        ({"slots": 10}, "all replication slots are in use", "53400"),
        ({"version": 150000, "in_recovery": True},
         "logical decoding cannot be used while in recovery", "0A000"),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_server_will_refuse_is_its_own_words_and_no_warning(
    changes: dict[str, object], text: str, sqlstate: str
) -> None:
    findings = judge_server(server(**changes))
    (refused,) = [f.blocks for f in findings if f.blocks is not None]
    assert (refused.message, refused.sqlstate) == (text, sqlstate)
    assert not [one for one in told(findings) if one[0] == "WARNING"]
    assert any(f.level is Level.PROBLEM and f.hint for f in findings)


def test_only_what_is_going_to_be_done_is_judged() -> None:
    nothing_left = server(slots=10, senders=10, prepared=1, max_slot_wal_keep_size="1")
    added = judge_server(nothing_left, Needs(stream=False, slot=False, copy=True))
    assert [text.split(",")[-1] for _, text in told(added)][:2] == [
        " the copy of existing rows needs one",
        " the copy of existing rows needs one",
    ]
    assert not judge_server(nothing_left, Needs(stream=False, slot=False, copy=False))
    # Somebody has made the slot, and nothing is copied.
    taken = judge_server(server(slots=10), Needs(slot=False, copy=False))
    assert told(taken) == []


def test_publications_are_looked_for() -> None:
    one = SourcePublication("p", True, True, True, True, False)
    chosen = judge_publications([one], ["p"])
    assert (chosen.publications, told(list(chosen.findings))) == ((one,), [])
    missing = judge_publications([one], ["a", "p", "b", "a"])
    assert told(list(missing.findings)) == [
        ("WARNING", 'publications "a", "b" do not exist on the publisher')
    ]
    assert told(list(judge_publications([], []).findings)) == [
        ("WARNING", "there is no publication")
    ]


def test_a_publication_of_nothing_is_a_problem() -> None:
    (found,) = judge_extents({"p": 3, "empty": 0})
    assert (found.level, found.text) == (
        Level.PROBLEM,
        'publication "empty" has no tables',
    )
    assert found.hint is not None and 'ALTER PUBLICATION "empty"' in found.hint


# ---- tables ------------------------------------------------------------------------------

EVERY = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE"})


def column(name: str) -> RemoteColumn:
    return RemoteColumn(name, Oid(23), -1, "int4", "b", 0, False, None, False, False)


def table(
    name: str = "t",
    *,
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    key: tuple[str, ...] = ("a",),
    index: tuple[str, ...] = (),
    published: tuple[str, ...] = ("a", "b"),
    kind: str = "r",
    filters: tuple[str, ...] = (),
    operations: frozenset[str] = EVERY,
    readable: bool = True,
    row_security: bool = False,
    is_partition: bool = False,
    generated: tuple[str, ...] = (),
    filtered: tuple[str, ...] = (),
    deferral: Deferral = Deferral.NO,
) -> Table:
    remote = RemoteTable(
        Oid(1),
        "s",
        name,
        kind,
        identity,
        tuple(map(column, published)),
        key,
        index,
        filters,
        None,
        0,
        None,
        "p",
        row_security,
        key_deferral=deferral,
    )
    return Table(
        remote,
        operations,
        readable,
        row_security,
        is_partition,
        ("a", "b"),
        generated,
        filtered,
    )


FULL = ReplicaIdentity.FULL
INDEX = ReplicaIdentity.INDEX
NOTHING = ReplicaIdentity.NOTHING
NO_IDENTITY = 'WARNING table "s.t" has no replica identity: once it is published'
INSERTS = frozenset({"INSERT", "TRUNCATE"})
FILTERED = (
    'WARNING table "s.t" is published with a row filter over columns that are not in its'
    " replica identity"
)
NO_COLUMNS = 'WARNING table "s.t" is published without columns of its replica identity'


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (table(), None),
        (table(filters=("(a > 1)",)), None),
        (table(filtered=("a",)), None),
        (table(filtered=("a", "b")), f'{FILTERED} ("b")'),
        (table(filtered=("b",), operations=INSERTS), 'NOTICE table "s.t" is published'),
        (table(filtered=("b",), identity=INDEX, index=("b",)), None),
        (table(filtered=("a",), identity=INDEX, index=("b",)), f'{FILTERED} ("a")'),
        (table(filtered=("b",), identity=FULL), None),
        (table(key=()), NO_IDENTITY),
        (table(deferral=Deferral.IMMEDIATE), NO_IDENTITY),
        (table(deferral=Deferral.DEFERRED, identity=FULL), None),
        (table(key=(), operations=INSERTS),
         'NOTICE table "s.t" is published without UPDATE, DELETE'),
        (table(identity=NOTHING), NO_IDENTITY),
        (table(identity=INDEX), NO_IDENTITY),
        (table(identity=INDEX, key=(), index=("b",)), None),
        (table(identity=FULL), None),
        (table(identity=FULL, key=()), 'NOTICE table "s.t" has no primary key and REPLICA'),
        (table(published=("b",)), NO_COLUMNS),
        (table(identity=FULL, published=("a",)), NO_COLUMNS),
        (table(published=("a",)), None),
        (table(readable=False), 'WARNING table "s.t" cannot be read'),
        (table(row_security=True), 'WARNING table "s.t" has row-level security'),
        (table(kind="p"), 'NOTICE table "s.t" is published as one, with its partitions'),
        (table(is_partition=True), 'NOTICE table "s.t" is a partition that is published'),
        (table(generated=("g",)),
         'NOTICE table "s.t" has generated columns that are not published: "g"'),
        (table(generated=("g",), published=("a", "b", "g")), None),
        # Somebody has chosen.
        (table(generated=("g",), published=("a",)), None),
        # CREATE SUBSCRIPTION refuses it in the same words.
        (table(published=()), NO_COLUMNS),
    ],
)  # fmt: skip
def test_a_client_is_told_what_would_misbehave_and_nothing_of_a_good_table(
    one: Table, expected: str | None
) -> None:
    found = [" ".join(n) for n in told(merge_findings(judge_tables([one], copy=True)))]
    assert len(found) == (expected is not None), found
    assert not found or found[0].startswith(str(expected))


def test_without_a_copy_it_does_not_matter_who_may_read() -> None:
    assert not judge_tables([table(readable=False, row_security=True)], copy=False)


def test_tables_that_are_alike_are_told_together() -> None:
    many = [table(f"t{n}", key=()) for n in range(12)]
    many += [table("full", key=(), identity=FULL), table("good")]
    worst, note = notices(merge_findings(judge_tables(many, copy=True)))
    assert worst.message.startswith("12 tables have no replica identity: once they are")
    shown = ", ".join(f'"s.t{n}"' for n in range(10))
    assert worst.detail == f"Tables: {shown}, and 2 more."
    assert "ALTER TABLE ... REPLICA IDENTITY" in str(worst.hint)
    assert note.message.startswith('table "s.full" has no primary key')
    assert note.detail is None


def test_tables_that_a_publication_leaves_out_are_named() -> None:
    found = notices(
        merge_findings(
            judge_unpublished(
                [UnpublishedTable("s", "f", True)]
                + [UnpublishedTable("s", "u", False)] * 2
            )
        )
    )
    assert [n.message for n in found] == [
        'table "s.f" is a foreign table, so it is not published',
        "2 tables are not logged, so they are not published",
    ]


INT4, INT8, TEXT, NUMERIC, VARCHAR, ENUM = 23, 20, 25, 1700, 1043, 70001


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


@pytest.mark.parametrize(
    ("sent", "here", "told"),
    [
        ((INT4, -1), (INT4, -1), None),
        ((INT4, -1), (INT8, -1), None),
        ((INT8, -1), (INT4, -1), '"v" (bigint, here integer)'),
        ((ENUM, -1), (TEXT, -1), None),
        ((TEXT, -1), (INT4, -1), '"v" (text, here integer)'),
        ((VARCHAR, 14), (VARCHAR, 24), None),
        ((VARCHAR, 24), (VARCHAR, 14), '"v" (character varying(20), here character varyi'),
        ((TEXT, -1), (VARCHAR, -1), None),
        ((NUMERIC, _numeric(10, 2)), (NUMERIC, _numeric(12, 2)), None),
        ((NUMERIC, _numeric(10, 2)), (NUMERIC, _numeric(12, 6)), '"v" (numeric(10,2), here'),
        ((NUMERIC, -1), (NUMERIC, _numeric(38, 10)), '"v" (numeric, here numeric(38,10))'),
        ((INT8, -1), (NUMERIC, _numeric(38, 10)), None),
        ((INT8, -1), (NUMERIC, _numeric(20, 10)), '"v" (bigint, here numeric(20,10))'),
    ],
)  # fmt: skip
def test_columns_that_were_there_are_compared_with_what_is_sent(
    sent: tuple[int, int], here: tuple[int, int], told: str | None
) -> None:
    remote = replace(column("v"), type_oid=Oid(sent[0]), typmod=sent[1])
    there = TableDef(
        oid=Oid(2),
        namespace="s",
        name="t",
        columns=(ColumnDef("v", Oid(here[0]), here[1]),),
        key=(),
        location="",
        owner=Oid(10),
    )
    found = judge_stored(replace(table().remote, columns=(remote,)), there)
    assert [f.level for f in found] == [Level.NOTE] * (told is not None)
    assert not found or str(told) in found[0].singular
