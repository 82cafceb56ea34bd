"""Computes the net change of a branch, as actions for its table. Pure.

Comes in: the actions of the branch's commits after version 0, oldest first. Goes out: one
``remove`` for each file of the table that is removed or has another deletion vector, one ``add``
for each file that is new or stays with a vector, and the files that have to be moved.

A branch names the table's files by absolute URL, and its own files relative to itself. Own files
keep their relative paths in the table, so that descriptors of deletion vectors stay valid. A
deletion vector of the table has an absolute path in the branch and gets its own name back.

Called by the commit of a transaction. Sources: Delta transaction log protocol, "Add File and
Remove File", "Deletion Vectors" (derived fields).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.delta.z85 import decode_z85, encode_z85
from wal2lake.lake.partitions import zoned

Action = Mapping[str, Any]
"""A Delta action as JSON: its name, and the object below it."""

_SAFE: Final = "/!$&'()*+,;=@-._~"

_VECTOR_FILE: Final = re.compile(r"(?:(.*)/)?deletion_vector_([0-9a-f-]{36})\.bin")

_UUID_CHARACTERS: Final = 20

_OF_ROW_TRACKING: Final = ("baseRowId", "defaultRowCommitVersion")
"""Numbers that the branch assigned; the table's commit assigns its own."""


def file_url(location: str) -> str:
    """Return a location as Delta writes it in the log of another table."""
    if location.startswith("/"):
        return f"file:{quote(location, safe=_SAFE)}"
    scheme, separator, rest = location.partition("://")
    return f"{scheme}{separator}{quote(rest, safe=_SAFE)}" if separator else location


@dataclass(frozen=True, slots=True)
class BranchChange:
    """A transaction's changes of one table."""

    actions: tuple[Action, ...]
    """Actions for the table's next version."""
    files: tuple[str, ...]
    """Paths relative to the branch, the same in the table; not percent-encoded."""

    @property
    def touched(self) -> frozenset[str]:
        """Files of the table, as its log names them, that no other writer may have changed."""
        return frozenset(a["remove"]["path"] for a in self.actions if "remove" in a)

    @property
    def added(self) -> tuple[Action, ...]:
        """The ``add`` objects of new files."""
        touched = self.touched
        return tuple(
            action["add"]
            for action in self.actions
            if "add" in action and action["add"]["path"] not in touched
        )


@dataclass(slots=True)
class _File:
    removed: Action | None
    """The first ``remove``, with the file as the table has it. None: the file is the branch's
    own."""
    add: Action | None


def net_change(
    commits: Iterable[Sequence[Action]],
    location: str,
    instants: frozenset[str] = frozenset(),
) -> BranchChange:
    """Return the net change of the table at ``location``. 0A000 if the branch has changed more
    than rows. ``instants``: see ``partitions``."""
    touched: dict[str, _File] = {}
    for commit in commits:
        for action in commit:
            if "metaData" in action or "protocol" in action:
                raise FeatureNotSupportedError(
                    f'the table at "{location}" cannot be written in a transaction',
                    detail="Its definition changes with its rows.",
                    hint="Write it with Spark.",
                )
            if "remove" in action:
                remove = action["remove"]
                entry = touched.setdefault(remove["path"], _File(remove, None))
                entry.add = None
        for action in commit:
            if "add" in action:
                add = action["add"]
                touched.setdefault(add["path"], _File(None, None)).add = add
    table = _Table(location)
    actions: list[Action] = []
    files: list[str] = []
    for path, file in touched.items():
        if file.removed is None and file.add is None:
            continue
        vector = None if file.add is None else file.add.get("deletionVector")
        if file.removed is not None:
            if file.add is not None and vector == file.removed.get("deletionVector"):
                continue
            actions.append({"remove": table.own(file.removed)})
        else:
            files.append(unquote(path))
        if file.add is not None:
            add = table.own(file.add)
            if file.removed is None:
                add = {k: v for k, v in add.items() if k not in _OF_ROW_TRACKING}
                add = zoned(add, instants) if instants else add
            actions.append({"add": {**add, "dataChange": True}})
            # Only the branch's own vectors have names; those of the table are paths here.
            written = None if vector is None else vector_file(vector)
            if written is not None:
                files.append(written)
    return BranchChange(tuple(actions), tuple(dict.fromkeys(files)))


class _Table:
    def __init__(self, location: str) -> None:
        self._url = f"{file_url(location)}/"
        self._plain = f"{unquote(self._url)}"

    def own(self, file: Action) -> dict[str, Any]:
        """Return an action of the branch with the names that the table uses."""
        own = {**file, "path": self._key(file["path"])}
        vector = file.get("deletionVector")
        if vector is not None and vector["storageType"] == "p":
            own["deletionVector"] = self._vector(vector)
        return own

    def _key(self, path: str) -> str:
        url = re.sub(r"^file:/{3}", "file:/", path)
        if url.startswith(self._url):
            return url.removeprefix(self._url)
        if unquote(url).startswith(self._plain):
            return quote(unquote(url).removeprefix(self._plain), safe=_SAFE)
        return path

    def _vector(self, vector: Action) -> Action:
        key = self._key(vector["pathOrInlineDv"])
        parts = _VECTOR_FILE.fullmatch(unquote(key))
        if parts is None or key == vector["pathOrInlineDv"]:
            return vector
        name = encode_z85(uuid.UUID(parts[2]).bytes)
        return {
            **vector,
            "storageType": "u",
            "pathOrInlineDv": f"{parts[1] or ''}{name}",
        }


def vector_file(vector: Action) -> str | None:
    """Return the file of a deletion vector, relative to its table; None if the vector is inline or
    has an absolute path."""
    if vector["storageType"] != "u":
        return None
    return _vector_path(vector["pathOrInlineDv"])


def _vector_path(name: str) -> str:
    prefix, coded = name[:-_UUID_CHARACTERS], name[-_UUID_CHARACTERS:]
    file = f"deletion_vector_{uuid.UUID(bytes=decode_z85(coded))}.bin"
    return f"{prefix}/{file}" if prefix else file


def in_branch(file: Action, location: str) -> dict[str, Any]:
    """Return an ``add`` of the table at ``location`` as version 0 of a branch has it."""
    url = file_url(location)
    path = str(file["path"])
    added = {**file, "dataChange": True}
    if ":" not in path.split("/", 1)[0] and not path.startswith("/"):
        added["path"] = f"{url}/{path}"
    vector = file.get("deletionVector")
    if vector is not None and vector["storageType"] == "u":
        place = quote(_vector_path(vector["pathOrInlineDv"]), safe=_SAFE)
        added["deletionVector"] = {
            **vector,
            "storageType": "p",
            "pathOrInlineDv": f"{url}/{place}",
        }
    return added


def others_rows(
    commits: Iterable[Sequence[Action]], touched: frozenset[str] = frozenset()
) -> list[str] | None:
    """Return the final paths of files with new rows that other writers have committed to the table
    meanwhile.

    None if they have changed the table's definition, or files in ``touched``, or if the log no
    longer has the commits.
    """
    new: set[str] = set()
    for commit in commits:
        if not commit or any("metaData" in a or "protocol" in a for a in commit):
            return None
        removed = {a["remove"]["path"] for a in commit if "remove" in a}
        if removed & touched:
            return None
        # A new file may get a deletion vector, or a compaction may move its rows to another file.
        moved = removed & new
        new -= removed
        for add in (a["add"] for a in commit if "add" in a):
            again = add["path"] in removed
            if (again and add["path"] in moved) or (
                not again and (moved or add.get("dataChange", True))
            ):
                new.add(add["path"])
    return sorted(new)
