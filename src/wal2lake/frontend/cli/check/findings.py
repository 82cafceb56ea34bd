"""Judging a publisher: facts in, findings and their print out. Pure.

    ok       wal_level is logical
    problem  publication "p" does not exist
             hint: CREATE PUBLICATION p FOR ALL TABLES;

A *problem* stops the subscription or makes the source refuse its own writes; a *note* is
something to know. The needs are this node's: one slot and one walsender for the stream, and for
as long as tables are being copied one of each for the snapshot.

Called by: ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.frontend.cli.print import table as aligned
from wal2lake.model import ReplicaIdentity
from wal2lake.pg import RemoteColumn, RemoteTable
from wal2lake.pgtypes.columnnames import check_column_names
from wal2lake.pgtypes.mapping import mapping_for

OLDEST_VERSION: Final = 140000

_STANDBY_VERSION: Final = 160000
"""First version that decodes on a standby."""

_FOR_THE_STREAM: Final = 1
_WITH_A_COPY: Final = 2


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Works; read it."""
    PROBLEM = "problem"
    """Does not work before it is changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """What was asked of the server."""

    version: int
    version_text: str
    database: str
    settings: Mapping[str, str | None]
    slots: int
    """Replication slots in use."""
    senders: int
    """Walsenders running."""
    prepared: int
    """Prepared transactions, of all databases."""
    role: str
    superuser: bool
    replication: bool
    in_recovery: bool
    refusal: str | None
    """Why a replication connection was refused; None: it was not."""


@dataclass(frozen=True, slots=True)
class Publication:
    """pg_publication."""

    name: str
    insert: bool
    update: bool
    delete: bool
    truncate: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A published table and what we may do with it."""

    remote: RemoteTable
    updates: bool
    """A publication of it publishes UPDATE or DELETE."""
    readable: bool
    row_security: bool
    """Row-level security applies to us."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The publications to look at."""

    found: tuple[Publication, ...]
    findings: tuple[Finding, ...]


def judge_server(server: Server) -> list[Finding]:
    """Version, settings, room and rights."""
    return [
        _version(server),
        _wal_level(server),
        _room(server, "max_replication_slots", "replication slots", server.slots),
        _room(server, "max_wal_senders", "WAL senders", server.senders),
        *_role(server),
        *_slot_limit(server),
        *_prepared(server),
        *_encoding(server),
    ]


def _version(server: Server) -> Finding:
    if server.version < OLDEST_VERSION:
        return Finding(
            Level.PROBLEM,
            f"PostgreSQL {server.version_text} is too old",
            "Version 14 or later is needed.",
        )
    if server.in_recovery and server.version < _STANDBY_VERSION:
        return Finding(
            Level.PROBLEM,
            f"PostgreSQL {server.version_text} is a standby",
            "Connect to the primary: before version 16 a standby cannot publish.",
        )
    where = "standby" if server.in_recovery else "server"
    return Finding(Level.OK, f"{where} is PostgreSQL {server.version_text}")


def _wal_level(server: Server) -> Finding:
    level = server.settings["wal_level"]
    if level == "logical":
        return Finding(Level.OK, "wal_level is logical")
    return Finding(
        Level.PROBLEM,
        f"wal_level is {level}, logical is needed",
        "ALTER SYSTEM SET wal_level = logical; then restart the server.",
    )


def _room(server: Server, setting: str, what: str, used: int) -> Finding:
    limit = int(server.settings[setting] or 0)
    free = limit - used
    text = f"{max(free, 0)} of {limit} {what} are free"
    hint = f"ALTER SYSTEM SET {setting} = {used + 10}; then restart the server."
    if free < _FOR_THE_STREAM:
        return Finding(Level.PROBLEM, f"{text}, a subscription needs one", hint)
    if free < _WITH_A_COPY:
        return Finding(
            Level.PROBLEM, f"{text}, the copy of existing rows needs a second", hint
        )
    return Finding(Level.OK, text)


