"""What becomes of changes that meet another row: the option, and batches against a model that
takes one event after the other."""

from __future__ import annotations

import random
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import FIELDS, UNTRUSTED, shape_of
from tests.fakes.stored_table import StoredTable
from tests.pure.test_upsert import ARROW, staged_tables

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.compaction import compact
from wal2lake.lake.expressions import EvaluatedPair, Pairs
from wal2lake.lake.origins import LOCAL, LONG_AGO, BatchCommits
from wal2lake.lake.staging.layout import ChangeShape, RowFailure, Seq
from wal2lake.lake.tablefiles import DataFile, add_action
from wal2lake.lake.upsert import Upsert
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import ConflictType, Modified, Resolution
from wal2lake.pgtypes import (
    ConflictExpression,
    ConflictResolutions,
    Resolutions,
    check_tracked,
)
from wal2lake.pgtypes.choices.resolutions import _BY_EXPRESSION, _POSSIBLE
from wal2lake.testing.rowmodel import UNCHANGED, HistoryShape, Row, RowEvent, history

pytestmark = pytest.mark.usefixtures("no_fsync")

OURS, THEIRS = 7, 9


def time_of(lsn: int) -> int:
    """Of a transaction's commit: not in the order of the log, as clocks are."""
    return lsn * 7919 % 101


def commits(events: list[RowEvent]) -> BatchCommits:
    lsn = np.unique(np.array([e.lsn for e in events], np.int64))
    return BatchCommits(
        OURS, lsn, lsn + 1000, np.array([time_of(n) for n in lsn], np.int64)
    )


@dataclass
class Stored:
    row: Row
    origin: int | None
    time: int


def merged(local: Row, remote: Row) -> Row:
    """What ``Expressions`` below makes of both."""
    return (*remote[:2], f"{local[2]}|{remote[2]}"[-40:], remote[3])


def said(rule: Resolution, local: Row, remote: Row) -> Resolution:
    """Of an expression; error: it fails."""
    digest = zlib.crc32(repr((local[2], remote[2])).encode()) % 40
    if rule is Resolution.MERGE:
        return Resolution.ERROR if digest == 0 else rule
    return (
        Resolution.APPLY_REMOTE,
        Resolution.KEEP_LOCAL,
        Resolution.SKIP,
        Resolution.ERROR if digest == 3 else Resolution.APPLY_REMOTE,
    )[digest % 4]


