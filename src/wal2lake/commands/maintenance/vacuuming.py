"""VACUUM: removes the files of tables that no kept version needs.

Takes the parsed statement; vacuums its tables, or all, one after the other
(``local.retention``). A table that the caller may not vacuum, or that cannot be vacuumed now, is
left with a WARNING, as in PostgreSQL. VERBOSE tells about each table in INFO lines, as does
DRY_RUN, which removes nothing.

PostgreSQL's other options are about pages, indexes and statistics of a heap. They are accepted,
and a NOTICE says that they have no effect. FULL would have to rewrite the table (0A000).

Source: ExecVacuum(), vacuum_rel(), vacuum_is_permitted_for_relation() in vacuum.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wal2lake.catalog import DATABASE_OWNER, Authority, TableDef
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake.retention import FileKind
from wal2lake.local.access import owns
from wal2lake.local.node import Caller, EngineParts, find_table, need_table
from wal2lake.local.retention import (
    Skipped,
    TablePlace,
    Vacuum,
    VacuumReport,
    VacuumRequest,
    places_of,
    remove_branch,
    unknown_branches,
)
from wal2lake.model import DATABASE, ObjectKind
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.maintenance import VacuumTables
from wal2lake.sql.grammar.maintenance.vacuuming import VacuumedTable
from wal2lake.sql.sysviews.declarations.relations import system_relation


def vacuum(node: EngineParts, caller: Caller, statement: VacuumTables) -> str:
    """Execute VACUUM; returns its command tag."""
    outside_block(caller, "VACUUM")
    if statement.full:
        raise FeatureNotSupportedError(
            "VACUUM FULL is not supported: small files are rewritten as larger ones behind"
            " commits",
            hint="Use VACUUM without FULL to remove files that no version needs.",
        )
    tables = _chosen(node, caller, statement)
    _tell_without_effect(caller, statement)
    if "ONLY_DATABASE_STATS" in statement.without_effect:
        return "VACUUM"
    request = VacuumRequest(dry_run=statement.dry_run, check=caller.check)
    vacuums = Vacuum(node)
    for place in places_of(node.catalog, tables):
        _Telling(caller, statement, place).run(vacuums, request)
    if not statement.tables and owns(node.catalog, caller, DATABASE_OWNER):
        _branches(node, caller, statement)
    return "VACUUM"


# ---- which tables ----------------------------------------------------------------------


def _chosen(
    node: EngineParts, caller: Caller, statement: VacuumTables
) -> list[TableDef]:
    """Return the tables that the caller may vacuum; a WARNING for each other one."""
    authority = node.catalog.authority()
    if not statement.tables:
        every = node.catalog.tables()
        return [t for t in every if _is_permitted(node, caller, authority, t)]
    tables = [
        table
        for named in statement.tables
        for table in _named(node, caller, statement, named)
    ]
    return [t for t in tables if _is_permitted(node, caller, authority, t)]


def _named(
    node: EngineParts, caller: Caller, statement: VacuumTables, named: VacuumedTable
) -> list[TableDef]:
    """Return a table with its partition; empty for a relation of the system."""
    schema, name = named.name.schema, named.name.name
    if find_table(node.catalog, caller, schema, name) is None:
        system = system_relation(schema, name)
        if system is not None:
            _leave_system_relation(caller, name, is_table=system.kind == "r")
            return []
    table = need_table(node.catalog, caller, schema, name)
    for column in named.columns:
        if all(column != defined.name for defined in table.columns):
            raise UsageError(
                f'column "{column}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
    if table.partition_key is None:
        return [table]
    if named.only:
        _warn(caller, f'VACUUM ONLY of partitioned table "{table.name}" has no effect')
        return []
    partitions = [t for t in node.catalog.tables() if t.partition_of == table.oid]
    return [table, *partitions]


def _leave_system_relation(caller: Caller, name: str, *, is_table: bool) -> None:
    if not caller.role.superuser:
        _warn(caller, f'permission denied to vacuum "{name}", skipping it')
    elif not is_table:
        _warn(
            caller,
            f'skipping "{name}" --- cannot vacuum non-tables or special system tables',
        )


def _is_permitted(
    node: EngineParts, caller: Caller, authority: Authority, table: TableDef
) -> bool:
    """Whether the caller may vacuum a table: the owner of the table or of the database may, and
    a role with MAINTAIN."""
    if caller.role.superuser or owns(node.catalog, caller, table.owner, DATABASE_OWNER):
        return True
    letters = authority.letters(
        caller.role.oid, ObjectKind.TABLE, table.owner, table.acl
    )
    if "m" in letters:
        return True
    _warn(caller, f'permission denied to vacuum "{table.name}", skipping it')
    return False


# ---- what the client is told -------------------------------------------------------------


def _warn(caller: Caller, message: str, hint: str | None = None) -> None:
    caller.notice(Notice(message, severity="WARNING", sqlstate="01000", hint=hint))


def _tell_without_effect(caller: Caller, statement: VacuumTables) -> None:
    names = [*(("ANALYZE",) if statement.analyze else ()), *statement.without_effect]
    if names:
        plural = "options" if len(names) > 1 else "option"
        caller.notice(
            Notice(
                f"VACUUM {plural} {', '.join(names)} without effect on tables of a lake",
                detail="Statistics of files are always up to date; there are neither"
                " pages nor indexes.",
            )
        )


@dataclass(frozen=True, slots=True)
class _Telling:
    """Vacuums one table and tells the client."""

    caller: Caller
    statement: VacuumTables
    place: TablePlace

    def run(self, vacuums: Vacuum, request: VacuumRequest) -> None:
        """Vacuum the table."""
        table = self.place.tables[0]
        shown = f"{DATABASE}.{table.qualified}"
        tells = self.statement.verbose or self.statement.dry_run
        if tells:
            self._info(f'vacuuming "{shown}"')
        try:
            report = vacuums.run(self.place, request)
        except Skipped as error:
            _warn(
                self.caller,
                f'skipping vacuum of "{table.name}" --- {error}',
                error.hint,
            )
            return
        if report.lacking:
            _warn(
                self.caller,
                f'table "{table.name}" lacks {len(report.lacking)} of its files, such as'
                f' "{report.lacking[0]}"',
                "Restore the files from a backup, or copy the table again.",
            )
        if tells:
            self._info(self._finished(shown, report))

    def _info(self, message: str) -> None:
        self.caller.notice(Notice(message, severity="INFO"))

    def _finished(self, shown: str, report: VacuumReport) -> str:
        would = self.statement.dry_run
        verb = "would be removed" if would else "removed"
        first = "dry run of vacuuming" if would else "finished vacuuming"
        lines = [
            f'{first} "{shown}": files: {report.count} {verb}, {report.size} bytes',
            f"of these: {described(report.files, report.bytes)}",
            f"orphans: {report.orphans} {verb}, {report.waiting} not old enough",
            f"states: {report.states} {verb} from wal2lake.snapshots",
            f"versions: {report.oldest} to {report.newest} are readable",
        ]
        return "\n".join(lines)


def described(files: Mapping[FileKind, int], sizes: Mapping[FileKind, int]) -> str:
    """Describe removed files by kind."""
    parts: Sequence[str] = [
        f"{files[kind]} {kind} ({sizes[kind]} bytes)"
        for kind in FileKind
        if kind in files
    ]
    return ", ".join(parts) or "none"


def _branches(node: EngineParts, caller: Caller, statement: VacuumTables) -> None:
    """Remove branches that nobody knows."""
    for branch in unknown_branches(node, caller.check):
        if not statement.dry_run:
            remove_branch(node, branch)
        if statement.verbose or statement.dry_run:
            verb = "would be removed" if statement.dry_run else "removed"
            caller.notice(
                Notice(
                    f'branch "{branch.name}" that nobody knows: {branch.files} files'
                    f" {verb}, {branch.bytes} bytes",
                    severity="INFO",
                )
            )
