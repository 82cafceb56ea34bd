"""``wal2lake demo``: the product's own proof, run as a user runs it."""

from __future__ import annotations

import pytest

from wal2lake.testing.node import run_cli


@pytest.mark.slow
def test_the_demo_ends_equal():
    done = run_cli("demo", "--seconds", "16", timeout_seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "its page, until the demo ends: http://127.0.0.1:",
        "create subscription shop",
        "all existing rows are copied",
        "kill -9 of all",
        "changes/s",
        "EQUAL: all ",
    ):
        assert words in done.stdout, done.stdout
