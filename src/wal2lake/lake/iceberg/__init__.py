"""Iceberg: a table of Delta's as readers of Iceberg see it, beside Delta's log.

Takes: versions of a table. Gives: a folder ``_iceberg`` in the table's, whose metadata names the
same data files. Owns: that folder, the mirror's cursor, field ids. Never: writes a data file,
commits to Delta, or reads a row.

    mirror      one snapshot for the versions since the last
    fold        what these versions have changed
    columns     schemas, field ids, the partition spec
    bounds      statistics and partition values in Iceberg's form
    deletes     deletion vectors in Puffin files; position deletes
    manifests   which file is in which manifest
    containers  their content, and manifest lists, as Avro
    metadata    snapshots, expiry, the cursor
    place       the mirror's files in the table's store
"""

from wal2lake.lake.iceberg.metadata import MirrorCursor
from wal2lake.lake.iceberg.mirror import (
    IcebergMirror,
    Mirrored,
    MirrorOptions,
    ShownMirror,
)

__all__ = [
    "IcebergMirror",
    "MirrorCursor",
    "MirrorOptions",
    "Mirrored",
    "ShownMirror",
]
