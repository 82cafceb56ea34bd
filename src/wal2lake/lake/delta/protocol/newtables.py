"""Completes the definition of a new table: its properties, its protocol. Pure.

In: the ``metaData`` that was asked for, the defaults of the session. Out: the metadata and the
protocol of version 0. A property may ask for a feature (``delta.feature.X``), and then is not one
of the table's.

Called by ``spark.delta.creation``. Sources: Delta transaction log protocol, "Table Features for New
and Existing Tables"; delta-spark 4.4 DeltaConfig.scala, TableFeature.scala.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake.delta.protocol.durations import (
    CURSORS,
    FILES,
    LOG_FILES,
    seconds_of,
)
from wal2lake.lake.delta.protocol.features import KNOWN, Protocol
from wal2lake.lake.delta.protocol.upgrade import MODE, with_features, with_mapping

DEFAULTS: Final = "spark.databricks.delta.properties.defaults."
"""Prefix of the session's settings that are properties of each new table."""

_LEAST: Final[Protocol] = {"minReaderVersion": 1, "minWriterVersion": 2}
"""Protocol of a table that needs nothing."""

_REQUEST: Final = "delta.feature."

_VERSIONS: Final = (
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.ignoreProtocolDefaults",
)
"""Properties that ask for versions; features say more."""

_FOR_ALL: Final = frozenset(
    {
        "appendOnly",
        "autoOptimize",
        "autoOptimize.autoCompact",
        "autoOptimize.optimizeWrite",
        "checkpoint.writeStatsAsJson",
        "checkpoint.writeStatsAsStruct",
        "checkpointInterval",
        "checkpointPolicy",
        "checkpointRetentionDuration",
        "columnMapping.mode",
        "compatibility.symlinkFormatManifest.enabled",
        "dataSkippingNumIndexedCols",
        "dataSkippingStatsColumns",
        "dataSkippingStringPrefixLength",
        "deletedFileRetentionDuration",
        "enableChangeDataFeed",
        "enableDeletionVectors",
        "enableExpiredLogCleanup",
        "enableFullRetentionRollback",
        "enableInCommitTimestamps",
        "enableRowTracking",
        "enableTypeWidening",
        "enableVariantShredding",
        "isolationLevel",
        "logRetentionDuration",
        "parquet.format.version",
        "randomizeFilePrefixes",
        "randomPrefixLength",
        "sampleRetentionDuration",
        "setTransactionRetentionDuration",
    }
)
"""Properties that the session's settings may give to each new table. Delta, too, passes over names
that it does not know."""

_UNKNOWN: Final[Mapping[str, str]] = {
    "coordinatedCommits.commitCoordinator-preview": "coordinatedCommits-preview",
    "enableIcebergCompatV1": "icebergCompatV1",
    "enableIcebergCompatV2": "icebergCompatV2",
    "enableIcebergCompatV3": "icebergCompatV3",
    "enableMaterializePartitionColumnsFeature": "materializePartitionColumns",
    "redirectReaderWriter-preview": "redirectReaderWriter-preview",
    "redirectWriterOnly-preview": "redirectWriterOnly-preview",
    "universalFormat.enabledFormats": "icebergCompatV2",
}
"""Properties of the session's settings that ask for features that the node does not know."""

_BY_PROPERTY: Final[Mapping[str, str]] = {
    "delta.appendOnly": "appendOnly",
    "delta.enableChangeDataFeed": "changeDataFeed",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
    "delta.enableVariantShredding": "variantShredding",
}
"""Features of properties that are true."""

_BY_TYPE: Final[Mapping[str, str]] = {
    "timestamp_ntz": "timestampNtz",
    "variant": "variantType",
}
"""Features of the types of columns."""

_ROW_TRACKING: Final = "delta.enableRowTracking"
_MATERIALIZED: Final[Mapping[str, str]] = {
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col",
}
"""Columns of files in which Spark keeps the numbers of rows that it moves."""

_DURATIONS: Final = frozenset({FILES, LOG_FILES, CURSORS})

_OF_VERSIONS: Final = frozenset(
    {
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
        "delta.requireCheckpointProtectionBeforeVersion",
    }
)
"""Properties that tell of earlier versions of a table; a new table has none."""

_INTERVAL: Final = "delta.checkpointInterval"
_POLICY: Final = "delta.checkpointPolicy"


