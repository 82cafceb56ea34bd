"""How many positions a commit takes in the publisher's log: as many as it may have changes, for
whoever looks at the log's growth."""

from __future__ import annotations

import pytest

from wal2lake.lake.capture.changedrows import most_changes
from wal2lake.lake.capture.commits import read_commit

MILLION = '{"numRecords":1000000}'


def file(path: str, stats: str | None = MILLION, deleted: int = 0) -> dict[str, object]:
    found: dict[str, object] = {"path": path, "size": 1}
    if stats is not None:
        found["stats"] = stats
    if deleted:
        found["deletionVector"] = {
            "storageType": "u",
            "pathOrInlineDv": f"v{deleted}",
            "sizeInBytes": 1,
            "cardinality": deleted,
        }
    return found


@pytest.mark.parametrize(
    ("word", "actions", "most"),
    [
        ("WRITE", [{"add": file("a")}], 1_000_000),
        ("WRITE", [{"add": file("a", None)}], 77),
        ("DELETE", [{"remove": file("a", None)}], 77),
        ("DELETE", [{"remove": file("a")}, {"add": file("a", deleted=3)}], 3),
        (
            "RESTORE",
            [{"remove": file("a", deleted=3)}, {"add": file("a", deleted=2)}],
            5,
        ),
        ("DELETE", [{"remove": file("a", deleted=3)}], 999_997),
        ("truncate", [{"remove": file("a", None)}, {"remove": file("b")}], 1),
        ("truncate", [{"remove": file("a")}, {"add": file("b", None)}], 78),
        ("OPTIMIZE", [{"remove": {**file("a"), "dataChange": False}}], 0),
    ],
)
def test_no_more_than_there_can_be(
    word: str, actions: list[dict[str, object]], most: int
) -> None:
    commit = read_commit(5, [{"commitInfo": {"userMetadata": word}}, *actions])
    assert most_changes(commit, lambda _: 77) == most
