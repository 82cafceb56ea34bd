"""A slot's exported snapshot, and a session's, read by others while writes go on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Session = psycopg.Connection[Any]

IMPORT = "begin isolation level repeatable read; set transaction snapshot "
IMPORTED = "set transaction snapshot '%s'"


@contextmanager
def writing(node: Node) -> Iterator[list[int]]:
    """Rows are inserted all the while, one by one; those that are in so far."""
    written: list[int] = []
    errors: list[BaseException] = []
    enough = threading.Event()

    def write() -> None:
        try:
            with psycopg.connect(node.conninfo(), autocommit=True) as session:
                while not enough.is_set():
                    number = len(written) + 1
                    session.execute(f"insert into public.t values ({number})")
                    written.append(number)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        enough.set()
        thread.join(60)
    assert not errors and not thread.is_alive()


def more(written: list[int]) -> None:
    seen = len(written)
    wait_until(lambda: len(written) >= seen + 2, timeout_seconds=60)


def ids(session: Session) -> list[int]:
    return [row[0] for row in session.execute("select id from public.t order by id")]


def refusal(node: Node, *statements: str) -> tuple[str | None, str | None]:
    with (
        psycopg.connect(node.conninfo(), autocommit=True) as session,
        pytest.raises(psycopg.Error) as refused,
    ):
        for statement in statements:
            session.execute(statement)
    return refused.value.sqlstate, refused.value.diag.message_primary


@pytest.mark.slow
def test_who_imports_a_snapshot_reads_what_its_exporter_does(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(settings={"node.authentication": "trust"}).start()
    node.sql("create table public.t (id int primary key)")
    with (
        node.connect(replication="database") as exporter,
        node.connect(replication="database") as user,
        psycopg.connect(node.conninfo(), autocommit=True) as reader,
    ):
        user.rows("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        with writing(node) as written:
            more(written)
            (made,) = exporter.rows(
                "CREATE_REPLICATION_SLOT e LOGICAL test_decoding (SNAPSHOT 'export')"
            )
            name = made[2]
            assert name
            user.rows("CREATE_REPLICATION_SLOT u LOGICAL test_decoding USE_SNAPSHOT")
            more(written)
            reader.execute(f"{IMPORT}'{name}'")
            copied = ids(reader)
            used = [int(row[0] or 0) for row in user.rows("select id from public.t")]
            more(written)
            assert ids(reader) == copied
            with reader.cursor().copy("copy public.t to stdout") as rows:
                text = b"".join(bytes(one) for one in rows).decode()
            assert sorted(map(int, text.split())) == copied
        user.rows("COMMIT")
        for slot, before in (("e", copied), ("u", sorted(used))):
            changes = node.sql(
                f"select data from pg_logical_slot_get_changes('{slot}', null, null)"
            )
            streamed = re.findall(r"INSERT: id\[integer\]:(\d+)", str(changes))
            assert before and streamed
            assert [*before, *map(int, streamed)] == written

        # The exporter's next command ends it for others, not for who has it.
        (nothing,) = exporter.rows(
            "CREATE_REPLICATION_SLOT n LOGICAL test_decoding (SNAPSHOT 'nothing')"
        )
        assert nothing[2] is None
        gone = refusal(node, "begin isolation level repeatable read", IMPORTED % name)
        assert gone == ("42704", f'snapshot "{name}" does not exist')
        assert ids(reader) == copied
        reader.execute("rollback")

        # A session's own, whose name goes with its transaction.
        reader.execute("begin isolation level repeatable read read only")
        assert ids(reader) == written
        (name,) = reader.execute("select pg_export_snapshot()").fetchone() or ("",)
        node.sql("delete from public.t where id = 1")
        with psycopg.connect(node.conninfo(), autocommit=True) as session:
            session.execute(f"{IMPORT}'{name}'")
            assert ids(session) == written
            session.execute("commit")
            assert ids(session) == written[1:]
        repeatable = "begin isolation level repeatable read"
        own = IMPORTED % name
        late = ("25001", "SET TRANSACTION SNAPSHOT must be called before any query")
        modes = (
            "0A000",
            "a snapshot-importing transaction must have isolation level SERIALIZABLE"
            " or REPEATABLE READ",
        )
        for statements, wanted in (
            ((own,), modes),
            (("begin", own), modes),
            (
                (repeatable, IMPORTED % "foo"),
                ("22023", 'invalid snapshot identifier: "foo"'),
            ),
            ((repeatable, "select 1", own), late),
            ((repeatable, "savepoint s", own), late),
            ((repeatable, own, own), late),
            (
                ("begin isolation level serializable", own),
                (
                    "0A000",
                    "a serializable transaction cannot import a snapshot from a"
                    " non-serializable transaction",
                ),
            ),
            (
                (repeatable, own.replace("set", "set local")),
                ("0A000", "SET LOCAL TRANSACTION SNAPSHOT is not implemented"),
            ),
            (
                ("begin", "savepoint s", "select pg_export_snapshot()"),
                ("25001", "cannot export a snapshot from a subtransaction"),
            ),
        ):
            assert refusal(node, *statements) == wanted, statements
        reader.execute("rollback")
        assert refusal(node, repeatable, own)[0] == "42704"
