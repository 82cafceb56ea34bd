"""pgx v5 in its default mode: cached statements, binary values, a pool. Its program (``pgx/``)
prints what a server answers; the node's answers are PostgreSQL's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.launch.directory.passfile import connection_parameters, conninfo
from wal2lake.testing.node import Node

_SOURCE = Path(__file__).parent / "pgx"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, built; skipped where Go or its modules are not to be had."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("NOT TESTED with pgx: there is no Go (1.25 or later)")
    built = tmp_path / "pgx"
    done = subprocess.run(
        [go, "build", "-buildvcs=false", "-o", built, "."],
        cwd=_SOURCE,
        capture_output=True,
        text=True,
        env={**os.environ, "CGO_ENABLED": "0"},
        timeout=280,
        check=False,
    )
    if done.returncode != 0 and "main.go" not in done.stderr:
        pytest.skip(f"NOT TESTED with pgx: it cannot be built: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return built


def _answers(program: Path, server: str) -> list[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    done = subprocess.run(
        [program, server],
        capture_output=True,
        text=True,
        env=own,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_pgx_reads_what_postgresql_would_say(
    node: Node, pg18: Database, program: Path
) -> None:
    theirs = _answers(program, pg18.conninfo())
    ours = _answers(program, conninfo(connection_parameters(node.directory)))
    assert ours == theirs
    assert len(ours) > 150
