"""Checks that a table still agrees with a snapshot, inside the transaction that reads the table.

In: a session whose transaction has imported the snapshot, and the table as it was described. Out:
nothing, or ``SourceChanged`` if a read would not return the snapshot's rows.

Other sessions may alter the table until it is read: a lock held until the copy's turn would block
the table's writers behind the first ALTER TABLE. An imported snapshot alone does not help. ALTER
TABLE and TRUNCATE are not MVCC-safe (a table that was rewritten since looks empty), VACUUM FULL
moves rows between ranges of pages, and COPY uses the present column names. So a reader first locks
the table, then compares:

    property                in the snapshot           at present
    ----                    ----------------------    ------------
    the file                pg_class.relfilenode      pg_relation_filenode()
    columns                 pg_attribute              the description of a query (Parse, Describe)
    partitions              pg_inherits               pg_partition_tree()

Catalog tables are read through the transaction's snapshot; functions and the parser see the present
state. The lock holds until the transaction ends, so both stay equal while the range is read.

A partitioned table has no file. COPY locks its leaves, so their files are compared after COPY.

Source: PostgreSQL manual, 13.6 (Caveats: commands that are not MVCC-safe); postgres:
src/backend/access/common/printtup.c (a RowDescription has the base type of a domain).
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.errors import PublisherError
from wal2lake.model import Oid
from wal2lake.pg import RemoteTable, Session

_GONE = ("42P01", "3F000")
"""undefined_table, invalid_schema_name."""


class SourceChanged(PublisherError):
    """Raised if the table can no longer be copied under this snapshot, only under a later one."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A reader's description of its table. Picklable."""

    oid: Oid
    name: str
    """Qualified and quoted."""
    partitioned: bool
    columns: tuple[tuple[int, str, Oid, int, Oid, int], ...]
    """Number, name, declared type and typmod, type and typmod without domains."""

    @classmethod
    def of(cls, remote: RemoteTable) -> PlannedTable:
        """Describe a remote table for a reader."""
        return cls(
            remote.oid,
            remote.qualified,
            remote.kind == "p",
            tuple(
                (
                    c.number,
                    c.name,
                    c.declared_oid,
                    c.declared_typmod,
                    c.type_oid,
                    c.typmod,
                )
                for c in remote.columns
            ),
        )


def lock_unaltered(session: Session, table: PlannedTable) -> None:
    """Take ACCESS SHARE on the table for the rest of the transaction.

    Raises SourceChanged if the snapshot has other columns or another file; 55P03 if the lock is not
    granted within lock_timeout.
    """
    only = "" if table.partitioned else "ONLY "
    try:
        now = session.describe(f"SELECT * FROM {only}{table.name}")
    except PublisherError as error:
        if error.sqlstate in _GONE:
            raise _changed(table, "dropped or renamed") from None
        raise
    # Another wal2lake node does not report the table of a column.
    if now and now[0].table:
        rows = session.query(
            "SELECT a.attnum, a.attname, a.atttypid, a.atttypmod"
            " FROM pg_catalog.pg_attribute a"
            f" WHERE a.attrelid = {int(table.oid)}"
            " AND a.attnum > 0 AND NOT a.attisdropped"
        )
        before = {
            (int(str(r[0])), str(r[1])): (int(str(r[2])), int(str(r[3]))) for r in rows
        }
        present = {(c.number, c.name): (c.type_oid, c.typmod) for c in now}
        unaltered = now[0].table == table.oid and before.keys() <= present.keys()
        for number, name, declared, declared_typmod, base, typmod in table.columns:
            place = (number, name)
            unaltered = (
                unaltered
                and before.get(place) == (declared, declared_typmod)
                and present.get(place) == (base, typmod)
            )
        if not unaltered:
            raise _changed(table, "altered")
    if not table.partitioned:
        check_files(session, table)


def check_files(session: Session, table: PlannedTable) -> None:
    """Compare the files of a locked table, or of its leaves. Raises SourceChanged."""
    root = f"SELECT {int(table.oid)}::pg_catalog.oid AS oid"
    relids = root
    if table.partitioned:
        relids = (
            f"WITH RECURSIVE below(oid) AS ({root} UNION ALL"
            " SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i"
            " ON i.inhparent = below.oid) SELECT oid FROM below"
        )
        # A partition created since is not in the snapshot's pg_class, and has no row that the
        # snapshot sees.
        regrouped = session.value(
            f"WITH RECURSIVE before AS ({relids}), present AS (SELECT relid::"
            f"pg_catalog.oid AS oid FROM pg_catalog.pg_partition_tree({int(table.oid)}))"
            " SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c"
            " WHERE (c.oid IN (TABLE before)) <> (c.oid IN (TABLE present))"
        )
        if regrouped != "0":
            raise _changed(table, "given other partitions")
    moved = session.value(
        "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({relids}) AND c.relkind = 'r'"
        " AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid)"
    )
    if moved != "0":
        raise _changed(table, "rewritten or truncated")


def _changed(table: PlannedTable, change: str) -> SourceChanged:
    return SourceChanged(
        f"table {table.name} has been {change} since the snapshot was taken",
        sqlstate="55000",
    )
