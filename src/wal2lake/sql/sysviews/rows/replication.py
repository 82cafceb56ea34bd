"""Rows about subscriptions: the catalogs and views of PostgreSQL, and wal2lake's own views.

Comes in: the source's subscriptions, their tables, snapshot vectors and live positions. Goes
out: rows as dicts by column name.

The subscription's owner sees the connection string; superusers see it without its password; other
roles do not see it. (In PostgreSQL superusers see all of it, and other roles may not read the
column.) Errors, coercions and messages may quote values of rows. Only the subscription's owner and
members of a predefined role see them (``guarded``).

SUBSCRIPTION_ROWS change with the catalog's counter. LIVE_ROWS are made for each query, and so are
rows that depend on the current role.

Sources: pg_subscription.h, pg_subscription_rel.h; pg_stat_get_subscription() in launcher.c;
pg_show_replication_origin_status() in origin.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from wal2lake.catalog import (
    PG_READ_ALL_DATA,
    PG_READ_ALL_STATS,
    CoercionTotal,
    NotedConflict,
    NotedDifference,
    NotedSchemaChange,
    PreparedState,
    Progress,
    ReplicationOrigin,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
    TableDef,
    Verification,
    WorkerKind,
)
from wal2lake.model import (
    DATABASE,
    DATABASE_OID,
    INVALID_LSN,
    ConflictType,
    Oid,
    SyncState,
)
from wal2lake.pg import redact
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.parameters import ParameterDefinition, ParameterKind
from wal2lake.sql.sysviews.rows.facts import Facts, current_role
from wal2lake.sql.sysviews.rows.relations import Row
from wal2lake.sql.sysviews.source import CatalogSource

_MASK: Final = "********"

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Replication:
    """The source's subscriptions at one moment."""

    subscriptions: tuple[Subscription, ...]
    rels: tuple[SubscriptionRel, ...]
    tables: Mapping[int, TableDef]
    coercions: tuple[CoercionTotal, ...]
    conflicts: tuple[NotedConflict, ...]
    verifications: tuple[Verification, ...]
    differences: tuple[NotedDifference, ...]
    schema_history: tuple[NotedSchemaChange, ...]
    errors: tuple[SubscriptionError, ...]
    stats: tuple[SubscriptionStats, ...]
    origins: tuple[ReplicationOrigin, ...]

    def name(self, subid: int) -> str | None:
        """Return a subscription's name."""
        return next((s.name for s in self.subscriptions if s.oid == subid), None)


def read_replication(source: CatalogSource, tables: Sequence[TableDef]) -> Replication:
    """Read the source."""
    return Replication(
        tuple(source.subscriptions()),
        tuple(source.rels()),
        {table.oid: table for table in tables},
        tuple(source.coercions()),
        tuple(source.conflicts()),
        tuple(source.verifications()),
        tuple(source.differences()),
        tuple(source.schema_history()),
        tuple(source.errors()),
        tuple(source.stats()),
        tuple(source.origins()),
    )


# ---- durable ----------------------------------------------------------------------------

_STREAMING: Final = {"off": "f", "on": "t", "parallel": "p"}


def pg_subscription(moment: Moment) -> Iterator[Row]:
    """Yield all subscriptions; options without a value have the node's defaults."""
    for sub in moment.state.subscriptions:
        yield {
            "oid": sub.oid,
            "subdbid": DATABASE_OID,
            "subskiplsn": sub.skip_lsn,
            "subname": sub.name,
            "subowner": sub.owner,
            "subenabled": sub.enabled,
            "subbinary": sub.binary,
            "substream": _STREAMING.get(sub.streaming, "f"),
            "subtwophasestate": sub.two_phase,
            "subdisableonerr": sub.disable_on_error,
            "subpasswordrequired": sub.password_required,
            "subrunasowner": sub.run_as_owner,
            "subfailover": sub.failover,
            "subconninfo": _conninfo(moment, sub),
            "subslotname": sub.slot_name,
            "subsynccommit": sub.synchronous_commit,
            "subpublications": list(sub.publications),
            "suborigin": sub.origin,
        }


def _conninfo(moment: Moment, sub: Subscription) -> str:
    authority = moment.facts.authority
    # A superuser has all privileges, but is not the owner.
    is_owner = sub.owner in authority.inherited(moment.role)
    is_superuser = authority.is_superuser(moment.role)
    if is_owner and is_superuser:
        return sub.conninfo
    # An owner may have got the subscription from somebody else, with the password.
    return redact(sub.conninfo) if is_owner or is_superuser else _MASK


