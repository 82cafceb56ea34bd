"""Makes the pictures of the page in docs/images, with the real page in a real Chromium.

    python -m tools.screenshots [NAME ...]

The data are those of a shop that does not exist (``tests/fakes/scenes.py``), at a fixed time, so
that a picture changes only if the page does. pngquant, if it is installed, makes the files small.
Run by ``make screenshots``.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser
from tests.fakes import scenes
from tests.fakes.chromium import chromium
from tests.fakes.pageserver import PageServer

from wal2lake.catalog import Catalog

DIRECTORY: Final = Path(__file__).parent.parent / "docs" / "images"

NOON: Final = datetime(2026, 11, 20, 11, 47, 30, tzinfo=UTC)
"""Time of the pictures."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture."""

    name: str
    view: str
    scene: scenes.SceneAt
    width: int = 1180
    height: int = 790
    scheme: Literal["light", "dark"] = "light"
    seconds: int = 900
    """Time that the charts show."""


PICTURES: Final = (
    Picture("page-overview", "", scenes.calm, height=900),
    Picture("page-trouble", "", scenes.troubled, height=1010, scheme="dark"),
    Picture("page-tables", "tables", scenes.troubled, height=850),
    Picture("page-table", "table/16500", scenes.calm, height=900),
    Picture("page-copies", "copies", scenes.copying, height=680),
    Picture("page-problems", "problems", scenes.troubled, height=900),
    Picture("page-phone", "", scenes.troubled, 400, 860, "dark"),
)


def main(names: list[str]) -> int:
    """Make the named pictures, or all."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    wanted = [p for p in PICTURES if not names or p.name in names]
    with tempfile.TemporaryDirectory() as directory, chromium() as browser:
        path = Path(directory) / "catalog.sqlite"
        catalog = Catalog.create(path, "me", None)
        scenes.fill(catalog, scenes.calm(NOON)[0])
        catalog.close()
        _publish_before(path, NOON)
        for picture in wanted:
            _take(browser, path, picture)
    if shutil.which("pngquant") is None:
        print("pngquant is not installed: the pictures are larger than they need be")
    return 0


def _publish_before(catalog: Path, moment: datetime) -> None:
    """Let the states of a catalog have been published one after the other until ``moment``."""
    with closing(sqlite3.connect(catalog)) as connection, connection:
        noted = (moment - timedelta(minutes=4)).isoformat(timespec="microseconds")
        connection.execute("update conflict set noted_at = ?", (noted,))
        numbers = connection.execute("select max(number) from snapshot_vector")
        [newest] = numbers.fetchone()
        for number in range(newest + 1):
            time_then = moment - timedelta(seconds=1.9 * (newest - number) + 0.4)
            connection.execute(
                "update snapshot_vector set committed_at = ? where number = ?",
                (time_then.isoformat(timespec="microseconds"), number),
            )


def _take(browser: Browser, catalog: Path, picture: Picture) -> None:
    began = time.monotonic()

    def clock() -> datetime:
        return NOON + timedelta(seconds=time.monotonic() - began)

    with PageServer(catalog, picture.scene, clock=clock) as server:
        server.remember(picture.seconds + 10)
        server.read_again()
        context = browser.new_context(
            viewport={"width": picture.width, "height": picture.height},
            device_scale_factor=2,
            color_scheme=picture.scheme,
            timezone_id="UTC",
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.clock.set_system_time(NOON)
        page.goto(f"{server.url}#/{picture.view}")
        page.locator("h1").first.wait_for()
        if picture.view == "":
            page.get_by_role("button", name="15 min").click()
            # The pointer would otherwise show the values below it.
            page.mouse.move(2, 2)
            page.evaluate("scrollTo(0, 0)")
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(1200)
        target = DIRECTORY / f"{picture.name}.png"
        page.screenshot(path=target)
        context.close()
    before = target.stat().st_size
    _shrink(target)
    print(f"{target.name}: {target.stat().st_size // 1024} kB (was {before // 1024})")


def _shrink(target: Path) -> None:
    program = shutil.which("pngquant")
    if program is not None:
        subprocess.run(
            [
                program,
                "--force",
                "--strip",
                "--speed=1",
                "--quality=60-95",
                f"--output={target}",
                "128",
                target,
            ],
            check=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
