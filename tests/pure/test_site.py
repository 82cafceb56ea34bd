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
    ("links", "code"),
    [
        (("reference/types.md", "../mkdocs.yml"), 0),
        (("reference/nothing.md", "invariants.md#nothing", "../nothing.py"), 1),
    ],
    ids=["live", "dead"],
)
def test_a_dead_link_fails(tmp_path: Path, links: tuple[str, ...], code: int) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "sitelinks.py", tmp_path / "tools")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.writelines(f"\n[a link]({link})\n" for link in links)
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
    warnings = [x for x in built.stderr.splitlines() if x.startswith("WARNING")]
    blamed = [[link for link in links if link in line] for line in warnings]
    # Each dead link has a warning of its own, so each fails the strict build by itself.
    dead = sorted([link] for link in links) if code else []
    assert sorted(blamed) == dead, built.stderr
    assert built.returncode == code, built.stderr
