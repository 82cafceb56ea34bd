"""A change that pgoutput cannot send, of a table without a replica identity, is said in the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.publish.decoding.decoded import Run, Transaction
from wal2lake.publish.plugins import pgoutput
from wal2lake.publish.plugins.pgoutput import PgOutput
from wal2lake.publish.plugins.port import Context
from wal2lake.publish.sending import Sending

RELATION = Relation(
    Oid(7), "public", "t", ReplicaIdentity.DEFAULT, (Column("a", Oid(25), -1, False),)
)

TRANSACTION = Transaction(Xid(9), Lsn(8), Lsn(64), Lsn(112), 0, None, Lsn(0), 3)


@pytest.mark.parametrize(
    ("operations", "ops", "said"),
    [("IUD", b"IUD", 1), ("IUD", b"III", 0), ("I", b"IUD", 0)],
)
def test_it_is_said_once(
    operations: str, ops: bytes, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    log = SimpleNamespace(warning=lambda text, error: warnings.append(text))
    monkeypatch.setattr(pgoutput, "get_logger", lambda: log)
    sent: list[bytes] = []
    unused: Any = None
    sending = Sending(frozenset(operations), None, {})
    context = Context(
        "s",
        "pgoutput",
        lambda payload, lsn, last: sent.append(payload),
        unused,
        lambda names, lsn: {Oid(7): sending},
        unused,
        unused,
    )
    rows = pa.RecordBatch.from_pydict(
        {
            "commit_lsn": pa.array([64] * 3),
            "ordinal": pa.array(range(3)),
            "op": pa.array(ops, pa.uint8()),
            "old": pa.array([0] * 3, pa.uint8()),
            "c0": pa.array([b"x", b"y", b"z"], pa.binary()),
        }
    )
    plugin = PgOutput()
    plugin.startup(context, {"proto_version": "1", "publication_names": '"p"'})
    for _ in range(2):
        plugin.begin(context, TRANSACTION)
        assert plugin.run(context, TRANSACTION, Run(RELATION, rows))
        plugin.commit(context, TRANSACTION)
    assert len(warnings) == said
    assert all('table "public.t" are not sent' in text for text in warnings)
    assert [one[:1] for one in sent].count(b"I") == 2 * ops.count(b"I")
