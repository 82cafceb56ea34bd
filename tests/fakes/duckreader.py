"""Reads tables as DuckDB does, with its extension for Delta, in a process of its own.

Comes in: the path of a table, a query of ``t``. Goes out: its rows. The extension is not made for
the DuckDB that the node uses, so another version is fetched once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

_FETCH = Path(__file__).parent.parent.parent / "tools" / "fetch-duckdb"

_PROGRAM = """
import duckdb, glob, json, sys
packages, location, sql = sys.argv[1:]
session = duckdb.connect(config={"allow_unsigned_extensions": "true"})
(extension,) = glob.glob(f"{packages}/duckdb_ext/**/delta.duckdb_extension", recursive=True)
session.execute(f"load '{extension}'")
session.execute(f"create view t as select * from delta_scan('file://{location}')")
print(json.dumps(session.execute(sql).fetchall()))
"""


def duckdb_rows(location: str, sql: str) -> list[tuple[object, ...]]:
    """Return the rows of a query of the table ``t`` at a path. RuntimeError with DuckDB's error."""
    packages = _packages()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, packages, location, sql],
        env={**os.environ, "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [tuple(row) for row in json.loads(done.stdout)]


@cache
def _packages() -> str:
    """Return the directory; without a network the test is skipped, with CI it fails."""
    directory = Path.home() / ".cache" / "wal2lake" / "duckdb"
    done = subprocess.run(
        [_FETCH, directory / sys.implementation.cache_tag],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        reason = f"no DuckDB with Delta, it is not tested: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return done.stdout.strip().splitlines()[-1]
