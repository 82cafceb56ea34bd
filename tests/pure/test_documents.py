"""Documents name files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PATH = re.compile(r"`((?:src/wal2lake|tests|tools|docs|benchmarks|deploy)/[\w./*-]+)`")


def _documents() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").rglob("*.md")


def test_each_file_that_a_document_names_exists() -> None:
    missing = [
        f"{document.relative_to(ROOT)}: {name}"
        for document in _documents()
        for name in _PATH.findall(document.read_text(encoding="utf-8"))
        if not any(ROOT.glob(name.rstrip("/"))) and not any(ROOT.glob(f"{name}.py"))
    ]
    assert missing == []
