"""The pages of docs/guide, executed.

A fenced block runs in its place. ``sql`` goes to psql, on the server that its first line names
(``-- source``, ``-- lake``, ``-- subscriber``); ``console`` has shell commands behind ``$``,
``python`` runs in the node's parent directory. A block of ``text`` directly behind a block of
``sql`` or ``python`` is what psql or the program prints, and what follows a command
of ``console`` is the beginning of its output. Blanks do not count.

What a reader's environment gives to libpq (where ``localhost`` is, on which port) the node gets by
PGPORT and PGHOSTADDR. The node listens on a free port, which takes the place of 5480. A SELECT
whose answer is shown is asked again until it is there: a reader takes more time than a test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.objectstores import BUCKET, s3_server
from tests.node.conftest import Psql
from tests.node.test_log_store import is_stored

from wal2lake.testing.cluster import Cluster
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer, find_installation
from wal2lake.testing.waits import wait_until

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

EXECUTED = ("sql", "console", "python")

START_SECONDS = 300.0
"""For a machine that has more to do than this."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    shown: str | None
    """What a block of ``text`` behind it shows."""


def blocks(page: str, text: str) -> Iterator[Block]:
    found = list(BLOCK.finditer(text))
    for number, block in enumerate(found):
        if block[1] == "text":
            continue
        behind = found[number + 1] if number + 1 < len(found) else None
        is_output = behind is not None and (
            behind[1] == "text" and not text[block.end() : behind.start()].strip()
        )
        shown = behind[2] if behind is not None and is_output else None
        assert block[1] in EXECUTED, f"{page}: {block[1]}"
        yield Block(block[1], block[2], shown)


def lines(text: str) -> list[str]:
    """Without blanks, and without the rules below a table's names."""
    rows = [" ".join(line.split()) for line in text.splitlines()]
    return [row for row in rows if row and set(row) - set("-+")]


