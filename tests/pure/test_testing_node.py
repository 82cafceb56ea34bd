"""What the errors of a node that has ended by itself say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wal2lake.errors import ConfigurationError, PublisherError
from wal2lake.launch.directory.lockfile import LockFacts, LockFile
from wal2lake.testing.node import Node

FAILS = "import sys; print('FATAL:  the reason', file=sys.stderr); sys.exit(3)"


class ShortNode(Node):
    """A node that ends by itself with exit code 3."""

    def begin(self) -> None:
        self._may_end = self._is_quoted = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-c", FAILS], stderr=log)
        self._process.wait()


@pytest.fixture
def node(tmp_path: Path) -> ShortNode:
    (tmp_path / "node").mkdir()
    node = ShortNode(tmp_path / "node")
    node.begin()
    return node


def test_the_first_error_quotes_the_log_and_the_others_refer_to_it(
    node: ShortNode,
) -> None:
    with pytest.raises(ConfigurationError, match="no node is running") as first:
        node.sql("select 1")
    [note] = first.value.__notes__
    assert "has ended by itself: it exited with exit code 3." in note
    assert note.endswith("The end of its log:\nFATAL:  the reason")
    with pytest.raises(ConfigurationError) as second:
        node.connect()
    [note] = second.value.__notes__
    assert note.endswith("exit code 3; an earlier error quotes its log.")


def test_a_killed_node_that_left_its_lock_file_is_not_waited_for(
    node: ShortNode,
) -> None:
    with LockFile.acquire(node.directory) as lock:
        # Nobody listens on this port.
        facts = LockFacts(1, str(node.directory), 0, 1, "127.0.0.1", "ready")
        lock.write(facts)
        with pytest.raises(PublisherError) as error:
            node.wait_for("select 1")
    assert "has ended by itself" in error.value.__notes__[0]


def test_a_node_that_was_to_end_is_no_news(node: ShortNode) -> None:
    assert node.wait_end() == 3
    with pytest.raises(ConfigurationError) as error:
        node.sql("select 1")
    assert not hasattr(error.value, "__notes__")
