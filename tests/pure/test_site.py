"""The site of the documents fails for a dead link, wherever the link leads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("link", "code"),
    [
        ("reference/types.md", 0),
        ("reference/nothing.md", 1),
        ("invariants.md#nothing", 1),
        ("../mkdocs.yml", 0),
        ("../nothing.py", 1),
    ],
)
def test_a_dead_link_fails(tmp_path: Path, link: str, code: int) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "sitelinks.py", tmp_path / "tools")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write(f"\n[a link]({link})\n")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    arguments = re.search(r"-m (mkdocs .*)", makefile)
    assert arguments is not None
    built = subprocess.run(
        [sys.executable, "-m", *arguments[1].split()],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # Links of other pages to files of the repository that are not here fail as well.
    others = [
        line
        for line in built.stderr.splitlines()
        if line.startswith("WARNING") and link not in line
    ]
    assert (built.returncode, others) == (code, []), built.stderr
