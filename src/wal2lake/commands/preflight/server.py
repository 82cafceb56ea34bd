"""Judges a server and its publications: facts in, findings out. Pure.

This node needs one slot and one walsender for the stream, and one more of each for the snapshot
while tables are being copied.

Source: PostgreSQL manual, 19.6 (replication), 29.13 (configuration settings).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.commands.preflight.finding import Finding, Level
from wal2lake.commands.preflight.pooler import Pooler
from wal2lake.errors import PublisherError

OLDEST_VERSION: Final = 140000

_STANDBY_VERSION: Final = 160000
"""First version that supports logical decoding on a standby."""

_QUOTED_VERSION: Final = 170000
"""First version that quotes names of settings in its messages."""

_ON_DEMAND_VERSION: Final = 190000
"""First version that raises the effective wal_level with its first logical slot."""

_SMALL_KEEP_MB: Final = 1024
"""A slot that is lost below this lag gets a note. Chosen arbitrarily."""

_SHORT_IDLE_SECONDS: Final = 86_400
"""A shorter idle timeout does not survive a day's outage. Chosen arbitrarily."""

_LIMITS: Final[Mapping[str, tuple[str, str | None]]] = {
    "max_replication_slots": ("replication slots", "all replication slots are in use"),
    "max_wal_senders": ("WAL senders", None),
}
"""Resource of each limit, and the server's answer to CREATE_REPLICATION_SLOT when the resource is
exhausted."""

_DIRECTLY: Final = "Connect to the server itself, not to a pooler."


@dataclass(frozen=True, slots=True)
class Server:
    """Facts about the server."""

    version: int
    version_text: str
    database: str
    settings: Mapping[str, str | None]
    """Values in the units of pg_settings; settings unknown to the server are missing."""
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
    """Reason for refusing a replication connection; None if it was accepted."""
    pooler: Pooler | None
    """The pooler in front of the server; None without one."""


@dataclass(frozen=True, slots=True)
class SourcePublication:
    """A row of pg_publication."""

    name: str
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    via_root: bool


@dataclass(frozen=True, slots=True)
class Chosen:
    """The requested publications that exist, and the findings about all."""

    publications: tuple[SourcePublication, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """Actions that a command is about to take at the server."""

    stream: bool = True
    """True if a subscription's stream begins."""
    slot: bool = True
    """True if a slot will be created."""
    copy: bool = True
    """True if existing rows will be copied."""


def judge_server(server: Server, needs: Needs = Needs()) -> list[Finding]:
    """Judge version, settings, free slots and walsenders, and the role's rights."""
    findings = []
    if needs.stream:
        findings += [_version(server), _wal_level(server), *_pooler(server)]
    slots = int(needs.stream and needs.slot)
    findings += [
        *_room(server, "max_replication_slots", server.slots, slots, needs.copy),
        *_room(server, "max_wal_senders", server.senders, needs.stream, needs.copy),
    ]
    if needs.stream:
        findings += [*_role(server), *_slot_limits(server), *_encoding(server)]
    if slots or needs.copy:
        findings += [*_standby(server), *_prepared(server)]
    return findings


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
            blocks=PublisherError(
                "logical decoding cannot be used while in recovery", sqlstate="0A000"
            ),
        )
    where = "standby" if server.in_recovery else "server"
    return Finding(Level.OK, f"{where} is PostgreSQL {server.version_text}")


def _wal_level(server: Server) -> Finding:
    level = server.settings["wal_level"]
    if level == "logical":
        return Finding(Level.OK, "wal_level is logical")
    if server.version >= _ON_DEMAND_VERSION:
        return _effective_wal_level(server, level)
    shown = ('"wal_level"', '"logical"')
    if server.version < _QUOTED_VERSION:
        shown = ("wal_level", "logical")
    where = " on standby" if server.in_recovery else ""
    which = " on the primary" if server.in_recovery else ""
    return Finding(
        Level.PROBLEM,
        f"wal_level is {level}, logical is needed",
        "ALTER SYSTEM SET wal_level = logical; then restart the server.",
        blocks=PublisherError(
            f"logical decoding{where} requires {' >= '.join(shown)}{which}",
            sqlstate="55000",
        ),
    )


def _effective_wal_level(server: Server, level: str | None) -> Finding:
    """Judge a version whose WAL level follows the primary's slots; wal_level is the minimum."""
    if server.settings.get("effective_wal_level") == "logical":
        return Finding(Level.OK, "effective_wal_level is logical")
    if server.in_recovery:
        return Finding(
            Level.PROBLEM,
            "effective_wal_level is not logical on the primary",
            "Create a logical slot on the primary, or: ALTER SYSTEM SET wal_level ="
            " logical; there, then restart it.",
            blocks=PublisherError(
                "logical decoding on standby requires"
                ' "effective_wal_level" >= "logical" on the primary',
                sqlstate="55000",
            ),
        )
    if level == "replica":
        return Finding(
            Level.OK, "wal_level is replica, which a logical slot raises to logical"
        )
    return Finding(
        Level.PROBLEM,
        f"wal_level is {level}, replica is needed",
        "ALTER SYSTEM SET wal_level = replica; then restart the server.",
        blocks=PublisherError(
            'replication slots can only be used if "wal_level" >= "replica"',
            sqlstate="55000",
        ),
    )


