"""A real Chromium for tests of the page: Debian's, found, installed or unpacked.

A test that cannot have it is skipped, and says so; with CI set it fails instead.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

_FETCH = Path(__file__).parent.parent.parent / "tools" / "fetch-chromium"


@cache
def chromium_path() -> str:
    """Return the browser's program; skips the test if there is none."""
    directory = Path.home() / ".cache" / "wal2lake" / "chromium"
    done = subprocess.run(
        [_FETCH, directory], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        reason = f"no Chromium, the page is not tested: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return done.stdout.strip().splitlines()[-1]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser without a window."""
    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            # Root has no sandbox; small machines have no room in /dev/shm.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        try:
            yield browser
        finally:
            browser.close()