class Expressions:
    """Spark's part."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def evaluate(
        self,
        fields: object,
        key: object,
        required: object,
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> list[EvaluatedPair]:
        found: list[EvaluatedPair] = []
        self.asked.append(pairs.local.num_rows)
        merges = expression.choice is None
        rule = Resolution.MERGE if merges else Resolution.EXPRESSION
        for i in range(pairs.local.num_rows):
            part = pairs.part(i, 1)
            local, remote = (
                tuple(side.to_pylist()[0].values())
                for side in (part.local, part.remote)
            )
            what = said(rule, local, remote)
            if what is Resolution.ERROR:
                return [*found, EvaluatedPair(error=("22012", "division by zero"))]
            if merges:
                row = part.remote.set_column(
                    2, part.remote.schema.field(2), [[merged(local, remote)[2]]]
                )
                found.append(EvaluatedPair(row=row))
            else:
                found.append(EvaluatedPair(choice=what.value))
        return found


@dataclass
class Model:
    """A subscriber that knows whose its rows are."""

    rules: Resolutions
    rows: dict[tuple[object, ...], Stored]
    tracks: bool
    met: list[tuple[int, ConflictType, Resolution]] = field(default_factory=list)

    def ask(
        self,
        kind: ConflictType,
        event: RowEvent,
        row: Stored | None,
        remote: Row | None = None,
    ) -> Resolution:
        rule = self.rules.of(kind)
        if rule in (Resolution.EXPRESSION, Resolution.MERGE):
            assert row is not None
            assert remote is not None
            rule = said(rule, row.row, remote)
        mine = time_of(event.lsn) if self.tracks else LONG_AGO
        if rule is Resolution.LAST_UPDATE_WINS:
            assert row is not None
            won = mine > row.time
            rule = Resolution.APPLY_REMOTE if won else Resolution.KEEP_LOCAL
        elif rule is Resolution.FIRST_UPDATE_WINS:
            assert row is not None
            won = mine < row.time
            rule = Resolution.APPLY_REMOTE if won else Resolution.KEEP_LOCAL
        self.met.append((event.lsn, kind, rule))
        return rule

    def foreign(self, row: Stored) -> bool:
        return self.tracks and row.origin is not None and row.origin != OURS

    def apply(self, event: RowEvent) -> bool:
        """False: it stops."""
        go, stop = Resolution.APPLY_REMOTE, Resolution.ERROR
        both = Resolution.MERGE
        time = time_of(event.lsn) if self.tracks else LONG_AGO
        origin = OURS if self.tracks else None
        if event.kind == "I":
            assert event.new is not None
            there = self.rows.get(event.new[:2])
            what = (
                go
                if there is None
                else self.ask(ConflictType.INSERT_EXISTS, event, there, event.new)
            )
            if what in (go, both):
                row = event.new
                if what is both and there is not None:
                    row = merged(there.row, row)
                self.rows[event.new[:2]] = Stored(row, origin, time)
            return what is not stop
        if event.kind == "D":
            assert event.old is not None
            there = self.rows.get(event.old)
            if there is None:
                return self.ask(ConflictType.DELETE_MISSING, event, None) is not stop
            what = go
            if self.foreign(there):
                gone = (*event.old, None, None)
                what = self.ask(ConflictType.DELETE_ORIGIN_DIFFERS, event, there, gone)
            if what is go:
                del self.rows[event.old]
            return what is not stop
        assert event.new is not None
        source, key = event.old or event.new[:2], event.new[:2]
        there, what, before = self.rows.get(source), go, len(self.met)
        new = tuple(
            there.row[i] if value is UNCHANGED and there is not None else value
            for i, value in enumerate(event.new)
        )
        if there is None:
            what = self.ask(ConflictType.UPDATE_MISSING, event, None)
            if what is go and UNCHANGED in event.new:
                return False
        elif self.foreign(there):
            what = self.ask(ConflictType.UPDATE_ORIGIN_DIFFERS, event, there, new)
            new = merged(there.row, new) if what is both else new
        if what in (go, both) and key != source and key in self.rows:
            taken = self.rows[key]
            what = self.ask(ConflictType.UPDATE_EXISTS, event, taken, new)
            new = merged(taken.row, new) if what is both else new
            if what not in (go, both):
                self.met[before:] = [
                    (n, kind, what) for n, kind, _ in self.met[before:]
                ]
        if what in (go, both):
            self.rows.pop(source, None)
            self.rows[key] = Stored(new, origin, time)
        return what is not stop


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), tracks=st.booleans(), stops=st.booleans())
def test_a_batch_means_what_its_events_mean_one_by_one(
    tmp_path: Path, seed: int, tracks: bool, stops: bool
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(30, 5, moves=rng.random() < 0.5, missing=True, conflicts=True)
    table = StoredTable(tmp_path / uuid.uuid4().hex, FIELDS, ARROW, [], 1)
    rules = Resolutions(
        {
            kind: rng.choice(
                [
                    one
                    for one in possible
                    if (tracks or "wins" not in one) and (stops or one != "error")
                ]
            )
            for kind, possible in _POSSIBLE.items()
        }
    )
    if rng.random() < 0.5:
        asks = {
            kind: ConflictExpression("", None if one is Resolution.MERGE else "")
            for kind, possible in _BY_EXPRESSION.items()
            for one in [rng.choice([None, *possible])]
            if one is not None
        }
        evaluated = {
            kind: Resolution.MERGE if one.choice is None else Resolution.EXPRESSION
            for kind, one in asks.items()
        }
        rules = Resolutions({**rules.chosen, **evaluated}, asks)
    rows: dict[tuple[object, ...], Stored] = {}
    keys = [(a, b) for a in range(5) for b in range(3)]
    for by, tag in (
        (Modified(OURS, 1, 50), False),
        (Modified(THEIRS, 1, 40), False),
        (Modified(LOCAL, 3, 60), True),
        (None, False),
    ):
        mine = [key for key in keys if key not in rows and rng.random() < 0.25]
        if mine:
            made = [(*key, f"a{key}", "b") for key in mine]
            table.add(made, by, tag=tag)
            known = by is not None and tracks
            for row in made:
                rows[row[:2]] = Stored(
                    row,
                    by.origin if by is not None and known else None,
                    by.time_us if by is not None and known else LONG_AGO,
                )
    start = {key: one.row for key, one in rows.items() if rng.random() < 0.8}
    events = history(shape, start, rng)
    if not events:
        return
    model = Model(rules, rows, tracks)
    stopped = next((event for event in events if not model.apply(event)), None)
    plan = table.plan(
        shape_of(events),
        staged_tables(events, shape_of(events), 2),
        UNTRUSTED,
        memory=1 << 20,
        runs=rng.choice([1, 1, 2, 7]),
        rules=ConflictRules(
            rules,
            commits(events) if tracks else None,
            expressions=cast(Any, Expressions()),
        ),
    )
    if stopped is not None:
        assert isinstance(plan, RowFailure)
        assert plan.seq == Seq(stopped.lsn, stopped.ordinal)
        if plan.sqlstate == "22012":
            assert rules.of(model.met[-1][1]) in (
                Resolution.EXPRESSION,
                Resolution.MERGE,
            )
        else:
            assert plan.conflict is model.met[-1][1]
        return
    assert isinstance(plan, Upsert), plan
    assert [(c.commit_lsn, c.type, c.resolution) for c in plan.conflicts] == model.met
    table.commit(plan)
    assert {row[:2]: row for row in table.read()} == {
        key: one.row for key, one in model.rows.items()
    }
    if tracks:
        origins = {row[:2]: origin for row, origin in table.marks().items()}
        assert origins == {key: one.origin for key, one in model.rows.items()}


def test_a_compaction_keeps_who_made_each_row(tmp_path: Path) -> None:
    table = StoredTable(tmp_path / "t", FIELDS, ARROW, [(0, 0, "x", "y")], 1)
    table.add([(1, 0, "x", "y")], Modified(OURS, 1, 50))
    table.add([(2, 0, "x", "y"), (3, 0, "x", "y")], Modified(LOCAL, 4, 60), tag=True)
    before = table.marks()
    assert [before[n, 0, "x", "y"] for n in range(4)] == [None, OURS, LOCAL, LOCAL]
    whole = compact(table.state, table.files)
    adds = [one.added for one in whole.files]
    table.files = [DataFile(add_action(one, data_change=False)) for one in adds]
    assert len(table.files) == 1
    assert table.marks() == before
    # Statistics are of the table's columns.
    assert "_wal2lake" not in str(adds[0].stats)


def test_a_row_that_was_not_there_has_null_where_the_publisher_has_no_column(
    tmp_path: Path,
) -> None:
    table = StoredTable(tmp_path / "t", FIELDS, ARROW, [(0, 0, "x", "y")], 1)
    events = [RowEvent(1, 0, "U", (5, 5, "new", UNCHANGED))]
    rules = Resolutions({ConflictType.UPDATE_MISSING: Resolution.APPLY_REMOTE})
    shape = shape_of(events)
    staged = staged_tables(events, shape, 1)
    found = table.plan(
        shape, staged, UNTRUSTED, memory=1 << 20, rules=ConflictRules(rules)
    )
    assert isinstance(found, RowFailure)
    assert "were not sent" in str(found.detail)
    found = table.plan(
        shape,
        staged,
        UNTRUSTED,
        memory=1 << 20,
        rules=ConflictRules(rules, unsent=frozenset({3})),
    )
    assert isinstance(found, Upsert)
    table.commit(found)
    assert sorted(table.read()) == [(0, 0, "x", "y"), (5, 5, "new", None)]


def test_rows_without_a_key_are_put_where_they_are_missing(tmp_path: Path) -> None:
    table = StoredTable(
        tmp_path / "t", FIELDS[:2], pa.schema(list(ARROW)[:2]), [(1, 1)], 1
    )
    shape = ChangeShape(FIELDS[:2], (0, 1), moved=True, repeats=True)
    # An UPDATE of a row that is not there, then of what it has put.
    staged = pa.table(
        {
            "lsn": pa.array([1, 2], pa.int64()),
            "ord": pa.array([0, 0], pa.int64()),
            "op": pa.array([ord("U"), ord("U")], pa.int8()),
            "moved": [True, True],
            "n0": pa.array([3, 4], pa.int32()),
            "n1": pa.array([3, 4], pa.int32()),
            "o0": pa.array([2, 3], pa.int32()),
            "o1": pa.array([2, 3], pa.int32()),
        }
    )
    rules = Resolutions({ConflictType.UPDATE_MISSING: Resolution.APPLY_REMOTE})
    found = table.plan(
        shape, [staged], UNTRUSTED, memory=1 << 20, rules=ConflictRules(rules)
    )
    assert isinstance(found, Upsert)
    assert [(c.key, c.resolution) for c in found.conflicts] == [
        ("(grp, number)=(2, 2)", "apply_remote")
    ]
    table.commit(found)
    assert sorted(table.read()) == [(1, 1), (4, 4)]


class KeepsLocal(Expressions):
    """Says what it has seen, too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def evaluate(
        self,
        fields: object,
        key: object,
        required: object,
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> list[EvaluatedPair]:
        self.asked.append(pairs.local.num_rows)
        self.seen += pairs.local.to_pylist()
        return [EvaluatedPair(choice="keep_local")] * pairs.local.num_rows


def test_a_stored_row_that_is_met_again_and_again_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(1, 0, "x", "y"), (2, 0, "z", "y")]
    table = StoredTable(tmp_path / "t", FIELDS, ARROW, rows, 1)
    events = [
        RowEvent(lsn, 0, "I", (key, 0, "new", "new"))
        for lsn, key in enumerate((1, 1, 2, 1, 2, 1), 1)
    ]
    fetched: list[int] = []
    fetch = StoredRows.fetch

    def counted(self: StoredRows, file: Any, row: Any, *rest: Any) -> pa.Table:
        fetched.append(len(row))
        return fetch(self, file, row, *rest)

    monkeypatch.setattr(StoredRows, "fetch", counted)
    kind = ConflictType.INSERT_EXISTS
    rules = Resolutions(
        {kind: Resolution.EXPRESSION}, {kind: ConflictExpression("", "")}
    )
    asks = KeepsLocal()
    shape = shape_of(events)
    found = table.plan(
        shape,
        staged_tables(events, shape, 1),
        UNTRUSTED,
        memory=1 << 20,
        rules=ConflictRules(rules, expressions=cast(Any, asks)),
    )
    assert isinstance(found, Upsert)
    assert len(found.conflicts) == 6
    assert asks.asked == [2, 2, 1, 1]
    names = [field.name for field in FIELDS]
    one, two = (dict(zip(names, row, strict=True)) for row in rows)
    assert asks.seen == [one, two, one, two, one, one]
    assert fetched == [2]


