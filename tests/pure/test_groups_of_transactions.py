"""Small transactions that are decoded together give what each gives by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.xids import Numbers

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.changelog import LogReader
from wal2lake.commands.publication.filters import analyse
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.pgtypes.expressions import Filter
from wal2lake.publish.capture.writer import PublisherLogWriter
from wal2lake.publish.decoding import groups
from wal2lake.publish.driver import Decoding
from wal2lake.publish.plugins.pgoutput import PgOutput
from wal2lake.publish.plugins.port import Context, OutputPlugin
from wal2lake.publish.plugins.test_decoding import TestDecoding
from wal2lake.publish.plugins.wal2json import Wal2Json
from wal2lake.publish.sending import Sending
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.publishing.publicationstatements import (
    CreatePublication,
    PublicationTable,
)
from wal2lake.wire.encoder import FRAME_HEADER

pytestmark = pytest.mark.usefixtures("no_fsync")

Message = tuple[int, bytes]
"""The XLogData's LSN, and the payload."""

_COLUMNS = (Column("id", Oid(23), -1, True), Column("v", Oid(25), -1, False))
PLAIN = Relation(Oid(16384), "s", "plain", ReplicaIdentity.DEFAULT, _COLUMNS)
WHOLE = Relation(
    Oid(16385),
    "s",
    "whole",
    ReplicaIdentity.FULL,
    tuple(Column(c.name, c.type_oid, -1, True) for c in _COLUMNS),
)
LEAF = Relation(Oid(16386), "s", "leaf", ReplicaIdentity.DEFAULT, _COLUMNS)
TURNED = Relation(
    Oid(16387), "s", "turned", ReplicaIdentity.DEFAULT, tuple(reversed(_COLUMNS))
)
OPEN = Relation(Oid(16388), "s", "open", ReplicaIdentity.NOTHING, _COLUMNS[1:])
HIDDEN = Relation(Oid(16389), "s", "hidden", ReplicaIdentity.DEFAULT, _COLUMNS)
RELATIONS = (PLAIN, WHOLE, LEAF, TURNED, OPEN, HIDDEN)

ROOT = TableDef(
    Oid(16400),
    "s",
    "root",
    Oid(10),
    (ColumnDef("id", Oid(23)), ColumnDef("v", Oid(25))),
    ("id",),
    "/t",
)

ALL = frozenset("IUDT")


def _filter(text: str) -> Filter:
    statement = parse(f"create publication p for table t where ({text})")
    assert isinstance(statement, CreatePublication)
    (table,) = statement.objects
    assert isinstance(table, PublicationTable) and table.where is not None
    return Filter(*analyse(table.where.expression, ROOT, "UTC"))


def _sendings(kind: str) -> Mapping[Oid, Sending]:
    every = [one.relid for one in RELATIONS if one is not HIDDEN]
    match kind:
        case "all":
            return {relid: Sending(ALL, None, {}) for relid in every}
        case "some":
            some = Sending(frozenset("IU"), frozenset(["id"]), {})
            return {PLAIN.relid: some, WHOLE.relid: Sending(frozenset("D"), None, {})}
        case "root":
            rooted = Sending(ALL, None, {}, root=ROOT)
            return dict.fromkeys((PLAIN.relid, LEAF.relid, TURNED.relid), rooted)
        case "fails":
            failing = _filter("100 / (id - 7) > -40")
            return {
                relid: Sending(ALL, None, dict.fromkeys("IUD", failing))
                for relid in every
            }
    keyed = _filter("id > 2 and id < 6")
    return {PLAIN.relid: Sending(ALL, None, dict.fromkeys("IUD", keyed))}


Row = tuple[int, str, int, int | None, int]
"""Relation, operation, id, id before, value."""

ROWS = st.tuples(
    st.integers(0, len(RELATIONS) - 1),
    st.sampled_from("IUD"),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 8)),
    st.integers(0, 3),
)

TRANSACTIONS = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]), st.lists(ROWS, max_size=4)),
    min_size=3,
    max_size=20,
)
"""Of which origin, and what changes; a TRUNCATE where there is nothing and origin 1."""


def _batch(relation: Relation, rows: list[tuple[int, int, Row]]) -> pa.RecordBatch:
    names = [column.name for column in relation.columns]
    whole = relation.identity is ReplicaIdentity.FULL
    values: dict[str, list[Any]] = {
        name: [] for name in ("commit_lsn", "ordinal", "op", "old")
    }
    values |= {f"{kind}{i}": [] for kind in "co" for i in range(len(names))}
    for commit, ordinal, (_, op, number, before, value) in rows:
        has_old = op == "D" or (op == "U" and (whole or before is not None))
        has_old = has_old and relation.identity is not ReplicaIdentity.NOTHING
        values["commit_lsn"].append(commit)
        values["ordinal"].append(ordinal)
        values["op"].append(ord(op))
        values["old"].append(ord("O" if whole else "K") if has_old else 0)
        text = None if value == 0 else b"v" * value
        new: dict[str, bytes | None] = {"id": b"%d" % number, "v": text}
        earlier = number if before is None else before
        old: dict[str, bytes | None] = {
            "id": b"%d" % earlier,
            "v": text if whole else None,
        }
        for i, name in enumerate(names):
            values[f"c{i}"].append(new[name] if op != "D" else None)
            values[f"o{i}"].append(old[name] if has_old else None)
    types = {"commit_lsn": pa.int64(), "ordinal": pa.int64()}
    types |= {"op": pa.uint8(), "old": pa.uint8()}
    return pa.RecordBatch.from_pydict(
        {name: pa.array(v, types.get(name, pa.binary())) for name, v in values.items()}
    )


