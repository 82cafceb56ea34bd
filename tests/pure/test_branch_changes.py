"""What a branch's log says for its table."""

from __future__ import annotations

from typing import Any

import pytest

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.branch.netchange import in_branch, net_change, others_rows

TABLE = "/w/public/a%20b ü"
VECTOR = {"storageType": "u", "pathOrInlineDv": "+1$au/-$a}NGob<ms6P+", "offset": 1}
OTHER = {"storageType": "u", "pathOrInlineDv": "x9I3:6TZFJGM^j2=?QRM", "offset": 1}


def add(path: str, vector: Any = None) -> dict[str, Any]:
    found = {"path": path, "size": 1, "dataChange": True}
    return {"add": found if vector is None else {**found, "deletionVector": vector}}


def remove(path: str, vector: Any = None) -> dict[str, Any]:
    found = {"path": path, "size": 1}
    return {"remove": found if vector is None else {**found, "deletionVector": vector}}


def base(key: str, vector: Any = None) -> Any:
    """A file of the table as the branch names it."""
    return in_branch(add(key, vector)["add"], TABLE)


@pytest.mark.parametrize("key", ["part-1.parquet", "x=a%20b/part-1.parquet", "ab/p"])
@pytest.mark.parametrize("vector", [None, VECTOR, {**VECTOR, "storageType": "i"}])
def test_a_file_of_the_table_gets_its_own_name_back(key: str, vector: Any) -> None:
    there = base(key, vector)
    assert there["path"] == f"file:/w/public/a%2520b%20%C3%BC/{key}"
    change = net_change([[remove(there["path"], there.get("deletionVector"))]], TABLE)
    assert change.actions == (remove(key, vector),)
    assert (change.files, change.touched) == ((), frozenset({key}))


def test_a_file_elsewhere_keeps_its_name() -> None:
    for path in ("file:/other/p", "s3://bucket/p", "/other/p"):
        assert base(path)["path"] == path
        assert net_change([[remove(path)]], TABLE).actions == (remove(path),)


def test_only_what_is_left_in_the_end_counts() -> None:
    one, two = base("one", VECTOR), base("two")
    commits = [
        # New files, one of which goes again; in Delta's order, add before remove.
        [add("new1"), add("new2")],
        [add(one["path"], OTHER), remove(one["path"], one["deletionVector"])],
        [add("new1", VECTOR), remove("new1"), remove("new2")],
        [remove(two["path"])],
    ]
    change = net_change(commits, TABLE)
    assert change.actions == (
        add("new1", VECTOR),
        remove("one", VECTOR),
        add("one", OTHER),
        remove("two"),
    )
    assert [one["path"] for one in change.added] == ["new1"]
    # With the vector that it has in the end, as its name in the branch says.
    assert change.files == (
        "new1",
        "deletion_vector_ca5039c9-d907-4a25-9a01-a20b457a83a8.bin",
        "deletion_vector_67064c31-14b5-4870-8476-fab6cff956ba.bin",
    )


def test_nothing_is_left_of_what_was_undone() -> None:
    commits = [[add("new")], [remove("new")], [add("file:/w/x"), remove("file:/w/x")]]
    assert net_change(commits, TABLE).actions == ()


def test_another_definition_is_refused() -> None:
    with pytest.raises(FeatureNotSupportedError):
        net_change([[{"metaData": {}}]], TABLE)


def test_what_others_have_done_meanwhile() -> None:
    mine = frozenset({"one"})
    assert others_rows([[add("new"), add("two", VECTOR), remove("two")]], mine) == [
        "new"
    ]
    assert others_rows([[add("new")], [remove("new")]], mine) == []
    assert others_rows([[remove("one")]], mine) is None
    assert others_rows([[{"protocol": {}}]], mine) is None
    assert others_rows([[]], mine) is None, "the log does not have it any more"