def test_a_tables_own_resolutions_win() -> None:
    option = ConflictResolutions.parse(
        'update_missing = ERROR, "My".t.update_missing = skip,'
        ' "My".t.insert_exists = last_update_wins'
    )
    assert option.of("public", "t").chosen == {
        ConflictType.UPDATE_MISSING: Resolution.ERROR
    }
    # What is PostgreSQL's anyway is nothing to decide.
    assert option.of("My", "t").chosen == {
        ConflictType.INSERT_EXISTS: Resolution.LAST_UPDATE_WINS
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("insert_exists", "invalid entry in"),
        ("t.insert_exists = skip", "invalid entry in"),
        ("insert = skip", 'unrecognized conflict type: "insert"'),
        ("insert_exists = wait", 'unrecognized conflict resolution: "wait"'),
        ("multiple_unique_conflicts = skip", "has no resolution"),
        ("update_missing = keep_local", "not possible for update_missing"),
        ("delete_missing = apply_remote", "not possible for delete_missing"),
        ("delete_missing = skip, delete_missing = error", "more than one entry"),
        ("insert_exists = ('skip')", "is of no table"),
        ("insert_exists = merge", "not possible for insert_exists"),
        ("a.b.update_missing = ('skip')", "update_missing cannot be resolved by"),
        ("a.b.delete_origin_differs = set (a = 1)", "cannot be resolved by set"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(Wal2LakeError, match=message) as caught:
        ConflictResolutions.parse(text)
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize(
    "text",
    [
        "s.t.insert_exists = ()",
        "s.t.insert_exists = ('skip'",
        "s.t.insert_exists = ('skip') or true",
        "s.t.insert_exists = set (1 + 1)",
        "s.t.insert_exists = set (a = )",
        "s.t.insert_exists = set (a = 1, a = 2)",
        "s.t.insert_exists = ('skip' -- because\n)",
        "s.t.insert_exists = ('skip' /* because */)",
        "s.t.insert_exists = set (a = 1 /* (( */ ) AS string) AS x -- )",
        "s.t.insert_exists = set (a = '', b = 1 --1)",
    ],
)
def test_what_is_no_expression_is_a_syntax_error(text: str) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        ConflictResolutions.parse(text)
    assert caught.value.sqlstate == "42601"


def test_what_looks_like_a_comment_in_quotes_is_none() -> None:
    text = """s.t.insert_exists = (concat('--', "/*", local.`--`, '\\'--', 1 - -1, 4 / 2))"""
    assert len(ConflictResolutions.parse(text).with_expressions) == 1


def test_expressions_have_commas_quotes_and_parentheses_of_their_own() -> None:
    option = ConflictResolutions.parse(
        "update_missing = skip, s.\"T,(\".insert_exists = (if(local.a < remote.b, 'a,)',"
        " 'it''s \\'(')), s.u.update_exists = SET (\"Qty=\" = coalesce(local.a, 1),"
        " b = (local.`x(`=',')), s.u.insert_exists = skip"
    )
    found = option.of("s", "T,(").expressions[ConflictType.INSERT_EXISTS]
    assert found.choice == "if(local.a < remote.b, 'a,)', 'it''s \\'(')"
    other = option.of("s", "u")
    assert other.expressions[ConflictType.UPDATE_EXISTS].values == (
        ("Qty=", "coalesce(local.a, 1)"),
        ("b", "(local.`x(`=',')"),
    )
    assert other.of(ConflictType.INSERT_EXISTS) is Resolution.SKIP
    assert option.with_expressions == (("s", "T,("), ("s", "u"))


@pytest.mark.parametrize(
    "text",
    [
        "insert_exists = last_update_wins",
        "update_origin_differs = skip",
        "s.t.insert_exists = (if(local_commit_time is null, 'skip', 'error'))",
        "s.t.update_origin_differs = set (a = local.a)",
    ],
)
def test_what_needs_the_rows_origins_asks_for_them(text: str) -> None:
    check_tracked(text, tracked=True)
    check_tracked("insert_exists = skip", tracked=False)
    check_tracked("s.t.insert_exists = set (a = local.a)", tracked=False)
    # As it is without: nobody needs to know whose the row was.
    check_tracked("update_origin_differs = apply_remote", tracked=False)
    with pytest.raises(Wal2LakeError, match="track_commit_timestamp") as caught:
        check_tracked(text, tracked=False)
    assert caught.value.sqlstate == "55000"
