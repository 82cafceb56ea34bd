"""The two ends of a comparison: sessions, what they can do, and their tables.

Comes in: a connection string. Goes out: a ``ComparedEnd`` in a transaction that writes nothing and
sees one state. Called by ``comparing`` and ``subscriber``.

An end is asked what it can do, not what it is: a server that gives the known hash of a known row
hashes its rows itself, and the rows of any other are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from wal2lake.cli.verify.pairs.patterns import TableName
from wal2lake.commands.maintenance.sourcetables import (
    LOCK_TIMEOUT_MS,
    import_snapshot,
    locked_table,
)
from wal2lake.errors import PublisherError
from wal2lake.pg import Check, Publisher, RemoteTable, Session, connect
from wal2lake.verify import NotComparable, check_hashes

APPLICATION: Final = "wal2lake verify"

_OTHERS: Final = frozenset({"information_schema", "wal2lake"})


@dataclass(frozen=True, slots=True)
class ComparedEnd:
    """One end, in a transaction."""

    word: str
    """``source`` or ``target``."""
    session: Session
    hashes: bool
    """Whether the server hashes rows as PostgreSQL does."""

    def tables(self, publications: tuple[str, ...]) -> list[TableName]:
        """Return the tables of publications; without a publication, all tables of users."""
        if publications:
            publisher = Publisher(self.session)
            existing = publisher.existing_publications(publications)
            for name in publications:
                if name not in existing:
                    raise PublisherError(
                        f'publication "{name}" does not exist', sqlstate="42704"
                    )
            return publisher.published_tables(publications)
        rows = self.session.query(
            "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND c.relpersistence <> 't' ORDER BY 1, 2"
        )
        names = [(str(schema), str(table)) for schema, table in rows]
        return [
            name
            for name in names
            if name[0] not in _OTHERS and not name[0].startswith("pg_")
        ]

    @contextmanager
    def locked(
        self, name: TableName, publications: tuple[str, ...] = ()
    ) -> Iterator[RemoteTable]:
        """Give a table as the transaction sees it, locked until the block ends."""

        def find() -> RemoteTable | None:
            return Publisher(self.session).tables((name,), publications).get(name)

        with locked_table(self.session, find, self.word) as table:
            if table.kind not in ("r", "p"):
                raise NotComparable(f"it is not a table at the {self.word}")
            yield table


def open_session(conninfo: str, check: Check) -> Session:
    """Connect. ``check`` ends each wait by raising."""
    return connect(conninfo, application_name=APPLICATION, check=check)


def hashes_itself(session: Session) -> bool:
    """Whether the server hashes rows as PostgreSQL does. Not in a transaction."""
    # Asked first, so that a node has no error to log.
    functions = session.value(
        "SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc p"
        " WHERE p.proname = 'hash_record_extended'"
    )
    if functions == "0":
        return False
    try:
        check_hashes(session)
    except (NotComparable, PublisherError):
        return False
    return True


def read_from(word: str, session: Session, snapshot: str | None = None) -> ComparedEnd:
    """Begin the transaction that reads; ``snapshot``: of another session, by its name."""
    hashes = hashes_itself(session)
    import_snapshot(session, snapshot, LOCK_TIMEOUT_MS)
    return ComparedEnd(word, session, hashes)