def pg_subscription_rel(state: Replication) -> Iterator[Row]:
    """Yield the tables of subscriptions and their states."""
    for rel in state.rels:
        copying = rel.state in (SyncState.INIT, SyncState.DATASYNC)
        yield {
            "srsubid": rel.subid,
            "srrelid": rel.relid,
            "srsubstate": rel.state.value,
            "srsublsn": None if copying else rel.lsn,
        }


def pg_replication_origin(state: Replication) -> Iterator[Row]:
    """Yield an origin for each subscription, numbered in order, and created origins."""
    for number, sub in enumerate(state.subscriptions, 1):
        yield {"roident": number, "roname": f"pg_{sub.oid}"}
    for origin in state.origins:
        yield {"roident": origin.number, "roname": origin.name}


def sync_progress(state: Replication) -> Iterator[Row]:
    """Yield the progress of each table's copy, and the position of a table that is paused."""
    for rel in state.rels:
        table = state.tables.get(rel.relid)
        yield {
            "subname": state.name(rel.subid),
            "schemaname": rel.remote_namespace if table is None else table.namespace,
            "tablename": rel.remote_name if table is None else table.name,
            "state": rel.state.value,
            "rows_copied": rel.rows_copied,
            "rows_expected": rel.rows_expected,
            "bytes_copied": rel.bytes_copied,
            "error": rel.error,
            "paused_since": None
            if rel.paused_at is None
            else datetime.fromisoformat(rel.paused_at),
            "stands_at": rel.lsn if rel.paused or rel.rejoins else None,
        }


def subscription_errors(state: Replication) -> Iterator[Row]:
    """Yield the present errors of subscriptions and of copies of their tables."""
    for failure in state.errors:
        yield {
            "subid": failure.subid,
            "subname": state.name(failure.subid),
            "error": failure.error,
            "worker": failure.worker.value,
            "sqlstate": failure.sqlstate,
        }
    for rel in state.rels:
        if rel.error is not None:
            yield {
                "subid": rel.subid,
                "subname": state.name(rel.subid),
                "schemaname": rel.remote_namespace,
                "tablename": rel.remote_name,
                "error": rel.error,
                "worker": WorkerKind.COPY.value,
                "sqlstate": rel.sqlstate,
            }


def pg_stat_subscription_stats(state: Replication) -> Iterator[Row]:
    """Yield the counts of errors and conflicts of each subscription."""
    for counts in state.stats:
        reset = counts.stats_reset
        yield {
            "subid": counts.subid,
            "subname": state.name(counts.subid),
            "apply_error_count": counts.apply_errors,
            "sync_error_count": counts.sync_errors,
            **{f"confl_{kind}": counts.conflicts.get(kind, 0) for kind in ConflictType},
            "stats_reset": None if reset is None else datetime.fromisoformat(reset),
        }


def coercions(state: Replication) -> Iterator[Row]:
    """Yield the values that policies have stored instead of values that did not fit."""
    for total in state.coercions:
        table = state.tables.get(total.relid)
        if table is None:
            continue
        coercion = total.coercion
        yield {
            "subid": total.subid,
            "subname": state.name(total.subid),
            "schemaname": table.namespace,
            "tablename": table.name,
            "columnname": coercion.column,
            "phase": total.phase,
            "policy": coercion.policy,
            "reason": coercion.reason,
            "events": coercion.count,
            "first_lsn": coercion.first_lsn,
            "last_lsn": coercion.last_lsn,
            "first_at": datetime.fromisoformat(total.first_at),
            "last_at": datetime.fromisoformat(total.last_at),
            "example": coercion.example,
        }


def conflicts(state: Replication) -> Iterator[Row]:
    """Yield the conflicts of applied changes, and their resolutions."""
    for noted in state.conflicts:
        conflict = noted.conflict
        table = state.tables.get(conflict.relid)
        yield {
            "subid": noted.subid,
            "subname": state.name(noted.subid),
            "noted_at": datetime.fromisoformat(noted.noted_at),
            "schemaname": None if table is None else table.namespace,
            "tablename": None if table is None else table.name,
            "conflict_type": conflict.type.value,
            "resolution": conflict.resolution.value,
            "key": conflict.key,
            "commit_lsn": conflict.commit_lsn,
            "xid": conflict.xid,
            "origin": conflict.origin,
            "committed_at": conflict.committed_at,
            "events": conflict.count,
        }


