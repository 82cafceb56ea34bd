"""Finds and reads the checkpoints of a table's log.

In: the names in a ``_delta_log``, a checkpoint. Out: its actions, as a commit's JSON has them.

    00000000000000000010.checkpoint.parquet                        classic
    00000000000000000010.checkpoint.0000000001.0000000003.parquet  one of several parts
    00000000000000000010.checkpoint.<uuid>.json, .parquet          v2; files are in sidecars

Called by ``retention.tablelog``. Source: Delta transaction log protocol, "Checkpoints",
"Checkpoint Schema", "V2 Spec", "Sidecar File Information".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from wal2lake.lake.delta.durability import actions_of

LOG: Final = "_delta_log"
SIDECARS: Final = "_sidecars"

_NAME: Final = re.compile(
    r"(?P<version>[0-9]{20})\.checkpoint"
    r"(?:\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})|\.(?P<uuid>[0-9a-f-]{36}))?"
    r"\.(?P<format>parquet|json)"
)

_MAPS: Final = frozenset({"partitionValues", "tags", "configuration", "options"})
"""Names of objects in actions that are maps: any key, texts as values."""

Wanted = Mapping[str, frozenset[str] | None]
"""Kinds of actions, and of each the fields; None: all of them."""

_SIDECARS: Final[Wanted] = {"sidecar": None}

_LEFT_OUT: Final = frozenset({"partitionValues_parsed", "stats_parsed"})
"""Structs that repeat what is there as JSON, in the types of the table's columns."""

Action = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    version: int
    names: tuple[str, ...]
    """The files in the log: several if it has parts."""


def complete_checkpoints(names: Iterable[str]) -> list[Checkpoint]:
    """Return the checkpoints of which every part is there, the newest first; of one version those
    in one file first."""
    found: list[Checkpoint] = []
    parts: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or (match["format"] == "json" and match["uuid"] is None):
            continue
        if match["parts"] is None:
            found.append(Checkpoint(int(match["version"]), (name,)))
        else:
            parts[int(match["version"]), int(match["parts"])].append(name)
    for (version, count), of_it in parts.items():
        if len(of_it) == count:
            found.append(Checkpoint(version, tuple(sorted(of_it))))
    return sorted(found, key=lambda c: (-c.version, len(c.names), c.names))


def read_checkpoint(
    root: Path, checkpoint: Checkpoint, wanted: Wanted
) -> Iterator[Action]:
    """Yield the wanted actions of a checkpoint, with those in its sidecars; others may be among
    them. OSError, ValueError or ArrowException if it cannot be read."""
    log = root / LOG
    for name in checkpoint.names:
        path = log / name
        if path.suffix == ".json":
            actions: Iterable[Action] = actions_of(path.read_text(encoding="utf-8"))
        else:
            actions = _read_parquet(path, {**_SIDECARS, **wanted})
        for action in actions:
            sidecar = action.get("sidecar")
            if sidecar is None:
                yield action
            else:
                yield from _read_parquet(_sidecar(log, str(sidecar["path"])), wanted)


def _sidecar(log: Path, path: str) -> Path:
    return log / SIDECARS / unquote(path).rsplit("/", 1)[-1]


def _read_parquet(path: Path, wanted: Wanted) -> Iterator[Action]:
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        columns, present = [], []
        for kind, fields in wanted.items():
            at = schema.get_field_index(kind)
            if at < 0:
                continue
            present.append(kind)
            names = [child.name for child in schema.field(at).type]
            columns += [
                f"{kind}.{name}"
                for name in names
                if name not in _LEFT_OUT and (fields is None or name in fields)
            ]
        for batch in file.iter_batches(columns=columns):
            for kind in present:
                rows = batch.column(kind).drop_null()
                for row in rows.to_pylist():
                    yield {kind: _object(row)}


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action as JSON has it: without nulls, maps as objects."""
    result: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        if name in _MAPS and not isinstance(value, str):
            result[name] = dict(value)
        elif isinstance(value, dict):
            result[name] = _object(value)
        else:
            result[name] = value
    return result
