"""Pairs of tables: names on the command line, options, the moment of a subscriber, the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

import pytest

from wal2lake.cli.options import build_parser
from wal2lake.cli.verify import run
from wal2lake.cli.verify.pairreport import pair_document, pair_lines
from wal2lake.cli.verify.pairs import PairResult, TablePattern
from wal2lake.cli.verify.pairs.patterns import TableName, chosen_tables
from wal2lake.cli.verify.pairs.subscriber import Catch, RemoteSubscription
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.pg import Session
from wal2lake.verify import Comparison, DifferenceKind, RowDifference, UnreadBlock

TABLES: list[TableName] = [
    ("public", "items"),
    ("public", "Items"),
    ("shop", "items"),
    ("shop", "a.b"),
    ("shop", "item_groups"),
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("items", [("public", "items"), ("shop", "items")]),
        ("ITEMS", [("public", "items"), ("shop", "items")]),
        ('"Items"', [("public", "Items")]),
        ("shop.*", [("shop", "items"), ("shop", "a.b"), ("shop", "item_groups")]),
        ("item?", [("public", "items"), ("shop", "items")]),
        ('shop."a.b"', [("shop", "a.b")]),
        ('*."?tems"', None),
        ("nothing", None),
        ("a.b.c", None),
        (".items", None),
        ('"items', None),
        ("items=copy.items", None),
        ("shop.*=copy.items", None),
        ("shop.items=copy.*", None),
        ("shop.items=copy", None),
        ("a=b=c", None),
    ],
)
def test_patterns_choose_tables(text: str, names: list[TableName] | None) -> None:
    if names is None:
        with pytest.raises(Wal2LakeError):
            chosen_tables([TablePattern.parse(text)], TABLES)
        return
    chosen = chosen_tables([TablePattern.parse(text)], TABLES)
    assert chosen == [(name, name) for name in names]


def test_a_table_may_have_another_name_at_the_target() -> None:
    patterns = [
        TablePattern.parse('shop.items="Copy"."x=y"'),
        TablePattern.parse("shop.*"),
    ]
    assert chosen_tables(patterns, TABLES) == [
        (("shop", "items"), ("Copy", "x=y")),
        (("shop", "a.b"), ("shop", "a.b")),
        (("shop", "item_groups"), ("shop", "item_groups")),
    ]


def test_the_hint_of_a_pattern_can_be_followed() -> None:
    with pytest.raises(UsageError) as refused:
        TablePattern.parse("items=copy")
    assert refused.value.hint == (
        "Write the target with its schema, and no wildcard: items=copy.items"
    )
    assert TablePattern.parse("items=copy.items").target == ("copy", "items")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--source", "x"),
        ("--target", "x"),
        ("-D", "d", "--source", "x", "--target", "y"),
        ("--subscriber", "x"),
        ("-D", "d", "--source", "x", "--subscriber", "y"),
        ("--source", "x", "--target", "y", "--subscriber", "z"),
        ("--source", "x", "--subscriber", "y", "--publication", "p"),
        ("--source", "x", "--target", "y", "-s", "s"),
        ("-D", "d", "--where", "true"),
        ("-D", "d", "--timeout", "3"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_parser().parse_args(["verify", *arguments])) == 2
    assert 'hint: Try "wal2lake verify --help".' in capsys.readouterr().err


# ---- the moment of a subscriber ------------------------------------------------------------

Look = tuple[int, int, str | None, bool]
"""Origin, received position, pid of the worker, whether it waits for messages."""


class Answers:
    """Both servers: the subscriber's looks one after the other, and the publisher's view."""

    server_version = 180000

    def __init__(self, looks: list[Look], replay: int = 0) -> None:
        self._looks = looks
        self._replay = replay

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        if "replay_lsn" in sql:
            return [(str(Lsn(self._replay)),)]
        origin, received, worker, waits = self._looks.pop(0)
        waiting = "t" if waits else "f"
        return [(str(Lsn(origin)), str(Lsn(received)), worker, waiting)]


def caught(looks: list[Look], replay: int = 0) -> tuple[bool, int]:
    """Whether a snapshot of position 50 was found, and how many looks were left."""
    session = cast(Session, Answers(looks, replay))
    subscription = RemoteSubscription(1, "s", "s", True, "any", ("p",))
    check: Callable[[], None] = lambda: None  # noqa: E731
    found = Catch(session, session, subscription, check, 1e18).at(Lsn(50))
    return found, len(looks)


IDLE, BUSY = True, False


@pytest.mark.parametrize(
    ("looks", "replay", "found"),
    [
        pytest.param([(60, 60, "1", IDLE)], 0, False, id="passed"),
        # The proof is older than the snapshot, which is taken by the next look.
        pytest.param([(40, 51, "1", BUSY), (50, 51, "1", BUSY)], 0, True, id="above"),
        pytest.param([(40, 40, "1", BUSY), (50, 50, "1", BUSY)], 50, True, id="replay"),
        pytest.param(
            [(50, 50, "1", IDLE), (50, 50, "1", IDLE), (50, 50, "1", IDLE)],
            0,
            True,
            id="it waits",
        ),
        # The next transaction became visible with the very snapshot.
        pytest.param(
            [(50, 51, "1", BUSY), (60, 60, "1", BUSY)], 0, False, id="between"
        ),
        # The origin at 50 may be that of a commit that is not visible yet.
        pytest.param(
            [(50, 50, "1", BUSY), (50, 50, "1", BUSY), (60, 60, "1", BUSY)],
            0,
            False,
            id="it may be committing",
        ),
        # It waited before it received 50, or another one waits.
        pytest.param(
            [(40, 40, "1", IDLE), (40, 50, "1", BUSY), (60, 60, "1", BUSY)],
            0,
            False,
            id="it waited before",
        ),
        pytest.param(
            [(40, 50, "1", BUSY), (40, 50, "2", IDLE), (60, 60, "2", BUSY)],
            0,
            False,
            id="another worker waits",
        ),
        pytest.param(
            [(40, 50, None, BUSY), (40, 50, None, BUSY), (60, 60, "2", BUSY)],
            0,
            False,
            id="no worker",
        ),
    ],
)
def test_a_subscriber_is_caught_only_by_proof(
    looks: list[Look], replay: int, found: bool
) -> None:
    assert caught(looks, replay) == (found, 0)


# ---- the report --------------------------------------------------------------------------


def test_the_report_names_values_at_both_ends() -> None:
    named = (
        RowDifference(
            DifferenceKind.CHANGED,
            (("id", "5"),),
            ("v", "w"),
            ((None, ""), ("\x1b[2J", "ä" * 100)),
        ),
    )
    counts = ((DifferenceKind.CHANGED, 1),)
    unread = (UnreadBlock("id < 10", 7, 900_000),)
    results = [
        PairResult("a.b", Comparison(1, 5, 5), 0.25),
        PairResult(
            "a.c", Comparison(2, 5, 5, 2, counts, unread, named), 0.5, lsn=Lsn(1)
        ),
        PairResult("a.d", None, 0.0, "it is locked\nby somebody"),
    ]
    lines = list(pair_lines(results))
    assert (
        "a.c: 1 changed in 1 of 2 blocks; at least 899993 rows in 1 of 2 blocks,"
        in ("\n".join(lines))
    )
    (changed,) = [line for line in lines if "changed (id" in line]
    assert "v is null at the source, '' at the target; w is" in changed
    assert "\x1b" not in "".join(lines)
    assert "    id < 10: 7 rows at the source, 900000 at the target" in lines
    assert "a.d: it is locked" in lines
    assert lines[-2:] == [
        "Compared at LSN 0/1 of the source.",
        "3 tables: 1 equal, 1 different, 1 not comparable.",
    ]
    tables = json.loads(pair_document(results))["tables"]
    assert [each["result"] for each in tables] == [
        "equal",
        "different",
        "not comparable",
    ]
    assert tables[1]["differences"] == [
        {
            "kind": "changed",
            "key": {"id": "5"},
            "columns": [
                {"column": "v", "source": None, "target": ""},
                {"column": "w", "source": "\x1b[2J", "target": "ä" * 100},
            ],
        }
    ]
