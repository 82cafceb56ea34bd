"""Rows that came in one run with a TRUNCATE of their table were sent whatever the row filter."""

from __future__ import annotations

import pyarrow as pa

from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.pgtypes.expressions import Filter
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.publish.decoding.decoded import Run, Transaction, Truncation
from wal2lake.publish.decoding.transactions import truncations
from wal2lake.publish.plugins.pgoutput import PgOutput
from wal2lake.publish.plugins.port import Context
from wal2lake.publish.sending import Sending

RELATION = Relation(
    Oid(7), "public", "t", ReplicaIdentity.DEFAULT, (Column("a", Oid(16), -1, True),)
)

TRANSACTION = Transaction(Xid(9), Lsn(8), Lsn(64), Lsn(112), 0, None, Lsn(0), 4)


def test_what_the_filter_does_not_let_through_is_not_sent() -> None:
    found: list[bytes] = []
    only_true = Filter(Expression(ExpressionNode.COLUMN, 16, value=0), ("a",))
    sending = Sending(frozenset("IT"), frozenset("a"), {"I": only_true})
    context = Context(
        "s",
        "pgoutput",
        lambda payload, lsn, last: found.append(payload),
        lambda frames: None,
        lambda names, lsn: {Oid(7): sending},
        lambda relid: None,
        lambda name: 0,
    )
    rows = pa.RecordBatch.from_pydict(
        {
            "commit_lsn": pa.array([64] * 5),
            "ordinal": pa.array(range(5)),
            "op": pa.array(b"IITII", pa.uint8()),
            "old": pa.array([0] * 5, pa.uint8()),
            "options": pa.array([0] * 5, pa.uint8()),
            "c0": pa.array([b"t", b"f", None, b"f", b"t"], pa.binary()),
        }
    )
    plugin = PgOutput()
    plugin.startup(context, {"proto_version": "1", "publication_names": '"p"'})
    plugin.begin(context, TRANSACTION)
    for piece in truncations(iter([Run(RELATION, rows)])):
        if isinstance(piece, Truncation):
            relations, at = piece.relations, Lsn(8 + piece.ordinal)
            plugin.truncate(context, TRANSACTION, relations, piece.options, at)
        else:
            assert isinstance(piece, Run)
            assert plugin.run(context, TRANSACTION, piece)
    plugin.commit(context, TRANSACTION)
    assert b"".join(one[:1] for one in found) == b"BRITIC"
    assert [one for one in found if one[:1] == b"I"] == [found[2]] * 2
    assert found[2].endswith(b"t")
