"""Writes version 0 of a table, as Delta writes it for a table without rows.

In: the metadata and the protocol of the new table, from ``newtables``. Out: the lines of the
commit and of its checksum file, and both in the table's store.

Why not Delta's own commit. After writing the two lines it reads the new table back with two Spark
jobs, to find that it is empty. That took a third of a second a table, most of the time of CREATE
SUBSCRIPTION. There is nothing to conflict with either: a second writer finds that the file
exists. The checksum has everything from which Delta derives the next version's; if anything were
missing, the first commit would read the table back instead.

Called by ``spark.delta.creation`` and by ``spark.branch.branches``. Sources: Delta transaction log
protocol, "Commit Provenance Information" and "Version Checksum File"; delta-spark 4.4
Checksum.scala.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from wal2lake.errors import DuplicateObjectError
from wal2lake.lake.delta.log.clustering import clustering_columns, references
from wal2lake.lake.delta.log.place import (
    LOG,
    Object,
    checksum_key,
    commit_key,
    content_of,
    dump,
)
from wal2lake.lake.store import Store

OWN_TIMES: Final = "delta.enableInCommitTimestamps"
"""Property of a table whose commits state their own times."""


def commit_lines(
    metadata: Object, protocol: Object, txn_id: str, domains: Sequence[Object] = ()
) -> list[str]:
    """Return the lines that CREATE TABLE commits; ``domains``: ``domainMetadata`` actions."""
    own_time = own_time_of(metadata)
    clustering = references(clustering_columns(domains, metadata))
    info = {
        **({} if own_time is None else {"inCommitTimestamp": own_time}),
        "timestamp": metadata["createdTime"],
        "operation": "CREATE TABLE",
        "operationParameters": {
            "partitionBy": json.dumps(metadata["partitionColumns"]),
            "clusterBy": dump(clustering),
            "description": None,
            "isManaged": "false",
            "properties": dump(metadata["configuration"]),
        },
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {},
        "txnId": txn_id,
    }
    actions = (
        {"commitInfo": info},
        {"metaData": metadata},
        {"protocol": protocol},
        *({"domainMetadata": domain} for domain in domains),
    )
    return [dump(action) for action in actions]


def own_time_of(metadata: Object) -> int | None:
    """Return the time that the commit of version 0 states as its own; None if the table's commits
    have none."""
    if metadata["configuration"].get(OWN_TIMES, "").lower() != "true":
        return None
    return int(metadata["createdTime"])


def write_first(store: Store, commit: Sequence[str], checksum: str) -> None:
    """Create the table's folder and write both files below it; on a file system they are not yet
    durable.

    The commit is complete as soon as it has its name. A crash may leave out the checksum; the
    first commit then takes longer. DuplicateObjectError if there is a table already.
    """
    store.make_folder(LOG)
    created = store.put_if_absent(commit_key(0), content_of(commit), durable=False)
    if created is None:
        raise DuplicateObjectError(
            f'there is a Delta table at "{store.location}" already', sqlstate="42P07"
        )
    store.put(checksum_key(0), content_of([checksum]), durable=False)