def _role(server: Server) -> Iterator[Finding]:
    kind = "a superuser" if server.superuser else "not a superuser"
    if server.refusal is None:
        yield Finding(
            Level.OK, f'role "{server.role}" ({kind}) can open replication connections'
        )
        return
    hint = (
        "Allow it in pg_hba.conf, and connect to the server itself, not to a pooler."
        if server.superuser or server.replication
        else f'ALTER ROLE "{server.role}" REPLICATION; (on a managed service, grant its'
        " replication role instead)"
    )
    yield Finding(
        Level.PROBLEM, f"no replication connection is possible: {server.refusal}", hint
    )


def _slot_limit(server: Server) -> Iterator[Finding]:
    if server.settings["max_slot_wal_keep_size"] == "-1":
        yield Finding(
            Level.NOTE,
            "max_slot_wal_keep_size is unlimited: while the node is down, WAL is kept"
            " until the disk is full",
        )


def _prepared(server: Server) -> Iterator[Finding]:
    if server.prepared:
        count = server.prepared
        yield Finding(
            Level.NOTE,
            f"{count} prepared transaction{'s' if count > 1 else ''}: creating a"
            " subscription and copying tables wait for their end",
            "COMMIT PREPARED or ROLLBACK PREPARED them, see pg_prepared_xacts.",
        )


def _encoding(server: Server) -> Iterator[Finding]:
    if server.settings["server_encoding"] == "SQL_ASCII":
        yield Finding(
            Level.NOTE,
            f'database "{server.database}" has encoding SQL_ASCII: text that is not'
            " UTF-8 cannot be stored",
        )


def judge_publications(
    existing: Sequence[Publication], wanted: Sequence[str]
) -> Chosen:
    """Those that are wanted (none named: all), and what is wrong with them."""
    by_name = {p.name: p for p in existing}
    findings = []
    for name in dict.fromkeys(wanted):
        if name not in by_name:
            findings.append(
                Finding(
                    Level.PROBLEM,
                    f'publication "{name}" does not exist on the publisher',
                    f'CREATE PUBLICATION "{name}" FOR ALL TABLES; or FOR TABLE ...',
                )
            )
    if not wanted and not existing:
        findings.append(
            Finding(
                Level.PROBLEM,
                "there is no publication",
                "CREATE PUBLICATION my_publication FOR ALL TABLES; or FOR TABLE ...",
            )
        )
    found = tuple(p for p in existing if not wanted or p.name in wanted)
    for p in found:
        findings.append(_operations(p))
    return Chosen(found, tuple(findings))


def _operations(publication: Publication) -> Finding:
    missing = [
        operation.upper()
        for operation in ("insert", "update", "delete", "truncate")
        if not getattr(publication, operation)
    ]
    if not missing:
        return Finding(Level.OK, f'publication "{publication.name}" exists')
    return Finding(
        Level.NOTE,
        f'publication "{publication.name}" does not publish {", ".join(missing)}:'
        " the copy will differ from the source after one",
    )


def judge_table(table: Table) -> list[Finding]:
    """What stands in the way of one table, and what to know of it."""
    return [*_names(table), *_access(table), *_identity(table), *_extent(table)]


def _names(table: Table) -> Iterator[Finding]:
    remote = table.remote
    try:
        check_column_names((c.name for c in remote.columns), _qualified(remote))
    except FeatureNotSupportedError as refused:
        yield Finding(Level.PROBLEM, refused.message, refused.hint)


def _access(table: Table) -> Iterator[Finding]:
    name = _name(table.remote)
    if not table.readable:
        yield Finding(
            Level.PROBLEM,
            f"table {name} cannot be read, so its existing rows cannot be copied",
            f"GRANT SELECT ON {table.remote.qualified} TO the connection's role.",
        )
    if table.row_security:
        yield Finding(
            Level.PROBLEM,
            f"row-level security hides rows of table {name} from the copy",
            "Use a role with BYPASSRLS, or the table's owner.",
        )