@dataclass
class Reader:
    """Who types what a page says."""

    source: Database
    subscriber: Database
    node: Node
    psql: Psql
    folder: Path
    settings: str = ""
    """The node's wal2lake.toml; empty: as ``init`` writes it."""
    names: dict[str, str] = field(default_factory=dict)
    """What names in the page's commands are here."""

    def follow(self, page: str, part: str = "") -> int:
        """Do all that the page says, or a part of it; returns how many blocks that was."""
        count = 0
        text = part or (GUIDE / page).read_text(encoding="utf-8")
        for block in blocks(page, text):
            if block.language == "sql":
                self._sql(block)
            elif block.language == "python":
                self._python(block)
            else:
                self._console(block)
            count += 1
        return count

    def _here(self, text: str) -> str:
        """With names of this place, and the node's port, if it names one: there is a node then."""
        for shown, real in self.names.items():
            text = text.replace(shown, real)
        if "port=5480" not in text:
            return text
        found = re.search(r"\bport='?(\d+)", self.node.conninfo())
        assert found is not None
        return text.replace("port=5480", f"port={found[1]}")

    def _sql(self, block: Block) -> None:
        server = block.text.splitlines()[0].removeprefix("-- ")
        conninfo = {
            "source": self.source.conninfo,
            "lake": self.node.conninfo,
            "subscriber": self.subscriber.conninfo,
        }[server]
        typed = self._here(block.text)

        def answer() -> subprocess.CompletedProcess[str]:
            return self.psql(conninfo(), "-v", "ON_ERROR_STOP=1", stdin=typed)

        shown = block.shown
        if shown is None:
            done = answer()
            assert done.returncode == 0, f"{typed}\n{done.stderr}"
            return
        # It may be an error as well, of a column that has not come yet.
        wait_until(
            lambda: lines(answer().stdout) == lines(shown),
            describe=lambda: f"{typed}\nshows\n{shown}\nand not\n{answer()}",
        )

    def _python(self, block: Block) -> None:
        done = subprocess.run(
            [sys.executable, "-c", block.text],
            cwd=self.folder,
            # Spark takes the Python of its workers from there.
            env={**os.environ, "PATH": self._path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stderr}"
        assert lines(done.stdout) == lines(block.shown or "")

    def _console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            # A backslash at its end continues a command.
            command, _, shown = part.replace("\\\n", "").partition("\n")
            if command == "wal2lake init -D node -U me":
                self.node.init("-U", "me")
                if self.settings:
                    (self.node.directory / "wal2lake.toml").write_text(self.settings)
            elif command == "wal2lake start -D node":
                # A lease of a lost machine is waited for.
                self.node.start(wait=False).wait_ready(START_SECONDS)
            elif command == "wal2lake stop -D node":
                assert self.node.stop() == 0
            else:
                self._shell(command, shown)

    def _shell(self, command: str, shown: str) -> None:
        done = subprocess.run(
            self._here(command),
            shell=True,
            cwd=self.folder,
            env={**os.environ, **environ(self.source.server), "PATH": self._path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert lines(done.stdout)[: len(lines(shown))] == lines(shown)

    @staticmethod
    def _path() -> str:
        """Where a reader's shell finds programs."""
        programs = [Path(sys.executable).parent, find_installation(18).bin]
        return os.pathsep.join([*map(str, programs), os.environ["PATH"]])


def environ(server: PostgresServer) -> dict[str, str]:
    return {"PGHOSTADDR": "127.0.0.1", "PGPORT": str(server.port)}


@pytest.fixture(scope="module")
def node(
    postgres_server: Callable[[int], PostgresServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("guide") / "node"
    with Node(
        directory,
        environ=environ(postgres_server(18)),
        settings={"subscription.wal_retrieve_retry_interval_ms": 100},
    ) as node:
        yield node
        assert node.stop() == 0


@pytest.fixture
def reader(
    database: Callable[..., Database], node: Node, psql: Psql
) -> Iterator[Reader]:
    source = database(18, "app")
    subscriber = database(18, "reports")
    yield Reader(source, subscriber, node, psql, node.directory.parent)
    subscriber.psql("drop subscription if exists lake")
    for (name,) in node.sql("select subname from pg_subscription"):
        node.sql(f"drop subscription {name}")
    for (name,) in node.sql("select pubname from pg_publication"):
        node.sql(f"drop publication {name}")
    for (name,) in node.sql(
        "select relname from pg_class where oid >= 16384 and relkind = 'r'"
    ):
        node.sql(f"drop table {name}")


@pytest.mark.parametrize(
    "page",
    [
        "first-subscription.md",
        pytest.param("serve-to-postgresql.md", marks=pytest.mark.slow),
        pytest.param("when-a-table-fails.md", marks=pytest.mark.slow),
        pytest.param("schema-changes.md", marks=pytest.mark.slow),
        pytest.param("types-and-values.md", marks=pytest.mark.slow),
        pytest.param("reading.md", marks=pytest.mark.slow),
        pytest.param("history.md", marks=pytest.mark.slow),
        pytest.param("soft-deletes.md", marks=pytest.mark.slow),
        pytest.param("streaming.md", marks=pytest.mark.slow),
        pytest.param("operation.md", marks=pytest.mark.slow),
        pytest.param("from-debezium.md", marks=pytest.mark.slow),
    ],
)
def test_a_page_does_what_it_says(page: str, reader: Reader) -> None:
    if page != "first-subscription.md" and not reader.node.directory.exists():
        reader.node.init("-U", "me").start()
    executed = reader.follow(page)
    text = (GUIDE / page).read_text(encoding="utf-8")
    assert executed == len(re.findall(r"(?m)^```(?:sql|console|python)$", text)) > 5


SETTINGS = re.compile(r"(?m)^    \[log\]\n(?:(?:    .*)?\n)*")


@pytest.mark.slow
def test_a_node_on_a_cluster_has_the_settings_of_its_page(
    database: Callable[..., Database],
    postgres_server: Callable[[int], PostgresServer],
    psql: Psql,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A variable wins over the file.
    monkeypatch.delenv("WAL2LAKE_SPARK_CONF", raising=False)
    # Executors read the copy: their machines must find the source, too.
    for name, value in environ(postgres_server(18)).items():
        monkeypatch.setenv(name, value)
    page = (GUIDE / "cluster.md").read_text(encoding="utf-8")
    found = SETTINGS.search(page)
    assert found is not None
    with (
        Cluster(tmp_path / "cluster") as cluster,
        Node(tmp_path / "node", environ=environ(postgres_server(18))) as node,
    ):
        here = {
            "spark://head:7077": cluster.url,
            "/mnt/lake": str(tmp_path / "lake"),
            "10.0.0.5": "127.0.0.1",
            '"4g"': '"512m"',
        }
        settings = textwrap.dedent(found[0])
        for shown, real in here.items():
            assert shown in settings
            settings = settings.replace(shown, real)
        source, subscriber = database(18, "app"), database(18, "reports")
        reader = Reader(source, subscriber, node, psql, tmp_path)
        reader.settings = settings
        assert reader.follow("cluster.md") == 7
        applications = cluster.log_text("master")
        assert node.stop() == 0
    assert "Registered app" in applications


@pytest.mark.slow
def test_a_lost_machine_comes_back_as_its_page_says(
    database: Callable[..., Database],
    postgres_server: Callable[[int], PostgresServer],
    psql: Psql,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (GUIDE / "lost-machine.md").read_text(encoding="utf-8")
    found = re.search(r"(?m)^    \[spark\]\n(?:(?:    .*)?\n)*", page)
    assert found is not None
    names = {"my-bucket": BUCKET}
    heading = "## Go on from the store"
    before, after = page.split(heading)
    with (
        s3_server() as server,
        Node(tmp_path / "node", environ=environ(postgres_server(18))) as node,
    ):
        # The cloud's own programs have the keys.
        monkeypatch.setenv("WAL2LAKE_STORE_ENDPOINT", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        source, subscriber = database(18, "app"), database(18, "reports")
        reader = Reader(source, subscriber, node, psql, tmp_path, names=names)
        reader.settings = textwrap.dedent(found[0]).replace("my-bucket", BUCKET)
        assert reader.follow("lost-machine.md", before) == 5
        wait_until(
            lambda: is_stored(node.directory), describe="the catalog is in the store"
        )
        node.kill("tree")
        shutil.rmtree(node.directory)
        assert reader.follow("lost-machine.md", after) == 3
        node.sql("drop subscription visits")
        assert node.stop() == 0


def test_each_page_is_followed_and_linked() -> None:
    pages = {path.name for path in GUIDE.glob("*.md")} - {"index.md"}
    index = (GUIDE / "index.md").read_text(encoding="utf-8")
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", index))
