"""The manual's chapter on logical replication, typed at psql, the node in the subscriber's place.

Nothing is substituted. What a reader's environment gives to libpq (where ``localhost`` and
``bar`` are, on which port) the node gets the same way: PGPORT, PGHOSTADDR, PGUSER. The chapter's
listings were printed by release 16: its psql talks to the publisher, which is 18.

Compared is what psql prints, blanks aside. Without ORDER BY a query's rows have no order;
PostgreSQL shows them as they lie in its heap, so they are compared as a set. The reader of the
chapter takes his time; here the wait for copies, and for what was written, is a wait for these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer, find_installation

LISTINGS = Path(__file__).parent / "fixtures" / "logical_replication_examples.txt"
PROMPT = re.compile(r"test_(pub|sub)([=-])# ?(.*)")


@dataclass(frozen=True)
class Step:
    """What is typed at one prompt, and what the manual says comes back."""

    at: str
    typed: str
    printed: tuple[str, ...]


def listings(example: str) -> list[str]:
    text = LISTINGS.read_text().partition(f"== {example}\n")[2].partition("\n== ")[0]
    return text.strip("\n").split("\n\n")


def steps(example: str) -> Iterator[Step]:
    at, typed, printed = "", "", list[str]()
    for line in "\n".join(listings(example)).split("\n"):
        prompt = PROMPT.match(line)
        if prompt is None:
            printed.append(line)
        elif prompt[2] == "-":
            typed += "\n" + prompt[3]
        else:
            if typed:
                yield Step(at, typed, tuple(printed))
            at, typed, printed = prompt[1], prompt[3], []
    yield Step(at, typed, tuple(printed))


def shown(step: Step, text: str) -> list[str]:
    """Lines without what the manual's text does not keep, rows without a false order."""
    lines = [" ".join(line.split()) for line in text.split("\n") if line.strip()]
    if step.typed.startswith("SELECT") and "ORDER BY" not in step.typed:
        return lines[:2] + sorted(lines[2:-1]) + lines[-1:]
    return lines


@pytest.fixture(scope="module")
def publisher(postgres_server: Callable[[int], PostgresServer]) -> PostgresServer:
    return postgres_server(18)


@pytest.fixture(scope="module")
def subscriber(
    publisher: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    environ = {
        "PGHOSTADDR": "127.0.0.1",
        "PGPORT": str(publisher.port),
        "PGUSER": "postgres",
    }
    directory = tmp_path_factory.mktemp("chapter") / "data"
    with Node(directory, environ=environ) as node:
        yield node.init().start()
        assert node.stop() == 0


@pytest.fixture
def named_database(
    database: Callable[..., Database], subscriber: Node
) -> Iterator[Callable[[str], Database]]:
    """Databases that are called as in the manual; what subscribes to them goes before."""
    yield lambda name: database(18, name)
    for (name,) in subscriber.sql("select subname from pg_subscription"):
        subscriber.sql(f"drop subscription {name}")
    tables = "select relname from pg_class where oid >= 16384 and relkind in ('r', 'p')"
    for (name,) in subscriber.sql(f"{tables} and not relispartition"):
        subscriber.sql(f"drop table {name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", ["subscriptions", "row filters", "partitions", "column lists"]
)
def test_an_example_prints_what_the_manual_shows(
    example: str,
    subscriber: Node,
    named_database: Callable[[str], Database],
    psql: Psql,
) -> None:
    source = named_database("test_pub")
    old_psql = str(find_installation(16).bin / "psql")
    mirrors: list[Mirror] = []
    done = 0
    for step in steps(example):
        if step.at == "sub" and step.typed.startswith("SELECT"):
            for mirror in mirrors:
                mirror.caught_up()
        here = step.at == "pub"
        answer = psql(
            source.conninfo() if here else subscriber.conninfo(),
            "-v",
            "ON_ERROR_STOP=1",
            stdin=step.typed,
            program=old_psql if here else None,
        )
        assert answer.returncode == 0, f"{step.typed}\n{answer.stderr}"
        expected = "\n".join(step.printed)
        assert shown(step, answer.stdout) == shown(step, expected), step.typed
        created = re.match(r"CREATE SUBSCRIPTION (\w+)", step.typed)
        if created:
            mirrors.append(Mirror(subscriber, source.conninfo(), created[1]))
        if "SUBSCRIPTION" in step.typed:
            for mirror in mirrors:
                mirror.synced()
        done += 1
    assert done == len(re.findall(r"(?m)^test_...=#", "\n\n".join(listings(example))))


def test_the_quick_setup_sets_up_what_it_says(
    subscriber: Node, named_database: Callable[[str], Database], psql: Psql
) -> None:
    source = named_database("foo")
    tables = ["public.departments", "public.users"]
    source.psql(
        "create table departments (id int primary key, name text);"
        " create table users (id int primary key, department int, name text);"
        " insert into departments values (1, 'sales');"
        " insert into users values (1, 1, 'ann'), (2, 1, 'bob');"
        " drop role if exists repuser; create role repuser login replication;"
        " grant select on departments, users to repuser"
    )
    setting, _, publication, subscription = listings("quick setup")
    name, value = setting.split(" = ")
    assert source.psql(f"show {name}") == value
    for conninfo, typed in (
        (source.conninfo(), publication),
        (subscriber.conninfo(), subscription),
    ):
        answer = psql(conninfo, "-v", "ON_ERROR_STOP=1", stdin=typed)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout == " ".join(typed.split()[:2]) + "\n"
    mirror = Mirror(subscriber, source.conninfo(), "mysub")
    mirror.synced()
    assert mirror.differences(tables) == []
    source.psql(
        "update users set department = 2; delete from departments;"
        " insert into departments values (2, 'research')"
    )
    mirror.assert_equal(tables)
    # The role is of the cluster, and others may run there.
    subscriber.sql("drop subscription mysub")
    source.psql("drop owned by repuser; drop role repuser")