def subscription_options(state: Replication) -> Iterator[Row]:
    """Yield the options that PostgreSQL does not have."""
    for sub in state.subscriptions:
        yield {
            "subid": sub.oid,
            "subname": sub.name,
            "create_tables": sub.create_tables,
            "type_mappings": sub.type_mappings,
            "value_policies": sub.value_policies,
            "schema_changes": sub.options.get("schema_changes", "manual"),
            "conflict_resolution": sub.conflict_resolution,
            "auto_refresh": sub.auto_refresh,
            "history": sub.history or None,
            "delete_mode": sub.options.get("delete_mode", "hard"),
            "table_format": sub.options.get("table_format", "delta"),
        }


def schema_history(state: Replication) -> Iterator[Row]:
    """Yield the changes of tables at their publishers, and the outcomes here."""
    for noted in state.schema_history:
        table = state.tables.get(noted.relid)
        yield {
            "subid": noted.subid,
            "subname": state.name(noted.subid),
            "lsn": noted.lsn,
            "noted_at": noted.noted_at,
            "schemaname": None if table is None else table.namespace,
            "tablename": None if table is None else table.name,
            "change": noted.change,
            "outcome": noted.outcome,
        }


SUBSCRIPTION_ROWS: Final[Mapping[str, Callable[[Replication], Iterator[Row]]]] = {
    maker.__name__: maker
    for maker in (
        pg_subscription_rel,
        pg_replication_origin,
        sync_progress,
        subscription_errors,
        pg_stat_subscription_stats,
        coercions,
        conflicts,
        subscription_options,
        schema_history,
    )
}


# ---- moving ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """The facts that the rows of a moving view are made from."""

    facts: Facts
    state: Replication
    source: CatalogSource
    context: SessionContext

    @property
    def role(self) -> Oid:
        """The OID of the current role."""
        return current_role(self.facts, self.context)

    def sees_all(self, name: str) -> bool:
        """Whether the current role sees every row of a guarded view."""
        return self.facts.authority.has_privileges_of(self.role, GUARDED[name])

    def guarded(self) -> Replication:
        """Return the subscriptions of the current role only."""
        authority, role = self.facts.authority, self.role
        state = self.state
        mine = {s.oid for s in state.subscriptions if authority.owns(role, s.owner)}
        return replace(
            state,
            subscriptions=tuple(s for s in state.subscriptions if s.oid in mine),
            errors=tuple(e for e in state.errors if e.subid in mine),
            coercions=tuple(c for c in state.coercions if c.subid in mine),
            conflicts=tuple(c for c in state.conflicts if c.subid in mine),
            differences=tuple(d for d in state.differences if d.subid in mine),
            rels=tuple(r for r in state.rels if r.subid in mine),
        )


def pg_replication_origin_status(moment: Moment) -> Iterator[Row]:
    """Yield the position of each origin: the end of the last transaction that all tables have.

    ``local_lsn`` is the end of that transaction in the node's own log, if it was captured."""
    state, remote = moment.state, moment.source.applied_ends()
    local = moment.source.local_ends()
    for number, sub in enumerate(state.subscriptions, 1):
        name = f"pg_{sub.oid}"
        yield {
            "local_id": number,
            "external_id": name,
            "remote_lsn": remote.get(sub.oid, INVALID_LSN),
            "local_lsn": local.get(name, INVALID_LSN),
        }
    for origin in state.origins:
        # PostgreSQL lists only origins that have a position.
        if origin.remote_lsn:
            yield {
                "local_id": origin.number,
                "external_id": origin.name,
                "remote_lsn": origin.remote_lsn,
                "local_lsn": local.get(origin.name, INVALID_LSN),
            }


def pg_stat_subscription(moment: Moment) -> Iterator[Row]:
    """Yield the apply worker of each subscription, and the workers that copy its tables.

    A copy worker has receipt times, and no positions."""
    for sub in moment.state.subscriptions:
        progress = moment.source.progress(sub.oid)
        running = progress is not None and progress.receiver_pid != 0
        yield {
            "subid": sub.oid,
            "subname": sub.name,
            **(_worker(progress) if progress is not None and running else {}),
        }
        for copy in moment.source.copies(sub.oid):
            yield {
                "subid": sub.oid,
                "subname": sub.name,
                "worker_type": "table synchronization",
                "pid": moment.source.engine_pid,
                "relid": copy.relid,
                "last_msg_receipt_time": copy.received_at,
            }