def _room(
    server: Server, setting: str, used: int, stream: int, copy: bool
) -> Iterator[Finding]:
    if not stream and not copy:
        return
    what, refusal = _LIMITS[setting]
    limit = int(server.settings[setting] or 0)
    free = limit - used
    text = f"{max(free, 0)} of {limit} {what} are free"
    hint = f"ALTER SYSTEM SET {setting} = {used + 10}; then restart the server."
    if free < stream:
        yield Finding(
            Level.PROBLEM,
            f"{text}, a subscription needs one",
            hint,
            blocks=None
            if refusal is None
            else PublisherError(refusal, sqlstate="53400"),
        )
    elif free < stream + copy:
        which = "a second" if stream else "one"
        yield Finding(
            Level.PROBLEM, f"{text}, the copy of existing rows needs {which}", hint
        )
    else:
        yield Finding(Level.OK, text)


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


def _pooler(server: Server) -> Iterator[Finding]:
    pooler = server.pooler
    if pooler is None:
        return
    between = "a connection pooler is in between"
    if pooler.refusal is not None:
        yield Finding(
            Level.PROBLEM,
            f"{between}, and refuses ordinary connections, which the copy needs:"
            f" {pooler.refusal}",
            _DIRECTLY,
        )
        return
    if pooler.alone is not None:
        yield Finding(
            Level.PROBLEM,
            f"{between}, and does not serve two connections at once, which the copy needs:"
            f" {pooler.alone}",
            f"{_DIRECTLY} If it must be one, raise its pool_size.",
        )
        return
    if pooler.ignored:
        yield Finding(
            Level.PROBLEM,
            f"{between} that ignores what a connection sets at its start"
            f" ({', '.join(pooler.ignored)}): the copy may bring values in another form",
            _DIRECTLY,
        )
    if pooler.shares:
        yield Finding(
            Level.PROBLEM,
            f"{between} that gives each transaction another server process: what is set"
            " for a connection is lost, or meets somebody else's",
            f"{_DIRECTLY} If it must be one, let it pool whole sessions.",
        )
    elif not pooler.ignored:
        yield Finding(
            Level.NOTE,
            f"{between}: its limits and time-outs hold for the stream and the copy",
            _DIRECTLY,
        )


def _slot_limits(server: Server) -> Iterator[Finding]:
    keep = int(server.settings.get("max_slot_wal_keep_size") or -1)
    lost = "its slot is invalidated, and all tables must be copied again"
    if keep < 0:
        yield Finding(
            Level.INFO,
            "max_slot_wal_keep_size is unlimited: while the node is down, WAL is kept"
            " until the disk is full",
        )
    else:
        yield Finding(
            Level.NOTE if keep < _SMALL_KEEP_MB else Level.INFO,
            f"max_slot_wal_keep_size is {keep} MB: if the node is behind by more, {lost}",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '16GB'; or more, then"
            " SELECT pg_reload_conf();"
            if keep < _SMALL_KEEP_MB
            else None,
        )
    idle = int(server.settings.get("idle_replication_slot_timeout") or 0)
    if idle:
        short = idle < _SHORT_IDLE_SECONDS
        yield Finding(
            Level.NOTE if short else Level.INFO,
            f"idle_replication_slot_timeout is {idle} s: if the node is away for longer,"
            f" {lost}",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; or longer, then"
            " SELECT pg_reload_conf();"
            if short
            else None,
        )


def _standby(server: Server) -> Iterator[Finding]:
    if not server.in_recovery or server.version < _STANDBY_VERSION:
        return
    yield Finding(
        Level.NOTE,
        "publisher is a standby server",
        "Execute pg_log_standby_snapshot() on the primary.",
        "A replication slot is created on it once its primary has logged the running"
        " transactions, and so is each snapshot that tables are copied under. A primary"
        " logs them by itself while it is written to.",
    )
    if server.settings.get("hot_standby_feedback") == "off":
        yield Finding(
            Level.NOTE,
            "hot_standby_feedback is off: VACUUM on the primary may remove what the slot"
            " needs, which invalidates it",
            "ALTER SYSTEM SET hot_standby_feedback = on; on the standby, then"
            " SELECT pg_reload_conf(); and let it use a slot of the primary"
            " (primary_slot_name).",
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
    existing: Sequence[SourcePublication], wanted: Sequence[str]
) -> Chosen:
    """Look up the wanted publications, or all if none is named.

    Each missing publication is a finding."""
    findings = []
    there = {p.name for p in existing}
    missing = [name for name in dict.fromkeys(wanted) if name not in there]
    if missing:
        findings.append(missing_publications(missing))
    if not wanted and not existing:
        findings.append(
            Finding(
                Level.PROBLEM,
                "there is no publication",
                "CREATE PUBLICATION my_publication FOR ALL TABLES; or FOR TABLE ...",
            )
        )
    publications = tuple(p for p in existing if not wanted or p.name in wanted)
    findings += [
        Finding(Level.OK, f'publication "{p.name}" exists') for p in publications
    ]
    return Chosen(publications, tuple(findings))


def judge_extents(extents: Mapping[str, int]) -> list[Finding]:
    """Judge publications without tables; ``extents``: number of tables by publication."""
    return [
        Finding(
            Level.PROBLEM,
            f'publication "{name}" has no tables',
            f'ALTER PUBLICATION "{name}" ADD TABLE ...; or create the tables, if it is FOR'
            " ALL TABLES or FOR TABLES IN SCHEMA.",
        )
        for name, tables in extents.items()
        if not tables
    ]


def missing_publications(names: Sequence[str]) -> Finding:
    """Return the finding with PostgreSQL's message (check_publications())."""
    shown = ", ".join(f'"{name}"' for name in names)
    return Finding(
        Level.PROBLEM,
        f"publication {shown} does not exist on the publisher"
        if len(names) == 1
        else f"publications {shown} do not exist on the publisher",
        f'CREATE PUBLICATION "{names[0]}" FOR ALL TABLES; or FOR TABLE ...',
    )
