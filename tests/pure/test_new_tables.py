"""What a new table's definition says, and what the session's settings add to it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake.delta.log.checkpoints import INTERVAL, is_due
from wal2lake.lake.delta.log.firstversion import (
    OWN_TIMES,
    commit_lines,
    own_time_of,
)
from wal2lake.lake.delta.log.version import state_of
from wal2lake.lake.delta.protocol.newtables import DEFAULTS, as_new, completed
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.delta.creation import Creation


def _metadata(**properties: str) -> dict[str, Any]:
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    return {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": properties,
        "createdTime": 0,
    }


def test_settings_are_properties_of_each_new_table() -> None:
    session = {
        f"{DEFAULTS}appendOnly": "true",
        f"{DEFAULTS}logRetentionDuration": "interval 2 days",
        f"{DEFAULTS}minWriterVersion": "7",
        f"{DEFAULTS}feature.deletionvectors": "supported",
        # Delta does not know it either.
        f"{DEFAULTS}colour": "red",
        f"{DEFAULTS}enableIcebergCompatV2": "false",
        "spark.sql.shuffle.partitions": "4",
    }
    own = {"delta.logRetentionDuration": "interval 9 days"}
    metadata, protocol = completed(_metadata(**own), session)
    assert metadata["configuration"] == {
        "delta.appendOnly": "true",
        "delta.logRetentionDuration": "interval 9 days",
    }
    assert protocol == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["appendOnly", "deletionVectors", "invariants"],
    }


@pytest.mark.parametrize(
    ("setting", "value", "feature"),
    [
        ("feature.colour", "supported", "colour"),
        ("enableIcebergCompatV2", "true", "icebergCompatV2"),
        ("universalFormat.enabledFormats", "iceberg", "icebergCompatV2"),
    ],
)
def test_a_setting_that_asks_for_an_unknown_feature_is_refused(
    setting: str, value: str, feature: str
) -> None:
    name = f"{DEFAULTS}{setting}"
    with pytest.raises(FeatureNotSupportedError, match=feature) as refused:
        completed(_metadata(), {name: value})
    assert refused.value.sqlstate == "0A000"
    assert refused.value.hint == f"Remove the setting from [spark.conf]: {name}."
    completed(_metadata(), {})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("checkpointInterval", "often", "a whole number above 0"),
        ("logRetentionDuration", "1 month", "a duration, such as interval 7 days"),
        ("enableRowTracking", "yes", "true or false"),
    ],
)
def test_a_value_that_a_property_cannot_have_is_refused(
    name: str, value: str, allowed: str
) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        completed(_metadata(), {f"{DEFAULTS}{name}": value})
    assert refused.value.sqlstate == "22023"
    assert refused.value.hint == (
        f"Use {allowed}. It may be a default in [spark.conf]: {DEFAULTS}{name}."
    )
    fine = {"a whole number above 0": "7", "true or false": "true"}
    completed(_metadata(), {f"{DEFAULTS}{name}": fine.get(allowed, "interval 7 days")})


def test_a_table_for_anothers_rows_has_no_defaults(tmp_path: Path) -> None:
    """With column mapping its files would have names that the other table does not know."""
    session = {f"{DEFAULTS}columnMapping.mode": "name"}
    creation = Creation(cast(Any, SimpleNamespace(defaults=lambda: session)))
    definitions = []
    for place, create in (
        ("new", lambda at: creation.create(at, [FieldSpec("id", "bigint")], {})),
        ("like", lambda at: creation.create_like(at, _metadata(a="b"))),
    ):
        create(str(tmp_path / place))
        known = KnownVersions().newest(str(tmp_path / place))
        assert known is not None
        definitions.append(known.metadata)
    new, like = definitions
    assert new["configuration"]["delta.columnMapping.mode"] == "name"
    assert like == {**_metadata(a="b"), "id": like["id"]} and like["id"] != "t"


def test_another_writers_table_may_not_say_when_it_was_made() -> None:
    metadata = _metadata(**{OWN_TIMES: "true"})
    metadata["createdTime"] = None
    began = int(time.time() * 1000)
    made, protocol = completed(metadata, {})
    own_time = own_time_of(made)
    assert own_time is not None and own_time >= began
    del metadata["createdTime"]
    assert own_time_of(as_new(metadata)) is not None
    info = json.loads(commit_lines(made, protocol, "t")[0])["commitInfo"]
    assert info["timestamp"] == info["inCommitTimestamp"] == own_time


@pytest.mark.parametrize("stated", ["0", "-5", "often", "1.5", ""])
def test_another_writers_interval_of_checkpoints_ends_no_commit(stated: str) -> None:
    assert is_due(10, {INTERVAL: stated}) and not is_due(5, {INTERVAL: stated})
    assert is_due(10, {}) and is_due(5, {INTERVAL: "5"})


def test_rows_of_a_column_with_an_invariant_are_checked() -> None:
    metadata = _metadata()
    assert state_of("/t", metadata, 0, {}).is_plain
    (field,) = json.loads(metadata["schemaString"])["fields"]
    field["metadata"] = {"delta.invariants": '{"expression":{"expression":"id > 0"}}'}
    schema = {"type": "struct", "fields": [field]}
    state = state_of("/t", {**metadata, "schemaString": json.dumps(schema)}, 0, {})
    assert not state.is_plain
    assert state.fields[0].invariant == "id > 0"
    field["metadata"] = {"delta.invariants": "else"}
    schema = {"type": "struct", "fields": [field]}
    state = state_of("/t", {**metadata, "schemaString": json.dumps(schema)}, 0, {})
    assert state.fields[0].invariant == "else"
