"""Lists the features of Delta's protocol with which this node writes a table. Pure.

In: a ``protocol`` action. Out: its features, or an error that names those that the node does not
know. A feature says what a writer must do; a writer that does not know it must not write. So the
list is closed, and everything else about a table stays as it was: it can be read.

What the features of the list demand of a commit, and where that is done:

    appendOnly              no rows are removed while its property is true   refuse_removal
    inCommitTimestamp       a time that grows with each version              log.commit
    rowTracking             numbers for the rows of each new file            rowids
    domainMetadata          every domain is carried on                       log.commit
    clustering              its columns are a domain                         log.clustering
    v2Checkpoint            checkpoints as the table's property asks         versions.checkpoints
    columnMapping           ids and names of new columns                     schemachange, upgrade
    checkpointProtection    the log's beginning stays                        versions.cleanup
    checkConstraints, generatedColumns, invariants
                            rows are checked or computed (``RowDemands``)
    identityColumns         the node writes values, and generates none
    changeDataFeed          readers derive changes from the files of our commits
    others                  of data files or readers alone; nothing of a commit

Sources: Delta transaction log protocol, "Table Features", "Writer Version Requirements", "Valid
Feature Names in Table Features"; delta-spark 4.4 TableFeature.scala.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError

KNOWN: Final = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Features of tables that the node writes."""

OF_READERS: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Features that readers must know, too."""

NAMING_READER: Final = 3
NAMING_WRITER: Final = 7
"""Versions of a protocol that names its features; lower ones stand for fixed sets."""

_IMPLIED: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (2, ("appendOnly", "invariants")),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (5, ("columnMapping",)),
    (6, ("identityColumns",)),
)
"""Features of a writer of the version, beside those of lower versions."""

_MAPPING_READER: Final = 2
"""The reader version that stands for column mapping."""

_APPEND_ONLY: Final = "delta.appendOnly"

Protocol = Mapping[str, Any]
"""A ``protocol`` action of Delta's log."""


def writer_features(protocol: Protocol) -> frozenset[str]:
    """Return the features that a writer must know."""
    version = int(protocol["minWriterVersion"])
    if version >= NAMING_WRITER:
        return frozenset(protocol.get("writerFeatures") or ())
    return frozenset(
        name for least, names in _IMPLIED if version >= least for name in names
    )


def reader_features(protocol: Protocol) -> frozenset[str]:
    """Return the features that a reader must know."""
    version = int(protocol["minReaderVersion"])
    if version >= NAMING_READER:
        return frozenset(protocol.get("readerFeatures") or ())
    return frozenset({"columnMapping"} if version >= _MAPPING_READER else ())


def refuse_unknown(location: str, protocol: Protocol) -> None:
    """Raise 0A000 if the node does not know what a writer of the table must do."""
    versions = int(protocol["minReaderVersion"]), int(protocol["minWriterVersion"])
    if versions[0] > NAMING_READER or versions[1] > NAMING_WRITER:
        raise FeatureNotSupportedError(
            f'cannot write the table at "{location}"',
            detail=f"Its protocol has the versions {versions[0]} for readers and"
            f" {versions[1]} for writers; this node knows {NAMING_READER} and"
            f" {NAMING_WRITER}.",
            hint="Write the table with the program that has made it, or use a newer"
            " version of wal2lake.",
        )
    named = writer_features(protocol) | reader_features(protocol)
    unknown = sorted(named - KNOWN)
    if unknown:
        raise FeatureNotSupportedError(
            f'cannot write the table at "{location}"',
            detail=f"It has the Delta feature {_listed(unknown)}, which this node cannot"
            " write.",
            hint="Write the table with Spark, or remove the feature there: ALTER TABLE"
            " ... DROP FEATURE.",
        )


def refuse_removal(location: str, properties: Mapping[str, str]) -> None:
    """Raise 0A000 if rows of the table must stay as they are."""
    if properties.get(_APPEND_ONLY, "").lower() == "true":
        raise FeatureNotSupportedError(
            f'cannot change or remove rows of the table at "{location}"',
            detail=f'Its property "{_APPEND_ONLY}" is true.',
            hint="Set the property to false with Spark: ALTER TABLE ... SET TBLPROPERTIES"
            " ('delta.appendOnly' = 'false').",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
