"""Every hint of the sources is quoted by a test, which does what it says.

The sources are read as trees: the value of each ``hint=`` and of each assignment to ``.hint``, with
the constants that it names. A hint is quoted if a string of a test has ``QUOTED`` characters of it
in a row, or all of it if it is shorter. Whoever quotes a hint follows it: the test ends with what
was refused being taken, or going on. ``ELSEWHERE`` has those that a test follows without their
words, and ``OF_NOBODY`` those that no test follows, with the reason.

Hints of others are not looked at here: what a server, the catalog or another function has said and
is passed on.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "src/wal2lake"
QUOTED: Final = 24
_PROGRAMS: Final = "pure/test_hints_of_programs.py"
_CHOICES: Final = "pure/test_hints_of_choices.py"

ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_PROGRAMS}::test_a_catalog_is_opened_by_who_can": ("Run wal2lake init, or",),
    f"{_PROGRAMS}::test_a_place_for_a_node": (
        "A node's directory is its own: choose another",
        '"wal2lake status -D ... " says more.',
    ),
    f"{_PROGRAMS}::test_arguments_are_written_as_the_hints_say": ("Write HOST:PORT,",),
    f"{_PROGRAMS}::test_each_setting_takes_what_its_hint_allows": ("Choose a value",),
    f"{_PROGRAMS}::test_files_and_places_of_settings": ('Run "wal2lake init -D',),
    f"{_PROGRAMS}::test_what_a_startup_packet_may_say": (
        'Valid values are: "false", 0, "true", 1, "database".',
        'Only "-c name=value" and "--name=value"',
    ),
    f"{_CHOICES}::test_entries_and_their_targets": (
        "Name a type (numeric, timestamp(3), public.mood) or a column",
        "One type cannot hold the values of all; name types or columns.",
    ),
    f"{_CHOICES}::test_resolutions": ("Available resolutions", "Available types:"),
    f"{_CHOICES}::test_expressions": ("Write (expression), which is one of",),
    "node/test_command_line.py::test_sql_stops_a_script_at_its_first_error": (
        "Use psql itself, or ask the views:",
    ),
    "node/test_roles.py::test_a_subscription_of_somebody_who_is_no_superuser": (
        "Subscriptions with the password_required option set to false",
    ),
    "faults/test_kill_commands.py::"
    "test_what_a_killed_command_left_waits_for_its_publisher_and_can_be_repeated": (
        "A DROP SUBSCRIPTION was interrupted; repeat it.",
    ),
    "node/test_origin.py::"
    "test_a_publisher_that_does_not_know_origins_is_refused_in_its_words": (
        "Leave origin at its default, any.",
    ),
    "spark/test_class_archive.py::test_a_session_is_told_of_an_archive_that_is_there": (
        "Nothing depends on it; engines start more slowly without it.",
    ),
}
"""Beginnings of hints, by the test that follows them."""

OF_NOBODY: Final[Mapping[str, tuple[str, ...]]] = {
    "it is a matter of time, and of a worker that hangs": (
        "Try again when its present",
        "Try again; see the node's log.",
        "Wait until the ALTER SUBSCRIPTION has ended.",
        "It is dropped; its files are removed when",
    ),
    "only a crash at one moment leaves the node so": (
        "Enable the subscription until all tables have them.",
        "ROLLBACK PREPARED ends it.",
    ),
    "PostgreSQL's words, which say what may be done": (
        "The owner of a",
        "Verify that initial data copied from the publisher tables",
    ),
    "it names no act, or a place to look at": (
        "The copy begins anew by itself.",
        "The publisher was shut down, or ended the connection: its log",
    ),
    "no table of a node's makes Delta change its definition with its rows": (
        "Write it with Spark.",
    ),
    "it is about the machine that runs the tests": (
        "Run tools/fetch-postgres",
        "Make one with: useradd",
        "Install it with: pip install",
    ),
}
"""Beginnings of hints that no test follows, by the reason."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def constants(path: Path) -> dict[str, ast.expr]:
    """What is assigned to names at the top of a module."""
    found: dict[str, ast.expr] = {}
    for node in parsed(path).body:
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ):
                found[name] = value
    return found


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(SOURCES.rglob("*.py"))}


@cache
def imported(name: str) -> ast.expr | None:
    """A constant of any module."""
    for path, text in sources().items():
        if f"\n{name}" in text and name in constants(path):
            return constants(path)[name]
    return None


def pieces(node: ast.expr, path: Path) -> Iterator[str]:
    """The constant texts of an expression, in order."""
    match node:
        case ast.Constant(value=str(text)):
            yield " ".join(text.split())
        case ast.JoinedStr(values=parts) | ast.BoolOp(values=parts):
            for part in parts:
                yield from pieces(part, path)
        case ast.FormattedValue(value=value):
            yield from pieces(value, path)
        case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
            yield from pieces(one, path)
            yield from pieces(other, path)
        case ast.Name(id=name) if name.isupper():
            known = constants(path).get(name) or imported(name)
            if known is not None:
                yield from pieces(known, path)


def hints() -> Iterator[tuple[str, list[str]]]:
    """Places of hints, and their constant texts."""
    for path, content in sources().items():
        for node in ast.walk(parsed(path)) if "hint" in content else ():
            match node:
                case ast.keyword(arg="hint", value=value):
                    pass
                case ast.Assign(targets=[ast.Attribute(attr="hint")], value=value):
                    pass
                case _:
                    continue
            texts = [text for text in pieces(value, path) if len(text) > 3]
            if texts:
                yield f"{path.relative_to(SOURCES)}:{value.lineno}", texts


@cache
def strings() -> str:
    """All strings of the tests, a line each, with single blanks."""
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        if path == Path(__file__):
            continue
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Constant(value=str(text)):
                    found.append(text)
                case ast.JoinedStr(values=parts):
                    found.append("".join(constant(one) for one in parts))
    return "\n".join(" ".join(text.split()) for text in found)


def constant(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "{}"


def is_quoted(texts: list[str]) -> bool:
    for text in texts:
        for start in range(len(text) - QUOTED + 1):
            if text[start : start + QUOTED] in strings():
                return True
    whole = ".{0,80}".join(map(re.escape, texts))
    return re.search(whole, strings()) is not None


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking at all the trees again and again, which takes three
    quarters of the time."""
    gc.disable()
    yield
    gc.enable()


def listed(table: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {beginning for several in table.values() for beginning in several}


@pytest.mark.usefixtures("uncollected")
def test_every_hint_is_quoted_by_a_test() -> None:
    known = listed(ELSEWHERE) | listed(OF_NOBODY)
    unused, unknown = set(known), []
    for place, texts in hints():
        if is_quoted(texts):
            continue
        shown = " ... ".join(texts)
        found = {one for one in known if shown.startswith(one)}
        unused -= found
        if not found:
            unknown.append(f"{place}: {shown}")
    assert unknown == [], "no test follows these hints"
    assert unused == set(), "these are quoted by a test, or are no hints any more"


def test_the_tests_that_follow_hints_in_other_words_are_there() -> None:
    for name in ELSEWHERE:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / path).read_text(), name
