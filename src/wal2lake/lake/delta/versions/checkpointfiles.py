"""Finds and reads the checkpoints of a table's log.

In: the names in a ``_delta_log``, a checkpoint. Out: its actions, as a commit's JSON has them.

    00000000000000000010.checkpoint.parquet                        classic
    00000000000000000010.checkpoint.0000000001.0000000003.parquet  one of several parts
    00000000000000000010.checkpoint.<uuid>.json, .parquet          v2; files are in sidecars

A checkpoint may have a file's statistics as a struct alone; they become Delta's JSON again.

Called by ``replay`` and ``retention.tablelog``. Source: Delta transaction log protocol,
"Checkpoints", "Checkpoint Schema", "V2 Spec", "Sidecar File Information".
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

from wal2lake.lake.delta.durability import actions_of
from wal2lake.lake.delta.log.place import LOG
from wal2lake.lake.parquet import OpenParquet
from wal2lake.lake.store import Store

SIDECARS: Final = f"{LOG}/_sidecars"
"""The folder of checkpoints' sidecars in a table's store."""

_NAME: Final = re.compile(
    r"(?P<version>[0-9]{20})\.checkpoint"
    r"(?:\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})|\.(?P<uuid>[0-9a-f-]{36}))?"
    r"\.(?P<format>parquet|json)"
)

MAPS: Final = frozenset({"partitionValues", "tags", "configuration", "options"})
"""Names of objects in actions that are maps: any key, texts as values."""

Wanted = Mapping[str, frozenset[str] | None]
"""Kinds of actions, and of each the fields; None: all of them."""

ALL: Final[Wanted] = dict.fromkeys(
    ("protocol", "metaData", "txn", "domainMetadata", "remove", "add")
)
"""Everything that a checkpoint says of a version."""

_SIDECARS: Final[Wanted] = {"sidecar": None}

_LEFT_OUT: Final = frozenset({"partitionValues_parsed", "stats_parsed"})

_STRUCT: Final = "stats_parsed"

_BATCH_ROWS: Final = 65_536
"""Most actions of a checkpoint that are read at a time."""

_UPPER: Final = "maxValues"

_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""Texts of numbers that JSON does not have, as Spark writes them."""

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
    store: Store, checkpoint: Checkpoint, wanted: Wanted = ALL
) -> Iterator[Action]:
    """Yield the wanted actions of a checkpoint, with those in its sidecars; others may be among
    them. StorageError, OSError, ValueError or ArrowException if it cannot be read."""
    for action in _own_actions(store, checkpoint, wanted):
        sidecar = action.get("sidecar")
        if sidecar is None:
            yield action
        else:
            yield from _read_parquet(store, _sidecar(str(sidecar["path"])), wanted)


def sidecars_of(store: Store, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the keys of a checkpoint's sidecars. Errors as of ``read_checkpoint``."""
    for action in _own_actions(store, checkpoint, {}):
        if "sidecar" in action:
            yield _sidecar(str(action["sidecar"]["path"]))


def _own_actions(
    store: Store, checkpoint: Checkpoint, wanted: Wanted
) -> Iterator[Action]:
    """Yield the wanted actions of a checkpoint's own files, and those that name sidecars."""
    for name in checkpoint.names:
        key = f"{LOG}/{name}"
        if name.endswith(".json"):
            yield from actions_of(store.read(key).decode())
        else:
            yield from _read_parquet(store, key, {**_SIDECARS, **wanted})


def _sidecar(path: str) -> str:
    return f"{SIDECARS}/{unquote(path).rsplit('/', 1)[-1]}"


def _read_parquet(store: Store, key: str, wanted: Wanted) -> Iterator[Action]:
    with OpenParquet(key, store.open_ranges(key)) as file:
        schema = file.arrow_schema
        columns, present = [], []
        for kind, fields in wanted.items():
            at = schema.get_field_index(kind)
            if at < 0:
                continue
            present.append(kind)
            names = [child.name for child in schema.field(at).type]
            struct = "stats" not in names and _STRUCT in names
            columns += [
                f"{kind}.{name}"
                for name in names
                if (name not in _LEFT_OUT or (struct and name == _STRUCT))
                and (fields is None or name in fields)
            ]
        for batch in file.batches(file.groups, columns, _BATCH_ROWS):
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
        if name == _STRUCT:
            result["stats"] = _stats_text(value)
        elif name in MAPS and not isinstance(value, str):
            result[name] = dict(value)
        elif isinstance(value, dict):
            result[name] = _object(value)
        else:
            result[name] = value
    return result


def _stats_text(stats: Mapping[str, Any]) -> str:
    """Return statistics as Delta's JSON. Numbers keep all of their digits."""
    return _json(stats, up=False) or "{}"


def _json(value: Any, *, up: bool) -> str | None:
    """Return a value as JSON; None if there is none, or statistics have no such values. ``up``: it
    is an upper bound, or has some."""
    match value:
        case None | bytes() | list():
            return None
        case dict():
            items = (
                (name, _json(one, up=up or name == _UPPER))
                for name, one in value.items()
            )
            return (
                "{"
                + ",".join(
                    f"{json.dumps(name, ensure_ascii=False)}:{text}"
                    for name, text in items
                    if text is not None
                )
                + "}"
            )
        case Decimal():
            return format(value, "f")
        case float() if not math.isfinite(value):
            return json.dumps(_NOT_FINITE.get(value, "NaN"))
        case datetime.datetime():
            if up and value.microsecond % 1000:
                # Delta's text has milliseconds, and a bound must not shrink.
                value += datetime.timedelta(milliseconds=1)
            text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
            return json.dumps(text + ("" if value.tzinfo is None else "Z"))
        case datetime.date():
            return json.dumps(value.isoformat())
        case _:
            return json.dumps(value, ensure_ascii=False)
