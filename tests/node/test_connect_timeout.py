"""subscription.connect_timeout_ms is the longest wait of commands too."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from wal2lake.errors import PublisherError
from wal2lake.testing.node import Node


@pytest.mark.slow
def test_a_command_gives_a_silent_publisher_up_at_the_setting(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(settings={"subscription.connect_timeout_ms": 1000}).start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(PublisherError, match="timeout expired") as caught:
            node.sql(
                "create subscription silent connection"
                f" 'host=127.0.0.1 port={port}' publication p"
            )
        assert time.monotonic() - start < 20
    assert caught.value.sqlstate == "08006"
    with pytest.raises(PublisherError, match="invalid integer value") as caught:
        node.sql(
            "create subscription silent connection"
            " 'host=127.0.0.1 connect_timeout=soon' publication p"
        )
    assert caught.value.sqlstate == "22023"