def _written(log: Path, transactions: list[tuple[int, list[Row]]], cut: int) -> None:
    """In two segments."""
    writer = PublisherLogWriter(log, segment_bytes=1 << 20, xids=Numbers())
    for some in (transactions[:cut], transactions[cut:]):
        # The publisher's positions: another log's.
        commits = [1000 * (n + 1) for n in range(len(some))]
        told = pa.table(
            {
                "commit_lsn": pa.array(commits, pa.int64()),
                "end_lsn": pa.array([c + 8 for c in commits], pa.int64()),
                "commit_time": pa.array([c * 7 for c in commits], pa.int64()),
                "changes": pa.array([len(rows) for _, rows in some], pa.int64()),
            }
        )

        def changes(some: Any = some, commits: Any = commits) -> Iterator[Any]:
            for at, relation in enumerate(RELATIONS):
                rows = [
                    (commit, ordinal, row)
                    for commit, (_, listed) in zip(commits, some, strict=True)
                    for ordinal, row in enumerate(listed)
                    if row[0] == at
                ]
                # In two batches, as from two row groups.
                for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                    if part:
                        yield relation, _batch(relation, part)

        if some:
            writer.replay(told, "pg_1" if some[0][0] else "pg_2", changes(), {})
        writer.seal(note=False)


def decoded(
    log: Path,
    plugin: OutputPlugin,
    options: Mapping[str, str | None],
    sendings: Mapping[Oid, Sending],
    *,
    start: int,
    together: bool,
) -> tuple[list[Message], list[str], Decoding]:
    out: list[Message] = []

    def write(payload: bytes, lsn: Lsn, last: bool) -> None:
        out.append((int(lsn) if last else 0, payload))

    def write_frames(data: memoryview) -> None:
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 1 : at + 5], "big")
            lsn = int.from_bytes(data[at + 6 : at + 14], "big")
            out.append((lsn, bytes(data[at + FRAME_HEADER : at + 1 + size])))
            at += 1 + size

    context = Context(
        "slot",
        "plugin",
        write,
        write_frames,
        lambda names, lsn: sendings,
        lambda relid: None,
        lambda name: 3,
    )
    decoding = Decoding(
        LogReader(log), plugin, context, Lsn(start), 1 << 20, together=together
    )
    decoding.begin(options.items(), lambda: None, lambda lsn: None)
    errors = []
    try:
        decoding.advance()
    except Exception as error:
        errors = [str(error)]
    return out, errors, decoding


OPTIONS: list[dict[str, str | None]] = [
    {},
    {"binary": "true"},
    {"origin": "none", "proto_version": "4", "streaming": "on"},
]


@settings(max_examples=examples(100))
@example(
    # Two partitions are sent as one table: the first row of either comes behind its Relation.
    "root",
    {},
    [(0, [(2, "I", 1, None, 0)]), *[(0, [(0, "I", 1, None, 0)])] * 3],
    0,
    0,
)
@given(
    st.sampled_from(["all", "some", "root", "filter", "fails"]),
    st.sampled_from(OPTIONS),
    TRANSACTIONS,
    st.integers(0, 8),
    st.integers(0, 1 << 15),
)
def test_pgoutput_writes_the_same(
    kind: str,
    more: Mapping[str, str | None],
    transactions: list[tuple[int, list[Row]]],
    cut: int,
    start: int,
) -> None:
    options: dict[str, str | None] = {"proto_version": "1", "publication_names": '"p"'}
    options |= more
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory)
        _written(log, transactions, cut)
        found, wanted = (
            decoded(
                log,
                PgOutput(),
                options,
                _sendings(kind),
                start=(1 << 24) + start if start > 1 << 10 else 0,
                together=together,
            )
            for together in (True, False)
        )
    assert found[0] == wanted[0]
    assert found[1] == wanted[1]
    assert found[2].position == wanted[2].position
    assert found[2].counts.total_txns == wanted[2].counts.total_txns


@pytest.mark.parametrize("plugin", [TestDecoding, Wal2Json])
@settings(max_examples=examples(40))
@given(TRANSACTIONS, st.integers(0, 8))
def test_plugins_of_text_write_the_same(
    plugin: type[TestDecoding] | type[Wal2Json],
    transactions: list[tuple[int, list[Row]]],
    cut: int,
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as m:
        log = Path(directory)
        _written(log, transactions, cut)
        found = decoded(log, plugin(), {}, {}, start=0, together=True)
        m.setattr(groups, "_FEWEST", 1 << 20)
        wanted = decoded(log, plugin(), {}, {}, start=0, together=True)
    assert found[:2] == wanted[:2]
    assert found[2].position == wanted[2].position
    assert np.all(found[2].counts.total_txns == wanted[2].counts.total_txns)


@pytest.mark.parametrize("only_local", ["true", "false"])
def test_who_stops_behind_one_has_passed_over_no_other(
    tmp_path: Path, only_local: str
) -> None:
    _written(tmp_path, [(1, [(0, "I", 1, None, 0)])] * 8, 8)
    context = Context(
        "slot",
        "plugin",
        lambda payload, lsn, last: None,
        lambda data: None,
        lambda names, lsn: {},
        lambda relid: None,
        lambda name: 3,
    )
    decoding = Decoding(LogReader(tmp_path), TestDecoding(), context, Lsn(0), 1 << 20)
    decoding.begin([("only-local", only_local)], lambda: None, lambda lsn: None)
    ends = []
    while decoding.advance(lambda: False):
        ends.append(int(decoding.position))
    assert len(ends) == 8 and ends == sorted(set(ends))
