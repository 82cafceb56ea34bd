"""Says what Spark needs to read and write tables of a warehouse, whatever cloud it is in.

In: the warehouse's URL, the options of the store's client, the environment. Out: ``SparkAccess``.
Called by ``engine``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wal2lake.lake.spark.access.azure import access_to_azure
from wal2lake.lake.spark.access.google import access_to_google
from wal2lake.lake.spark.access.needs import SparkAccess
from wal2lake.lake.spark.access.s3 import access_to_s3
from wal2lake.lake.store import StoreOptions


def access_to(
    warehouse: str,
    options: StoreOptions,
    environment: Mapping[str, str],
    private: Path,
    *,
    is_cluster: bool = False,
) -> SparkAccess:
    """Return what a session needs for a warehouse; nothing for one in a directory.

    ``private``: directory for files of the connector, and for one that has the command for
    credentials; created if absent."""
    match warehouse.partition("://")[0]:
        case "s3":
            return access_to_s3(options, environment, private, is_cluster=is_cluster)
        case "abfss":
            return access_to_azure(options, environment, private, is_cluster=is_cluster)
        case "gs":
            return access_to_google(options, environment)
        case _:
            return SparkAccess()