def _identity(table: Table) -> Iterator[Finding]:
    remote, name = table.remote, _name(table.remote)
    if not table.updates:
        return
    if remote.identity is ReplicaIdentity.FULL:
        if not remote.key:
            yield Finding(
                Level.NOTE,
                f"table {name} has no primary key and REPLICA IDENTITY FULL:"
                " changes are found by the whole row",
            )
        return
    indexed = remote.identity is ReplicaIdentity.INDEX and remote.identity_key
    keyed = remote.identity is ReplicaIdentity.DEFAULT and remote.key
    if indexed or keyed:
        return
    yield Finding(
        Level.PROBLEM,
        f"table {name} has no replica identity: once it is published, the source refuses"
        " UPDATE and DELETE on it",
        f"Add a primary key, or: ALTER TABLE {remote.qualified} REPLICA IDENTITY USING"
        " INDEX (a unique index on NOT NULL columns) or FULL.",
    )


def _extent(table: Table) -> Iterator[Finding]:
    remote, name = table.remote, _name(table.remote)
    if remote.persistence != "p":
        yield Finding(
            Level.PROBLEM,
            f"table {name} is not logged, so its changes are not published",
            f"ALTER TABLE {remote.qualified} SET LOGGED;",
        )
    if remote.row_filters:
        filters = " OR ".join(remote.row_filters)
        yield Finding(Level.NOTE, f"table {name} is published WHERE {filters}")


def judge_toast(tables: Sequence[Table]) -> list[Finding]:
    """What becomes of large values, told once."""
    toasted = [t for t in tables if any(c.toastable for c in t.remote.columns)]
    if not toasted:
        return []
    return [
        Finding(
            Level.NOTE,
            f"{len(toasted)} of {len(tables)} tables can hold TOASTed values: an UPDATE"
            " that leaves one unchanged does not send it, and the node keeps the stored"
            " one",
        )
    ]


def lines(findings: Sequence[Finding], table: Table | None = None) -> Iterator[str]:
    """The report, or one table's part of it with the mapping of its columns."""
    if table is not None:
        yield ""
        yield _headline(table.remote)
    for finding in findings:
        yield f"{finding.level.value:<9}{finding.text}"
        if finding.hint:
            yield f"{'':<9}hint: {finding.hint}"
    if table is not None:
        yield from aligned(
            ("column", "PostgreSQL", "lakehouse", "note"),
            [_column(c) for c in table.remote.columns],
        )


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    problems = sum(f.level is Level.PROBLEM for f in findings)
    notes = sum(f.level is Level.NOTE for f in findings)
    told = "no problems" if problems == 0 else f"{problems} problem"
    if problems > 1:
        told += "s"
    return f"{told}, {notes} note{'' if notes == 1 else 's'}"


def _headline(remote: RemoteTable) -> str:
    key = f"key ({', '.join(remote.key)})" if remote.key else "no primary key"
    rows = (
        "rows unknown (never analyzed)"
        if remote.estimated_rows is None
        else f"about {remote.estimated_rows} rows"
    )
    return f"table {_name(remote)}: {key}, {rows}"


def _name(remote: RemoteTable) -> str:
    return f'"{_qualified(remote)}"'


def _qualified(remote: RemoteTable) -> str:
    # As PostgreSQL's messages name a table; in a statement it must be quoted.
    return f"{remote.namespace}.{remote.name}"


def _column(column: RemoteColumn) -> tuple[str, str, str, str]:
    known = mapping_for(
        column.type_oid,
        column.typmod,
        type_name=column.type_name,
        attndims=column.dimensions,
    )
    shown = known.type_name
    if column.domain is not None:
        shown = f"{column.domain} ({shown})"
    return (
        column.name,
        shown + (" not null" if column.not_null else ""),
        known.spark_ddl.lower(),
        known.note or "",
    )
