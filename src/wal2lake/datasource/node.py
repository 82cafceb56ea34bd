"""Questions to a node about a stream: where its log is, and the columns of a table.

Comes in: a connection string of the node's front door, the name of a subscription or publication.
Goes out: ``StreamLog``, ``FieldSpec``s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wal2lake.errors import UsageError
from wal2lake.lake import FieldSpec
from wal2lake.model import Lsn, Oid
from wal2lake.pg.client import Client
from wal2lake.pg.quoting import quote_literals
from wal2lake.pgtypes import mapping_for

_COLUMNS = """
SELECT a.attname, a.atttypid, a.atttypmod, t.typname, a.attndims
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE n.nspname = {schema} AND c.relname = {table} AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""


@dataclass(frozen=True, slots=True)
class StreamLog:
    """The log that a stream reads."""

    directory: Path
    publication: str | None = None
    """None for a subscription's log."""
    catalog: Path | None = None
    """The catalog with the publication's definitions."""
    types: str | None = None
    """JSON of the publisher's types that are not built in."""


class NodeQuestions:
    """Asks a node, over one connection that is closed at the end."""

    def __init__(self, conninfo: str) -> None:
        """Keep the connection string; connect with each question."""
        self._conninfo = conninfo

    def subscription_log(self, name: str) -> StreamLog:
        """Return the log of a subscription. UsageError (42704) if there is none."""
        row = self._row(
            "SELECT l.directory, l.remote_types FROM wal2lake.change_logs l"
            f" WHERE l.subname = {quote_literals((name,))}"
        )
        if row is None:
            raise UsageError(f'subscription "{name}" does not exist', sqlstate="42704")
        directory, types = row
        return StreamLog(readable_directory(directory), types=types)

    def publication_log(self, name: str) -> StreamLog:
        """Return the publisher's log. UsageError (42704) if the publication does not exist."""
        exists = self._row(
            "SELECT 1 FROM pg_catalog.pg_publication"
            f" WHERE pubname = {quote_literals((name,))}"
        )
        if exists is None:
            raise UsageError(f'publication "{name}" does not exist', sqlstate="42704")
        row = self._row(
            "SELECT l.directory, current_setting('data_directory')"
            " FROM wal2lake.change_logs l WHERE l.subid IS NULL"
        )
        directory, data = (None, None) if row is None else row
        log = readable_directory(directory)
        if self._row("SELECT 1 FROM pg_catalog.pg_replication_slots") is None:
            raise UsageError(
                "the node captures no changes, because it has no replication slot",
                sqlstate="55000",
                hint="Make one with SELECT pg_create_logical_replication_slot('spark',"
                " 'pgoutput'), and name it in the option \"slot\".",
            )
        return StreamLog(log, name, readable_directory(data) / "catalog.sqlite")

    def slot_position(self, name: str) -> Lsn:
        """Return the position that a slot has confirmed. UsageError (42704) without the slot."""
        row = self._row(
            "SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots"
            f" WHERE slot_name = {quote_literals((name,))}"
        )
        if row is None:
            raise UsageError(
                f'replication slot "{name}" does not exist', sqlstate="42704"
            )
        return Lsn.parse(row[0] or "0/0")

    def advance_slot(self, name: str, lsn: Lsn) -> None:
        """Let a slot give up what lies below a position."""
        if lsn > self.slot_position(name):
            self._row(
                "SELECT pg_catalog.pg_replication_slot_advance"
                f"({quote_literals((name,))}, '{lsn}')"
            )

    def fields(self, schema: str, table: str) -> tuple[FieldSpec, ...]:
        """Return the columns of a lake table, with the types that the lake gives them.

        UsageError (42P01) if there is no such table.
        """
        sql = _COLUMNS.format(
            schema=quote_literals((schema,)), table=quote_literals((table,))
        )
        with Client(self._conninfo) as client:
            rows = client.rows(sql)
        if not rows:
            raise UsageError(
                f'relation "{schema}.{table}" does not exist', sqlstate="42P01"
            )
        fields = []
        for name, oid, typmod, type_name, dimensions in rows:
            mapping = mapping_for(
                int(oid or 0),
                int(typmod or 0),
                type_name=type_name,
                attndims=int(dimensions or 0),
            )
            fields.append(
                FieldSpec(
                    name or "",
                    mapping.spark_ddl,
                    pg_type_oid=Oid(int(oid or 0)),
                    pg_typmod=int(typmod or 0),
                )
            )
        return tuple(fields)

    def _row(self, sql: str) -> tuple[str | None, ...] | None:
        with Client(self._conninfo) as client:
            rows = client.rows(sql)
        return rows[0] if rows else None


def readable_directory(directory: str | None) -> Path:
    """Return a directory of the node. UsageError if the node does not say it (42501), or if it
    cannot be read from here (55000)."""
    if directory is None:
        raise UsageError(
            "the node does not say where its change log is",
            sqlstate="42501",
            hint="Connect as a superuser or as a member of the role pg_read_all_settings.",
        )
    path = Path(directory)
    if not path.parent.is_dir():
        raise UsageError(
            f'the directory "{path}" of the node cannot be read from here',
            sqlstate="55000",
            hint="Spark must run where the node's files are: on its machine as its user, or with"
            " log.directory on storage that all machines share.",
        )
    return path
