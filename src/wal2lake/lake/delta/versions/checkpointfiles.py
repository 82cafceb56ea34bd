"""Finds and reads the checkpoints of a table's log.

In: the names in a ``_delta_log``, a checkpoint. Out: its actions, as a commit's JSON has them.

    00000000000000000010.checkpoint.parquet                        classic
    00000000000000000010.checkpoint.0000000001.0000000003.parquet  one of several parts
    00000000000000000010.checkpoint.<uuid>.json, .parquet          v2; files are in sidecars

A checkpoint may have a file's statistics as a struct alone; they become Delta's JSON again. A date
or moment that Python does not have is left out: a reader without a bound reads the file.

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

import pyarrow as pa
import pyarrow.compute as pc

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

_DAYS: Final = (-719_162, 2_932_896)
"""The first and the last date that Python has, in days since 1970."""

_MICROSECONDS: Final = (
    _DAYS[0] * 86_400_000_000,
    (_DAYS[1] + 1) * 86_400_000_000 - 1_001,
)
"""The first moment that Python has, and the last one behind which it has another millisecond."""

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
    checkpoints: list[Checkpoint] = []
    parts: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or (match["format"] == "json" and match["uuid"] is None):
            continue
        if match["parts"] is None:
            checkpoints.append(Checkpoint(int(match["version"]), (name,)))
        else:
            parts[int(match["version"]), int(match["parts"])].append(name)
    for (version, count), of_it in parts.items():
        if len(of_it) == count:
            checkpoints.append(Checkpoint(version, tuple(sorted(of_it))))
    return sorted(checkpoints, key=lambda c: (-c.version, len(c.names), c.names))


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
    # 64 bits of nanoseconds end in the year 2262.
    with OpenParquet(
        key, store.open_ranges(key), coerce_int96_timestamp_unit="us"
    ) as file:
        schema, int96 = file.arrow_schema, _int96_columns(file)
        columns, present = [], []
        for kind, fields in wanted.items():
            index = schema.get_field_index(kind)
            if index < 0:
                continue
            present.append(kind)
            names = [child.name for child in schema.field(index).type]
            struct = "stats" not in names and _STRUCT in names
            columns += [
                f"{kind}.{name}"
                for name in names
                if (name not in _LEFT_OUT or (struct and name == _STRUCT))
                and (fields is None or name in fields)
            ]
        for batch in file.batches(file.groups, columns, _BATCH_ROWS):
            for kind in present:
                rows = _representable(batch.column(kind).drop_null(), kind, int96)
                try:
                    for row in rows.to_pylist():
                        yield {kind: _object(row)}
                except OverflowError as error:
                    raise ValueError(str(error)) from error


def _int96_columns(file: OpenParquet) -> frozenset[str]:
    columns = map(file.schema.column, range(len(file.schema)))
    return frozenset(c.path for c in columns if c.physical_type == "INT96")


def _representable(values: Any, path: str, int96: frozenset[str]) -> Any:
    """Return values with null for each date and moment that Python does not have. Moments of
    columns in INT96 get a zone: Spark writes only those that have one in that form."""
    kind = values.type
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [
            _representable(
                values.field(index), f"{path}.{kind.field(index).name}", int96
            )
            for index in range(kind.num_fields)
        ]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(children, names, mask=values.is_null())
    if pa.types.is_date(kind):
        converted, number, (least, most) = values.cast(pa.date32()), pa.int32(), _DAYS
    elif pa.types.is_timestamp(kind):
        zone = "UTC" if path in int96 else kind.tz
        moments = values.cast(pa.timestamp("us", kind.tz), safe=False)
        exact = pc.equal(moments.cast(kind, safe=False), values)
        converted = pc.if_else(exact, moments.cast(pa.timestamp("us", zone)), None)
        number, (least, most) = pa.int64(), _MICROSECONDS
    else:
        return values
    numbers = converted.cast(number)
    is_within = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(is_within, converted, None)


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
                (name, _json(item, up=up or name == _UPPER))
                for name, item in value.items()
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
