"""Creates version 0 of a table.

In: a location, fields, properties. Out: a table without rows, not yet durable. Delta decides once
for each kind of table which features a reader and a writer need, and which properties the
session's settings add. A plain version is then written here (``log.firstversion``); Delta writes
every other.

Called by ``deltatables``.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from wal2lake.errors import DuplicateObjectError
from wal2lake.lake.delta.fields import metadata_of
from wal2lake.lake.delta.log.checksum import Bins, checksum_line
from wal2lake.lake.delta.log.clustering import FEATURE, clustering_domain
from wal2lake.lake.delta.log.firstversion import (
    Model,
    TableKind,
    commit_lines,
    is_plain,
    write_first,
)
from wal2lake.lake.delta.log.place import Object, checksum_key, commit_key
from wal2lake.lake.delta.schema import field_json, json_of
from wal2lake.lake.delta.schemachange import MODE, UNSAFE_IN_NAMES
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

_NUMBERS: Final = re.compile(r"\([0-9, ]+\)")
"""Matches precisions and lengths in a type's name."""

_CLUSTERING_REQUEST: Final = {f"delta.feature.{FEATURE}": "supported"}
"""Property that requests a clustered table of Delta; Delta's transaction removes the property."""


class Creation:
    """Creates tables; one per session, safe for all threads."""

    def __init__(self, delta: DeltaJvm) -> None:
        self._delta = delta
        self._lock = threading.Lock()
        self._bins: Bins | None = None
        self._models: dict[TableKind, Model] = {}

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
        requested = _CLUSTERING_REQUEST if clustering else {}
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
        kind = TableKind(
            self._delta.settings_hash(),
            frozenset(_NUMBERS.sub("", field.spark_ddl) for field in fields),
            frozenset(
                item
                for item in {**configuration, **requested}.items()
                if item[0].startswith("delta.")
            ),
        )
        with self._lock:
            model = self._models.get(kind)
        if model is not None:
            completed = model.applied_to(metadata)
            self._write_first(location, completed, model.protocol, clustering)
        else:
            self._create_first_of(kind, location, metadata, clustering)

    def _create_first_of(
        self,
        kind: TableKind,
        location: str,
        metadata: Object,
        clustering: Sequence[str],
    ) -> None:
        """Create the first table of its kind, and remember what Delta decided: the reader's and
        writer's features and the added properties are the same for each table of the kind."""
        prepared, protocol = self.create_with(location, metadata, clustering)
        model = Model.of(metadata, prepared, protocol)
        if model is not None and is_plain(protocol):
            with self._lock:
                self._models[kind] = model

    def create_with(
        self, location: str, metadata: Object, clustering: Sequence[str] = ()
    ) -> tuple[Object, Object]:
        """Create a table of exactly that metadata; return the metadata that Delta completed, and
        the protocol."""
        requested = {
            **metadata["configuration"],
            **(_CLUSTERING_REQUEST if clustering else {}),
        }
        with self._delta.calling(location):
            transaction = self._delta.log(location).startTransaction()
            transaction.updateMetadataForNewTable(
                self._delta.action(
                    {"metaData": {**metadata, "configuration": requested}}
                )
            )
            prepared = json.loads(transaction.metadata().json())["metaData"]
            protocol = json.loads(transaction.protocol().json())["protocol"]
            if not is_plain(protocol):
                # A Spark setting requires more than a plain version, so Delta commits it.
                domains = _domains(clustering, prepared)
                transaction.commit(
                    self._delta.seq(
                        [
                            self._delta.action({"domainMetadata": domain})
                            for domain in domains
                        ]
                    ),
                    getattr(
                        self._delta.jvm.org.apache.spark.sql.delta,
                        "DeltaOperations$CreateTable",
                    )(
                        transaction.metadata(),
                        False,
                        False,
                        self._delta.jvm.scala.Option.empty(),
                    ),
                )
                return prepared, protocol
        self._write_first(location, prepared, protocol, clustering)
        return prepared, protocol

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
            metadata, protocol, txn_id, domains=domains, bins=self._histograms()
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

    def _histograms(self) -> Bins:
        """Return Delta's bounds of file sizes, and its number of bins for deleted rows."""
        with self._lock:
            if self._bins is None:
                stats = self._delta.jvm.org.apache.spark.sql.delta.stats
                sizes = stats.FileSizeHistogramUtils.DEFAULT_BINS()
                deleted = stats.DeletedRecordCountsHistogramUtils.NUMBER_OF_BINS()
                self._bins = Bins(tuple(self._delta.from_java(sizes)), deleted)
            return self._bins

    def _require_empty(self, location: str) -> None:
        """Require an empty directory: a table created among foreign files would delete them when
        it is dropped. A log without a version is left by a creation that crashed, and is
        accepted."""
        root = local_path(location)
        if root is not None:
            names = [entry.name for entry in root.iterdir()] if root.exists() else []
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
