"""The page of a real node with work on it, in a real Chromium."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect
from tests.conftest import FAST_RETRY, Database
from tests.fakes.chromium import chromium

from wal2lake.launch import read_web_status
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.slow

SECOND = 1000
WAIT = 90 * SECOND
"""A busy machine starts Spark slowly."""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("page")
    settings = {**FAST_RETRY, "web.listen": "127.0.0.1:0"}
    with Node(directory / "data", settings=settings) as running:
        yield running.init().start()


@pytest.fixture
def page(busy: Node) -> Iterator[Page]:
    """The node's page, whose console stays empty."""
    run = busy.directory / "run"
    wait_until(lambda: read_web_status(run) is not None, describe=busy.log_text)
    status = read_web_status(run)
    assert status is not None
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on(
            "console",
            lambda m: complaints.append(m.text) if m.type == "error" else None,
        )
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(status.urls[0])
        page.locator("h1").wait_for()
        yield page
    assert complaints == []


@contextmanager
def work(source: Database) -> Iterator[None]:
    """Insert and update rows until the end."""
    ending = threading.Event()

    def go() -> None:
        number = 0
        while not ending.is_set():
            number += 20
            source.psql(
                f"insert into orders select g, 'x' from generate_series({number},"
                f" {number + 19}) g; update orders set item = 'y' where id = {number};"
            )

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(60)


def test_from_no_subscription_to_a_problem_and_its_remedy(
    busy: Node, page: Page, database: Callable[..., Database]
) -> None:
    expect(page.locator("h1")).to_have_text("No subscription yet")
    source = database(18)
    source.psql(
        "create table orders (id bigint primary key, item text);"
        ' create table "<img src=x onerror=alert(1)>" (id int primary key);'
        " insert into orders values (0, 'first'); create publication shop for all tables"
    )
    conninfo = quote_literal(source.conninfo())
    busy.sql(f"create subscription shop connection {conninfo} publication shop")
    # The picture comes by itself.
    expect(page.locator(".lane h2")).to_have_text("shop", timeout=WAIT)
    expect(page.locator(".lane .pill")).to_have_text("streaming", timeout=WAIT)
    expect(page.locator(".picture")).to_have_attribute(
        "aria-label", re.compile("2 tables"), timeout=WAIT
    )
    with work(source):
        expect(page.locator("[data-chart=rows]")).to_have_attribute(
            "aria-label", re.compile(r"rows [1-9]"), timeout=WAIT
        )
        page.get_by_role("link", name="Tables").click()
        row = page.locator("tbody tr", has_text="orders")
        expect(row.locator(".pill")).to_have_text("ready", timeout=WAIT)
        expect(row.locator("td").nth(1)).to_have_text(re.compile("[1-9]"), timeout=WAIT)
        expect(page.locator("tbody")).to_contain_text("<img src=x onerror=alert(1)>")
        row.get_by_role("link").click()
        expect(page.locator("h1")).to_have_text("public.orders")
        versions = page.locator(".card", has=page.locator("h2", has_text="Versions"))
        expect(versions.locator("tbody tr").nth(2)).to_be_visible(timeout=WAIT)
    busy.sql("select wal2lake.pause_table('public.orders')")
    page.get_by_role("link", name="Problems").click()
    problem = page.locator(".problem", has_text="paused")
    expect(problem).to_be_visible(timeout=WAIT)
    remedy = problem.locator("[data-sql]").get_attribute("data-sql")
    assert remedy is not None and "resume_table" in remedy
    busy.sql(remedy)
    expect(problem).to_have_count(0, timeout=WAIT)


def test_the_page_lives_while_the_engine_is_down(busy: Node, page: Page) -> None:
    busy.kill("engine")
    expect(page.locator("#banner")).to_be_empty()
    read = page.locator("#foot p").nth(1)
    before = read.inner_text()
    expect(read).not_to_have_text(before)
    busy.wait_ready()
    expect(page.locator("#corner .pill")).to_have_text("node ready", timeout=WAIT)
