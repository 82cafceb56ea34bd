"""Rows that others commit while a transaction is open may change their file before it ends.

An INSERT of theirs writes a file; a DELETE of theirs gives that file a deletion vector, a
compaction moves its rows into another one. At the transaction's COMMIT its keys were
looked up in files that were new and nothing else: the file had dropped out of the list, and the
same key was in the table twice.
"""

from __future__ import annotations

from typing import Any

from wal2lake.lake.branch.netchange import others_rows

VECTOR = {"storageType": "u", "pathOrInlineDv": "+1$au/-$a}NGob<ms6P+", "offset": 1}


def add(path: str, *, changes: bool = True, vector: Any = None) -> dict[str, Any]:
    found = {"path": path, "dataChange": changes}
    return {"add": found if vector is None else {**found, "deletionVector": vector}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path}}


def test_new_rows_are_found_though_their_file_got_a_deletion_vector() -> None:
    commits = [[add("new")], [remove("new"), add("new", vector=VECTOR)]]
    assert others_rows(commits, frozenset()) == ["new"]


def test_new_rows_are_found_though_a_compaction_has_moved_them() -> None:
    commits = [
        [add("new")],
        [remove("new"), remove("old"), add("one", changes=False)],
        [remove("one"), add("one", vector=VECTOR)],
        [remove("one"), remove("other"), add("whole", changes=False)],
    ]
    assert others_rows(commits, frozenset()) == ["whole"]


def test_rows_that_were_there_before_are_not_looked_at_again() -> None:
    commits = [
        [remove("old"), add("old", vector=VECTOR)],
        [remove("old"), remove("older"), add("one", changes=False)],
    ]
    assert others_rows(commits, frozenset()) == []
