"""Checks the house rules that no other tool knows, and fails on each violation.

    docstrings   begin with a verb or a noun, never with Of, Those, Who, What, Its, As or See
    classes      a public class name is used once in the project
    names        a variable, parameter or field says what it holds: none is called asked, at,
                 found, given, known, one, said or told
    modules      have at most 700 lines
    rooms        have at most ten modules; a room that outgrows them gets folders
    README.md    has at most 120 lines
    documents    have no line over 100 characters

Run by ``make lint``; CONTRIBUTING.md names the rules. ``python tools/house.py [ROOT]``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 700
ROOM_MODULES = 10
README_LINES = 120
DOCUMENT_CHARACTERS = 100

_OPENING = re.compile(r"(Of|Those|Who|Whose|Whom|Whoever|What|Whatever|Its|As|See)\b")

_EMPTY_NAMES = frozenset(
    {"asked", "at", "found", "given", "known", "one", "said", "told"}
)


def violations(root: Path) -> Iterator[str]:
    """Yield one line for each violation below ``root``: place, then the rule."""
    source = root / "src"
    yield from _modules(root, source)
    yield from _rooms(root, source)
    yield from _documents(root)


def _modules(root: Path, source: Path) -> Iterator[str]:
    classes: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(root)
        lines = text.count("\n")
        if lines > MODULE_LINES:
            yield f"{place}: {lines} lines, at most {MODULE_LINES}"
        tree = ast.parse(text)
        for node in _docstrings(tree):
            opening = _OPENING.match(str(node.value).strip())
            if opening is not None:
                yield f"{place}:{node.lineno}: a docstring begins with {opening[1]!r}"
        for line, name in sorted(_names(tree)):
            if name in _EMPTY_NAMES:
                yield f"{place}:{line}: the name {name!r} does not say what it holds"
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef) and statement.name[0] != "_":
                classes[statement.name].append(f"{place}:{statement.lineno}")
    for name, places in sorted(classes.items()):
        if len(places) > 1:
            yield f"{places[0]}: class {name} is also in {', '.join(places[1:])}"


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, parameter and field."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=str(name), ctx=ast.Store())
                | ast.arg(arg=str(name))
                | ast.alias(asname=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield node.lineno, name


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes and functions, and texts below assignments."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        for statement in body:
            text = statement.value if isinstance(statement, ast.Expr) else None
            if (
                documented
                and isinstance(text, ast.Constant)
                and isinstance(text.value, str)
            ):
                yield text
            documented = isinstance(statement, ast.Assign | ast.AnnAssign)


def _rooms(root: Path, source: Path) -> Iterator[str]:
    modules: defaultdict[Path, int] = defaultdict(int)
    for path in source.rglob("*.py"):
        modules[path.parent] += path.name != "__init__.py"
    for room, count in sorted(modules.items()):
        if count > ROOM_MODULES:
            yield f"{room.relative_to(root)}: {count} modules, at most {ROOM_MODULES}"


def _documents(root: Path) -> Iterator[str]:
    readme = root / "README.md"
    lines = readme.read_text(encoding="utf-8").count("\n")
    if lines > README_LINES:
        yield f"README.md: {lines} lines, at most {README_LINES}"
    for path in (*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > DOCUMENT_CHARACTERS:
                place = path.relative_to(root)
                yield (
                    f"{place}:{number}: {len(line)} characters,"
                    f" at most {DOCUMENT_CHARACTERS}"
                )


def main(arguments: list[str]) -> int:
    """Print all violations; 1 if there is one."""
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    broken_rules = list(violations(root))
    for line in broken_rules:
        print(line)
    if broken_rules:
        print(f"{len(broken_rules)} violations of the house rules", file=sys.stderr)
    return 1 if broken_rules else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