def completed(
    metadata: Mapping[str, Any],
    session: Mapping[str, str],
    *,
    clustered: bool = False,
) -> tuple[dict[str, Any], Protocol]:
    """Return the metadata and the protocol of the new table. ``session``: settings of the Spark
    session. Raises UsageError (22023) for a value that a property cannot have, 0A000 for a feature
    that the node does not know."""
    properties = _defaults(session)
    made = as_new(metadata)
    properties.update(made["configuration"])
    features = {
        _known(name.removeprefix(_REQUEST))
        for name in properties
        if name.startswith(_REQUEST)
    }
    properties = {
        name: value
        for name, value in properties.items()
        if not name.startswith(_REQUEST) and name not in _VERSIONS
    }
    _check(properties)
    schema = json.loads(metadata["schemaString"])
    features |= {_BY_TYPE[kind] for kind in _types(schema) if kind in _BY_TYPE}
    features |= set(_features_of(properties))
    features |= {"clustering"} if clustered else set()
    if _is_true(properties, _ROW_TRACKING):
        for name, prefix in _MATERIALIZED.items():
            properties.setdefault(name, f"{prefix}-{uuid.uuid4()}")
    result = {**made, "configuration": properties}
    if properties.get(MODE, "none") != "none":
        result = with_mapping(result, is_new=True)
    return result, with_features(_LEAST, features)


def _defaults(session: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the session's settings give to each new table."""
    properties = {}
    for setting, value in session.items():
        if not setting.startswith(DEFAULTS):
            continue
        name = setting.removeprefix(DEFAULTS)
        if name in _UNKNOWN and value.lower() not in ("", "false"):
            raise _not_known(_UNKNOWN[name], setting)
        if name in _FOR_ALL or f"delta.{name}".startswith(_REQUEST):
            properties[f"delta.{name}"] = value
    return properties


def _known(name: str) -> str:
    """Return a feature's name as the protocol has it: settings may have it in any case."""
    for feature in KNOWN:
        if feature.lower() == name.lower():
            return feature
    raise _not_known(name, f"{DEFAULTS}feature.{name}")


def as_new(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of another table as that of a new one, which has no earlier versions.
    Other writers may leave out the time of its creation; it is now then."""
    properties = {
        name: value
        for name, value in metadata["configuration"].items()
        if name not in _OF_VERSIONS
    }
    created = metadata.get("createdTime")
    if created is None:
        created = int(time.time() * 1000)
    return {**metadata, "configuration": properties, "createdTime": created}


def _features_of(properties: Mapping[str, str]) -> Iterator[str]:
    for name, feature in _BY_PROPERTY.items():
        if _is_true(properties, name):
            yield feature
    if properties.get(MODE, "none") != "none":
        yield "columnMapping"
    if properties.get(_POLICY, "classic") != "classic":
        yield "v2Checkpoint"
    if any(name.startswith("delta.constraints.") for name in properties):
        yield "checkConstraints"


def _is_true(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "").lower() == "true"


def _types(kind: Any) -> Iterator[str]:
    """Yield the simple types in a type's JSON."""
    if isinstance(kind, str):
        yield kind
        return
    for field in kind.get("fields", ()):
        yield from _types(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from _types(kind[part])


def _check(properties: Mapping[str, str]) -> None:
    """Refuse values of properties that this node acts upon."""
    for name, value in properties.items():
        if name in _BY_PROPERTY and value.lower() not in ("true", "false"):
            raise _invalid(name, value, "true or false")
        if name == _INTERVAL and not (value.isdecimal() and int(value) > 0):
            raise _invalid(name, value, "a whole number above 0")
        if name == _POLICY and value not in ("classic", "v2"):
            raise _invalid(name, value, "classic or v2")
        if name == MODE and value not in ("none", "name", "id"):
            raise _invalid(name, value, "none, name or id")
        if name in _DURATIONS and seconds_of(value) is None:
            raise _invalid(name, value, "a duration, such as interval 7 days")


def _not_known(feature: str, setting: str) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'cannot create a table with the Delta feature "{feature}"',
        detail="This node does not know what a writer of such a table must do.",
        hint=f"Remove the setting from [spark.conf]: {setting}.",
    )


def _invalid(name: str, value: str, allowed: str) -> UsageError:
    return UsageError(
        f'invalid value for table property "{name}": "{value}"',
        sqlstate="22023",
        hint=f"Use {allowed}. It may be a default in [spark.conf]:"
        f" {DEFAULTS}{name.removeprefix('delta.')}.",
    )
