"""Properties by which readers open the files of tables: ``config`` of a loaded table.

Those of [iceberg.reader_properties] are given as they are, credentials among them if there are any.
Of the node's own store a reader is told where it is, never the node's keys: they may write.

Called by: ``routes``. Source: pyiceberg's and Iceberg's documents of FileIO.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal2lake.settings import Settings


def reader_properties(settings: Settings) -> Mapping[str, str]:
    """Return the properties by name."""
    properties: dict[str, str] = {}
    if settings.warehouse.startswith(("s3://", "s3a://")):
        if settings.store.endpoint:
            properties["s3.endpoint"] = settings.store.endpoint
            properties["s3.path-style-access"] = "true"
        if settings.store.region:
            # Java reads the first name, Python the second.
            properties["client.region"] = settings.store.region
            properties["s3.region"] = settings.store.region
    return {**properties, **settings.iceberg.reader_properties}
