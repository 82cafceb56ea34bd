"""Hypothesis strategies for pgoutput: any single message, and whole streams by the rules.

A stream is a list of CopyData payloads as a walsender would send them: relations that
change inside transactions, NULL, unchanged, empty, long and binary values, key changes,
whole old rows, truncates of several relations, origins, messages, empty transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st
from tests.fakes.publisher import Gulp, gulp, xlogdata

from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.wire.pgoutput import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    BinaryValue,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKind,
    OldTuple,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    TypeMessage,
    Update,
)

lsns = st.integers(0, 2**64 - 1).map(Lsn)
set_lsns = st.integers(1, 2**64 - 1).map(Lsn)
xids = st.integers(0, 2**32 - 1).map(Xid)
set_xids = st.integers(1, 2**32 - 1).map(Xid)
oids = st.integers(0, 2**32 - 1).map(Oid)
times = st.integers(-(2**63), 2**63 - 1)
names = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8
)
namespaces = names.map(lambda name: name or "pg_catalog")
old_values = st.one_of(
    st.none(), st.binary(max_size=9), st.builds(BinaryValue, st.binary(max_size=9))
)
new_values = st.one_of(old_values, st.just(UNCHANGED))
new_tuples = st.lists(new_values, max_size=5).map(tuple)
old_tuples = st.builds(
    OldTuple, st.sampled_from(OldKind), st.lists(old_values, max_size=5).map(tuple)
)
columns = st.builds(
    Column, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans()
)
relations = st.builds(
    Relation,
    oids,
    namespaces,
    names,
    st.sampled_from(ReplicaIdentity),
    st.lists(columns, max_size=4).map(tuple),
)


def changes(xid: st.SearchStrategy[Xid | None]) -> st.SearchStrategy[Message]:
    """The messages that carry an xid inside a stream block."""
    return st.one_of(
        st.builds(RelationMessage, relations, xid),
        st.builds(TypeMessage, oids, namespaces, names, xid),
        st.builds(Insert, oids, new_tuples, xid),
        st.builds(Update, oids, st.none() | old_tuples, new_tuples, xid),
        st.builds(Delete, oids, old_tuples, xid),
        st.builds(
            Truncate,
            st.lists(oids, min_size=1, max_size=4, unique=True).map(tuple),
            st.booleans(),
            st.booleans(),
            xid,
        ),
        st.builds(
            LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=9), xid
        ),
    )


controls: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, set_lsns, times, xids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Origin, lsns, names),
    st.builds(StreamStart, set_xids, st.booleans()),
    st.builds(StreamCommit, set_xids, lsns, lsns, times),
    st.builds(StreamAbort, set_xids, set_xids),
    st.builds(BeginPrepare, set_lsns, set_lsns, times, xids, names),
    st.builds(Prepare, set_lsns, set_lsns, times, set_xids, names),
    st.builds(StreamPrepare, set_lsns, set_lsns, times, set_xids, names),
    st.builds(CommitPrepared, set_lsns, set_lsns, times, xids, names),
    st.builds(RollbackPrepared, set_lsns, set_lsns, times, times, xids, names),
)
in_stream: st.SearchStrategy[Message] = st.one_of(
    changes(set_xids), st.just(StreamStop()), st.builds(Origin, lsns, names)
)


_VALUES = st.one_of(
    st.none(),
    st.just(b""),
    st.binary(min_size=1, max_size=12),
    st.integers(200, 700).map(lambda n: b"long" * n),
    st.builds(BinaryValue, st.binary(max_size=5)),
)
_TYPES = (Oid(23), Oid(25), Oid(16400), Oid(16401))


@st.composite
def _relation(draw: st.DrawFn, relid: Oid) -> Relation:
    count = draw(st.sampled_from((0, 1, 2, 2, 3, 4)))
    return Relation(
        relid,
        draw(st.sampled_from(("public", "pg_catalog"))),
        f"t{int(relid)}",
        draw(st.sampled_from(ReplicaIdentity)),
        tuple(
            Column(f"a{i}", draw(st.sampled_from(_TYPES)), -1, draw(st.booleans()))
            for i in range(count)
        ),
    )


@st.composite
def _row(draw: st.DrawFn, relation: Relation) -> Insert | Update | Delete:
    def values(*, new: bool) -> TupleData:
        # Mostly plain text, as in life: that is a path of its own.
        text = draw(st.booleans())
        one = st.binary(max_size=4) if text else _VALUES
        return tuple(
            UNCHANGED
            if new and not text and draw(st.integers(0, 3)) == 0
            else draw(one)
            for _ in relation.columns
        )

    def old() -> OldTuple:
        if draw(st.booleans()):
            return OldTuple(OldKind.FULL, values(new=False))
        own = values(new=False)
        keys = tuple(
            value if column.is_key or draw(st.integers(0, 9)) == 0 else None
            for value, column in zip(own, relation.columns, strict=True)
        )
        return OldTuple(OldKind.KEY, keys)

    op = draw(st.sampled_from("IIUUUD"))
    if op == "I":
        return Insert(relation.relid, values(new=True))
    if op == "D":
        return Delete(relation.relid, old())
    first = old() if draw(st.booleans()) else None
    return Update(relation.relid, first, values(new=True))


def _message(transactional: bool, lsn: Lsn) -> st.SearchStrategy[Message]:
    contents = st.sampled_from((b"", b"\0", b"\0\0xyz", b"\xff" * 300))
    return st.builds(
        LogicalMessage, st.just(transactional), st.just(lsn), names, contents
    )


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """The payloads of one connection; the last transaction may be open."""
    relids = [Oid(n) for n in (5, 16384, 2**32 - 1)]
    known: dict[Oid, Relation] = {}
    earlier: dict[Oid, list[Relation]] = {relid: [] for relid in relids}
    lsn = draw(st.integers(1, 2**40))
    out: list[bytes] = []

    def describe(relid: Oid) -> None:
        choices = [_relation(relid)]
        if earlier[relid]:
            choices.append(st.sampled_from(earlier[relid]))
        relation = draw(st.one_of(choices))
        for oid in {c.type_oid for c in relation.columns if c.type_oid > 10000}:
            name = draw(st.sampled_from(("mood", "mood", "other")))
            out.append(xlogdata(TypeMessage(oid, "public", name)))
        out.append(xlogdata(RelationMessage(relation)))
        known[relid] = relation
        earlier[relid].append(relation)

    def outside() -> None:
        nonlocal lsn
        for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
            lsn += draw(st.integers(1, 20))
            out.append(xlogdata(draw(_message(False, Lsn(lsn)))))

    outside()
    for _ in range(draw(st.integers(0, 5))):
        lsn += draw(st.integers(0, 100))
        final, end = lsn, lsn + draw(st.integers(1, 50))
        begin = Begin(Lsn(final), draw(st.integers(-5, 2**50)), draw(xids))
        out.append(xlogdata(begin, final))
        if draw(st.integers(0, 3)) == 0:
            name = draw(st.sampled_from(("node_x", "knoten_ü", "")))
            out.append(xlogdata(Origin(Lsn(draw(st.integers(0, 99))), name)))
        for _ in range(draw(st.integers(0, 6))):
            what = draw(st.integers(0, 9))
            relid = draw(st.sampled_from(relids))
            if relid not in known or what == 0:
                describe(relid)
            if what == 1:
                some = draw(
                    st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True)
                )
                out.append(
                    xlogdata(
                        Truncate(tuple(some), draw(st.booleans()), draw(st.booleans())),
                        final,
                    )
                )
            elif what == 2:
                # Its LSN says nothing of the order: its transaction's does.
                out.append(xlogdata(draw(_message(True, Lsn(draw(st.integers(0, 9)))))))
            else:
                out.append(xlogdata(draw(_row(known[relid])), final))
        if draw(st.integers(0, 9)) == 0:
            break
        out.append(xlogdata(Commit(Lsn(final), Lsn(end), begin.commit_time), end))
        lsn = end
        outside()
    return out


@st.composite
def split(draw: st.DrawFn, payloads: Sequence[bytes]) -> list[Gulp]:
    """The payloads as consecutive runs, cut anywhere."""
    cuts = draw(st.lists(st.integers(0, len(payloads)), max_size=4))
    edges = [0, *sorted(cuts), len(payloads)]
    return [gulp(payloads[a:b]) for a, b in pairwise(edges)]


@st.composite
def damaged(draw: st.DrawFn, payloads: Sequence[bytes]) -> list[bytes]:
    """The payloads with up to three of them changed, cut, dropped, moved or doubled."""
    out = list(payloads)
    for _ in range(draw(st.integers(1, 3))):
        if not out:
            break
        at = draw(st.integers(0, len(out) - 1))
        victim = bytearray(out[at])
        where = draw(st.integers(0, len(victim) - 1)) if victim else 0
        # Damage near the front hits headers, kinds and counts.
        where = min(where, draw(st.sampled_from((where, 25, 30, 33, 40))))
        what = draw(st.integers(0, 9))
        if what == 0:
            out.pop(at)
        elif what == 1:
            out.insert(draw(st.integers(0, len(out))), bytes(victim))
        elif what == 2:
            out[at] = bytes(victim[:where])
        elif what == 3:
            victim[where:where] = draw(st.binary(min_size=1, max_size=3))
            out[at] = bytes(victim)
        elif where < len(victim):
            victim[where] = draw(
                st.integers(0, 255) | st.sampled_from(b"nutbNKOIUDTBC")
            )
            out[at] = bytes(victim)
    return out


def with_columns(relation: Relation, *names: str) -> Relation:
    """The relation with other columns, all text, none a key."""
    return replace(
        relation, columns=tuple(Column(n, Oid(25), -1, False) for n in names)
    )