def _worker(progress: Progress) -> Row:
    return {
        "worker_type": "apply",
        "pid": progress.receiver_pid,
        "received_lsn": progress.received or None,
        "last_msg_send_time": _time(progress.last_msg_send_time),
        "last_msg_receipt_time": _time(progress.last_msg_receipt_time),
        "latest_end_lsn": progress.latest_end_lsn or None,
        "latest_end_time": _time(progress.latest_end_time),
    }


def _time(microseconds: int) -> datetime | None:
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds else None


def snapshots(moment: Moment) -> Iterator[Row]:
    """Yield each published state: the version of every table of a subscription.

    There are thousands of states, so they are read for each query and not kept."""
    state = moment.state
    for vector in moment.source.vectors():
        name = state.name(vector.subid)
        for relid, version in vector.versions.items():
            table = state.tables.get(relid)
            if table is not None and vector.elsewhere(table.oid) is None:
                yield {
                    "subid": vector.subid,
                    "subname": name,
                    "lsn": vector.lsn,
                    "committed_at": datetime.fromisoformat(vector.committed_at),
                    "schemaname": table.namespace,
                    "tablename": table.name,
                    "version": version,
                }


def messages(moment: Moment) -> Iterator[Row]:
    """Yield the logical messages in the change logs."""
    sees_all = moment.sees_all("messages")
    state = moment.state if sees_all else moment.guarded()
    for sub in state.subscriptions:
        for message in moment.source.messages(sub.oid):
            yield {
                "subid": sub.oid,
                "subname": sub.name,
                "lsn": message.lsn,
                "commit_lsn": message.commit_lsn,
                "transactional": message.commit_lsn is not None,
                "prefix": message.prefix,
                "content": message.content,
            }


def pg_prepared_xacts(moment: Moment) -> Iterator[Row]:
    """Yield the transactions that sessions or publishers have prepared.

    A publisher's transaction has the name that a PostgreSQL subscriber would give it."""
    owners = {role.oid: role.name for role in moment.facts.roles}
    for local in moment.source.prepared_commits():
        if local.state is PreparedState.PREPARED:
            yield {
                "transaction": local.xid,
                "gid": local.gid,
                "prepared": _time(local.prepared_at),
                "owner": owners.get(local.owner),
                "database": DATABASE,
            }
    for sub in moment.state.subscriptions:
        for prepared in moment.source.prepared(sub.oid):
            yield {
                "transaction": int(prepared.xid),
                "gid": f"pg_gid_{sub.oid}_{prepared.xid}",
                "prepared": _time(prepared.prepare_time),
                "owner": owners.get(sub.owner),
                "database": DATABASE,
            }


def pg_stat_activity(moment: Moment) -> Iterator[Row]:
    """Yield the clients' sessions and the workers of subscriptions."""
    yield from _workers(moment)
    users = {role.name: role.oid for role in moment.facts.roles}
    for session in moment.source.sessions():
        yield _shown(
            moment,
            users.get(session.user),
            {
                "pid": session.pid,
                "usename": session.user,
                "application_name": session.application_name,
            },
            {
                "client_addr": session.client_host or None,
                "client_port": session.client_port if session.client_host else -1,
                "backend_start": datetime.fromtimestamp(session.started_at, UTC),
                "state": session.state,
                "query": session.query,
                "backend_type": "client backend",
            },
        )


def _shown(moment: Moment, user: Oid | None, public: Row, guarded: Row) -> Row:
    """Return a backend's row; members of its role and of pg_read_all_stats see ``guarded``."""
    seen = _sees_backend(moment, user)
    return {
        "datid": DATABASE_OID,
        "datname": DATABASE,
        "usesysid": user,
        **public,
        **(guarded if seen else {"query": "<insufficient privilege>"}),
    }


def _sees_backend(moment: Moment, user: Oid | None) -> bool:
    """HAS_PGSTAT_PERMISSIONS() in pgstatfuncs.c."""
    authority, role = moment.facts.authority, moment.role
    return authority.has_privileges_of(role, PG_READ_ALL_STATS) or (
        user is not None and authority.owns(role, user)
    )


