"""Lines of the log that cannot be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from wal2lake.observe import configure, get_logger


@pytest.fixture
def logging_to() -> Iterator[Callable[[int], None]]:
    with contextlib.ExitStack() as stack:

        def to(descriptor: int) -> None:
            stream = os.fdopen(descriptor, "w")
            stack.callback(stream.close)
            configure("test", stream=stream)

        yield to


def test_a_log_whose_reader_has_gone_raises_nothing(
    logging_to: Callable[[int], None],
) -> None:
    """``wal2lake start 2>&1 | head`` ended the node at the first line after head's last."""
    reader, writer = os.pipe()
    logging_to(writer)
    os.close(reader)
    get_logger().info("nobody reads this")


def test_a_log_on_a_full_disk_raises_nothing(
    logging_to: Callable[[int], None],
) -> None:
    logging_to(os.open("/dev/full", os.O_WRONLY))
    get_logger().info("there is no room for this")


def test_a_full_pipe_that_does_not_block_is_waited_for_and_then_left_out(
    logging_to: Callable[[int], None],
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    logging_to(writer)
    size = 1 << 20
    get_logger().info("x" * size)
    assert len(os.read(reader, size)) < size
    get_logger().info("again")
    assert os.read(reader, size).endswith(b"again\n")
    os.close(reader)
