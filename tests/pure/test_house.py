"""The checker of the house rules finds each violation, and this project has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.house import ROOM_MODULES, main, violations

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in order."""
    (tmp_path / "README.md").write_text("# A project\n")
    (tmp_path / "docs").mkdir()
    room = tmp_path / "src" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text('"""A room."""\n')
    (room / "cursor.py").write_text(
        '"""Reads tokens."""\n\nLIMIT = 3\n"""Tokens at most."""\n\n\n'
        'class Cursor:\n    """A place in a text."""\n\n    text = ""\n'
    )
    return tmp_path


def test_this_project_is_in_order() -> None:
    assert list(violations(ROOT)) == []


def test_a_project_in_order_passes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(project)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text",
    [
        '"""Of a module."""\n',
        '"""A module."""\n\n\nclass Found:\n    """Those that are there."""\n',
        '"""A module."""\n\n\ndef found():\n    """What is there."""\n',
        '"""A module."""\n\nSIZE = 3\n"""Its bytes."""\n',
        '"""A module."""\n\n\nclass Found:\n    size: int\n    """See the module."""\n',
        '"""A module."""\n\n\nclass Found:\n    def __init__(self):\n'
        '        self.size = 3\n        """As the catalog has it."""\n',
    ],
)
def test_a_docstring_without_a_subject_is_found(project: Path, text: str) -> None:
    (project / "src" / "room" / "found.py").write_text(text)
    (line,) = violations(project)
    assert line.startswith("src/room/found.py:") and "docstring begins with" in line


@pytest.mark.parametrize(
    "opening",
    ["Offsets of rows.", "Asks the server.", "Seeks.", "Whole rows.", "Items."],
)
def test_words_that_only_begin_alike_are_free(project: Path, opening: str) -> None:
    (project / "src" / "room" / "found.py").write_text(f'"""{opening}"""\n')
    assert list(violations(project)) == []


@pytest.mark.parametrize(
    "code",
    [
        "found = 3",
        "found: int",
        "left, found = 3, 4",
        "def seek(found): pass",
        "def seek(*, found=3): pass",
        "def seek(**found): pass",
        "lambda found: 3",
        "for found in (): pass",
        "[3 for found in ()]",
        "if (found := 3): pass",
        "with open('f') as found: pass",
        "import ast as found",
        "try: pass\nexcept OSError as found: pass",
        "match 3:\n    case found: pass",
        "match 3:\n    case [*found]: pass",
        "match 3:\n    case {**found}: pass",
        "class Cursors:\n    found: int",
    ],
)
def test_a_name_that_says_nothing_is_found(project: Path, code: str) -> None:
    (project / "src" / "room" / "tokens.py").write_text(f'"""Tokens."""\n\n{code}\n')
    (line,) = violations(project)
    assert line.startswith("src/room/tokens.py:")
    assert line.endswith(": the name 'found' does not say what it holds")


def test_names_that_say_nothing_are_found_in_order_and_others_are_free(
    project: Path,
) -> None:
    (project / "src" / "room" / "tokens.py").write_text(
        '"""Tokens."""\n\n\ndef known(told, other):\n    for one in told:\n'
        "        self.found = one.at\n        said = asked(given=found)\n"
    )
    assert list(violations(project)) == [
        f"src/room/tokens.py:{line}: the name '{name}' does not say what it holds"
        for line, name in ((4, "told"), (5, "one"), (7, "said"))
    ]


def test_a_class_name_that_repeats_is_found_and_a_private_one_is_not(
    project: Path,
) -> None:
    (project / "src" / "room" / "other.py").write_text(
        '"""Other tokens."""\n\n\nclass Cursor:\n    """Another place."""\n\n\n'
        'class _Found:\n    """A private one."""\n'
    )
    (project / "src" / "room" / "third.py").write_text(
        '"""A third module."""\n\n\nclass _Found:\n    """A private one."""\n'
    )
    assert list(violations(project)) == [
        "src/room/cursor.py:7: class Cursor is also in src/room/other.py:4"
    ]


def test_sizes_are_bounded(project: Path) -> None:
    room = project / "src" / "room"
    for number in range(ROOM_MODULES):
        (room / f"part{number}.py").write_text('"""A part."""\n')
    (room / "cursor.py").write_text('"""Reads tokens."""\n' + "\n" * 700)
    (project / "README.md").write_text("# A project\n" + "\n" * 120)
    (project / "docs" / "page.md").write_text("x" * 100 + "\n" + "y" * 101 + "\n")
    assert list(violations(project)) == [
        "src/room/cursor.py: 701 lines, at most 700",
        "src/room: 11 modules, at most 10",
        "README.md: 121 lines, at most 120",
        "docs/page.md:2: 101 characters, at most 100",
    ]
