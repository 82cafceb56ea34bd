"""The replication clients of two drivers, reading what test_decoding says of a new slot.

psycopg2's connection for logical replication; pgjdbc's, in a JVM of its own that py4j drives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from wal2lake.lake.jars import Jar, JarSource, locate_jars
from wal2lake.testing.waits import wait_until

PGJDBC = Jar(
    "org.postgresql",
    "postgresql",
    "42.7.8",
    "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
)


def read_by_psycopg2(dsn: str, slot: str, write: Callable[[], object]) -> list[str]:
    """What ``write`` commits, two transactions, through a slot that is made before and dropped
    after it."""
    factory = psycopg2.extras.LogicalReplicationConnection
    connection = psycopg2.connect(dsn, connection_factory=factory)
    try:
        cursor = connection.cursor()
        cursor.create_replication_slot(slot, output_plugin="test_decoding")
        options = {"include-xids": "0"}
        cursor.start_replication(slot_name=slot, decode=True, options=options)
        write()
        found: list[str] = []

        def read() -> bool:
            message = cursor.read_message()
            if message is not None:
                found.append(message.payload)
                cursor.send_feedback(flush_lsn=message.data_start, force=True)
            return found.count("COMMIT") == 2

        wait_until(read, describe=lambda: f"psycopg2 has two COMMITs of {found}")
    finally:
        connection.close()
    connection = psycopg2.connect(dsn, connection_factory=factory)
    try:
        # Its own method does not wait until the server has seen the other one go.
        connection.cursor().execute(f"DROP_REPLICATION_SLOT {slot} WAIT")
    finally:
        connection.close()
    return found


def read_by_pgjdbc(
    address: str, user: str, slot: str, write: Callable[[], object]
) -> list[str]:
    """The same; ``address`` is host:port/database."""
    with jvm_of_pgjdbc() as java:
        properties = java.util.Properties()
        for name, value in {
            "user": user,
            "replication": "database",
            "preferQueryMode": "simple",
            "assumeMinServerVersion": "10",
        }.items():
            properties.setProperty(name, value)
        manager = java.sql.DriverManager
        connection = manager.getConnection(f"jdbc:postgresql://{address}", properties)
        api = connection.getReplicationAPI()
        made = api.createReplicationSlot().logical().withSlotName(slot)
        info = made.withOutputPlugin("test_decoding").make()
        assert info.getSlotName() == slot
        stream = (
            api.replicationStream()
            .logical()
            .withSlotName(slot)
            .withStartPosition(info.getConsistentPoint())
            .withSlotOption("include-xids", False)
            .withStatusInterval(1, java.util.concurrent.TimeUnit.SECONDS)
            .start()
        )
        write()
        found: list[str] = []

        def read() -> bool:
            buffer: Any = stream.readPending()
            if buffer is not None:
                found.append(bytes(buffer.array())[buffer.arrayOffset() :].decode())
                stream.setFlushedLSN(stream.getLastReceiveLSN())
            return found.count("COMMIT") == 2

        wait_until(read, describe=lambda: f"pgjdbc has two COMMITs of {found}")
        stream.forceUpdateStatus()
        stream.close()
        # The same connection goes on after the stream.
        api.dropReplicationSlot(slot)
        connection.close()
        return found


@contextmanager
def jvm_of_pgjdbc() -> Iterator[Any]:
    """A JVM that has the driver."""
    (driver,) = locate_jars(
        JarSource.from_environment(os.environ), os.environ, [PGJDBC]
    )
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (py4j,) = Path(spec.origin).parent.glob("jars/py4j-*.jar")
    port, token = launch_gateway(
        jarpath=str(py4j), classpath=str(driver), die_on_exit=True, enable_auth=True
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token)
    )
    try:
        yield gateway.jvm.java
    finally:
        gateway.shutdown()
