"""When a publisher is asked for the columns of a relation, and for which transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from tests.fakes.publisher import relation

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel
from wal2lake.errors import PublisherError
from wal2lake.model import Lsn, Oid, Relation, RemoteSchema, SentSchema, SyncState, Xid
from wal2lake.receive.gulps import Gulp
from wal2lake.receive.source import publicationwatch as publications
from wal2lake.receive.source import schemas
from wal2lake.receive.source.publicationwatch import PublicationKeeper
from wal2lake.receive.source.schemas import SchemaKeeper
from wal2lake.wire.copyboth import XLogData, write_xlogdata
from wal2lake.wire.pgoutput import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Message,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    write_message,
)

X, Y = Xid(700), Xid(701)
END = Lsn(10_000)
SEEN = Lsn(20_000)
"""How far the publisher is."""


class Noted:
    """The catalog's part."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.kept: dict[Xid, list[Relation]] = {}

    def note_sent(
        self, subid: Oid, sent: list[SentSchema], ended: Sequence[Xid] = ()
    ) -> None:
        self.sent += [(int(one.commit_lsn), int(one.relation.relid)) for one in sent]
        assert all(one.settled == SEEN for one in sent)
        for xid in ended:
            del self.kept[xid]

    def keep_prepared(self, subid: Oid, xid: Xid, relations: list[Relation]) -> None:
        self.kept[xid] = relations

    def forget_prepared(self, subid: Oid) -> None:
        self.kept.clear()

    def prepared_transactions(self, subid: Oid) -> list[Xid]:
        return list(self.kept)

    def prepared_relations(self, subid: Oid, xid: Xid) -> list[Relation]:
        return self.kept[xid]


class Server:
    """A publisher that has every table but 99."""

    def __init__(self, session: object) -> None:
        del session

    def schemas(self, relids: tuple[Oid, ...]) -> dict[Oid, RemoteSchema]:
        return {
            relid: RemoteSchema(relid, "public", "t", (), (), 0, ())
            for relid in relids
            if relid != 99
        }

    def position(self) -> Lsn:
        return SEEN


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    monkeypatch.setattr(schemas, "Publisher", Server)
    return Noted()


def keeper(noted: Noted, **options: str) -> SchemaKeeper:
    @contextmanager
    def session() -> Iterator[None]:
        yield

    subscription = Subscription(
        Oid(1), "s", Oid(10), True, "", "s", ("p",), options={**options}
    )
    return SchemaKeeper(cast(Catalog, noted), subscription, cast(Any, session))


def gulp(*messages: Message) -> Gulp:
    payloads = [
        write_xlogdata(XLogData(Lsn(0), Lsn(0), 0, write_message(one)))
        for one in messages
    ]
    lengths = np.array([len(p) for p in payloads], np.uint32)
    return Gulp(b"".join(payloads), lengths, False)


def described(relid: int, subxid: Xid | None = None) -> RelationMessage:
    return RelationMessage(relation(relid), subxid)


FOLLOW = {"schema_changes": "follow"}


def test_at_once_for_the_commit_of_its_transaction(noted: Noted) -> None:
    begin, commit = Begin(Lsn(500), 0, X), Commit(Lsn(500), END, 0)
    late = Begin(Lsn(600), 0, Y)
    one = keeper(noted, **FOLLOW)
    one.record(gulp(begin, described(1), commit, late, described(2), described(99)))
    # A transaction goes on in the next gulp.
    one.record(gulp(described(3)))
    assert noted.sent == [(500, 1), (600, 2), (600, 3)]
    # Whoever does not follow is not told.
    keeper(noted, schema_changes="manual").record(gulp(begin, described(1)))
    assert len(noted.sent) == 3


def test_what_is_before_a_malformed_message_is_recorded(noted: Noted) -> None:
    """The log keeps the transactions before it, and they do not come again."""
    begin, commit = Begin(Lsn(500), 0, X), Commit(Lsn(500), END, 0)
    whole = gulp(begin, described(1), commit, Begin(Lsn(600), 0, Y), described(2))
    lengths = whole.lengths.copy()
    lengths[-1] += 1
    malformed = Gulp(whole.data + b"?", lengths, False)
    keeper(noted, **FOLLOW).record(malformed)
    assert noted.sent == [(500, 1)]


def test_a_streamed_transaction_is_asked_for_when_it_commits(noted: Noted) -> None:
    one = keeper(noted, **FOLLOW)
    one.record(gulp(StreamStart(X, True), described(1, X), StreamStop()))
    one.record(gulp(StreamStart(Y, True), described(2, Y)))
    one.record(gulp(described(3, Y), StreamStop()))
    one.record(gulp(StreamStart(X, False), described(4, X), StreamStop()))
    # A subtransaction is rolled back: what it had altered has never been.
    one.record(gulp(StreamStart(Y, False), described(5, Xid(702)), StreamStop()))
    one.record(gulp(StreamAbort(Y, Xid(702))))
    assert noted.sent == []
    one.record(gulp(StreamCommit(Y, Lsn(800), END, 0)))
    assert noted.sent == [(800, 2), (800, 3)]
    one.record(gulp(StreamAbort(X, X, Lsn(900), 0)))
    one.record(gulp(StreamCommit(X, Lsn(950), END, 0)))
    assert len(noted.sent) == 2


