"""SET TRANSACTION behind the first query of a block, or below a savepoint.

It took effect at once: statements of one transaction were of two isolation levels, and one that had
begun READ ONLY could be made to write. PostgreSQL's answers, word by word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.door import RawClient, errors, open_door

from wal2lake.wire.frontback import Query

ISOLATION = "SET TRANSACTION ISOLATION LEVEL"
DEFERRABLE = "SET TRANSACTION [NOT] DEFERRABLE"


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with open_door() as door, RawClient(door.port) as raw:
        raw.start()
        yield raw


@pytest.mark.parametrize(
    ("before", "sql", "message"),
    [
        (
            "insert",
            "isolation level serializable",
            f"{ISOLATION} must be called before",
        ),
        ("insert", "isolation level read committed", None),
        ("insert", "read only", None),
        ("insert", "read write", None),
        ("insert", "deferrable", f"{DEFERRABLE} must be called before any query"),
        ("insert", "not deferrable", f"{DEFERRABLE} must be called before any query"),
        ("show timezone", "isolation level serializable", None),
        (
            "savepoint s",
            "isolation level serializable",
            f"{ISOLATION} must not be called in a subtransaction",
        ),
        ("savepoint s; release s", "isolation level serializable", None),
        ("savepoint s", "deferrable", f"{DEFERRABLE} cannot be called within a sub"),
        (
            "set transaction read only; insert",
            "read write",
            "transaction read-write mode must be set before any query",
        ),
        (
            "set transaction read only; savepoint s",
            "read write",
            "cannot set transaction read-write mode inside a read-only transaction",
        ),
    ],
)
def test_it_is_postgresqls_error(
    client: RawClient, before: str, sql: str, message: str | None
) -> None:
    name, _, value = sql.rpartition("level ")
    forms = [f"set transaction {sql}", f"begin {sql}"]
    if name:
        forms.append(f"set transaction_isolation = '{value}'")
    for form in forms:
        for one in (f"begin; {before}", form):
            client.send(Query(one.encode()))
            found = errors(client.until_ready())
        client.send(Query(b"rollback"))
        client.until_ready()
        if message is None:
            assert found == [], form
        else:
            assert [e[1] for e in found] == ["25001"], form
            assert found[0][2].startswith(message)
