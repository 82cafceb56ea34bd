"""Creates version 0 of a table.

In: a location, fields, properties. Out: a table without rows, not yet durable.
``protocol.newtables`` says which features a reader and a writer need, and which properties the
session's settings add.

Called by ``deltatables``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from wal2lake.errors import DuplicateObjectError
from wal2lake.lake.delta.fields import metadata_of
from wal2lake.lake.delta.log.checksum import NO_FILES, checksum_line
from wal2lake.lake.delta.log.clustering import clustering_domain
from wal2lake.lake.delta.log.firstversion import (
    commit_lines,
    own_time_of,
    write_first,
)
from wal2lake.lake.delta.log.place import Object, checksum_key, commit_key
from wal2lake.lake.delta.protocol.newtables import completed
from wal2lake.lake.delta.protocol.upgrade import MODE
from wal2lake.lake.delta.schema import field_json, json_of
from wal2lake.lake.delta.schemachange import UNSAFE_IN_NAMES
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.store import local_path, store_at
from wal2lake.pgtypes.columnnames import check_column_names

DEFAULT_PROPERTIES: Final[Mapping[str, str]] = {
    "delta.enableDeletionVectors": "true",
    # A checkpoint costs ten commits' time; Delta's default of 10 would double the cost
    # of a stream of small commits. A reader parses this many small files at worst.
    "delta.checkpointInterval": "100",
}


class Creation:
    """Creates tables; one per session, safe for all threads."""

    def __init__(self, delta: DeltaJvm) -> None:
        self._delta = delta

    def create(
        self,
        location: str,
        fields: Sequence[FieldSpec],
        properties: Mapping[str, str] | None,
        partition_columns: Sequence[str] = (),
        clustering: Sequence[str] = (),
    ) -> None:
        """Create a table. DuplicateObjectError if the directory has anything else in it."""
        check_column_names(field.name for field in fields)
        configuration = dict(DEFAULT_PROPERTIES)
        if any(UNSAFE_IN_NAMES & set(field.name) for field in fields):
            configuration[MODE] = "name"
        configuration.update(properties or {})
        self._require_empty(location)
        columns = [
            field_json(field.name, json_of(field.spark_ddl), metadata_of(field))
            for field in fields
        ]
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": columns}),
            "partitionColumns": list(partition_columns),
            "configuration": configuration,
            "createdTime": int(time.time() * 1000),
        }
        prepared, protocol = completed(
            metadata, self._delta.defaults(), clustered=bool(clustering)
        )
        self._write_first(location, prepared, protocol, clustering)

    def create_like(self, location: str, metadata: Object) -> None:
        """Create a table with another one's metadata. The session's defaults are not for it: its
        files are to join the other table, whose columns they must name in the same way."""
        own = {**metadata, "id": str(uuid.uuid4())}
        prepared, protocol = completed(own, {})
        self._write_first(location, prepared, protocol, ())

    def _write_first(
        self,
        location: str,
        metadata: Object,
        protocol: Object,
        clustering: Sequence[str],
    ) -> None:
        """Commit version 0 as ``firstversion`` does."""
        txn_id = str(uuid.uuid4())
        domains = _domains(clustering, metadata)
        commit = commit_lines(metadata, protocol, txn_id, domains)
        checksum = checksum_line(
            metadata,
            protocol,
            txn_id,
            NO_FILES,
            domains=domains,
            files=(),
            committed_ms=own_time_of(metadata),
        )
        store = store_at(location)
        if store is not None:
            write_first(store, commit, checksum)
            return
        with self._delta.calling(location):
            log = self._delta.log(location)
            log.createLogDirectoriesIfNotExists()
            for key, lines in ((commit_key(0), commit), (checksum_key(0), [checksum])):
                log.store().write(
                    self._delta.jvm.org.apache.hadoop.fs.Path(location, key),
                    self._delta.seq(lines).iterator(),
                    key == checksum_key(0),
                    self._delta.hadoop_conf(),
                )

    def _require_empty(self, location: str) -> None:
        """Require an empty directory: a table created among foreign files would delete them when
        it is dropped. A log without a version is left by a creation that crashed, and is
        accepted."""
        root, store = local_path(location), store_at(location)
        if root is not None:
            names = [entry.name for entry in root.iterdir()] if root.exists() else []
        elif store is not None:
            present = store.list_below("", lambda folder: True)
            names = sorted({key.partition("/")[0] for key in present})
        else:
            with self._delta.calling(location):
                path = self._delta.jvm.org.apache.hadoop.fs.Path(location)
                files = path.getFileSystem(self._delta.hadoop_conf())
                names = (
                    [entry.getPath().getName() for entry in files.listStatus(path)]
                    if files.exists(path)
                    else []
                )
        if names not in ([], ["_delta_log"]):
            raise DuplicateObjectError(
                f'directory "{location}" exists but is not empty',
                sqlstate="42P07",
                hint="Remove what is in it, or move it elsewhere.",
            )


def _domains(clustering: Sequence[str], metadata: Object) -> list[Object]:
    return [clustering_domain(clustering, metadata)] if clustering else []