def _workers(moment: Moment) -> Iterator[Row]:
    """Yield the workers of pg_stat_subscription; each runs as its subscription's owner."""
    names = {role.oid: role.name for role in moment.facts.roles}
    owners = {sub.oid: sub.owner for sub in moment.state.subscriptions}
    for worker in pg_stat_subscription(moment):
        if worker.get("pid") is None:
            continue
        owner = owners[worker["subid"]]
        kind = "apply" if worker["worker_type"] == "apply" else "tablesync"
        yield _shown(
            moment,
            owner,
            {
                "pid": worker["pid"],
                "usename": names.get(owner),
                "application_name": "",
            },
            {
                "state": "active" if kind == "tablesync" else "idle",
                "query": "",
                "backend_type": f"logical replication {kind} worker",
            },
        )


def pg_stat_ssl(moment: Moment) -> Iterator[Row]:
    """Yield the encryption of sessions; as in PostgreSQL, guarded sessions have no row."""
    users = {role.name: role.oid for role in moment.facts.roles}
    for session in moment.source.sessions():
        if not _sees_backend(moment, users.get(session.user)):
            continue
        tls = session.encrypted
        yield {
            "pid": session.pid,
            "ssl": tls is not None,
            "version": tls and tls.version,
            "cipher": tls and tls.cipher,
            "bits": tls and tls.bits,
            "client_dn": tls and tls.subject,
        }


def pg_stat_database(moment: Moment) -> Iterator[Row]:
    """Yield the one database; a node counts only its sessions."""
    yield {
        "datid": DATABASE_OID,
        "datname": DATABASE,
        "numbackends": len(moment.source.sessions()),
    }


def _limits(definition: ParameterDefinition) -> tuple[str | None, str | None]:
    if definition.kind is ParameterKind.INTEGER:
        return str(definition.minimum), str(definition.maximum)
    if definition.kind is ParameterKind.REAL:
        return f"{definition.least:g}", f"{definition.greatest:g}"
    return None, None


def pg_settings(moment: Moment) -> Iterator[Row]:
    """Yield the session's parameters."""
    parameters = moment.context.parameters
    for name in parameters:
        definition = parameters.definition(name)
        least, greatest = _limits(definition)
        current, initial = parameters.raw(name), parameters.reset_value(name)
        yield {
            "name": definition.name,
            "setting": current,
            "unit": definition.unit.value or None,
            "category": "Preset Options"
            if definition.context.value == "internal"
            else "Client Connection Defaults",
            "short_desc": definition.description,
            "context": definition.context.value,
            "vartype": definition.kind.value,
            "source": "default" if parameters[name] == initial else "session",
            "min_val": least,
            "max_val": greatest,
            "enumvals": list(definition.choices) or None,
            "boot_val": definition.default,
            "reset_val": current if parameters[name] == initial else initial,
            "pending_restart": False,
        }


def apply_methods(moment: Moment) -> Iterator[Row]:
    """Yield the methods by which each table's batches were written since the engine started."""
    for rel in moment.state.rels:
        table = moment.state.tables.get(rel.relid)
        if table is None:
            continue
        for method, total in moment.source.methods(rel, table.location).items():
            yield {
                "subid": rel.subid,
                "subname": moment.state.name(rel.subid),
                "schemaname": table.namespace,
                "tablename": table.name,
                "method": method.value,
                "batches": total.batches,
                "rows": total.rows,
                "seconds": round(total.seconds, 3),
            }


GUARDED: Final[Mapping[str, Oid]] = {
    "subscription_errors": PG_READ_ALL_STATS,
    "sync_progress": PG_READ_ALL_STATS,
    "problems": PG_READ_ALL_STATS,
    "catalog_tables": PG_READ_ALL_STATS,
    "coercions": PG_READ_ALL_DATA,
    "conflicts": PG_READ_ALL_DATA,
    "differences": PG_READ_ALL_DATA,
    "messages": PG_READ_ALL_DATA,
}
"""Views with rows or values that only a subscription's owner may see, and the predefined role that
sees all of them."""

LIVE_ROWS: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    maker.__name__: maker
    for maker in (
        pg_subscription,
        pg_replication_origin_status,
        pg_stat_subscription,
        apply_methods,
        snapshots,
        messages,
        pg_prepared_xacts,
        pg_stat_activity,
        pg_stat_ssl,
        pg_stat_database,
        pg_settings,
    )
}