def test_a_prepared_transaction_too(noted: Noted) -> None:
    one = keeper(noted, **FOLLOW)
    for xid, relid in ((X, 1), (Y, 2)):
        one.record(
            gulp(
                BeginPrepare(Lsn(500), END, 0, xid, "g"),
                described(relid),
                Prepare(Lsn(500), END, 0, xid, "g"),
            )
        )
    assert noted.sent == []
    one.record(gulp(RollbackPrepared(Lsn(500), END, 0, 0, X, "g")))
    one.record(gulp(CommitPrepared(Lsn(990), END, 0, Y, "g")))
    assert noted.sent == [(990, 2)]
    assert noted.kept == {}


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_prepared_is_asked_for_in_another_run(
    noted: Noted, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = keeper(noted, **FOLLOW)
    if streamed:
        one.record(gulp(StreamStart(X, True), described(1, X), described(2, Y)))
        one.record(gulp(StreamStop(), StreamAbort(X, Y)))
        one.record(gulp(StreamPrepare(Lsn(500), END, 0, X, "g")))
    else:
        begin = BeginPrepare(Lsn(500), END, 0, X, "g")
        one.record(gulp(begin, described(1), Prepare(Lsn(500), END, 0, X, "g")))
    assert noted.sent == []
    commit = gulp(CommitPrepared(Lsn(990), END, 0, X, "g"))
    # The publisher does not answer: the end comes again, in yet another run.
    with monkeypatch.context() as patch:
        patch.setattr(Server, "position", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            keeper(noted, **FOLLOW).record(commit)
    keeper(noted, **FOLLOW).record(commit)
    assert noted.sent == [(990, 1)]
    assert noted.kept == {}
    keeper(noted, **FOLLOW).record(commit)
    assert noted.sent == [(990, 1)]


def test_what_is_prepared_is_forgotten_by_who_does_not_follow(noted: Noted) -> None:
    """Its end would pass unseen, and what was kept would stay."""
    begin = BeginPrepare(Lsn(500), END, 0, X, "g")
    prepare = Prepare(Lsn(500), END, 0, X, "g")
    keeper(noted, **FOLLOW).record(gulp(begin, described(1), prepare))
    assert list(noted.kept) == [X]
    keeper(noted, schema_changes="manual").record(gulp(begin, prepare))
    assert noted.kept == {}


def test_what_is_no_message_is_left_to_who_decodes_it(noted: Noted) -> None:
    one = keeper(noted, **FOLLOW)
    whole = gulp(Begin(Lsn(500), 0, X), described(1))
    lengths = whole.lengths.copy()
    lengths[-1] -= 3
    one.record(replace(whole, data=whole.data[:-3], lengths=lengths))
    assert noted.sent == []
    # Before any transaction: nothing says whose it is.
    keeper(noted, **FOLLOW).record(gulp(described(1)))
    assert noted.sent == []


def test_relations_are_kept_as_they_were_sent() -> None:
    from wal2lake.model.relations.remoteschema import (
        relation_as_json,
        relation_from_json,
    )

    sent: Relation = relation(5, 3)
    assert relation_from_json(relation_as_json(sent)) == sent


class Published:
    """A catalog of tables 101 to 104 and the publisher that they come from."""

    def __init__(self) -> None:
        self.marks = {Oid(n): "p1" for n in (1, 2, 3)}
        self.asked: list[set[Oid]] = []
        self.distrusted: list[Oid] = []
        self.unreachable = False

    def rels(self, subid: Oid) -> list[SubscriptionRel]:
        made = [
            SubscriptionRel(
                subid,
                Oid(100 + n),
                "public",
                f"t{n}",
                SyncState.READY,
                None,
                7,
                trusted=Oid(100 + n) not in self.distrusted,
                copied_from=Oid(n),
                published_as="p1",
            )
            for n in (1, 2, 3)
        ]
        return [*made, replace(made[0], relid=Oid(104), published_as=None)]

    def update_rel(self, subid: Oid, relid: Oid, *, trusted: bool) -> None:
        assert not trusted
        self.distrusted.append(relid)

    def publication_marks(
        self, relids: Sequence[Oid], names: tuple[str, ...]
    ) -> dict[Oid, str]:
        assert names == ("p",)
        self.asked.append(set(relids))
        if self.unreachable:
            raise PublisherError("too many clients already")
        return {relid: self.marks[relid] for relid in relids if relid in self.marks}


def test_a_relation_message_has_the_publications_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = Published()
    monkeypatch.setattr(publications, "Publisher", lambda session: published)

    @contextmanager
    def session() -> Iterator[None]:
        yield

    subscription = Subscription(Oid(1), "s", Oid(10), True, "", "s", ("p",))
    keeper = PublicationKeeper(
        cast(Catalog, published), subscription, cast(Any, session)
    )
    begin, commit = Begin(Lsn(500), 0, X), Commit(Lsn(500), END, 0)
    plain, streamed = described(1), described(2, X)
    keeper.record(gulp(begin, plain, commit))
    assert published.asked == [{Oid(1)}]
    assert not published.distrusted
    keeper.record(gulp(begin, commit))
    assert len(published.asked) == 1, "nothing was said of a relation"
    published.marks[Oid(2)] = "p2"
    keeper.record(gulp(StreamStart(X, True), streamed, StreamStop(), plain))
    assert published.distrusted == [Oid(102)]
    # Whom nobody trusts nobody asks about; one that is gone is another one.
    keeper.record(gulp(StreamStart(X, True), streamed, StreamStop()))
    assert len(published.asked) == 2
    del published.marks[Oid(1)]
    keeper.record(gulp(plain))
    assert published.distrusted == [Oid(102), Oid(101)]
    # Of a server that cannot be asked the worst is assumed, and the stream goes on.
    published.unreachable = True
    keeper.record(gulp(described(3)))
    assert published.distrusted == [Oid(102), Oid(101), Oid(103)]
